//! What happens, as it happens: changes of the store in commit order, and what tasks report in
//! between.
//!
//! A subscription reads along with the store's feed, which keeps the recent past. Every event has a [`Position`]: the commit, and which of its changes it is. Whoever comes back with
//! one gets everything after it, or is told that something is missing. Progress of tasks is not
//! stored: it comes between the changes in the order of its arrival and is not repeated.

mod body;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::wire::Progress;
use serde::Serialize;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, broadcast};

use super::context::Context;
use super::error::AppError;
use super::fleet::Claim;
use super::tasks::Tasks;
use crate::store::{self, Revision, Watch, WatchEnd};
use body::change_of;
pub use body::{AlarmEvent, EventBody, ProgressEvent, VmEvent};

/// Subscriptions at a time; each holds up to 4,096 changes that its reader has not taken.
const MAX_SUBSCRIPTIONS: usize = 256;
/// Reports of progress that a reader may lag behind.
const PROGRESS_BACKLOG: usize = 1_024;
/// Longest silence; then the reader is told how far it is.
const IDLE: Duration = Duration::from_secs(15);

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    /// A server's status.
    Server,
    /// A VM's state or identity.
    Vm,
    /// A task's creation and end.
    Task,
    /// A task's progress.
    Progress,
    /// A ticket's status, its activation above all.
    Ticket,
    /// A job and its steps.
    Job,
    /// Something that an operator has to look at.
    Alarm,
}

impl EventKind {
    /// All, by the names that clients use.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Server, "server"),
        (Self::Vm, "vm"),
        (Self::Task, "task"),
        (Self::Progress, "progress"),
        (Self::Ticket, "ticket"),
        (Self::Job, "job"),
        (Self::Alarm, "alarm"),
    ];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

impl FromStr for EventKind {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind).ok_or(())
    }
}

/// Which events; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Of these kinds; empty: all.
    pub kinds: BTreeSet<EventKind>,
    /// About this server.
    pub server: Option<ServerUuid>,
    /// About this VM.
    pub vm: Option<VmUuid>,
    /// About this task.
    pub task: Option<TaskId>,
}

impl EventFilter {
    fn fits(&self, event: &Change) -> bool {
        let body = &event.body;
        (self.kinds.is_empty() || self.kinds.contains(&body.kind()))
            && (self.server.is_none() || self.server == body.server())
            && (self.vm.is_none() || self.vm == body.vm())
            && (self.task.is_none() || self.task.as_ref() == body.task())
    }
}

/// A point among the changes: a commit, and how many of its changes are behind. As text
/// `epoch.counter` (the whole commit) or `epoch.counter.n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    revision: Revision,
    /// `u32::MAX`: all of them.
    seen: u32,
}

impl Position {
    fn after(revision: Revision) -> Self {
        Self { revision, seen: u32::MAX }
    }

    /// The commit to watch from so that nothing after this point is missed.
    fn watch_from(self) -> Revision {
        let Revision { epoch, counter } = self.revision;
        let whole = self.seen == u32::MAX;
        Revision { epoch, counter: if whole { counter } else { counter.saturating_sub(1) } }
    }

