//! `muster server orphans`: what lies on a node under a machine's name without a record.

use clap::Subcommand;
use muster_shared::api::orphan::Orphan;
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::VmUuid;
use serde::Deserialize;
use serde_json::json;

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, member, mib};
use crate::wait::WaitArgs;
use crate::{CliError, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists them. The node leaves them alone until somebody adopts or removes them.
    List {
        /// Uuid, its beginning, or hostname.
        server: String,
    },
    /// Makes one a machine of the node again, from the copy of its record beside its disks. A guest
    /// that runs goes on running.
    Adopt {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Its whole uuid.
        uuid: VmUuid,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Ends its guest and removes its disks. Nothing brings them back.
    Remove {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Its whole uuid.
        uuid: VmUuid,
        /// The uuid once more.
        #[arg(long, value_name = "UUID")]
        confirm: VmUuid,
        #[command(flatten)]
        wait: WaitArgs,
    },
}

#[derive(Debug, Deserialize)]
struct Orphans {
    orphans: Vec<Answer<Orphan>>,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { server } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let found: Orphans = client.get(&format!("/servers/{server}/orphans"), &[]).await?;
            output.list(
                &found.orphans,
                &[
                    ("UUID", member!(uuid)),
                    ("ALIAS", |orphan| orphan.alias.clone().unwrap_or_else(|| "-".to_owned())),
                    ("RUNS", member!(runs)),
                    ("MIB", |orphan| mib(orphan.ram_mib.map(|ram| ram << 20))),
                    ("DISKS", member!(disks)),
                    ("DISK MIB", |orphan| mib(Some(orphan.disk_bytes))),
                    ("ADOPTABLE", member!(adoptable)),
                    ("WHY", member!(reason)),
                ],
            )
        }
        Args::Adopt { server, uuid, wait } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let path = format!("/servers/{server}/orphans/{uuid}/adopt");
            let started: TaskStarted = client.post(&path, &json!({})).await?;
            follow(client, output, wait, &format!("adopt {uuid}"), &started).await
        }
        Args::Remove { server, uuid, confirm, wait } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let path = format!("/servers/{server}/orphans/{uuid}?confirm={confirm}");
            let started: TaskStarted = client.delete(&path).await?;
            follow(client, output, wait, &format!("remove {uuid}"), &started).await
        }
    }
}

async fn follow(
    client: &Client,
    output: &Output,
    wait: WaitArgs,
    title: &str,
    started: &TaskStarted,
) -> Result<(), CliError> {
    let object = json!({ "id": started.id });
    wait.follow_and_say(client, output, title, started, &object).await
}
