//! `server_images`: the images on this node, and who needs them.

use std::time::Duration;

use muster_shared::api::server_image::{ServerImage, ServerImages};
use muster_shared::clock::iso;
use serde_json::{Value, json};

use super::image_get::IMAGE_QUERY;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::images::ImageUsage;

/// The kind; no parameters. Its result: [`ServerImages`].
#[derive(Debug)]
pub struct ServerImageList;

impl Handler for ServerImageList {
    fn kind(&self) -> Kind {
        Kind::query("server_images", IMAGE_QUERY, Duration::from_secs(60))
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), List, STEPS))
    }
}

const STEPS: &[Row<List>] = steps![("list", 100, list)];

#[derive(Debug)]
struct List;

impl List {
    async fn list(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let images = ctx.drivers.images.list().await?;
        let images = images.iter().map(describe).collect();
        ctx.finish_with(json!(ServerImages { images }));
        Ok(())
    }
}

fn describe(found: &ImageUsage) -> ServerImage {
    let text = |member: &str| found.manifest.get(member).and_then(Value::as_str).map(str::to_owned);
    ServerImage {
        uuid: found.image,
        name: text("name"),
        version: text("version"),
        origin: found.origin(),
        size_bytes: found.used_bytes,
        installed_at: iso(found.installed_at),
        last_used_at: found.last_used_at.map(iso),
        disks: found.dependents.disks,
        vms: found.dependents.vms,
    }
}
