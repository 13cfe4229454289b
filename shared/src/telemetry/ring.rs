//! The last lines of a log, in memory, for those who ask.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;
use uuid::Uuid;

use crate::api::Object;
use crate::api::log::{Level, LogLine, LogPage};
use crate::clock::{SharedClock, iso};
use crate::vm::json_bytes;
use crate::wire::MAX_INLINE_BYTES;
use crate::wire::logs::{LogQuery, MAX_LINES};

/// What the lines take together, bytes.
const RING_BYTES: usize = 2 * 1024 * 1024;
/// Most lines of a page, bytes of JSON: larger results of agents are stored as files.
const PAGE_BYTES: usize = MAX_INLINE_BYTES - 1024;
/// What a line takes beside its texts.
const LINE_OVERHEAD: usize = 256;
/// What a field takes beside its texts.
const FIELD_OVERHEAD: usize = 64;

/// The newest lines of this process.
#[derive(Debug)]
pub struct LogRing {
    instance: Uuid,
    clock: SharedClock,
    kept: Mutex<Kept>,
    /// The number of the newest line.
    newest: watch::Sender<u64>,
    most_bytes: usize,
}

#[derive(Debug, Default)]
struct Kept {
    /// Numbered without a gap.
    lines: VecDeque<Line>,
    newest: u64,
    bytes: usize,
}

#[derive(Debug)]
struct Line {
    at: Timestamp,
    bytes: usize,
    line: Arc<LogLine>,
}

/// A line without what the ring adds: its number and its time.
#[derive(Clone, Debug)]
pub(super) struct NewLine {
    pub(super) level: Level,
    pub(super) target: String,
    pub(super) message: String,
    pub(super) task_id: Option<String>,
    pub(super) vm_uuid: Option<String>,
    pub(super) fields: Object,
}

impl LogRing {
    /// An empty one, of a process with this name.
    #[must_use]
    pub fn new(instance: Uuid, clock: SharedClock) -> Self {
        Self::with_room(instance, clock, RING_BYTES)
    }

    /// The process whose lines these are.
    #[must_use]
    pub fn instance(&self) -> Uuid {
        self.instance
    }

    fn with_room(instance: Uuid, clock: SharedClock, most_bytes: usize) -> Self {
        let newest = watch::Sender::new(0);
        Self { instance, clock, kept: Mutex::default(), newest, most_bytes }
    }

    pub(super) fn push(&self, new: NewLine) {
        let bytes = new.bytes();
        let NewLine { level, target, message, task_id, vm_uuid, fields } = new;
        // Within the lock, so that times are in the order of the numbers.
        let mut kept = self.kept.lock();
        let at = self.clock.wall();
        kept.newest += 1;
        let (seq, time) = (kept.newest, iso(at));
        let line = LogLine { seq, time, level, target, message, task_id, vm_uuid, fields };
        kept.lines.push_back(Line { at, bytes, line: Arc::new(line) });
        kept.bytes += bytes;
        while kept.bytes > self.most_bytes {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.bytes;
        }
        drop(kept);
        // Lines of two threads may come here in the other order.
        self.newest.send_modify(|newest| *newest = seq.max(*newest));
    }

    /// The lines that are wanted; waits for the first one as long as the query says.
    pub async fn read(&self, query: &LogQuery) -> LogPage {
        let mut patience = pin!(sleep(query.patience()));
        // Before the first look: a line in between is not missed.
        let mut newest = self.newest.subscribe();
        let mut query = query.clone();
        let mut lost = 0;
        loop {
            newest.mark_unchanged();
            let page = self.page(&query);
            lost += page.lost;
            let page = LogPage { lost, ..page };
            if !page.lines.is_empty() {
                return page;
            }
            tokio::select! {
                biased;
                () = &mut patience => return page,
                changed = newest.changed() => if changed.is_err() { return page },
            }
            // What was looked at need not be looked at again.
            (query.after, query.instance) = (Some(page.next), Some(self.instance));
        }
    }

