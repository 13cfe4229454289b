//! Several coordinators on one store promise the same room once.
//!
//! Each follows the store and counts what the others reserved or are making. That alone would let
//! two of them decide at the same moment on what neither has seen; so every commit that promises
//! room changes the mark of its coordinator, `placer/<instance>`, and checks that the marks of the
//! others are the ones it had seen when it decided. The later commit of two fails, its coordinator
//! catches up and decides again. A coordinator that is alone changes no mark: `placer/roll` names
//! all, and is checked, too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_shared::ids::VmUuid;
use tokio::sync::watch;

use super::reserve::{Reservation, ReservationRecord};
use crate::app::error::AppError;
use crate::app::placing::{PlaceRecord, PlaceState};
use crate::app::tasks::is_conflict;
use crate::app::{App, keys};
use crate::store::{Event, Expect, Record, Revision, StoreError, Write, list_all};

/// How often a decision is made again because another coordinator was faster.
pub(in crate::app) const ATTEMPTS: usize = 50;
/// Longest wait for a change that is in the store to be heard of.
const ECHO: Duration = Duration::from_secs(5);

/// The coordinators that place VMs, as last heard.
#[derive(Debug)]
pub(in crate::app) struct Peers {
    me: String,
    roll: BTreeSet<String>,
    roll_revision: Option<Revision>,
    /// By instance: its mark.
    marks: BTreeMap<String, Revision>,
    /// The last change of any of these that was taken over.
    position: watch::Sender<Revision>,
}

fn expect(revision: Option<Revision>) -> Expect {
    revision.map_or(Expect::Absent, Expect::At)
}

impl Peers {
    pub(in crate::app) fn new(instance: &str) -> Self {
        Self {
            me: instance.to_owned(),
            roll: BTreeSet::new(),
            roll_revision: None,
            marks: BTreeMap::new(),
            position: watch::Sender::new(Revision::default()),
        }
    }

    pub(in crate::app) fn guard(&self) -> Vec<Write> {
        let others = self.roll.iter().filter(|name| **name != self.me);
        let check = |name: &String| {
            let known = self.marks.get(name).copied();
            Write::check(keys::placer(name), expect(known))
        };
        let mut writes: Vec<Write> = others.map(check).collect();
        if !writes.is_empty() {
            // The last, so that who follows has seen the rest of the commit when he sees it.
            writes.push(Write::put(keys::placer(&self.me), Expect::Any, "{}"));
        }
        writes.insert(0, Write::check(keys::PLACER_ROLL, expect(self.roll_revision)));
        writes
    }

    /// Takes over the roll or a mark.
    fn take(&mut self, key: &str, stored: Option<&Record>, at: Revision) -> Result<(), AppError> {
        if key == keys::PLACER_ROLL {
            if let Some(roll) = stored.map(keys::decode).transpose()? {
                (self.roll, self.roll_revision) = (roll, Some(at));
            }
        } else if let Some(name) = key.strip_prefix(keys::PLACERS) {
            self.marks.insert(name.to_owned(), at);
        }
        self.position.send_modify(|position| *position = (*position).max(at));
        Ok(())
    }
}

/// Whether another coordinator promised something that a decision did not know of.
pub(in crate::app) fn overtaken(error: &StoreError) -> Option<&str> {
    match error {
        StoreError::Conflict { key } => Some(key.as_str()).filter(|k| k.starts_with(keys::PLACERS)),
        StoreError::TooLarge { .. }
        | StoreError::LeaseExpired
        | StoreError::Full { .. }
        | StoreError::Unavailable { .. } => None,
    }
}

