//! The line to one guest's serial port: who looks at it, and the task that carries its bytes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, ReadHalf};
use tokio::sync::{mpsc, watch};
use tokio::time::{Interval, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::queue::Queue;
use super::{End, Fate, Lines, Ports};
use crate::drivers::compute::{CONSOLE_PAST_BYTES, GuestIo};

/// What viewers are told between two processes of the guest.
pub(super) const ENDED: &str = "the machine has ended; waiting until it runs again";
pub(super) const AGAIN: &str = "the machine runs again";
/// Bytes read from the guest at a time.
const CHUNK_BYTES: usize = 16 * 1024;
/// Pieces of what viewers typed that may wait for the guest.
const TYPED_PIECES: usize = 16;
/// Between looks at a guest that is away, or at its log.
const LOOK: Duration = Duration::from_millis(100);
/// Tries to connect to the port of a guest that runs, one after each look.
const OPEN_TRIES: u32 = 50;
/// What bytes that the port has need to arrive.
const SETTLE: Duration = Duration::from_millis(50);
/// Looks at the log after connecting, unless the port speaks first.
const LOG_LOOKS: u32 = 50;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    Opening,
    Open,
    Ended(End),
}

#[derive(Debug, Default)]
struct Audience {
    /// What this process of the guest printed last.
    past: BytesMut,
    viewers: Vec<Arc<Queue>>,
}

/// One line. Its viewers are counted under the lock of all [`Lines`].
#[derive(Debug)]
pub(super) struct Line {
    vm: VmUuid,
    audience: Mutex<Audience>,
    phase: watch::Sender<Phase>,
    typed: mpsc::Sender<Bytes>,
    unwatched: CancellationToken,
}

impl Line {
    pub(super) fn new(vm: VmUuid) -> (Self, mpsc::Receiver<Bytes>) {
        let (typed, to_guest) = mpsc::channel(TYPED_PIECES);
        let phase = watch::channel(Phase::Opening).0;
        let unwatched = CancellationToken::new();
        (Self { vm, audience: Mutex::default(), phase, typed, unwatched }, to_guest)
    }

    /// A further viewer, unless there are `limit`.
    pub(super) fn join(&self, limit: usize) -> Option<Arc<Queue>> {
        let mut audience = self.audience.lock();
        if audience.viewers.len() >= limit {
            return None;
        }
        let queue = Arc::new(Queue::default());
        queue.output(&audience.past);
        audience.viewers.push(Arc::clone(&queue));
        Some(queue)
    }

    /// A viewer goes; true if it was the last.
    pub(super) fn leave(&self, queue: &Arc<Queue>) -> bool {
        let mut audience = self.audience.lock();
        audience.viewers.retain(|other| !Arc::ptr_eq(other, queue));
        let last = audience.viewers.is_empty();
        if last {
            self.unwatched.cancel();
        }
        last
    }

    /// Waits until the port is connected; the reason if it can't be.
    pub(super) async fn opened(&self) -> Option<End> {
        let mut phase = self.phase.subscribe();
        let phase = phase.wait_for(|phase| *phase != Phase::Opening).await;
        match phase.map(|phase| phase.clone()) {
            Ok(Phase::Ended(end)) => Some(end),
            // The line holds the sender.
            Ok(_) | Err(_) => None,
        }
    }

    pub(super) async fn write(&self, bytes: Bytes) {
        // After the end nobody takes it, which the viewer learns from the end itself.
        self.typed.send(bytes).await.ok();
    }

    fn output(&self, bytes: &[u8]) {
        let mut audience = self.audience.lock();
        audience.past.extend_from_slice(bytes);
        let surplus = audience.past.len().saturating_sub(CONSOLE_PAST_BYTES);
        audience.past.advance(surplus);
        for viewer in &audience.viewers {
            viewer.output(bytes);
        }
    }

    fn notice(&self, text: &str) {
        for viewer in &self.audience.lock().viewers {
            viewer.notice(text);
        }
    }
}

/// Takes a line off the list, unless another has its place.
pub(super) fn forget(lines: &mut BTreeMap<VmUuid, Arc<Line>>, line: &Arc<Line>) {
    if lines.get(&line.vm).is_some_and(|listed| Arc::ptr_eq(listed, line)) {
        lines.remove(&line.vm);
    }
}

