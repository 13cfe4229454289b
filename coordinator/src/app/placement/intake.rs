//! How the allocator's fleet takes over what servers report and what the store says of them.
//!
//! It happens in the background, a few servers at a time, and records are read before the data of
//! promises is locked. What is left when somebody decides is taken over first, so that a decision
//! knows of everything that was acknowledged before it.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use muster_shared::api::Object;
use muster_shared::api::server::ServerRecord;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::VmReport;
use parking_lot::{Mutex, MutexGuard};

use super::Placement;
use super::promises::Placing;
use crate::alloc::{self, News};
use crate::app::fields::shown_status;
use crate::app::fleet::{Entry, Figures, Fleet, Stale, SysinfoRecord};
use crate::store::{Held, Revision};

/// Servers taken over at a time in the background; somebody who decides waits for no more.
pub(crate) const PART: usize = 16;

/// The revisions of a server's record and its sysinfo.
type Versions = (Revision, Revision);

/// What was taken over. Held while anything is, so that nothing older replaces something newer.
#[derive(Debug, Default)]
pub(super) struct Intake {
    known: BTreeMap<ServerUuid, Versions>,
}

/// What is to be taken over of a server, apart from the fleet's lock; `None` of one that is gone.
type Change = (ServerUuid, Option<News>);

/// What an entry says, shared with it.
struct Seen {
    record: Held<Arc<ServerRecord>>,
    sysinfo: Option<Held<Bytes>>,
    status: &'static str,
    figures: Option<Figures>,
    vms: Vec<(VmUuid, Option<Arc<VmReport>>)>,
}

impl Seen {
    fn of(entry: &Entry, stale: &Stale) -> Option<Self> {
        let record = entry.record.clone()?;
        let vms = if stale.whole {
            entry.vms.iter().map(|(vm, report)| (*vm, Some(Arc::clone(report)))).collect()
        } else {
            stale.vms.iter().map(|vm| (*vm, entry.vms.get(vm).cloned())).collect()
        };
        Some(Self {
            record,
            sysinfo: entry.sysinfo.clone(),
            status: entry.stored_status(),
            figures: (stale.whole || stale.figures).then(|| entry.figures.clone()),
            vms,
        })
    }

    fn versions(&self) -> Versions {
        (self.record.revision, self.sysinfo.as_ref().map(|held| held.revision).unwrap_or_default())
    }

    /// The record as the allocator knows it.
    fn whole(&self) -> Object {
        let mut whole = Object::of(&*self.record.value);
        let parse = |held: &Held<Bytes>| serde_json::from_slice::<SysinfoRecord>(&held.value).ok();
        let sysinfo = self.sysinfo.as_ref().and_then(parse).unwrap_or_default().sysinfo;
        whole.set("sysinfo", sysinfo);
        whole
    }
}

impl Intake {
    /// Reads what is new of at most so many servers.
    fn read(&mut self, fleet: &Fleet, most: usize) -> Vec<Change> {
        let stale = fleet.take_stale(most);
        stale.into_iter().map(|(server, stale)| (server, self.news(fleet, server, stale))).collect()
    }

    fn news(&mut self, fleet: &Fleet, server: ServerUuid, mut stale: Stale) -> Option<News> {
        let known = self.known.get(&server).copied();
        // Of a server that is new to the allocator everything is.
        stale.whole |= known.is_none();
        let Some(seen) = fleet.with(server, |entry| Seen::of(entry, &stale)).flatten() else {
            self.known.remove(&server);
            return None;
        };
        let mut news = News::new();
        let differs = stale.whole || known != Some(seen.versions());
        if differs && news.set_record(Arc::new(seen.whole().into())).is_ok() {
            self.known.insert(server, seen.versions());
        }
        if stale.whole || stale.record {
            news.set_status(shown_status(seen.status, &seen.record.value).as_str());
        }
        if let Some(figures) = &seen.figures {
            news.set_figures(|name| figures.exact(name));
        }
        if stale.whole {
            news.no_other_vms();
        }
        for (vm, report) in &seen.vms {
            match report {
                Some(report) => news.set_vm(report),
                None => news.remove_vm(vm.0),
            }
        }
        Some(news)
    }
}

fn apply(changes: Vec<Change>, fleet: &mut alloc::Fleet) {
    for (server, news) in changes {
        match news {
            Some(news) => fleet.take_news(&server.into(), news),
            None => fleet.remove_server(&server.into()),
        }
    }
}

impl Placement {
    /// Takes over what is new of a few servers; `false` when there was nothing more.
    pub(crate) fn take_over(&self) -> bool {
        let mut intake = self.intake.lock();
        let changes = intake.read(&self.fleet, PART);
        if changes.is_empty() {
            return false;
        }
        let more = changes.len() == PART;
        apply(changes, &mut self.promises.lock().allocator.fleet);
        more
    }

    /// The promises and an allocator that knows of everything that was acknowledged so far.
    pub(super) fn current(&self) -> MutexGuard<'_, Placing> {
        let mut intake = self.intake.lock();
        let changes = intake.read(&self.fleet, usize::MAX);
        let mut placing = self.promises.lock();
        let allocator = &mut placing.allocator;
        apply(changes, &mut allocator.fleet);
        allocator.take_over_tickets(self.tickets.provisioning());
        // A report that came meanwhile may have ended a promise or a ticket: its VM must count by
        // now. Promises can't change any more, and what reports say is shown to the fleet first.
        apply(intake.read(&self.fleet, usize::MAX), &mut allocator.fleet);
        placing
    }
}

/// See [`Intake`].
pub(super) type SharedIntake = Mutex<Intake>;