    fn page(&self, query: &LogQuery) -> LogPage {
        let oldest = query.max_age.map(|age| {
            let age = SignedDuration::try_from(Duration::from_secs(age));
            let age = age.unwrap_or(SignedDuration::MAX);
            self.clock.wall().checked_sub(age).unwrap_or(Timestamp::MIN)
        });
        let wanted = |line: &&Line| {
            let LogLine { level, task_id, vm_uuid, .. } = &*line.line;
            let task = query.task.as_ref();
            let vm = query.vm.map(|vm| vm.to_string());
            oldest.is_none_or(|oldest| line.at >= oldest)
                && query.level.is_none_or(|least| *level <= least)
                && task.is_none_or(|task| task_id.as_deref() == Some(task.as_str()))
                && (vm.is_none() || *vm_uuid == vm)
        };
        let most = query.limit.unwrap_or(MAX_LINES).min(MAX_LINES);
        let kept = self.kept.lock();
        let gone = kept.newest - as_number(kept.lines.len());
        let known = query.instance.is_none_or(|instance| instance == self.instance);
        // A number that no line has yet was counted by another process.
        let after = query.after.map(|after| if known && after <= kept.newest { after } else { 0 });
        let skipped = as_count(after.unwrap_or(0).saturating_sub(gone));
        let found = kept.lines.iter().skip(skipped).filter(wanted);
        let found: Vec<Arc<LogLine>> = match after {
            Some(_) => found.take(most + 1).map(|line| Arc::clone(&line.line)).collect(),
            None => found.rev().take(most).map(|line| Arc::clone(&line.line)).collect(),
        };
        let (newest, lost) = (kept.newest, gone.saturating_sub(after.unwrap_or(0)));
        drop(kept);
        let fitting = fitting(&found, most);
        // The last ones are all that is wanted; of the first ones more may follow.
        let next = match found.get(fitting) {
            Some(left) if after.is_some() => left.seq - 1,
            _ => newest,
        };
        let mut lines: Vec<LogLine> =
            found[..fitting].iter().map(|line| LogLine::clone(line)).collect();
        if after.is_none() {
            lines.reverse();
        }
        LogPage { instance: self.instance, next, lost, lines }
    }
}

/// How many of the lines have room in a page; one at least, as each is short.
fn fitting(lines: &[Arc<LogLine>], most: usize) -> usize {
    let mut bytes = 0;
    let fits = |line: &&Arc<LogLine>| {
        bytes += json_bytes(&***line) + 1;
        bytes <= PAGE_BYTES
    };
    lines.iter().take(most).take_while(fits).count()
}

fn as_number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn as_count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

