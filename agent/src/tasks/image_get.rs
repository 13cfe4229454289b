//! `image_get`: the manifest of an image that is installed here.

use std::time::Duration;

use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use serde_json::json;

use super::machine::{self, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, Queue, TaskContext, TaskFailure};

/// The queue of what asks about images.
pub(super) const IMAGE_QUERY: Queue =
    Queue { name: "image_query", max_concurrent: 16, max_wait: Duration::from_secs(60) };

/// The kind; parameter `uuid`.
#[derive(Debug)]
pub struct ImageGet;

impl Handler for ImageGet {
    fn kind(&self) -> Kind {
        Kind::query("image_get", IMAGE_QUERY, Duration::from_secs(60))
    }

    fn example(&self) -> Params {
        let uuid = json!("01020304-0506-4708-890a-0b0c0d0e0f10");
        Params::from_iter([("uuid".to_owned(), uuid)])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let image = machine::image(params, "uuid")?;
        Ok(Plan::of(Vec::new(), Get { image }, STEPS))
    }
}

const STEPS: &[Row<Get>] = steps![("get", 100, get)];

#[derive(Debug)]
struct Get {
    image: ImageUuid,
}

impl Get {
    async fn get(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let prefix = format!("Image.get error: error getting image {}:", self.image);
        match ctx.drivers.images.get(self.image).await? {
            Some(installed) => {
                ctx.finish_with(installed.manifest);
                Ok(())
            }
            None => Err(refuse(Code::ImageNotInstalled, format!("{prefix} it is not installed"))),
        }
    }
}