    /// The next change of a watch is at this revision; counts it.
    fn advance(self, revision: Revision) -> Self {
        if self.revision == revision && self.seen != u32::MAX {
            return Self { revision, seen: self.seen.saturating_add(1) };
        }
        Self { revision, seen: 1 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seen {
            u32::MAX => self.revision.fmt(f),
            seen => write!(f, "{}.{seen}", self.revision),
        }
    }
}

impl FromStr for Position {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.split('.');
        let mut number = || parts.next().map(|part| part.parse::<u64>().map_err(|_| ()));
        let epoch = number().ok_or(())??;
        let counter = number().ok_or(())??;
        let seen = number().transpose()?.map(|n| u32::try_from(n).map_err(|_| ())).transpose()?;
        if parts.next().is_some() {
            return Err(());
        }
        Ok(Self { revision: Revision { epoch, counter }, seen: seen.unwrap_or(u32::MAX) })
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// What.
    #[serde(flatten)]
    pub body: EventBody,
    /// The commit, if it is a change of the store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

/// What a subscription yields.
#[derive(Clone, Debug, PartialEq)]
pub enum Item {
    /// A change of the store.
    Change(Position, Change),
    /// Progress of a task; it has no position.
    Progress(Change),
    /// Something was missed: read the state anew; what follows comes after this point.
    Reset(Position, &'static str),
    /// Nothing that fits happened for a while; the reader is this far.
    Idle(Position),
}

/// What subscriptions share.
#[derive(Debug)]
pub struct Events {
    ctx: Arc<Context>,
    tasks: Arc<Tasks>,
    progress: broadcast::Sender<Arc<Change>>,
    places: Arc<Semaphore>,
}

impl Events {
    pub(super) fn new(ctx: Arc<Context>, tasks: Arc<Tasks>) -> Self {
        Self {
            ctx,
            tasks,
            progress: broadcast::Sender::new(PROGRESS_BACKLOG),
            places: Arc::new(Semaphore::new(MAX_SUBSCRIPTIONS)),
        }
    }

    /// A report of a running task.
    pub(crate) fn progress(&self, server: ServerUuid, progress: &Progress) {
        self.tasks.table.progress(server, progress);
        if self.progress.receiver_count() == 0 {
            return;
        }
        let Some(open) =
            self.tasks.table.get(&progress.id).filter(|o| o.record.server_uuid == server)
        else {
            return;
        };
        self.tell(EventBody::Progress(ProgressEvent::of(progress, &open.record)));
    }

    /// A server reports a VM of another one.
    pub(crate) fn claimed(&self, claim: Claim) {
        self.tell(EventBody::Alarm(AlarmEvent::of(claim)));
    }

    /// Tells of what is not stored.
    fn tell(&self, body: EventBody) {
        // An error means that nobody reads.
        drop(self.progress.send(Arc::new(Change { body, revision: None })));
    }

    /// Subscribes to what happens from now on, or after the point where a reader was.
    ///
    /// # Errors
    /// [`AppError::Busy`] when there are too many subscriptions; [`AppError::Store`].
    pub async fn subscribe(
        self: &Arc<Self>,
        filter: EventFilter,
        after: Option<Position>,
    ) -> Result<Subscription, AppError> {
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| AppError::Busy("too many readers of events".to_owned()))?;
        let progress = self.progress.subscribe();
        if let Some(after) = after {
            // Another coordinator told of it just now.
            self.ctx.feed.reached_soon(after.revision).await?;
        }
        let now = self.position();
        // A point that this store never reached is of another store.
        let known = after.filter(|after| after.revision <= now.revision);
        let from = known.unwrap_or(now);
        let watch = self.ctx.feed.watch("", from.watch_from());
        let first = if after.is_some() && known.is_none() {
            Some(Item::Reset(now, "the position is not of this store"))
        } else {
            Some(Item::Idle(from))
        };
        let behind = if from.seen == u32::MAX { None } else { Some(from) };
        Ok(Subscription {
            events: Arc::clone(self),
            filter,
            watch,
            commit: Vec::new().into_iter(),
            progress,
            at: Position { revision: from.watch_from(), seen: u32::MAX },
            behind,
            first,
            _place: place,
        })
    }

