//! `muster server images`: the images that lie on a node.

use clap::Subcommand;
use muster_shared::api::server_image::ServerImage;
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::ImageUuid;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::output::{Item, Output, member};
use crate::table::{Column, ListArgs};
use crate::wait::WaitArgs;
use crate::{CliError, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the images, how many disks use each, and when each was last used.
    List {
        /// Uuid, its beginning, or hostname.
        server: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Downloads an image to the node ahead of time.
    Add {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Name, `NAME@VERSION`, uuid or its beginning.
        image: String,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Removes an image from the node. Refused while disks or other images there need it; it is
    /// downloaded again for the next VM that uses it.
    Remove {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Its full uuid.
        image: ImageUuid,
        #[command(flatten)]
        wait: WaitArgs,
    },
}

#[derive(Debug, Deserialize)]
struct Images {
    images: Vec<Answer<ServerImage>>,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { server, list } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let path = format!("/servers/{server}/images");
            let fetch = async || client.get::<Images>(&path, &[]).await.map(|found| found.images);
            output.list(&list, fetch).await
        }
        Args::Add { server, image, wait } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let image = pick::image(client, &image).await?;
            let path = format!("/servers/{server}/ensure-image");
            let body = json!({ "image_uuid": image.uuid });
            let started: TaskStarted = client.post(&path, &body).await?;
            let object = json!({ "id": started.id });
            let title = format!("add {}@{}", image.name, image.version);
            wait.follow_and_say(client, output, &title, &started, &object).await
        }
        Args::Remove { server, image, wait } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let path = format!("/servers/{server}/images/{image}");
            let started: TaskStarted = client.delete(&path).await?;
            let object = json!({ "id": started.id });
            let title = format!("remove {image}");
            wait.follow_and_say(client, output, &title, &started, &object).await
        }
    }
}

impl Item for Answer<ServerImage> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |image: &Self| Cell::id(&image.uuid)),
        Column::new("NAME", |image: &Self| Cell::maybe(image.name.as_ref())).cut(),
        Column::new("VERSION", |image: &Self| Cell::maybe(image.version.as_ref())).cut(),
        Column::new("SIZE", |image: &Self| Cell::bytes(Some(image.size_bytes))),
        Column::new("DISKS", member!(Self: disks)),
        Column::new("VMS", member!(Self: vms)).cut().spare(3),
        Column::new("INSTALLED", |image: &Self| Cell::since(image.json()["installed_at"].as_str()))
            .spare(1),
        Column::new("LAST USED", |image: &Self| Cell::since(image.last_used_at.as_deref()))
            .spare(2),
    ];

    fn id(&self) -> String {
        self.uuid.to_string()
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}
