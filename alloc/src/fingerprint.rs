//! A decision in 64 bits: two outcomes with the same fingerprint have the same steps, verdicts
//! and scores. Independent of the process and of the places servers have in a snapshot.

use std::iter::repeat_n;
use std::sync::Arc;

use uuid::Uuid;

use crate::outcome::Outcome;
use crate::reason::{Deltas, Reason, Reasons};
use crate::remaining::Remaining;
use crate::server_name::ServerName;

/// Mixes one number into a hash.
fn mix(hash: u64, x: u64) -> u64 {
    let z = (hash ^ x).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z ^ (z >> 32)
}

fn mix_text(hash: u64, text: &str) -> u64 {
    let mut hash = mix(hash, text.len() as u64);
    for chunk in text.as_bytes().chunks(8) {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        hash = mix(hash, u64::from_le_bytes(bytes));
    }
    hash
}

/// What stands for a server in a fingerprint.
pub(crate) fn server_id(server: &ServerName) -> u64 {
    let uuid = match server {
        ServerName::Uuid(uuid) => Ok(uuid.0),
        ServerName::Other(name) => Uuid::parse_str(name).map_err(|_| name),
    };
    match uuid {
        Ok(uuid) => {
            let (high, low) = uuid.as_u64_pair();
            mix(high, low)
        }
        Err(name) => mix_text(0, name),
    }
}

impl Outcome {
    /// The decision's fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hash = 0;
        let mut last: Option<&Arc<Remaining>> = None;
        for step in &self.steps {
            hash = mix_text(hash, step.title());
            let now = &step.remaining;
            // One that is made anew goes in again, even if it is the same, unless it is empty.
            let same =
                |last: &Arc<Remaining>| Arc::ptr_eq(last, now) || last.is_empty() && now.is_empty();
            if !last.is_some_and(same) {
                hash = self.mix_slots(hash, now.len(), now.iter());
                last = Some(now);
            }
            hash = self.mix_reasons(hash, &step.reasons);
        }
        match &self.server {
            None => mix(hash, 0),
            Some(choice) => {
                mix(mix_text(hash, &choice.server_uuid.to_string()), choice.score.to_bits())
            }
        }
    }

    fn mix_slots(&self, hash: u64, len: usize, slots: impl Iterator<Item = u32>) -> u64 {
        let start = mix(hash, len as u64);
        slots.fold(start, |hash, slot| mix(hash, self.snapshot.id(slot)))
    }

    fn mix_reasons(&self, hash: u64, reasons: &Reasons) -> u64 {
        match reasons {
            Reasons::None => mix(hash, 1),
            Reasons::Skip(text) => mix_text(mix(hash, 2), text),
            Reasons::Loaded => mix(hash, 3),
            Reasons::Scored(scored) => {
                let order = &scored.order;
                let mut hash = self.mix_slots(mix(hash, 4), order.len(), order.iter().copied());
                hash = match &scored.deltas {
                    Deltas::Linear(weight) => mix(hash, weight.to_bits()),
                    Deltas::Groups(groups) => groups
                        .iter()
                        .flat_map(|(len, delta)| repeat_n(delta.to_bits(), *len))
                        .fold(hash, mix),
                    Deltas::BySlot(deltas) => order
                        .iter()
                        .fold(hash, |hash, slot| mix(hash, deltas[*slot as usize].to_bits())),
                };
                let zones = scored.zones.iter().flatten();
                zones.fold(hash, |hash, n| mix(hash, u64::from(*n)))
            }
            Reasons::Each { each, shared, all } => {
                let mut hash = shared.iter().chain(all).fold(mix(hash, 5), |h, t| mix_text(h, t));
                for (slot, reason) in each {
                    hash = mix_reason(mix(hash, self.snapshot.id(*slot)), reason);
                }
                hash
            }
        }
    }
}

fn mix_reason(hash: u64, reason: &Reason) -> u64 {
    match reason {
        Reason::Text(text) => mix_text(mix(hash, 1), text),
        Reason::Shared(n) => mix(mix(hash, 2), u64::from(*n)),
        Reason::Owned(text) => mix_text(mix(hash, 3), text),
        Reason::Status => mix(hash, 4),
        Reason::Fault => mix(hash, 5),
        Reason::Traits => mix(hash, 6),
        Reason::VmCount(n) => mix(mix(hash, 7), u64::from(*n)),
        Reason::Capness(vm, capped) => {
            let (high, low) = vm.as_u64_pair();
            mix(mix(mix(hash, 8 + u64::from(*capped)), high), low)
        }
        Reason::Spare(x) => mix(mix(hash, 10), x.to_bits()),
        Reason::Count(n) => mix(mix(hash, 11), u64::from(*n)),
    }
}