    fn position(&self) -> Position {
        Position::after(self.ctx.feed.revision())
    }
}

/// A reader's place among the events.
#[derive(Debug)]
pub struct Subscription {
    events: Arc<Events>,
    filter: EventFilter,
    watch: Watch,
    /// What is left of the commit that the watch told of last.
    commit: vec::IntoIter<store::Event>,
    progress: broadcast::Receiver<Arc<Change>>,
    /// The last change taken from the watch.
    at: Position,
    /// Changes up to here were seen before.
    behind: Option<Position>,
    /// What comes before all else.
    first: Option<Item>,
    _place: OwnedSemaphorePermit,
}

impl Subscription {
    /// The next item; `None` when the application stops.
    pub async fn next(&mut self) -> Option<Item> {
        if let Some(item) = self.first.take() {
            return Some(item);
        }
        let idle = tokio::time::sleep(IDLE);
        tokio::pin!(idle);
        loop {
            while let Some(event) = self.commit.next() {
                if let Some(item) = self.take(&event) {
                    return Some(item);
                }
            }
            tokio::select! {
                biased;
                () = self.events.ctx.cancel.cancelled() => return None,
                // Before the store, so that a task's progress comes before its end.
                progress = self.progress.recv() => match progress {
                    Ok(change) if self.filter.fits(&change) => {
                        return Some(Item::Progress((*change).clone()));
                    }
                    Ok(_) => {}
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        return Some(Item::Reset(self.at, "reports of progress were missed"));
                    }
                    Err(broadcast::error::RecvError::Closed) => return None,
                },
                commit = self.watch.recv() => match commit {
                    Some(Ok(events)) => self.commit = events.into_iter(),
                    Some(Err(WatchEnd::Compacted)) => return Some(self.restart()),
                    Some(Err(WatchEnd::Closed)) | None => return None,
                },
                () = &mut idle => return Some(Item::Idle(self.at)),
            }
        }
    }

    fn take(&mut self, event: &store::Event) -> Option<Item> {
        self.at = self.at.advance(event.revision);
        if self.behind.is_some_and(|behind| self.at <= behind) {
            return None;
        }
        let change = change_of(event).filter(|change| self.filter.fits(change))?;
        Some(Item::Change(self.at, change))
    }

    /// What was missed is lost; goes on from now.
    fn restart(&mut self) -> Item {
        let now = self.events.position();
        self.watch = self.events.ctx.feed.watch("", now.revision);
        (self.at, self.behind) = (now, None);
        Item::Reset(now, "the changes in between are no longer known")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(counter: u64) -> Revision {
        Revision { epoch: 1, counter }
    }

    #[test]
    fn filters_are_about_members() {
        let id = |id: &str| Some(id.parse::<TaskId>().unwrap());
        let filter = EventFilter { task: id("t1"), ..EventFilter::default() };
        let change = |body| Change { body, revision: None };
        let task = |name| EventBody::Task(body::TaskEvent { id: id(name), ..Default::default() });
        assert!(filter.fits(&change(task("t1"))));
        assert!(!filter.fits(&change(task("t2"))));
        assert!(!filter.fits(&change(EventBody::Ticket(Default::default()))));
        let kinds = BTreeSet::from([EventKind::Vm]);
        let filter = EventFilter { kinds, ..EventFilter::default() };
        assert!(!filter.fits(&change(task("t1"))));
        assert!(filter.fits(&change(EventBody::Vm(Default::default()))));
    }

    #[test]
    fn positions_are_read_as_they_are_written() {
        for text in ["1.7", "1.7.1", "0.0", "3.18446744073709551615.4"] {
            assert_eq!(text.parse::<Position>().unwrap().to_string(), text);
        }
        for bad in ["", "1", "1.", "a.b", "1.2.3.4", "1.2.x", "1.2.99999999999", "-1.2"] {
            assert!(bad.parse::<Position>().is_err(), "{bad}");
        }
    }

    proptest! {
        /// Wherever a reader leaves, coming back gives exactly the changes it has not seen.
        #[test]
        fn a_reader_that_comes_back_misses_and_repeats_nothing(
            commits in prop::collection::vec(1..4usize, 1..12),
            leave in 0..40usize,
        ) {
            let mut changes = Vec::new();
            let mut counter = 0;
            for size in &commits {
                counter += 1;
                changes.extend(std::iter::repeat_n(at(counter), *size));
            }
            let mut position = Position::after(at(0));
            let mut seen = 0;
            for revision in changes.iter().take(leave) {
                position = position.advance(*revision);
                seen += 1;
            }
            let back: Position = position.to_string().parse().unwrap();
            let from = back.watch_from();
            let mut now = Position { revision: from, seen: u32::MAX };
            let mut after = 0;
            for revision in changes.iter().filter(|revision| **revision > from) {
                now = now.advance(*revision);
                if back.seen == u32::MAX || now > back {
                    after += 1;
                }
            }
            prop_assert_eq!(seen + after, changes.len());
        }
    }
}
