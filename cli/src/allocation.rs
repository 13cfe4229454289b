//! `muster allocation`: decisions of the allocator, kept and replayed.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::CliError;
use crate::client::Client;
use crate::output::{Column, Output, compact, member, print};

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
    },
    /// One decision: what was asked, and what each algorithm left.
    Get {
        /// The decision; the answer to a placement names it.
        id: uuid::Uuid,
    },
    /// Decides again on the same fleet as it was then; must come out the same.
    Replay {
        /// The decision.
        id: uuid::Uuid,
        /// Another policy to decide under: a JSON file with `allocationDescription`,
        /// `changeDefaults`; shows the difference.
        #[arg(long, value_name = "FILE")]
        with: Option<PathBuf>,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { limit } => {
            let query = [("limit", limit.to_string())];
            let list = client.get("/allocations", &query).await?;
            let columns: &[Column] = &[
                ("ID", member!("id")),
                ("AT", member!("at")),
                ("VM", member!("vm_uuid")),
                ("SERVER", member!("server_uuid")),
                ("FAILURE", member!("failure")),
            ];
            output.list(&list, columns)
        }
        Args::Get { id } => {
            let decision = client.get(&format!("/allocations/{id}"), &[]).await?;
            if output.is_json() {
                return output.object(&decision);
            }
            show(&decision)
        }
        Args::Replay { id, with } => {
            let body = with.as_deref().map(read).transpose()?;
            let body = body.map_or_else(|| json!({}), |config| json!({ "config": config }));
            let path = format!("/allocations/{id}/replay");
            let replay = client.post(&path, &body).await?;
            if output.is_json() { output.object(&replay) } else { print(&compared(&replay)) }
        }
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

fn show(decision: &Value) -> Result<(), CliError> {
    for name in [
        "id",
        "at",
        "vm_uuid",
        "server_uuid",
        "score",
        "failure",
        "seed",
        "config_hash",
        "reserved",
    ] {
        print(&format!("{name:<12} {}", compact(&decision[name])))?;
    }
    for step in decision["steps"].as_array().into_iter().flatten() {
        print(&format!("{:>6} left  {}", compact(&step["remaining"]), compact(&step["step"])))?;
    }
    Ok(())
}

fn compared(replay: &Value) -> String {
    let side = |side: &Value| match &side["server"] {
        Value::Null => format!("no server ({})", compact(&side["failure"])),
        server => format!("{} (score {})", compact(server), compact(&side["score"])),
    };
    if replay["identical"] == true {
        return format!("identical: {}", side(replay));
    }
    let mut text = format!("was: {}\nis:  {}", side(&replay["original"]), side(replay));
    for step in replay["difference"]["steps"].as_array().into_iter().flatten() {
        let (was, is) = (compact(&step["was"]), compact(&step["is"]));
        text.push_str(&format!("\n{was:>6} → {is:<6} {}", compact(&step["step"])));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_both_sides() {
        let replay = json!({
            "identical": false, "server": null, "failure": "no servers", "score": null,
            "original": { "server": "a", "score": 2.5, "failure": null },
            "difference": { "steps": [{ "step": "Servers", "was": 3, "is": 0 }] },
        });
        let want = "was: a (score 2.5)\nis:  no server (no servers)\n     3 → 0      Servers";
        assert_eq!(compared(&replay), want);
        let same = json!({ "identical": true, "server": "a", "score": 1 });
        assert_eq!(compared(&same), "identical: a (score 1)");
    }
}