impl App {
    /// Enters this coordinator in the roll.
    async fn placer_enrol(&self) -> Result<(), AppError> {
        loop {
            let stored = self.parts.store.get(keys::PLACER_ROLL).await?;
            let mut roll: BTreeSet<String> =
                stored.as_ref().map(keys::decode).transpose()?.unwrap_or_default();
            if !roll.insert(self.parts.instance.clone()) {
                return Ok(());
            }
            let known = expect(stored.map(|stored| stored.revision));
            let write = Write::put(keys::PLACER_ROLL, known, keys::encode(&roll));
            match self.parts.store.commit(vec![write]).await {
                Ok(_) => return Ok(()),
                Err(error) if is_conflict(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads what is promised, at the start and after the watch had to be given up. A reservation
    /// has all its time again: how long this coordinator was away, no clock says for sure.
    pub(crate) async fn load_placing(&self) -> Result<(), AppError> {
        self.placer_enrol().await?;
        let store = &*self.parts.store;
        // The marks first: what is promised later than they say makes a commit fail.
        let (marks, revision) = list_all(store, keys::PLACERS).await?;
        let reserved = list_all(store, keys::RESERVATIONS).await?.0;
        let places = list_all(store, keys::PLACES).await?.0;
        self.placing_forget(&reserved, &places);
        for stored in &reserved {
            self.reservation_seen(stored)?;
        }
        for stored in &places {
            self.place_found(stored)?;
        }
        let mut placing = self.placing.lock();
        for mark in marks {
            placing.peers.take(&mark.key, Some(&mark), mark.revision)?;
        }
        placing.peers.position.send_replace(revision);
        Ok(())
    }

    /// Forgets promises whose records are gone.
    fn placing_forget(&self, reserved: &[Record], places: &[Record]) {
        let vms = |records: &[Record]| -> BTreeSet<VmUuid> {
            records.iter().filter_map(|stored| keys::last(&stored.key)).collect()
        };
        let (reserved, places) = (vms(reserved), vms(places));
        let never = Revision { epoch: u64::MAX, counter: u64::MAX };
        let mut placing = self.placing.lock();
        let (known, elsewhere) = placing.recorded();
        for vm in known.into_iter().filter(|vm| !reserved.contains(vm)) {
            placing.reservation_gone(vm, never);
        }
        for vm in elsewhere.into_iter().filter(|vm| !places.contains(vm)) {
            placing.elsewhere_gone(vm, never);
        }
    }

    fn reservation_seen(&self, stored: &Record) -> Result<(), AppError> {
        let record: ReservationRecord = keys::decode(stored)?;
        let now = self.parts.clock.monotonic();
        let counted = self.is_counted(record.vm_uuid);
        let mut placing = self.placing.lock();
        // What this one reserves it knows already, and better: what is under way, too.
        if record.by == self.parts.instance && placing.is_promised(record.vm_uuid) {
            return Ok(());
        }
        if counted {
            placing.spent(record.vm_uuid, stored.revision);
        } else {
            let reservation = Reservation {
                vm: record.vm_uuid,
                server: record.server_uuid,
                extra: record.promise,
            };
            placing.adopt(reservation, stored.revision, now);
        }
        Ok(())
    }

    /// A create that this coordinator has no task for.
    fn place_seen_elsewhere(&self, place: PlaceRecord, at: Revision) {
        if let Some(extra) = place.promise.filter(|_| !self.is_counted(place.vm_uuid)) {
            let place = Reservation { vm: place.vm_uuid, server: place.server_uuid, extra };
            self.placing.lock().elsewhere(place, at);
        }
    }

    fn place_found(&self, stored: &Record) -> Result<(), AppError> {
        let place: PlaceRecord = keys::decode(stored)?;
        self.place_done_found(&place);
        if place.by != self.parts.instance || place.state == PlaceState::Done {
            self.place_seen_elsewhere(place, stored.revision);
        }
        Ok(())
    }

    /// Follows the store until the watch ends; then all has to be read again.
    ///
    /// # Errors
    /// [`AppError::Store`], [`AppError::Corrupt`].
    pub(crate) async fn placing_follow(&self) -> Result<(), AppError> {
        let from = *self.placing.lock().peers.position.borrow();
        let mut watch = self.parts.store.watch("", from).await?;
        while let Some(Ok(commit)) = watch.recv().await {
            for event in commit {
                if let Err(error) = self.placing_event(&event) {
                    tracing::error!(key = event.key, %error, "a promise's record is damaged");
                }
            }
        }
        tracing::info!("the watch of promises ended");
        self.load_placing().await
    }

    fn placing_event(&self, event: &Event) -> Result<(), AppError> {
        let Event { key, value, revision } = event;
        let stored = value.as_ref().map(|value| Record {
            key: key.clone(),
            value: value.clone(),
            revision: *revision,
        });
        if key.starts_with(keys::PLACERS) {
            self.placing.lock().peers.take(key, stored.as_ref(), *revision)?;
        } else if key.starts_with(keys::RESERVATIONS) {
            match (stored, keys::last(key)) {
                (Some(stored), _) => {
                    let record: ReservationRecord = keys::decode(&stored)?;
                    if record.by != self.parts.instance {
                        self.reservation_seen(&stored)?;
                    }
                }
                (None, Some(vm)) => self.placing.lock().reservation_gone(vm, *revision),
                (None, None) => {}
            }
        } else if key.starts_with(keys::PLACES) {
            match (stored, keys::last(key)) {
                (Some(stored), _) => {
                    let place: PlaceRecord = keys::decode(&stored)?;
                    if place.by != self.parts.instance {
                        self.place_seen_elsewhere(place, *revision);
                    }
                }
                (None, Some(vm)) => self.placing.lock().elsewhere_gone(vm, *revision),
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// Waits until what another coordinator changed under a key has been heard of.
    ///
    /// # Errors
    /// [`AppError::Store`]; [`AppError::Busy`] if that takes too long.
    pub(in crate::app) async fn placing_catch_up(&self, key: &str) -> Result<(), AppError> {
        let Some(stored) = self.parts.store.get(key).await? else { return Ok(()) };
        let mut position = self.placing.lock().peers.position.subscribe();
        let reached = position.wait_for(|at| *at >= stored.revision);
        match tokio::time::timeout(ECHO, reached).await {
            // The sender lives as long as the application.
            Ok(Ok(_) | Err(_)) => Ok(()),
            Err(_) => Err(AppError::Busy("the store's watch is late".to_owned())),
        }
    }
}
