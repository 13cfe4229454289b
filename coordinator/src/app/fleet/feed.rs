//! How the fleet in memory follows the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::VmReport;
use serde::Deserialize;

use super::figures::{Figures, Kept};
use super::keys;
use super::{Entry, Fleet, Inner};
use crate::store::{Damaged, Event, Follow, Held, Record, Revision, Store, StoreError, read_all};

const PREFIXES: &[&str] =
    &[keys::SERVERS, keys::SYSINFOS, keys::ROSTER, keys::VMS, keys::FIGURES, keys::PLACES];

/// The part of a sysinfo record that is looked at often.
#[derive(Deserialize)]
struct SysinfoHash {
    #[serde(default)]
    hash: String,
}

#[async_trait]
impl Follow for Fleet {
    fn wants(&self, key: &str) -> bool {
        PREFIXES.iter().any(|prefix| key.starts_with(prefix))
    }

    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        read_all(store, PREFIXES).await
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        let mut inner = self.inner();
        inner.forget_stored();
        for record in records.values() {
            let change = Event {
                key: record.key.clone(),
                value: Some(record.value.clone()),
                revision: record.revision,
            };
            self.take(&mut inner, &change, damaged);
        }
        drop(inner);
        self.stale_wake.notify_one();
    }

    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut inner = self.inner();
        for change in changes {
            self.take(&mut inner, change, damaged);
        }
        // A VM that is gone from its home may be found where it was claimed.
        if !inner.unsaved.is_empty() {
            self.vms_wake.notify_one();
        }
        drop(inner);
        self.stale_wake.notify_one();
    }
}

impl Fleet {
    fn take(&self, inner: &mut Inner, change: &Event, damaged: &Damaged) {
        let Event { key, value, revision } = change;
        if key.starts_with(keys::VMS) {
            return take_vm(inner, change, damaged);
        }
        if key.starts_with(keys::PLACES) {
            return inner.take_place(change, damaged);
        }
        let Some(server) = keys::last::<ServerUuid>(key) else { return };
        let Some(value) = value else { return remove(inner, server, key) };
        let entry = inner.servers.entry(server).or_default();
        let revision = *revision;
        match key.split('/').next() {
            Some("server") => {
                let Some(record) = damaged.decode(key, value) else { return };
                entry.record = Some(Held { value: Arc::new(record), revision });
            }
            Some("sysinfo") => {
                let Some(SysinfoHash { hash }) = damaged.decode(key, value) else { return };
                entry.sysinfo = Some(Held { value: value.clone(), revision });
                entry.sysinfo_hash = hash;
            }
            Some("roster") => {
                let Some(value) = damaged.decode(key, value) else { return };
                entry.roster = Some(Held { value, revision });
            }
            Some("figures") => {
                let Some(figures) = damaged.decode(key, value) else { return };
                if self.take_figures(entry, figures, revision) {
                    inner.stale(server).figures = true;
                }
                return;
            }
            _ => return,
        }
        inner.stale(server).record = true;
    }

    /// Figures are in the store for servers that are away: newer ones in memory stay.
    /// `true` when the figures are other ones now.
    fn take_figures(&self, entry: &mut Entry, value: Figures, revision: Revision) -> bool {
        let taken = entry.reported_at.is_empty() && entry.kept_figures.is_none();
        if taken {
            entry.figures = value.clone();
        }
        let at = self.now();
        entry.kept_figures = Some(Kept { record: Held { value, revision }, at });
        taken
    }
}

fn take_vm(inner: &mut Inner, change: &Event, damaged: &Damaged) {
    let Event { key, value, revision } = change;
    let mut parts = key.split('/').skip(1);
    let server = parts.next().and_then(|text| text.parse::<ServerUuid>().ok());
    let Some((server, vm)) = server.zip(keys::last::<VmUuid>(key)) else { return };
    let report: Option<Arc<VmReport>> = match value {
        Some(value) => match damaged.decode(key, value) {
            Some(report) => Some(Arc::new(report)),
            None => return,
        },
        None => None,
    };
    inner.stored_vm(server, vm, report, *revision);
}

fn remove(inner: &mut Inner, server: ServerUuid, key: &str) {
    let Some(entry) = inner.servers.get_mut(&server) else { return };
    match key.split('/').next() {
        // With the server goes what it reported; its VMs have records of their own.
        Some("server") => {
            let (vms, roster) = (std::mem::take(&mut entry.vms), entry.roster.take());
            **entry = Entry { vms, roster, ..Entry::default() };
        }
        Some("sysinfo") => {
            entry.sysinfo = None;
            entry.sysinfo_hash.clear();
        }
        Some("roster") => entry.roster = None,
        Some("figures") => entry.kept_figures = None,
        _ => {}
    }
    // What is gone from a record is gone from everything that was made of it.
    inner.stale(server).whole = true;
}
