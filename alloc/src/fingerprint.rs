//! A decision in 64 bits: two outcomes with the same fingerprint have the same steps, verdicts
//! and scores. Independent of the process and of the places servers have in a snapshot.
//!
//! A server is a random number, so a set of servers is their sum: a step that keeps their order costs
//! the servers that it removed. Where a step may change the order, each is mixed with its place. Scores
//! go in once, as they are in the end, not the order in which each scorer put the servers. Earlier
//! versions mixed every list of every step, server by server; their records are compared in that form.

use std::iter::repeat_n;
use std::sync::Arc;

use uuid::Uuid;

use crate::algorithm::Kind;
use crate::outcome::{Outcome, Step};
use crate::reason::{Reason, Reasons};
use crate::remaining::Remaining;
use crate::scored::{Scored, Scoring};
use crate::server_name::ServerName;
use crate::slot_set::{SlotSet, slots_of};

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

/// What fingerprints begin with that are made of sums.
const SUMS: &str = "2-";
/// An odd number without a pattern in its bits: places that follow each other differ in many of them.
const PLACE: u64 = 0xd6e8_feb8_6659_fd93;

impl Outcome {
    /// The decision's fingerprint.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        format!("{SUMS}{:016x}", self.by_sums())
    }

    /// The decision's fingerprint in the form of another, to be compared with it.
    #[must_use]
    pub fn fingerprint_like(&self, other: &str) -> String {
        if other.starts_with(SUMS) {
            return self.fingerprint();
        }
        format!("{:016x}", self.one_by_one())
    }

    fn by_sums(&self) -> u64 {
        let ids = self.snapshot.ids();
        let placed =
            |(place, slot): (u64, &u32)| mix(place.wrapping_mul(PLACE), ids[*slot as usize]);
        let mut hash = 0;
        let mut last: Option<(&Arc<Remaining>, u64)> = None;
        for step in &self.steps {
            hash = mix_text(hash, step.title());
            let now = &step.remaining;
            if !last.is_some_and(|(last, _)| Arc::ptr_eq(last, now)) {
                let all = sum_of_ids(&ids, last, now.set());
                let sum = if keeps_order(step) {
                    all
                } else {
                    (1..).zip(now.list().iter()).map(placed).fold(0, u64::wrapping_add)
                };
                hash = mix(mix(hash, now.len() as u64), sum);
                last = Some((now, all));
            }
            hash = match &step.reasons {
                Reasons::Scored(scored) => mix_scoring(mix(hash, 4), scored),
                reasons => self.mix_reasons(hash, reasons, |slot| ids[slot as usize]),
            };
        }
        let scored = |(slot, score): (&u32, &f64)| mix(score.to_bits(), ids[*slot as usize]);
        let scores = last.map(|(left, _)| {
            let list = left.list();
            list.iter().zip(self.scores.of(list).iter()).map(scored).fold(0, u64::wrapping_add)
        });
        self.mix_server(mix(hash, scores.unwrap_or(0)))
    }

    fn one_by_one(&self) -> u64 {
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
            hash = self.mix_reasons(hash, &step.reasons, |slot| self.id(slot));
        }
        self.mix_server(hash)
    }

    /// What stands for a server.
    fn id(&self, slot: u32) -> u64 {
        self.snapshot.id(slot)
    }

    fn mix_server(&self, hash: u64) -> u64 {
        match &self.server {
            None => mix(hash, 0),
            Some(choice) => {
                mix(mix_text(hash, &choice.server_uuid.to_string()), choice.score.to_bits())
            }
        }
    }

    fn mix_slots(&self, hash: u64, len: usize, slots: impl Iterator<Item = u32>) -> u64 {
        slots.fold(mix(hash, len as u64), |hash, slot| mix(hash, self.id(slot)))
    }

    fn mix_scored(&self, hash: u64, scored: &Scored) -> u64 {
        let places = scored.places();
        let slots = || places.iter().map(|place| scored.list[*place as usize]);
        let mut hash = self.mix_slots(mix(hash, 4), places.len(), slots());
        hash = match &scored.scoring {
            Scoring::InOrder { weight, .. } | Scoring::ByRank { weight, .. } => {
                mix(hash, weight.to_bits())
            }
            Scoring::Buckets(buckets) => buckets
                .all(places.len())
                .into_iter()
                .flat_map(|(len, change)| repeat_n(change.to_bits(), len))
                .fold(hash, mix),
            Scoring::Each(changes) => {
                changes.iter().fold(hash, |hash, change| mix(hash, change.to_bits()))
            }
        };
        slots().filter_map(|slot| scored.zones_of(slot)).fold(hash, |hash, n| mix(hash, n.into()))
    }

    fn mix_reasons(&self, hash: u64, reasons: &Reasons, id: impl Fn(u32) -> u64) -> u64 {
        match reasons {
            Reasons::None => mix(hash, 1),
            Reasons::Skip(text) => mix_text(mix(hash, 2), text),
            Reasons::Loaded => mix(hash, 3),
            Reasons::Scored(scored) => self.mix_scored(hash, scored),
            Reasons::Each { each, shared, all, .. } => {
                let mut hash = shared.iter().chain(all).fold(mix(hash, 5), |h, t| mix_text(h, t));
                for (slot, reason) in each {
                    hash = mix_reason(mix(hash, id(*slot)), reason);
                }
                hash
            }
        }
    }
}

