//! `muster image`: what machines are made from.

use clap::Subcommand;
use muster_shared::api::image::Manifest;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::confirm::meant;
use crate::output::{Item, Output, shown};
use crate::table::{Column, ListArgs};
use crate::{CliError, image_create, image_export, image_get, image_import, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the images.
    List {
        /// Includes unusable images: disabled ones and unfinished imports.
        #[arg(long)]
        all: bool,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows an image's manifest.
    Get {
        /// Name, `NAME@VERSION`, uuid or its beginning.
        image: String,
    },
    /// Makes an image from the disk of a stopped VM.
    Create(image_create::Create),
    /// Uploads an image and activates it.
    Import(image_import::Import),
    /// Downloads an image's file.
    Export(image_export::Export),
    /// Deletes images from the repository; VMs made from them keep running.
    Delete {
        /// Names, `NAME@VERSION`, uuids or their beginnings.
        #[arg(required = true, value_name = "IMAGE")]
        images: Vec<String>,
        /// Skips the confirmation; without a terminal there is none.
        #[arg(long, short)]
        yes: bool,
        /// Succeeds even if an image does not exist.
        #[arg(long)]
        if_exists: bool,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { all, list } => {
            let state = all.then(|| ("state", "all".to_owned()));
            let query: Vec<_> = state.into_iter().collect();
            output
                .list::<Answer<Manifest>>(&list, async || client.get("/images", &query).await)
                .await
        }
        Args::Get { image } => image_get::run(client, output, &image).await,
        Args::Create(args) => image_create::run(client, output, args).await,
        Args::Import(args) => image_import::run(client, output, args).await,
        Args::Export(args) => image_export::run(client, output, args).await,
        Args::Delete { images, yes, if_exists } => {
            delete(client, output, &images, yes, if_exists).await
        }
    }
}

/// Nothing is deleted unless all are found, and the person says so.
async fn delete(
    client: &Client,
    output: &Output,
    names: &[String],
    yes: bool,
    if_exists: bool,
) -> Result<(), CliError> {
    let find = async |name: &str| pick::only_image(client, name).await;
    let images = pick::each(names, if_exists, |image| image.uuid, find).await?;
    let uuids: Vec<_> = images.iter().map(|image| image.uuid).collect();
    let shown = |image: &Answer<Manifest>| {
        format!("{}@{} ({})", image.name, image.version, Cell::id(&image.uuid).text)
    };
    let shown: Vec<String> = images.iter().map(shown).collect();
    if shown.is_empty() {
        return output.done("nothing to delete", &json!(uuids));
    }
    meant(&format!("Delete {} from the repository?", shown.join(", ")), yes)?;
    for uuid in &uuids {
        client.delete::<()>(&format!("/images/{uuid}")).await?;
    }
    output.done(&format!("deleted {}", shown.join(", ")), &json!(uuids))
}

impl Item for Answer<Manifest> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |image: &Self| Cell::id(&image.uuid)),
        Column::new("NAME", |image: &Self| Cell::text(&image.name)).cut(),
        Column::new("VERSION", |image: &Self| Cell::text(&image.version)).cut(),
        Column::new("STATE", |image: &Self| Cell::state(&shown(&image.state))),
        Column::new("SIZE", |image: &Self| {
            Cell::bytes(image.files.first().and_then(|file| file.size))
        })
        .spare(2),
        Column::new("PUBLISHED", |image: &Self| Cell::since(image.json()["published_at"].as_str()))
            .spare(1),
        Column::new("OS", |image: &Self| Cell::of(&image.json()["os"])).wide(),
        Column::new("TYPE", |image: &Self| Cell::of(&image.json()["type"])).wide(),
        Column::new("OWNER", |image: &Self| Cell::of(&image.json()["owner"])).wide(),
    ];

    fn id(&self) -> String {
        self.uuid.to_string()
    }

    fn name(&self) -> String {
        format!("{}@{}", self.name, self.version)
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}
