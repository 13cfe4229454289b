//! `muster vm snapshot`: a machine's disks as they were at a moment.

use clap::Subcommand;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::CliError;
use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::output::{Item, Output};
use crate::table::{Column, ListArgs};
use crate::vm::Target;
use crate::wait::WaitArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Takes a snapshot of all disks, of a running VM too.
    Create {
        #[command(flatten)]
        named: Named,
        /// How the guest is made still meanwhile: its file systems by the guest agent in it (`guest`), its
        /// CPUs (`pause`), or not at all.
        #[arg(long, value_enum, default_value_t = Quiesce::None)]
        quiesce: Quiesce,
    },
    /// Restores the disks from a snapshot; newer snapshots are deleted.
    Rollback(Named),
    /// Deletes a snapshot.
    Delete(Named),
    /// Lists a VM's snapshots, newest first.
    List {
        #[arg(help = crate::vm::MACHINE)]
        vm: String,
        #[command(flatten)]
        list: ListArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct Named {
    #[arg(help = crate::vm::MACHINE)]
    vm: String,
    /// Name of the snapshot: 1 to 64 of A-Z, a-z, 0-9 and `-_.:%`.
    #[arg(value_parser = snapshot_name)]
    name: String,
    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::Create { named, quiesce } => {
            act(client, output, named, Action::Create(quiesce)).await
        }
        Args::Rollback(named) => act(client, output, named, Action::Rollback).await,
        Args::Delete(named) => act(client, output, named, Action::Delete).await,
        Args::List { vm, list } => {
            let target = Target::find(client, &vm).await?;
            let path = target.path("");
            let fetch = async || client.get::<Machine>(&path, &[]).await.map(|vm| vm.snapshots);
            output.list(&list, fetch).await
        }
    }
}

impl Item for Answer<Snapshot> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |snapshot: &Self| Cell::text(&snapshot.name)),
        Column::new("AGE", |snapshot: &Self| Cell::since(snapshot.created_at.as_deref())),
        Column::new("CREATED", |snapshot: &Self| Cell::maybe(snapshot.created_at.as_ref())).wide(),
    ];

    fn id(&self) -> String {
        self.name.clone()
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}

/// What is read of a VM's whole description.
#[derive(Debug, Deserialize)]
struct Machine {
    #[serde(default)]
    snapshots: Vec<Answer<Snapshot>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Snapshot {
    name: String,
    created_at: Option<String>,
}

/// As agents check it.
fn snapshot_name(text: &str) -> Result<String, String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.:%".contains(c);
    if (1..=64).contains(&text.len()) && text.chars().all(fits) {
        return Ok(text.to_owned());
    }
    Err("must be 1 to 64 of the characters A-Z, a-z, 0-9 and -_.:%".to_owned())
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum Quiesce {
    None,
    Pause,
    Guest,
}

impl Quiesce {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Pause => "pause",
            Self::Guest => "guest",
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Create(Quiesce),
    Rollback,
    Delete,
}

async fn act(
    client: &Client,
    output: &Output,
    Named { vm, name, wait }: Named,
    action: Action,
) -> Result<(), CliError> {
    let target = Target::find(client, &vm).await?;
    // `%` is a character of names and has to stay one.
    let segment = name.replace('%', "%25");
    let (verb, answer) = match action {
        Action::Create(quiesce) => {
            let body = json!({ "snapshot_name": name, "quiesce": quiesce.word() });
            ("snapshot", client.put(&target.path("/snapshots"), &body).await?)
        }
        Action::Rollback => {
            let path = target.path(&format!("/snapshots/{segment}/rollback"));
            ("roll back", client.put(&path, &json!({})).await?)
        }
        Action::Delete => {
            let path = target.path(&format!("/snapshots/{segment}"));
            ("delete snapshot of", client.delete(&path).await?)
        }
    };
    let title = format!("{verb} {} {name}", target.shown());
    target.follow(client, output, wait, &title, &answer).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_snapshots() {
        let long = "x".repeat(65);
        for name in ["a", "before-upgrade_1.2:3%", &long[..64]] {
            assert_eq!(snapshot_name(name).as_deref(), Ok(name));
        }
        for name in ["", "bad name", "a/b", "ä", &long] {
            assert!(snapshot_name(name).unwrap_err().contains("A-Z"), "{name}");
        }
    }
}
