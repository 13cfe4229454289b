//! Why no server takes a machine, and what would help, for people.

use std::collections::BTreeMap;

use muster_shared::api::allocation::{AllocationStep, LeastChange, Remaining};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::cell::Cell;
use crate::output::compact;
use crate::plain;

/// Servers that are named with their reason.
const MOST: usize = 10;

/// Said where a search for changes did not end.
const CUT: &str =
    "the coordinator is busy: its search for what would help ended early; try again later";

/// Names of servers by uuid.
type Names = BTreeMap<String, String>;

/// What is read of a refusal.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Refusal {
    steps: Option<Vec<AllocationStep>>,
    least_changes: Vec<LeastChange>,
    /// The search for them ran out of time.
    least_changes_cut: bool,
}

/// All that an operator needs to know of a refusal's body.
pub(crate) fn lines(body: &Value, names: &Names, verbose: bool) -> Vec<String> {
    // One without these members is told as any other.
    let refusal = Refusal::deserialize(body).unwrap_or_default();
    let mut lines = steps(refusal.steps.as_deref(), names, verbose);
    if !refusal.least_changes.is_empty() {
        lines.push("it would fit with one of:".to_owned());
    }
    lines.extend(refusal.least_changes.iter().map(|change| format!("  {}", change.text)));
    if refusal.least_changes_cut {
        lines.push(CUT.to_owned());
    }
    lines
}

/// The steps that removed servers, or all: how many remain, and why others do not.
pub(crate) fn steps(steps: Option<&[AllocationStep]>, names: &Names, verbose: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut before = None;
    for step in steps.into_iter().flatten() {
        let remaining = step.remaining.as_ref().map_or(0, Remaining::count);
        let reasons = step.reasons.as_ref();
        // The first one says how many there are.
        let says_something = before.is_none_or(|before| before != remaining);
        before = Some(remaining);
        if !verbose && !says_something {
            continue;
        }
        lines.push(format!("{remaining:>5} left  {}", plain::step(&step.step)));
        let removed = reasons.into_iter().flatten();
        let count = reasons.map_or(0, Map::len);
        for (server, reason) in removed.take(if verbose { usize::MAX } else { MOST }) {
            let name = names.get(server).cloned().unwrap_or_else(|| Cell::id(server).text);
            lines.push(format!("            {name}: {}", plain::removal(&compact(reason))));
        }
        if !verbose && count > MOST {
            lines.push(format!(
                "            and {} more servers (--verbose lists them)",
                count - MOST
            ));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_names_who_dropped_out_and_why_and_what_would_help() {
        let body = json!({
            "steps": [
                { "step": "Received by DAPI", "remaining": ["a", "b"] },
                { "step": "Servers that run", "remaining": ["a", "b"] },
                { "step": "Servers with enough RAM", "remaining": ["a"],
                  "reasons": { "b": "VM's calculated 256 RAM is less than server's spare 0" } },
            ],
            "least_changes": [{ "text": "128 MiB less memory", "change": {} }],
        });
        let names = BTreeMap::from([("b".to_owned(), "cn2".to_owned())]);
        let short = [
            "    2 left  Servers that were considered",
            "    1 left  Servers with enough RAM",
            "            cn2: 256 MiB of memory wanted, 0 MiB left",
        ];
        assert_eq!(lines(&body, &names, false)[..3], short);
        let helps = ["it would fit with one of:", "  128 MiB less memory"];
        assert_eq!(lines(&body, &names, false)[3..], helps);
        assert_eq!(
            lines(&body, &names, true).iter().filter(|it| it.contains(" left  ")).count(),
            3
        );
    }

    #[test]
    fn a_search_for_changes_that_was_cut_is_told() {
        let body = json!({ "steps": [], "least_changes": [], "least_changes_cut": true });
        assert_eq!(lines(&body, &BTreeMap::new(), false), [CUT]);
    }
}
