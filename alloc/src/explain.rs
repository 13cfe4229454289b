//! What every algorithm made of every server, with the figures it compared: the longest answer to
//! "why?".

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::algorithm::Algorithm;
use crate::num;
use crate::reason::Reasons;
use crate::run::Run;

/// Per slot, what each algorithm that saw the server did with it.
#[derive(Debug, Default)]
pub(crate) struct Notes(BTreeMap<u32, Vec<Value>>);

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
            let mut entry = Map::new();
            entry.insert("algorithm".to_owned(), json!(algorithm.name));
            let verdict = match (kept.contains(slot), deltas.get(slot)) {
                (false, _) => "removed",
                (true, None) => "kept",
                (true, Some(_)) => "scored",
            };
            entry.insert("verdict".to_owned(), json!(verdict));
            if let Some(delta) = deltas.get(slot) {
                entry.insert("delta".to_owned(), num::json(*delta));
                entry.insert("score".to_owned(), num::json(run.score[*slot as usize]));
            }
            match (reasons, algorithm.compares) {
                (Reasons::Skip(text), _) => {
                    entry.insert("skipped".to_owned(), json!(text));
                }
                (_, Some(compares)) => {
                    let figures = compares(run, *slot).into_iter();
                    let figures: Map<_, _> =
                        figures.map(|(name, value)| (name.to_owned(), value)).collect();
                    entry.insert("compared".to_owned(), Value::Object(figures));
                }
                _ => {}
            }
            self.0.entry(*slot).or_default().push(Value::Object(entry));
        }
    }

    /// By server uuid, in the order in which servers were looked at.
    pub(crate) fn into_json(mut self, run: &Run<'_>, order: &Arc<Vec<u32>>) -> Value {
        let entry = |slot: &u32| {
            let notes = self.0.remove(slot)?;
            Some((run.snapshot.server(*slot).uuid.to_string(), Value::Array(notes)))
        };
        Value::Object(order.iter().filter_map(entry).collect())
    }
}
