//! `muster server images`: the images that lie on a node.

use clap::Subcommand;
use muster_shared::api::server_image::ServerImage;
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::ImageUuid;
use serde::Deserialize;
use serde_json::json;

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, member, mib};
use crate::wait::WaitArgs;
use crate::{CliError, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists them, with the disks that are based on them and their last use.
    List {
        /// Uuid, its beginning, or hostname.
        server: String,
    },
    /// Takes one off the node. Refused while disks or other images there need it; the next machine
    /// that is made from it fetches it again.
    Remove {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Its whole uuid.
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
        Args::List { server } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let found: Images = client.get(&format!("/servers/{server}/images"), &[]).await?;
            output.list(
                &found.images,
                &[
                    ("UUID", member!(uuid)),
                    ("NAME", |image| or_dash(image.name.as_deref())),
                    ("VERSION", |image| or_dash(image.version.as_deref())),
                    ("MIB", |image| mib(Some(image.size_bytes))),
                    ("DISKS", member!(disks)),
                    ("VMS", member!(vms)),
                    ("INSTALLED", member!(installed_at)),
                    ("LAST USED", |image| or_dash(image.last_used_at.as_deref())),
                ],
            )
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

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}