/// The sum of the servers' ids. Most steps leave nearly all servers of the one before, of which it is
/// known.
fn sum_of_ids(ids: &[u64], known: Option<(&Arc<Remaining>, u64)>, now: &SlotSet) -> u64 {
    let sum = |word: usize, bits: u64| {
        slots_of(word, bits).map(|slot| ids[slot as usize]).fold(0, u64::wrapping_add)
    };
    (0..now.words()).fold(known.map_or(0, |(_, sum)| sum), |all, word| {
        let (was, is) = (known.map_or(0, |(left, _)| left.set().word(word)), now.word(word));
        all.wrapping_add(sum(word, is & !was)).wrapping_sub(sum(word, was & !is))
    })
}

/// Whether the servers that a step leaves are in the order in which it found them.
fn keeps_order(step: &Step) -> bool {
    let kind = step.algorithm.map(|algorithm| algorithm.kind);
    matches!(kind, Some(Kind::Filter | Kind::Calculator | Kind::Scorer))
}

/// What a scorer did, as far as the scores in the end don't tell.
fn mix_scoring(hash: u64, scored: &Scored) -> u64 {
    match &scored.scoring {
        Scoring::InOrder { weight, .. } | Scoring::ByRank { weight, .. } => {
            mix(hash, weight.to_bits())
        }
        Scoring::Buckets(buckets) => buckets
            .all(scored.list.len())
            .into_iter()
            .fold(hash, |hash, (len, change)| mix(mix(hash, len as u64), change.to_bits())),
        Scoring::Each(_) => hash,
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Config, Fleet, HostOs, Options, Order, Request, allocate};

    /// A decision among servers with so much memory each, GiB.
    fn outcome(memory: &[u64]) -> Outcome {
        let config = Config::reference_default(HostOs::Any);
        let mut fleet = Fleet::new(&config);
        for (n, gib) in (1..).zip(memory) {
            let record = json!({
                "uuid": Uuid::from_u128(n), "setup": true, "status": "running", "vms": {},
                "headnode": false, "reserved": false, "reservoir": false, "traits": {},
                "reservation_ratio": 0.15, "overprovision_ratios": { "ram": 1, "disk": 1 },
                "memory_available_bytes": gib << 30, "memory_total_bytes": gib << 30,
                "disk_pool_size_bytes": 1_u64 << 42, "disk_pool_alloc_bytes": 0,
                "disk_installed_images_used_bytes": 0, "disk_zone_quota_bytes": 0,
                "disk_kvm_quota_bytes": 0, "disk_kvm_zvol_volsize_bytes": 0,
                "disk_cores_quota_used_bytes": 0, "disk_system_used_bytes": 0,
                "current_platform": "20230101T000000Z", "last_boot": "2023-01-01T00:00:00.000Z",
                "sysinfo": {
                    "CPU Total Cores": 16, "SDC Version": "7.0", "Live Image": "20230101T000000Z",
                    "Network Interfaces": {
                        "net0": { "Link Status": "up", "NIC Names": ["admin"] },
                    },
                },
            });
            fleet.upsert_server(Arc::new(record.as_object().unwrap().clone())).unwrap();
        }
        let body = json!({
            "vm": { "vm_uuid": Uuid::from_u128(1), "owner_uuid": Uuid::from_u128(2), "ram": 1_024,
                    "cpu_cap": 100, "quota": 10 },
            "image": {}, "nic_tags": ["admin"],
        });
        let request = Request::parse(body.as_object().unwrap()).unwrap();
        let options = Options { order: Order::Uuid, seed: 1, ..Options::default() };
        let outcome = allocate(&fleet.snapshot(), &request, &config, &options);
        assert!(outcome.server.is_some(), "{}", outcome.failure());
        outcome
    }

    #[test]
    fn records_of_earlier_versions_compare_in_their_own_form() {
        let (one, same, other) = (outcome(&[32, 64]), outcome(&[32, 64]), outcome(&[64, 32]));
        for like in [one.fingerprint(), "0123456789abcdef".to_owned()] {
            let form = |outcome: &Outcome| outcome.fingerprint_like(&like);
            assert_eq!(form(&one), form(&same));
            assert_ne!(form(&one), form(&other), "like {like}");
            assert_eq!(form(&one).len(), like.len());
        }
        // As they are stored: neither may ever change.
        let stored = (one.fingerprint_like(""), one.fingerprint());
        assert_eq!(stored, ("2d6b74b014f77ba5".to_owned(), "2-ccfbf58eea9e0b85".to_owned()));
    }

    #[test]
    fn what_is_kept_outlives_the_steps() {
        let whole = outcome(&[32, 64, 16]);
        let mut kept = whole.clone();
        kept.settle(true);
        assert_eq!(kept.steps.len(), whole.steps.len());
        kept.settle(false);
        assert!(kept.steps.is_empty() && kept.server == whole.server);
        let (kept, whole) = (kept.digest(), whole.digest());
        assert_eq!(
            (&kept.fingerprint, &kept.steps, &kept.best),
            (&whole.fingerprint, &whole.steps, &whole.best)
        );
        assert_eq!(whole.best.len(), 3);
        assert_eq!(whole.steps[0].remaining, 3);
    }
}
