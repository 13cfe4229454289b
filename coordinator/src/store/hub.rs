//! Recent events and who wants to hear of them.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, OwnedPermit};

use super::{Event, Revision, Watch, WatchEnd};

/// Events kept for watches that start in the past.
const KEPT_EVENTS: usize = 10_000;
/// Bytes kept for them.
const KEPT_BYTES: usize = 4 * 1024 * 1024;
/// Commits a watcher may lag behind.
const WATCHER_COMMITS: usize = 4_096;

type Item = Result<Vec<Event>, WatchEnd>;

#[derive(Debug)]
struct Watcher {
    prefix: String,
    commits: mpsc::Sender<Item>,
    /// Room for the last item, which says why the watch ends.
    end: OwnedPermit<Item>,
}

#[derive(Debug)]
struct State {
    /// The last durable commit.
    revision: Revision,
    /// Every event after this revision is in `recent`.
    known_from: Revision,
    recent: VecDeque<Event>,
    recent_bytes: usize,
    watchers: Vec<Watcher>,
    closed: bool,
}

/// Distributes events. Its methods never wait.
#[derive(Debug)]
pub(super) struct Hub(Mutex<State>);

fn size(event: &Event) -> usize {
    event.key.len() + event.value.as_ref().map_or(0, bytes::Bytes::len)
}

/// The events of each commit.
fn by_commit(events: &[Event]) -> impl Iterator<Item = Vec<Event>> {
    events.chunk_by(|one, next| one.revision == next.revision).map(<[_]>::to_vec)
}

impl Hub {
    pub(super) fn new(revision: Revision, known_from: Revision) -> Self {
        Self(Mutex::new(State {
            revision,
            known_from,
            recent: VecDeque::new(),
            recent_bytes: 0,
            watchers: Vec::new(),
            closed: false,
        }))
    }

    pub(super) fn revision(&self) -> Revision {
        self.0.lock().revision
    }

    /// `None` once closed.
    pub(super) fn watch(&self, prefix: &str, from: Revision) -> Option<Watch> {
        let mut state = self.0.lock();
        if state.closed {
            return None;
        }
        let known = from >= state.known_from;
        let backlog: Vec<Event> = state
            .recent
            .iter()
            .filter(|event| known && event.revision > from && event.key.starts_with(prefix))
            .cloned()
            .collect();
        let backlog: Vec<_> = by_commit(&backlog).collect();
        let (commits, watch) = mpsc::channel(WATCHER_COMMITS + backlog.len() + 1);
        let end = commits.clone().try_reserve_owned().expect("a new channel has room");
        if !known {
            end.send(Err(WatchEnd::Compacted));
            return Some(watch);
        }
        for commit in backlog {
            commits.try_send(Ok(commit)).expect("the channel was made large enough");
        }
        state.watchers.push(Watcher { prefix: prefix.to_owned(), commits, end });
        Some(watch)
    }

    /// Tells of commits that became durable; `revision` is the last of them.
    pub(super) fn publish(&self, events: Vec<Event>, revision: Revision) {
        let mut state = self.0.lock();
        state.revision = revision;
        let watchers = std::mem::take(&mut state.watchers);
        for watcher in watchers {
            if watcher.commits.is_closed() {
                continue;
            }
            let wanted = events.iter().filter(|event| event.key.starts_with(&watcher.prefix));
            let wanted: Vec<_> = wanted.cloned().collect();
            if by_commit(&wanted).all(|commit| watcher.commits.try_send(Ok(commit)).is_ok()) {
                state.watchers.push(watcher);
            } else {
                watcher.end.send(Err(WatchEnd::Compacted));
            }
        }
        for event in events {
            state.recent_bytes += size(&event);
            state.recent.push_back(event);
        }
        state.trim();
    }

    /// Something was missed: watches end, and only what comes after `revision` is known.
    pub(super) fn restart(&self, revision: Revision) {
        let mut state = self.0.lock();
        (state.revision, state.known_from) = (revision, revision);
        state.recent.clear();
        state.recent_bytes = 0;
        for watcher in std::mem::take(&mut state.watchers) {
            watcher.end.send(Err(WatchEnd::Compacted));
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.0.lock();
        state.closed = true;
        for watcher in std::mem::take(&mut state.watchers) {
            watcher.end.send(Err(WatchEnd::Closed));
        }
    }
}

impl State {
    fn trim(&mut self) {
        while self.recent.len() > KEPT_EVENTS || self.recent_bytes > KEPT_BYTES {
            let Some(dropped) = self.recent.pop_front() else { return };
            self.recent_bytes -= size(&dropped);
            // The other events of its commit are of no use without it.
            self.known_from = self.known_from.max(dropped.revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(counter: u64) -> Revision {
        Revision { epoch: 1, counter }
    }

    fn event(key: &str, counter: u64) -> Event {
        Event { key: key.to_owned(), value: Some("v".into()), revision: at(counter) }
    }

    #[test]
    fn a_slow_watcher_ends_compacted_and_the_others_go_on() {
        let hub = Hub::new(at(0), at(0));
        let mut slow = hub.watch("a/", at(0)).unwrap();
        let mut other = hub.watch("b/", at(0)).unwrap();
        let commits = u64::try_from(WATCHER_COMMITS).unwrap();
        for n in 1..=commits + 1 {
            hub.publish(vec![event("a/k", n)], at(n));
        }
        hub.publish(vec![event("b/k", commits + 2)], at(commits + 2));
        for n in 1..=commits {
            assert_eq!(slow.try_recv().unwrap().unwrap()[0].revision, at(n));
        }
        assert_eq!(slow.try_recv().unwrap(), Err(WatchEnd::Compacted));
        assert!(slow.try_recv().is_err(), "nothing after the end");
        assert_eq!(other.try_recv().unwrap().unwrap()[0].revision, at(commits + 2));
    }

    #[test]
    fn a_watch_from_what_is_no_longer_kept_ends_compacted() {
        let hub = Hub::new(at(0), at(0));
        let events = u64::try_from(KEPT_EVENTS).unwrap();
        for n in 1..=events + 2 {
            hub.publish(vec![event("k", n)], at(n));
        }
        assert_eq!(hub.watch("", at(1)).unwrap().try_recv().unwrap(), Err(WatchEnd::Compacted));
        let mut watch = hub.watch("", at(2)).unwrap();
        assert_eq!(watch.try_recv().unwrap().unwrap()[0].revision, at(3));
    }

    #[test]
    fn a_commit_is_told_of_as_one_whether_it_is_news_or_not() {
        let hub = Hub::new(at(0), at(0));
        let mut early = hub.watch("a/", at(0)).unwrap();
        let (one, two) = (event("a/1", 1), event("a/2", 1));
        let (other, three) = (event("b/1", 1), event("a/3", 2));
        let group = vec![one.clone(), other, two.clone(), three.clone()];
        hub.publish(group, at(2));
        let mut late = hub.watch("a/", at(0)).unwrap();
        for watch in [&mut early, &mut late] {
            assert_eq!(watch.try_recv().unwrap(), Ok(vec![one.clone(), two.clone()]));
            assert_eq!(watch.try_recv().unwrap(), Ok(vec![three.clone()]));
        }
    }
}
