//! Serial consoles: one connection to each guest's port, shared by all who look at it.
//!
//! The hypervisor's port takes one client. So a [`Line`] per VM holds it while somebody looks, gives
//! what the guest prints to every [`Viewer`], and what any of them types to the guest. It outlives
//! the guest's process as long as a task is at work on the VM: a reboot is no end.

mod line;
mod node;
mod queue;
mod session;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::line::{Line, Pump};
pub use self::node::NodePorts;
use self::queue::Queue;
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestIo, Logged};

/// Viewers of one console at a time.
pub const MAX_VIEWERS: usize = 16;

/// What becomes of a VM whose console is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It has a process.
    Runs,
    /// It has none, and a task is at work that may start one.
    Pending,
    /// It has none, and nobody is about to start it.
    Stopped,
    /// There is no such VM.
    Gone,
}

/// Where serial ports are.
#[async_trait]
pub trait Ports: fmt::Debug + Send + Sync + 'static {
    /// What becomes of the VM.
    async fn fate(&self, vm: VmUuid) -> Fate;

    /// Connects to the VM's serial port.
    ///
    /// # Errors
    /// Nobody is there, at the moment or at all.
    async fn open(&self, vm: VmUuid) -> Result<Box<dyn GuestIo>, DriverError>;

    /// What the VM's process printed, see [`crate::drivers::compute::Compute::console_log`].
    ///
    /// # Errors
    /// The log can't be read.
    async fn logged(&self, vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError>;
}

/// What a viewer sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The guest printed this.
    Output(Bytes),
    /// Something happened to the console; for people.
    Notice(String),
}

/// Why a console has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// [`Code::VmNotRunning`], [`Code::VmNotFound`], [`Code::ConsoleUnavailable`] or
    /// [`Code::StreamFailed`].
    pub code: Code,
    /// For people.
    pub message: String,
}

impl End {
    fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Whether the VM ended, and not what carries its console.
    #[must_use]
    pub fn is_orderly(&self) -> bool {
        matches!(self.code, Code::VmNotRunning | Code::VmNotFound)
    }
}

type Lines = Mutex<BTreeMap<VmUuid, Arc<Line>>>;

/// The consoles of one agent.
#[derive(Debug)]
pub struct Consoles {
    ports: Arc<dyn Ports>,
    lines: Arc<Lines>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Consoles {
    /// Nobody looks yet. Lines run on `tracker` until `stop`.
    #[must_use]
    pub fn new(ports: Arc<dyn Ports>, tracker: TaskTracker, stop: CancellationToken) -> Self {
        Self { ports, lines: Arc::default(), tracker, stop }
    }

    /// Attaches to a console: the viewer first sees what the guest printed lately.
    ///
    /// # Errors
    /// `VmNotRunning`, `VmNotFound`; `ConsoleBusy` when [`MAX_VIEWERS`] look at it already;
    /// `ConsoleUnavailable` when the port does not answer.
    pub async fn attach(&self, vm: VmUuid) -> Result<Viewer, DriverError> {
        let viewer = self.join(vm)?;
        match viewer.line.opened().await {
            None => Ok(viewer),
            Some(End { code, message }) => Err(DriverError::refused(code, message)),
        }
    }

    fn join(&self, vm: VmUuid) -> Result<Viewer, DriverError> {
        let mut lines = self.lines.lock();
        let line = lines.entry(vm).or_insert_with(|| {
            let (line, typed) = Line::new(vm);
            let line = Arc::new(line);
            let (ports, lines) = (Arc::clone(&self.ports), Arc::clone(&self.lines));
            let pump = Pump::new(ports, lines, Arc::clone(&line), typed, self.stop.clone());
            self.tracker.spawn(pump.run());
            line
        });
        let Some(queue) = line.join(MAX_VIEWERS) else {
            let text = format!(
                "{MAX_VIEWERS} viewers look at the console of VM {vm} already; one has to leave"
            );
            return Err(DriverError::refused(Code::ConsoleBusy, text));
        };
        Ok(Viewer { lines: Arc::clone(&self.lines), line: Arc::clone(line), queue })
    }
}

/// Somebody who looks at a console; leaves when dropped.
#[derive(Debug)]
pub struct Viewer {
    lines: Arc<Lines>,
    line: Arc<Line>,
    queue: Arc<Queue>,
}

impl Viewer {
    /// What happened next, at most `room` bytes of it. Cancel-safe.
    ///
    /// # Errors
    /// The console has ended.
    pub async fn next(&self, room: usize) -> Result<Event, End> {
        self.queue.next(room).await
    }

    /// Types for the guest; waits while it takes nothing. After the end: nothing.
    pub async fn write(&self, bytes: Bytes) {
        self.line.write(bytes).await;
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        let mut lines = self.lines.lock();
        if self.line.leave(&self.queue) {
            line::forget(&mut lines, &self.line);
        }
    }
}
