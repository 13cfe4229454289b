//! What a map must hold, and what it turns out to hold.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use bytes::Bytes;
use futures_util::FutureExt as _;
use muster_shared::kv::{KvError, SharedKv};

use super::{Engine, KEYS, Load, MAP, index_key, key};

/// What became of acknowledged commits.
#[derive(Debug)]
pub(super) enum Verdict {
    /// All are there.
    Kept,
    /// The map says that it, or the record, is damaged.
    Refused(String),
    /// A commit is missing, or a value is wrong, and nobody says so.
    Silent(String),
    /// Another error, or a panic.
    Failed(String),
}

impl Verdict {
    pub(super) fn is_kept(&self) -> bool {
        matches!(self, Self::Kept)
    }
}

/// How many cuts or damages ended how.
#[derive(Debug, Default)]
pub struct Tally {
    /// All of them.
    pub tried: usize,
    /// Those after which all acknowledged commits were there.
    pub kept: usize,
    /// Those that the map noticed and refused.
    pub refused: usize,
    /// Those after which acknowledged commits were missing or wrong without a word.
    pub silent: usize,
    /// Other errors, and panics.
    pub failed: usize,
    /// What the first of those that were not kept ended with.
    pub failures: Vec<String>,
}

impl Tally {
    pub(super) fn count(&mut self, verdict: &Verdict, what: &str) {
        const MOST_FAILURES: usize = 20;
        self.tried += 1;
        let (count, text) = match verdict {
            Verdict::Kept => (&mut self.kept, None),
            Verdict::Refused(text) => (&mut self.refused, Some(text)),
            Verdict::Silent(text) => (&mut self.silent, Some(text)),
            Verdict::Failed(text) => (&mut self.failed, Some(text)),
        };
        *count += 1;
        if let Some(text) = text.filter(|_| self.failures.len() < MOST_FAILURES) {
            self.failures.push(format!("{what}: {text}"));
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tried, kept, refused, silent, failed, .. } = self;
        write!(f, "{tried} tried, {kept} kept, {refused} refused, {silent} silent, {failed} failed")
    }
}

/// The values that each key may have; `None`: it may be absent.
pub(super) struct Expected(BTreeMap<Bytes, Vec<Option<Bytes>>>);

impl Expected {
    /// After these commits of each writer; the next one may be there or not.
    pub(super) fn after(load: Load, acknowledged: &BTreeMap<u32, u32>) -> Self {
        let mut expected = BTreeMap::new();
        for writer in 0..load.writers() {
            let last = acknowledged.get(&writer).copied();
            let next = last.map_or(0, |last| last + 1);
            let index = |number: u32| Some(Bytes::copy_from_slice(&number.to_be_bytes()));
            expected.insert(index_key(writer), vec![last.and_then(index), index(next)]);
            for slot in 0..KEYS {
                let of_slot = |number: &u32| number % KEYS == slot;
                let newest = (0..next).rev().find(of_slot);
                let mut values = vec![newest.and_then(|number| load.value(writer, number))];
                if of_slot(&next) {
                    values.push(load.value(writer, next));
                }
                for part in 0..load.parts() {
                    expected.insert(key(writer, slot, part), values.clone());
                }
            }
        }
        Self(expected)
    }

    /// Opens the map in an image and looks at every key.
    pub(super) async fn judge(&self, engine: Engine, image: &Path) -> Verdict {
        let folder = image.join(MAP);
        let opened = std::panic::catch_unwind(|| engine.open(&folder));
        let map = match opened {
            Err(_) => return Verdict::Failed("opening it panicked".to_owned()),
            Ok(Err(error)) => return of_error(&error),
            Ok(Ok(map)) => map,
        };
        let looked = std::panic::AssertUnwindSafe(self.look(&map)).catch_unwind().await;
        let verdict = looked.unwrap_or_else(|_| Verdict::Failed("reading it panicked".to_owned()));
        map.close().await;
        verdict
    }

    async fn look(&self, map: &SharedKv) -> Verdict {
        for (key, values) in &self.0 {
            match map.get(key).await {
                Ok(found) if values.contains(&found) => {}
                Ok(found) => {
                    let what = if found.is_some() { "has another value" } else { "is gone" };
                    return Verdict::Silent(format!("{} {what}", key.escape_ascii()));
                }
                Err(error) => return of_error(&error),
            }
        }
        Verdict::Kept
    }
}

fn of_error(error: &KvError) -> Verdict {
    let text = error.to_string();
    if error.is_damage() { Verdict::Refused(text) } else { Verdict::Failed(text) }
}
