//! Several coordinators on one store promise the same room once.
//!
//! Each follows the store and counts what the others reserved or are making. That alone would let
//! two of them decide at the same moment on what neither has seen; so every commit that promises
//! room changes the mark of its coordinator, `placer/<instance>`, and checks that the marks of the
//! others are the ones it had seen when it decided. The later commit of two fails, its coordinator
//! catches up and decides again. A coordinator that is alone changes no mark: `placer/roll` names
//! all, and is checked, too.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::Placement;
use crate::app::error::AppError;
use crate::app::keys;
use crate::store::{Damaged, Expect, Revision, StoreError, Write};

/// How often a decision is made again because another coordinator was faster.
pub(super) const ATTEMPTS: usize = 50;

/// The coordinators that place VMs, as the store's feed tells of them.
#[derive(Debug)]
pub(super) struct Peers {
    me: String,
    roll: BTreeSet<String>,
    roll_revision: Option<Revision>,
    /// By instance: its mark.
    marks: BTreeMap<String, Revision>,
}

fn expect(revision: Option<Revision>) -> Expect {
    revision.map_or(Expect::Absent, Expect::At)
}

impl Peers {
    pub(super) fn new(instance: &str) -> Self {
        Self {
            me: instance.to_owned(),
            roll: BTreeSet::new(),
            roll_revision: None,
            marks: BTreeMap::new(),
        }
    }

    fn others(&self) -> impl Iterator<Item = &String> {
        self.roll.iter().filter(|name| **name != self.me)
    }

    /// What a commit must find and leave in the store, so that no other coordinator has promised
    /// anything that the decision did not know of.
    pub(super) fn guard(&self) -> Vec<Write> {
        let check = |name: &String| {
            let known = self.marks.get(name).copied();
            Write::check(keys::placer(name), expect(known))
        };
        let mut writes: Vec<Write> = self.others().map(check).collect();
        writes.extend(self.mark());
        writes.insert(0, Write::check(keys::PLACER_ROLL, expect(self.roll_revision)));
        writes
    }

    /// Tells the others that room is promised; nothing, when there are none.
    pub(super) fn mark(&self) -> Option<Write> {
        self.others().next()?;
        Some(Write::put(keys::placer(&self.me), Expect::Any, "{}"))
    }

    /// Takes over the roll or a mark.
    pub(super) fn take(
        &mut self,
        key: &str,
        value: Option<&Bytes>,
        at: Revision,
        damaged: &Damaged,
    ) {
        if key == keys::PLACER_ROLL {
            if let Some(roll) = value.and_then(|value| damaged.decode(key, value)) {
                (self.roll, self.roll_revision) = (roll, Some(at));
            }
        } else if let Some(name) = key.strip_prefix(keys::PLACERS) {
            self.marks.insert(name.to_owned(), at);
        }
    }
}

/// Whether a commit failed because another coordinator promised something that the decision did
/// not know of.
pub(super) fn is_overtaken(error: &StoreError) -> bool {
    matches!(error, StoreError::Conflict { key } if key.starts_with(keys::PLACERS))
}

impl Placement {
    /// Enters this coordinator in the roll.
    pub(in crate::app) async fn enrol(&self) -> Result<(), AppError> {
        loop {
            let stored = self.ctx.parts.store.get(keys::PLACER_ROLL).await?;
            let mut roll: BTreeSet<String> =
                stored.as_ref().map(keys::decode).transpose()?.unwrap_or_default();
            if !roll.insert(self.ctx.parts.instance.clone()) {
                return Ok(());
            }
            let known = expect(stored.map(|stored| stored.revision));
            let write = Write::put(keys::PLACER_ROLL, known, keys::encode(&roll));
            match self.ctx.parts.store.commit(vec![write]).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