/// Carries the bytes of one line.
#[derive(Debug)]
pub(super) struct Pump {
    ports: Arc<dyn Ports>,
    lines: Arc<Lines>,
    line: Arc<Line>,
    typed: mpsc::Receiver<Bytes>,
    stop: CancellationToken,
}

/// A port that is connected.
struct Port {
    io: Box<dyn GuestIo>,
    /// How far the log was known before.
    logged: u64,
}

impl Pump {
    pub(super) fn new(
        ports: Arc<dyn Ports>,
        lines: Arc<Lines>,
        line: Arc<Line>,
        typed: mpsc::Receiver<Bytes>,
        stop: CancellationToken,
    ) -> Self {
        Self { ports, lines, line, typed, stop }
    }

    /// Until the VM ends, nobody looks any more, or the agent stops.
    pub(super) async fn run(mut self) {
        let (line, stop) = (Arc::clone(&self.line), self.stop.clone());
        let end = tokio::select! {
            biased;
            // The last viewer took it off the list.
            () = line.unwatched.cancelled() => return,
            () = stop.cancelled() => End::new(Code::StreamFailed, "the agent stops"),
            end = self.work() => end,
        };
        tracing::debug!(vm_uuid = %line.vm, code = %end.code, "a console has ended");
        // Off the list first, so that nobody joins who would never hear of the end.
        forget(&mut self.lines.lock(), &line);
        for viewer in &line.audience.lock().viewers {
            viewer.end(end.clone());
        }
        line.phase.send_replace(Phase::Ended(end));
    }

    async fn work(&mut self) -> End {
        loop {
            let port = match self.open().await {
                Ok(port) => port,
                Err(end) => return end,
            };
            self.line.phase.send_replace(Phase::Open);
            self.carry(port).await;
        }
    }

    /// Connects to the guest's process, the first or the next one.
    async fn open(&mut self) -> Result<Port, End> {
        let vm = self.line.vm;
        let again = *self.line.phase.borrow() == Phase::Open;
        let (mut noticed, mut tries) = (false, 0);
        loop {
            match self.ports.fate(vm).await {
                Fate::Gone if again => {
                    return Err(End::new(Code::VmNotFound, "the machine is gone"));
                }
                Fate::Gone => {
                    return Err(End::new(Code::VmNotFound, format!("VM {vm} does not exist")));
                }
                Fate::Stopped if again => {
                    return Err(End::new(Code::VmNotRunning, "the machine is stopped"));
                }
                Fate::Stopped | Fate::Pending if !again => {
                    return Err(End::new(Code::VmNotRunning, format!("VM {vm} is not running")));
                }
                Fate::Stopped | Fate::Pending => {
                    tries = 0;
                    if !std::mem::replace(&mut noticed, true) {
                        self.line.notice(ENDED);
                    }
                }
                Fate::Runs => match self.connect(again).await {
                    Ok(port) => return Ok(port),
                    Err(error) if tries >= OPEN_TRIES => {
                        tracing::warn!(vm_uuid = %vm, %error, "a console can't be opened");
                        let text = "the machine's console does not answer";
                        return Err(End::new(Code::ConsoleUnavailable, text));
                    }
                    Err(_) => tries += 1,
                },
            }
            self.pause().await;
        }
    }

    async fn connect(&self, again: bool) -> Result<Port, String> {
        let vm = self.line.vm;
        // The log first: what the port says is then never older than what the log said.
        let logged = self.ports.logged(vm, None).await.map_err(|e| Chain(&e).to_string())?;
        let io = self.ports.open(vm).await.map_err(|error| Chain(&error).to_string())?;
        self.line.audience.lock().past.clear();
        if again {
            self.line.notice(AGAIN);
        }
        self.line.output(&logged.bytes);
        Ok(Port { io, logged: logged.end })
    }

    /// What is typed while no guest is there goes nowhere.
    async fn pause(&mut self) {
        let discard = async { while self.typed.recv().await.is_some() {} };
        tokio::select! {
            biased;
            () = sleep(LOOK) => {}
            () = discard => {}
        }
    }