impl NewLine {
    /// About what it takes in memory.
    fn bytes(&self) -> usize {
        let id = |id: &Option<String>| id.as_ref().map_or(0, String::len);
        let field = |(name, value): (&String, &Value)| {
            name.len() + value.as_str().map_or(0, str::len) + FIELD_OVERHEAD
        };
        let texts = self.target.len() + self.message.len() + id(&self.task_id) + id(&self.vm_uuid);
        LINE_OVERHEAD + texts + self.fields.iter().map(field).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::TokioClock;
    use crate::ids::VmUuid;

    const BYTES: usize = 64 * 1024;

    fn ring() -> LogRing {
        let clock = Arc::new(TokioClock::new("2026-01-01T00:00:00Z".parse().unwrap()));
        LogRing::with_room(Uuid::from_u128(1), clock, BYTES)
    }

    fn line(level: Level, message: &str) -> NewLine {
        NewLine {
            level,
            target: "x".to_owned(),
            message: message.to_owned(),
            task_id: None,
            vm_uuid: None,
            fields: Object::new(),
        }
    }

    fn numbers(page: &LogPage) -> Vec<u64> {
        page.lines.iter().map(|line| line.seq).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn old_lines_go_and_are_counted() {
        let ring = ring();
        for n in 0..1000 {
            ring.push(line(Level::Info, &"x".repeat(n % 400)));
            let kept = ring.kept.lock();
            let bytes: usize = kept.lines.iter().map(|line| line.bytes).sum();
            assert!(kept.bytes == bytes && bytes <= BYTES, "{bytes}");
        }
        let all = ring.read(&LogQuery { after: Some(0), ..LogQuery::default() }).await;
        let kept = numbers(&all);
        assert_eq!(kept.last(), Some(&1000));
        assert_eq!(all.lost, kept[0] - 1);
        assert_eq!(kept.len() as u64, 1000 - all.lost);
        let some = ring.read(&LogQuery { after: Some(900), ..LogQuery::default() }).await;
        assert_eq!((some.lost, numbers(&some)), (0, (901..=1000).collect()));
        let last = ring.read(&LogQuery { limit: Some(3), ..LogQuery::default() }).await;
        assert_eq!((last.next, numbers(&last)), (1000, vec![998, 999, 1000]));
        // A line larger than all room is nothing that can be kept.
        ring.push(line(Level::Info, &"x".repeat(BYTES)));
        let none = ring.read(&LogQuery::default()).await;
        assert_eq!((none.next, none.lost, none.lines.len()), (1001, 1001, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn pages_lead_to_all_that_is_wanted() {
        let ring = ring();
        for n in 0..100 {
            let level = if n % 3 == 0 { Level::Warn } else { Level::Debug };
            let about = Some(VmUuid(Uuid::from_u128(7)).to_string()).filter(|_| n % 2 == 0);
            let task_id = Some(format!("t{}", n % 5));
            ring.push(NewLine { vm_uuid: about, task_id, ..line(level, "said") });
        }
        let (vm, task) = (Some(VmUuid(Uuid::from_u128(7))), Some("t0".parse().unwrap()));
        let level = Some(Level::Info);
        let filters = LogQuery { vm, task, level, after: Some(0), ..LogQuery::default() };
        let all: Vec<u64> = numbers(&ring.read(&filters).await);
        assert_eq!(all, [1, 31, 61, 91]);
        let mut query = LogQuery { limit: Some(3), ..filters };
        let mut found = Vec::new();
        for _ in 0..2 {
            let page = ring.read(&query).await;
            found.extend(numbers(&page));
            query.after = Some(page.next);
        }
        assert_eq!(found, all);
        assert_eq!(query.after, Some(100));
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_has_room_for_so_much() {
        let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
        let ring = LogRing::new(Uuid::nil(), clock);
        for _ in 0..100 {
            // Each character takes six in JSON.
            ring.push(line(Level::Info, &"\u{1}".repeat(4096)));
        }
        let first = ring.read(&LogQuery { after: Some(0), ..LogQuery::default() }).await;
        assert!(json_bytes(&first) <= MAX_INLINE_BYTES, "{}", json_bytes(&first));
        assert_eq!(numbers(&first), (1..=first.next).collect::<Vec<_>>());
        let last = ring.read(&LogQuery::default()).await;
        assert_eq!((last.lines.len(), last.lines.last().unwrap().seq), (first.lines.len(), 100));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_gets_the_next_line_that_is_wanted() {
        let ring = Arc::new(ring());
        ring.push(line(Level::Warn, "old"));
        let query = LogQuery {
            after: Some(1),
            level: Some(Level::Warn),
            wait: Some(30),
            ..LogQuery::default()
        };
        let (shared, wanted) = (ring.clone(), query.clone());
        let reading = tokio::spawn(async move { shared.read(&wanted).await });
        tokio::time::sleep(Duration::from_secs(1)).await;
        ring.push(line(Level::Info, "not wanted"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!reading.is_finished());
        ring.push(line(Level::Warn, "wanted"));
        let page = reading.await.unwrap();
        assert_eq!((numbers(&page), page.next), (vec![3], 3));
        let began = ring.clock.monotonic();
        let none = ring.read(&LogQuery { after: Some(3), ..query }).await;
        let waited = ring.clock.monotonic() - began;
        assert_eq!((none.next, none.lines.len(), waited.as_secs()), (3, 0, 30));
    }

    #[tokio::test(start_paused = true)]
    async fn the_numbers_of_another_process_are_none_of_this() {
        let ring = ring();
        ring.push(line(Level::Info, "one"));
        ring.push(line(Level::Info, "two"));
        let after = |after, instance| LogQuery {
            after: Some(after),
            instance: Some(Uuid::from_u128(instance)),
            wait: Some(30),
            ..LogQuery::default()
        };
        assert_eq!(numbers(&ring.read(&after(1, 1)).await), [2]);
        assert_eq!(numbers(&ring.read(&after(1, 2)).await), [1, 2]);
        let later = LogQuery { instance: None, ..after(3, 1) };
        assert_eq!(numbers(&ring.read(&later).await), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn lines_have_an_age() {
        let ring = ring();
        ring.push(line(Level::Info, "old"));
        tokio::time::sleep(Duration::from_secs(600)).await;
        ring.push(line(Level::Info, "young"));
        let query = LogQuery { max_age: Some(60), ..LogQuery::default() };
        let page = ring.read(&query).await;
        assert_eq!(numbers(&page), [2]);
        assert_eq!(page.lines[0].time, "2026-01-01T00:10:00.000Z");
        let ever = LogQuery { max_age: Some(u64::MAX), ..LogQuery::default() };
        assert_eq!(numbers(&ring.read(&ever).await), [1, 2]);
    }
}
