//! What every algorithm made of every server, with the figures it compared: the longest answer to
//! "why?".

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::algorithm::Algorithm;
use crate::num;
use crate::reason::Reasons;
use crate::run::Run;
use crate::server_name::ServerName;

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Kept,
    Removed,
    Scored,
}

/// What one algorithm made of one server.
#[derive(Clone, Debug, Serialize)]
struct Note {
    algorithm: &'static str,
    verdict: Verdict,
    /// By how much the score changed.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    delta: Option<f64>,
    /// The score then.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    score: Option<f64>,
    /// Why the algorithm did not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<Cow<'static, str>>,
    /// The figures by which it judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<Map<String, Value>>,
}

fn number<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    x.map(num::json).serialize(serializer)
}

/// What every algorithm made of every server: `{"<uuid>": [{"algorithm", "verdict":
/// "kept"|"removed"|"scored", "compared"?, "delta"?, "score"?, "skipped"?}]}`, in the order in
/// which servers were looked at.
#[derive(Clone, Debug)]
pub struct Explanation(Vec<(ServerName, Vec<Note>)>);

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(server, notes)| (server, notes)))
    }
}

/// Per slot, what each algorithm that saw the server did with it.
#[derive(Debug, Default)]
pub(crate) struct Notes(BTreeMap<u32, Vec<Note>>);

impl Notes {
    /// Takes down what an algorithm did with the servers it was given.
    pub(crate) fn note(
        &mut self,
        run: &Run<'_>,
        algorithm: &Algorithm,
        before: &[u32],
        reasons: &Reasons,
    ) {
        let kept: BTreeSet<u32> = run.list.iter().copied().collect();
        let deltas: BTreeMap<u32, f64> = match reasons {
            Reasons::Scored(scored) => {
                scored.order.iter().enumerate().map(|(i, s)| (*s, scored.delta(i))).collect()
            }
            _ => BTreeMap::new(),
        };
        for slot in before {
            let delta = deltas.get(slot).copied();
            let (skipped, compared) = match (reasons, algorithm.compares) {
                (Reasons::Skip(text), _) => (Some(text.clone()), None),
                (_, Some(compares)) => {
                    let figures = compares(run, *slot).into_iter();
                    (None, Some(figures.map(|(name, value)| (name.to_owned(), value)).collect()))
                }
                _ => (None, None),
            };
            let note = Note {
                algorithm: algorithm.name,
                verdict: match (kept.contains(slot), delta) {
                    (false, _) => Verdict::Removed,
                    (true, None) => Verdict::Kept,
                    (true, Some(_)) => Verdict::Scored,
                },
                delta,
                score: delta.map(|_| run.score[*slot as usize]),
                skipped,
                compared,
            };
            self.0.entry(*slot).or_default().push(note);
        }
    }

    /// By server, in an order.
    pub(crate) fn explanation(mut self, run: &Run<'_>, order: &[u32]) -> Explanation {
        let entry = |slot: &u32| {
            let notes = self.0.remove(slot)?;
            Some((run.snapshot.server(*slot).name.clone(), notes))
        };
        Explanation(order.iter().filter_map(entry).collect())
    }
}
