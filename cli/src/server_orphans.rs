//! `muster server orphans`: what lies on a node under a machine's name without a record.

use clap::Subcommand;
use muster_shared::api::orphan::Orphan;
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::VmUuid;
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
    /// Lists orphans. The node leaves them alone until you adopt or remove them.
    List {
        /// Uuid, its beginning, or hostname.
        server: String,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Turns an orphan back into a VM, from the copy of its record beside its disks. A running
    /// guest keeps running.
    Adopt {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Its full uuid.
        uuid: VmUuid,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Ends an orphan's guest and deletes its disks. This cannot be undone.
    Remove {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Its full uuid.
        uuid: VmUuid,
        /// The uuid again, as confirmation.
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
        Args::List { server, list } => {
            let server = pick::server(client, &server).await?.record.uuid;
            let path = format!("/servers/{server}/orphans");
            let fetch = async || client.get::<Orphans>(&path, &[]).await.map(|found| found.orphans);
            output.list(&list, fetch).await
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

impl Item for Answer<Orphan> {
    const COLUMNS: &'static [Column<Self>] = &[
        // Adopting and removing want all of it.
        Column::new("UUID", |orphan: &Self| Cell::text(orphan.uuid.to_string())),
        Column::new("NAME", |orphan: &Self| Cell::maybe(orphan.alias.as_ref())).cut(),
        Column::new("RUNS", member!(Self: runs)),
        Column::new("RAM", |orphan: &Self| Cell::mib(orphan.ram_mib)).spare(3),
        Column::new("DISKS", member!(Self: disks)).spare(4),
        Column::new("SIZE", |orphan: &Self| Cell::bytes(Some(orphan.disk_bytes))).spare(2),
        Column::new("ADOPTABLE", member!(Self: adoptable)),
        Column::new("WHY", member!(Self: reason)).cut().spare(1),
    ];

    fn id(&self) -> String {
        self.uuid.to_string()
    }

    fn name(&self) -> String {
        self.alias.clone().unwrap_or_else(|| self.id())
    }

    fn json(&self) -> &Value {
        Answer::json(self)
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