    /// Both ways until the port closes.
    async fn carry(&mut self, port: Port) {
        let (mut reader, mut writer) = tokio::io::split(port.io);
        let mut gap = Gap { logged: port.logged, looks: LOG_LOOKS, look: interval(LOOK) };
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut typed = Bytes::new();
        let mut writable = true;
        loop {
            // Typing first, so that a guest that never stops printing can be interrupted.
            let length = tokio::select! {
                biased;
                written = writer.write(&typed), if !typed.is_empty() => {
                    match written {
                        Ok(length) if length > 0 => typed.advance(length),
                        // What it printed before is still to be read.
                        _ => { writable = false; typed.clear(); }
                    }
                    continue;
                }
                more = self.typed.recv(), if typed.is_empty() => {
                    typed = more.filter(|_| writable).unwrap_or_default();
                    continue;
                }
                read = reader.read(&mut buffer) => read.unwrap_or(0),
                _ = gap.look.tick(), if gap.looks > 0 => {
                    self.look(&mut gap, &mut reader).await;
                    continue;
                }
            };
            if length == 0 {
                return;
            }
            let live = &buffer[..length];
            if gap.looks > 0 {
                gap.looks = 0;
                let (missed, mut live) = (self.missed(&mut gap).await, live.to_vec());
                settle(&mut reader, &mut live).await;
                self.join(&missed, &live);
            } else {
                self.line.output(live);
            }
        }
    }

    /// Between the look at the log and the moment when the hypervisor took our connection, output
    /// went only to the log. The port gets every byte before the log does: if it has none now, all
    /// that is new in the log is from that gap.
    async fn look(&self, gap: &mut Gap, reader: &mut ReadHalf<Box<dyn GuestIo>>) {
        gap.looks -= 1;
        let missed = self.missed(gap).await;
        if missed.is_empty() {
            return;
        }
        let mut live = Vec::new();
        settle(reader, &mut live).await;
        if !live.is_empty() {
            gap.looks = 0;
        }
        self.join(&missed, &live);
    }

    async fn missed(&self, gap: &mut Gap) -> Bytes {
        match self.ports.logged(self.line.vm, Some(gap.logged)).await {
            Ok(logged) => {
                gap.logged = logged.end;
                logged.bytes
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "a console's log can't be read");
                Bytes::new()
            }
        }
    }

    /// `live` is all that the port had when `missed` was read, or more.
    fn join(&self, missed: &[u8], live: &[u8]) {
        self.line.output(missed);
        self.line.output(&live[overlap(missed, live)..]);
    }
}

/// What may be in the log and not have come over the port.
struct Gap {
    logged: u64,
    looks: u32,
    look: Interval,
}

/// Reads what the port has already. A single read may not see it: only a turn of the reactor tells
/// of bytes that came since the last one.
async fn settle(reader: &mut ReadHalf<Box<dyn GuestIo>>, live: &mut Vec<u8>) {
    let all = async {
        // A failure or the end shows again at the next read.
        while live.len() < CHUNK_BYTES && reader.read_buf(live).await.is_ok_and(|n| n > 0) {}
    };
    timeout(SETTLE, all).await.ok();
}

/// How many bytes at the begin of `live` are those at the end of `logged`.
fn overlap(logged: &[u8], live: &[u8]) -> usize {
    let longest = logged.len().min(live.len());
    (0..=longest).rev().find(|length| logged.ends_with(&live[..*length])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_came_twice_is_shown_once() {
        assert_eq!(overlap(b"gap and mo", b"more"), 2);
        assert_eq!(overlap(b"gap", b""), 0);
        assert_eq!(overlap(b"", b"live"), 0);
        assert_eq!(overlap(b"live", b"live"), 4);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_doubled(gap in "[a-m]{0,20}", length in 0..=13_usize, cut in 0..=13_usize) {
            // Letters that come once leave no doubt where the seam is.
            let live = &"nopqrstuvwxyz"[..length];
            let logged = format!("{gap}{}", &live[..cut.min(length)]);
            let at = overlap(logged.as_bytes(), live.as_bytes());
            prop_assert_eq!(format!("{logged}{}", &live[at..]), format!("{gap}{live}"));
        }
    }
}
