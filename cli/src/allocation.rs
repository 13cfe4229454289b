//! `muster allocation`: decisions of the allocator, kept and replayed.

use std::path::PathBuf;

use muster_shared::api::allocation::{AskedBy, Decision, DecisionDetail, Original, Replayed};
use serde_json::{Number, Value, json};

use crate::answer::Answer;
use crate::cell::{Cell, Tone};
use crate::client::Client;
use crate::output::{Item, Output, print, shown};
use crate::table::{Column, ListArgs};
use crate::{CliError, pick};

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  muster allocation list
  muster allocation replay 0197a1c2-… --with policy.json
      policy.json: {\"changeDefaults\": {\"weight_unreserved_ram\": -2}}")]
pub(crate) enum Args {
    /// The last decisions, newest first.
    List {
        /// At most this many.
        #[arg(long, default_value_t = 20, value_name = "COUNT")]
        limit: u16,
        #[command(flatten)]
        list: ListArgs,
    },
    /// One decision: what was asked, and what each algorithm left.
    Get {
        /// Id of the decision, or its beginning; the answer to a placement names it.
        id: String,
    },
    /// Decides again on the same fleet as it was then; must come out the same.
    Replay {
        /// Id of the decision, or its beginning.
        id: String,
        /// Another policy to decide under: a JSON file with `allocationDescription`,
        /// `changeDefaults`; shows the difference.
        #[arg(long, value_name = "FILE")]
        with: Option<PathBuf>,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { limit, list } => {
            let query = [("limit", limit.to_string())];
            output
                .list(&list, async || {
                    let all: Vec<Answer<Decision>> = client.get("/allocations", &query).await?;
                    let servers = pick::hostnames(client).await?;
                    let row = |decision: Answer<Decision>| Row {
                        server: decision
                            .server_uuid
                            .as_ref()
                            .and_then(|it| servers.get(it).cloned()),
                        decision,
                    };
                    Ok(all.into_iter().map(row).collect())
                })
                .await
        }
        Args::Get { id } => {
            let id = pick::allocation(client, &id).await?;
            let path = format!("/allocations/{id}");
            let decision: Answer<DecisionDetail> = client.get(&path, &[]).await?;
            if output.is_json() {
                return output.object(decision.json());
            }
            show(&decision)
        }
        Args::Replay { id, with } => {
            let id = pick::allocation(client, &id).await?;
            let body = with.as_deref().map(read).transpose()?;
            let body = body.map_or_else(|| json!({}), |config| json!({ "config": config }));
            let path = format!("/allocations/{id}/replay");
            let replay: Answer<Replayed> = client.post(&path, &body).await?;
            if output.is_json() { output.object(replay.json()) } else { print(&compared(&replay)) }
        }
    }
}

/// A decision, and what the chosen server is called.
struct Row {
    decision: Answer<Decision>,
    server: Option<String>,
}

impl Item for Row {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |row: &Self| Cell::id(&row.decision.id)),
        Column::new("AGE", |row: &Self| Cell::since(Some(&row.decision.at))),
        Column::new("FOR", |row: &Self| match (row.decision.kind, row.decision.reserved) {
            (AskedBy::Vms, _) => Cell::text("create"),
            (AskedBy::Allocate, true) => Cell::text("allocate"),
            (AskedBy::Allocate, false) => Cell::text("dry run").tone(Tone::Faint),
        }),
        Column::new("VM", |row: &Self| match row.decision.vm_uuid.as_str() {
            "" => Cell::dash(),
            vm => Cell::id(&vm),
        }),
        Column::new("SERVER", |row: &Self| match (&row.server, &row.decision.server_uuid) {
            (Some(name), _) => Cell::text(name),
            (None, Some(uuid)) => Cell::id(uuid),
            (None, None) => Cell::text("none").tone(Tone::Bad),
        })
        .cut(),
        Column::new("FAILURE", |row: &Self| Cell::maybe(row.decision.failure.as_ref()))
            .cut()
            .spare(1),
        Column::new("SCORE", |row: &Self| Cell::of(&row.decision.score)).wide(),
    ];

    fn id(&self) -> String {
        self.decision.id.to_string()
    }

    fn json(&self) -> &Value {
        self.decision.json()
    }
}

fn read(path: &std::path::Path) -> Result<Value, CliError> {
    let text = std::fs::read_to_string(path).map_err(|source| CliError::File {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    serde_json::from_str(&text)
        .map_err(|error| CliError::Usage(format!("{} is not JSON: {error}", path.display())))
}

fn show(detail: &DecisionDetail) -> Result<(), CliError> {
    let decision = &detail.decision;
    for (name, value) in [
        ("id", decision.id.to_string()),
        ("at", decision.at.clone()),
        ("vm_uuid", decision.vm_uuid.clone()),
        ("server_uuid", shown(&decision.server_uuid)),
        ("score", shown(&decision.score)),
        ("failure", shown(&decision.failure)),
        ("seed", detail.seed.to_string()),
        ("config_hash", detail.config_hash.clone()),
        ("reserved", decision.reserved.to_string()),
    ] {
        print(&format!("{name:<12} {value}"))?;
    }
    for step in &detail.steps {
        print(&format!("{:>6} left  {}", step.remaining, step.step))?;
    }
    Ok(())
}

fn compared(replay: &Replayed) -> String {
    let side =
        |server: &Option<String>, score: &Option<Number>, failure: &Option<String>| match server {
            None => format!("no server ({})", shown(failure)),
            Some(server) => format!("{server} (score {})", shown(score)),
        };
    let now = side(&replay.server, &replay.score, &replay.failure);
    if replay.identical {
        return format!("identical: {now}");
    }
    let Original { server, score, failure, .. } = &replay.original;
    let mut text = format!("was: {}\nis:  {now}", side(server, score, failure));
    for step in &replay.difference.steps {
        let (was, is) = (shown(&step.was), shown(&step.is));
        text.push_str(&format!("\n{was:>6} → {is:<6} {}", step.step));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_both_sides() {
        let compared = |replay: Value| compared(&serde_json::from_value(replay).unwrap());
        let mut replay = json!({
            "id": uuid::Uuid::nil(), "identical": false, "seed": 1, "fingerprint": "g",
            "server": null, "failure": "no servers", "score": null, "steps": null,
            "original": { "server": "a", "score": 2.5, "failure": null, "fingerprint": "f" },
            "difference": {
                "steps": [{ "step": "Servers", "was": 3, "is": 0 }], "best_gone": [],
                "best_new": [],
            },
        });
        let want = "was: a (score 2.5)\nis:  no server (no servers)\n     3 → 0      Servers";
        assert_eq!(compared(replay.clone()), want);
        replay["identical"] = json!(true);
        (replay["server"], replay["score"]) = (json!("a"), json!(1));
        assert_eq!(compared(replay), "identical: a (score 1)");
    }
}
