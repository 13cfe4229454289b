//! `muster allocation`: decisions of the allocator, kept and replayed.

use std::collections::BTreeMap;
use std::path::PathBuf;

use muster_shared::api::allocation::{AskedBy, Decision, DecisionDetail, Original, Replayed};
use serde_json::{Number, Value, json};

use crate::answer::Answer;
use crate::cell::{Cell, Tone};
use crate::client::Client;
use crate::output::{Item, Output, compact, print, shown};
use crate::page::{Page, when};
use crate::table::{Column, ListArgs};
use crate::vm_create::read_object;
use crate::{CliError, known, pick, plain};

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  muster allocation list
  muster allocation replay 0197a1c2-… --with policy.json
      policy.json: {\"changeDefaults\": {\"weight_unreserved_ram\": -2}}")]
pub(crate) enum Args {
    /// Lists past decisions, newest first.
    List {
        /// Maximum number of results.
        #[arg(long, default_value_t = 20, value_name = "COUNT")]
        limit: u16,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Shows a decision: the request, and what each step left.
    Get {
        /// Id of the decision, or a part of it; the answer to a placement names it.
        id: String,
    },
    /// Repeats a decision on the fleet as it was then; the outcome must be the same.
    Replay {
        /// Id of the decision, or its beginning.
        id: String,
        /// Policy to use instead: a JSON file with `allocationDescription`, `changeDefaults`; shows
        /// the difference.
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
            let of = |names: BTreeMap<String, String>, id: Option<&String>| {
                id.and_then(|id| names.get(id).cloned())
            };
            let server = of(pick::hostnames(client).await?, decision.decision.server_uuid.as_ref());
            let vm = of(pick::aliases(client).await?, Some(&decision.decision.vm_uuid));
            page(&decision, server.as_deref(), vm.as_deref()).print()
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
    let policy = read_object(path)?;
    known::check_policy(path, &policy)?;
    Ok(Value::Object(policy))
}

/// A decision for people; of its steps those that removed servers.
fn page(detail: &DecisionDetail, server: Option<&str>, vm: Option<&str>) -> Page {
    let decision = &detail.decision;
    let mut page = Page::new(match (server, &decision.server_uuid, &decision.failure) {
        (Some(name), _, _) => format!("{name} was chosen"),
        (None, Some(uuid), _) => format!("{uuid} was chosen"),
        (None, None, Some(failure)) => format!("no server was chosen: {failure}"),
        (None, None, None) => "no server was chosen".to_owned(),
    });
    let asked_by = match (decision.kind, decision.reserved) {
        (AskedBy::Vms, _) => "muster vm create",
        (AskedBy::Allocate, true) => "an allocation that reserved the resources",
        (AskedBy::Allocate, false) => "a dry run that reserved nothing",
    };
    let vm_uuid = Some(&decision.vm_uuid).filter(|uuid| !uuid.is_empty());
    page.group("Decision")
        .line("Id", decision.id.to_string())
        .line("Created", when(&decision.at))
        .line("Asked by", asked_by)
        .maybe("VM", vm_uuid.map(|uuid| vm.map_or(uuid.clone(), |vm| format!("{vm} ({uuid})"))))
        .maybe("Score", decision.score.as_ref().map(shown))
        .line("Seed", detail.seed.to_string())
        .line("Policy", &detail.config_hash);
    page.group("Asked for");
    let package = detail.request.as_ref().and_then(|request| request.get("package"));
    page.maybe("package", package.and_then(|package| package["name"].as_str()));
    let vm =
        detail.request.as_ref().and_then(|request| request.get("vm")).and_then(Value::as_object);
    for (name, value) in vm.into_iter().flatten().filter(|(name, _)| *name != "vm_uuid") {
        page.line(name, compact(value));
    }
    page.group("Servers left after each step that removed some");
    let mut before = None;
    for step in &detail.steps {
        if before != Some(step.remaining) {
            page.line(&step.remaining.to_string(), plain::step(&step.step));
        }
        before = Some(step.remaining);
    }
    page.group("Best");
    for (server, score) in &detail.best {
        page.line(&Cell::id(server).text, format!("score {score}"));
    }
    page.next(format!("muster allocation replay {}", decision.id));
    page
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
        text.push_str(&format!("\n{was:>6} → {is:<6} {}", plain::step(&step.step)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_told_with_the_steps_that_removed_servers() {
        let detail = json!({
            "id": uuid::Uuid::nil(), "at": "2026-05-01T10:00:00.000Z", "kind": "vms",
            "vm_uuid": "v", "server_uuid": null, "score": null, "failure": "no room",
            "reserved": false, "keep": false, "request": {
                "vm": { "ram": 512, "vm_uuid": "v" }, "package": { "name": "small" },
            },
            "config_hash": "h", "seed": 7, "snapshot_revision": 1, "fingerprint": "f",
            "steps": [{ "step": "Servers", "algorithm": null, "remaining": 2 },
                      { "step": "Servers that run", "algorithm": null, "remaining": 2 },
                      { "step": "Servers with room", "algorithm": "x", "remaining": 0 }],
            "best": [["e5a32d94-1111", 2.5]],
        });
        let text = page(&serde_json::from_value(detail).unwrap(), None, Some("web1")).text(None);
        assert!(text.starts_with("no server was chosen: no room\n"), "{text}");
        for part in ["web1 (v)", "package  small", "0  Servers with room", "e5a32d94  score 2.5"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("that run"), "{text}");
    }

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
