//! Consoles over fake ports: a duplex pipe for each connection, the far end in the test's hands.

use std::time::Duration;

use muster_shared::wire::Code;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};
use tokio::sync::mpsc;

use super::queue::LIMIT_BYTES;
use super::*;

const PIPE_BYTES: usize = 64 * 1024;

#[derive(Debug)]
struct Fake {
    fate: Mutex<Fate>,
    log: Mutex<Vec<u8>>,
    /// Printed to this port, then to the log, just before the log is looked at.
    meanwhile: Mutex<Option<(DuplexStream, &'static [u8])>>,
    broken: bool,
    ports: mpsc::Sender<DuplexStream>,
}

#[async_trait]
impl Ports for Fake {
    async fn fate(&self, _vm: VmUuid) -> Fate {
        *self.fate.lock()
    }

    async fn open(&self, _vm: VmUuid) -> Result<Box<dyn GuestIo>, DriverError> {
        if self.broken {
            return Err(DriverError::failed("open /run/secret.sock", std::io::Error::other("no")));
        }
        let (ours, theirs) = tokio::io::duplex(PIPE_BYTES);
        self.ports.try_send(theirs).unwrap();
        Ok(Box::new(ours))
    }

    async fn logged(&self, _vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError> {
        let meanwhile = self.meanwhile.lock().take();
        if let Some((mut guest, printed)) = meanwhile {
            guest.write_all(printed).await.unwrap();
            self.log.lock().extend_from_slice(printed);
            *self.meanwhile.lock() = Some((guest, b""));
        }
        let log = self.log.lock();
        let from = usize::try_from(from.unwrap_or(0)).unwrap();
        Ok(Logged { bytes: Bytes::copy_from_slice(&log[from..]), end: log.len() as u64 })
    }
}

struct Bench {
    consoles: Consoles,
    fake: Arc<Fake>,
    ports: mpsc::Receiver<DuplexStream>,
}

fn vm() -> VmUuid {
    uuid::Uuid::from_u128(7).into()
}

fn bench(broken: bool) -> Bench {
    let (tx, ports) = mpsc::channel(16);
    let (fate, log) = (Mutex::new(Fate::Runs), Mutex::default());
    let fake = Arc::new(Fake { fate, log, meanwhile: Mutex::default(), broken, ports: tx });
    let consoles = Consoles::new(fake.clone(), TaskTracker::new(), CancellationToken::new());
    Bench { consoles, fake, ports }
}

/// What a viewer sees until a text; notices in angle brackets.
async fn until(viewer: &Viewer, wanted: &str) -> String {
    let mut seen = String::new();
    while !seen.contains(wanted) {
        match viewer.next(1024).await.unwrap() {
            Event::Output(bytes) => seen.push_str(std::str::from_utf8(&bytes).unwrap()),
            Event::Notice(text) => seen.push_str(&format!("<{text}>")),
        }
    }
    seen
}

fn code<T: fmt::Debug>(result: Result<T, DriverError>) -> (Code, String) {
    match result {
        Err(DriverError::Refused { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn all_see_the_past_and_what_comes_and_all_may_type() {
    let mut bench = bench(false);
    bench.fake.log.lock().extend_from_slice(b"before ");
    let first = bench.consoles.attach(vm()).await.unwrap();
    let mut guest = bench.ports.recv().await.unwrap();
    guest.write_all(b"one ").await.unwrap();
    assert_eq!(until(&first, "one ").await, "before one ");
    let second = bench.consoles.attach(vm()).await.unwrap();
    guest.write_all(b"two").await.unwrap();
    assert_eq!(until(&first, "two").await, "two");
    assert_eq!(until(&second, "two").await, "before one two");

    let mut typed = [0; 4];
    first.write("ab".into()).await;
    guest.read_exact(&mut typed[..2]).await.unwrap();
    second.write("cd".into()).await;
    guest.read_exact(&mut typed[2..]).await.unwrap();
    assert_eq!(&typed, b"abcd");

    drop(first);
    guest.write_all(b"three").await.unwrap();
    assert_eq!(until(&second, "three").await, "three");
    drop(second);
    assert_eq!(guest.read(&mut typed).await.unwrap(), 0, "nobody looks any more");
    assert!(bench.ports.try_recv().is_err(), "one connection was enough");
    bench.consoles.attach(vm()).await.unwrap();
}

/// The log is ahead of what was read from the port, never of what the port has.
#[tokio::test(start_paused = true)]
async fn what_is_printed_while_the_log_is_read_is_shown_once() {
    let mut bench = bench(false);
    let viewer = bench.consoles.attach(vm()).await.unwrap();
    let mut guest = bench.ports.recv().await.unwrap();
    guest.write_all(b"live").await.unwrap();
    bench.fake.log.lock().extend_from_slice(b"missed live");
    *bench.fake.meanwhile.lock() = Some((guest, b" and more"));
    assert_eq!(until(&viewer, "more").await, "missed live and more");
    let (mut guest, _) = bench.fake.meanwhile.lock().take().unwrap();
    guest.write_all(b".").await.unwrap();
    assert_eq!(until(&viewer, ".").await, ".");
}

#[tokio::test(start_paused = true)]
async fn what_was_printed_while_connecting_is_shown_once() {
    let mut bench = bench(false);
    let viewer = bench.consoles.attach(vm()).await.unwrap();
    let mut guest = bench.ports.recv().await.unwrap();
    bench.fake.log.lock().extend_from_slice(b"quiet ");
    assert_eq!(until(&viewer, "quiet ").await, "quiet ");
    bench.fake.log.lock().extend_from_slice(b"missed and li");
    guest.write_all(b"live").await.unwrap();
    assert_eq!(until(&viewer, "live").await, "missed and live");
    bench.fake.log.lock().extend_from_slice(b"ve");
    guest.write_all(b".").await.unwrap();
    assert_eq!(until(&viewer, ".").await, ".");
}

#[tokio::test(start_paused = true)]
async fn who_does_not_read_loses_old_bytes_and_holds_nobody_up() {
    let mut bench = bench(false);
    let slow = bench.consoles.attach(vm()).await.unwrap();
    let quick = bench.consoles.attach(vm()).await.unwrap();
    let mut guest = bench.ports.recv().await.unwrap();
    for _ in 0..(2 * LIMIT_BYTES / 1024) {
        guest.write_all(&[b'x'; 1024]).await.unwrap();
        let mut seen = 0;
        while seen < 1024 {
            let Event::Output(bytes) = quick.next(1024).await.unwrap() else { panic!("a notice") };
            seen += bytes.len();
        }
    }
    guest.write_all(b"end").await.unwrap();
    until(&quick, "end").await;
    let seen = until(&slow, "end").await;
    let skipped = format!("<{} bytes were skipped", LIMIT_BYTES + 3);
    assert!(seen.starts_with(&skipped) && seen.len() < LIMIT_BYTES + 100, "{}", &seen[..80]);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_takes_nothing_can_still_be_seen_and_left() {
    let mut bench = bench(false);
    let viewer = bench.consoles.attach(vm()).await.unwrap();
    let mut guest = bench.ports.recv().await.unwrap();
    let flood = async {
        loop {
            viewer.write(vec![b'x'; PIPE_BYTES].into()).await;
        }
    };
    let look = async {
        guest.write_all(b"still here").await.unwrap();
        until(&viewer, "still here").await
    };
    tokio::select! {
        biased;
        () = flood => {}
        _ = look => {}
    }
    drop(viewer);
    let mut rest = Vec::new();
    guest.read_to_end(&mut rest).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn viewers_are_limited() {
    let bench = bench(false);
    let mut viewers = Vec::new();
    for _ in 0..MAX_VIEWERS {
        viewers.push(bench.consoles.attach(vm()).await.unwrap());
    }
    let (code, message) = code(bench.consoles.attach(vm()).await);
    assert!(code == Code::ConsoleBusy && message.contains("16 viewers"), "{message}");
    viewers.pop();
    bench.consoles.attach(vm()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_console_survives_a_reboot_and_ends_with_a_stop() {
    let mut bench = bench(false);
    let viewer = bench.consoles.attach(vm()).await.unwrap();
    let mut guest = bench.ports.recv().await.unwrap();
    guest.write_all(b"bye").await.unwrap();
    until(&viewer, "bye").await;
    *bench.fake.fate.lock() = Fate::Pending;
    drop(guest);
    until(&viewer, "<the machine has ended; waiting until it runs again>").await;
    viewer.write("into the void".into()).await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    *bench.fake.fate.lock() = Fate::Runs;
    let mut guest = bench.ports.recv().await.unwrap();
    guest.write_all(b"hello").await.unwrap();
    assert_eq!(until(&viewer, "hello").await, "<the machine runs again>hello");
    let late = bench.consoles.attach(vm()).await.unwrap();
    assert_eq!(until(&late, "hello").await, "hello");
    viewer.write("x".into()).await;
    assert_eq!(guest.read_u8().await.unwrap(), b'x');

    *bench.fake.fate.lock() = Fate::Stopped;
    drop(guest);
    let end = End::new(Code::VmNotRunning, "the machine is stopped");
    assert!(end.is_orderly());
    assert_eq!(viewer.next(1).await, Err(end.clone()));
    assert_eq!(late.next(1).await, Err(end));
    assert_eq!(code(bench.consoles.attach(vm()).await).0, "VmNotRunning");
    *bench.fake.fate.lock() = Fate::Gone;
    assert_eq!(code(bench.consoles.attach(vm()).await).0, "VmNotFound");
    *bench.fake.fate.lock() = Fate::Runs;
    bench.consoles.attach(vm()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_port_that_does_not_answer_is_told_without_its_path() {
    let bench = bench(true);
    let (code, message) = code(bench.consoles.attach(vm()).await);
    assert_eq!(code, "ConsoleUnavailable");
    assert!(!message.contains('/'), "{message}");
}

#[tokio::test(start_paused = true)]
async fn the_agents_end_ends_consoles() {
    let bench = bench(false);
    let viewer = bench.consoles.attach(vm()).await.unwrap();
    bench.consoles.stop.cancel();
    assert_eq!(viewer.next(1).await.unwrap_err().message, "the agent stops");
}
