//! Metadata for guests that run, on their second serial port, as guests of SmartOS expect it: a guest
//! reads its VM's record as it is now, and changes its own part of that.

pub mod keys;
pub mod line;
pub mod protocol;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use parking_lot::Mutex;
use tokio::io::{AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::keys::View;
use self::line::{Lines, Read};
use self::protocol::{Answer, Command, INVALID, Line};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestIo, GuestPort};
use crate::drivers::network::tap_name;
use crate::node::SharedDrivers;
use crate::vm_record::VmRecord;
use crate::vms::not_found;
use crate::vms::told::told;

/// First pause before a port that could not be opened is tried again; doubled up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause before that.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Changes of a guest that are carried out at once; after them one each [`CHANGE_PERIOD`].
const CHANGES_AT_ONCE: u32 = 20;
/// Each change is written to disk and reported.
const CHANGE_PERIOD: Duration = Duration::from_secs(1);

/// Answers the guests of one agent.
#[derive(Debug)]
pub struct MetadataServer {
    drivers: SharedDrivers,
    served: Arc<Mutex<BTreeSet<VmUuid>>>,
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl MetadataServer {
    /// Nobody is served yet. Whatever it does runs on `tracker` until `stop`.
    #[must_use]
    pub fn new(drivers: SharedDrivers, tracker: TaskTracker, stop: CancellationToken) -> Self {
        Self { drivers, served: Arc::default(), tracker, stop }
    }

    /// Serves every guest that runs, until stopped.
    pub async fn run(self) {
        let mut changes = self.drivers.vms.subscribe();
        while !self.stop.is_cancelled() {
            changes.mark_unchanged();
            for vm in self.drivers.vms.which(|entry| entry.observed.is_running()) {
                self.serve(vm);
            }
            let changed = self.stop.run_until_cancelled(changes.changed()).await;
            if !matches!(changed, Some(Ok(()))) {
                return;
            }
        }
    }

    fn serve(&self, vm: VmUuid) {
        if !self.served.lock().insert(vm) {
            return;
        }
        let changes = Changes::new(Arc::clone(&self.drivers.clock));
        let guest = Guest { vm, drivers: Arc::clone(&self.drivers), changes };
        let (served, stop) = (Arc::clone(&self.served), self.stop.clone());
        self.tracker.spawn(async move {
            // Pinned here: handed over by value its state would be held twice, for every guest.
            let running = std::pin::pin!(guest.run(&served));
            stop.run_until_cancelled(running).await;
        });
    }
}

/// One guest that is served.
struct Guest {
    vm: VmUuid,
    drivers: SharedDrivers,
    changes: Changes,
}

impl Guest {
    /// Until its process has ended.
    async fn run(mut self, served: &Mutex<BTreeSet<VmUuid>>) {
        let mut pause = MIN_PAUSE;
        loop {
            match self.drivers.compute.open(self.vm, GuestPort::Metadata).await {
                Ok(io) => {
                    pause = MIN_PAUSE;
                    let (reader, writer) = tokio::io::split(io);
                    let ended = self.carry(Lines::new(reader), writer).await;
                    tracing::debug!(vm_uuid = %self.vm, ?ended, "a metadata port was closed");
                }
                Err(error) => {
                    let error = Chain(&error);
                    tracing::debug!(vm_uuid = %self.vm, %error, "a metadata port can't be opened");
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_PAUSE);
            // Under the lock: who finds it running afterwards serves it anew.
            let mut served = served.lock();
            let runs = self.drivers.vms.entry(self.vm).is_some_and(|vm| vm.observed.is_running());
            if !runs {
                served.remove(&self.vm);
                return;
            }
        }
    }

    async fn carry(
        &mut self,
        mut lines: Lines<ReadHalf<Box<dyn GuestIo>>>,
        mut writer: WriteHalf<Box<dyn GuestIo>>,
    ) -> std::io::Result<()> {
        loop {
            let answer = match lines.next().await? {
                Read::End => return Ok(()),
                Read::TooLong => INVALID.to_owned(),
                Read::Line(line) => match protocol::read(&line) {
                    Err(protocol::Invalid) => INVALID.to_owned(),
                    Ok(Line::Echo) => continue,
                    Ok(Line::Negotiate) => protocol::agreed(),
                    Ok(Line::Request(id, command)) => {
                        // On the heap while it is made: most of the time there is none.
                        protocol::written(&id, &Box::pin(self.answer(&command)).await)
                    }
                },
            };
            // A guest that does not read its answers gets no further ones.
            writer.write_all(answer.as_bytes()).await?;
        }
    }

    async fn answer(&mut self, command: &Command) -> Answer {
        let done = match command {
            Command::Get(_) | Command::Keys => self.look_up(command).await,
            Command::Put(..) | Command::Delete(_) => {
                self.changes.turn().await;
                self.change(command).await
            }
        };
        done.unwrap_or_else(|error| {
            let chain = Chain(&error).to_string();
            tracing::warn!(vm_uuid = %self.vm, error = chain, "a guest's metadata failed");
            // A cause on the server is none of the guest's business.
            Answer::Failure("the server could not do it; try again later".to_owned())
        })
    }

    async fn look_up(&self, command: &Command) -> Result<Answer, DriverError> {
        let mut vm = self.drivers.vms.get(self.vm).ok_or_else(|| not_found(self.vm))?;
        if matches!(command, Command::Get(key) if tells_of_networks(key)) {
            vm = self.told(vm).await?;
        }
        let node = self.drivers.vms.node();
        let server = node.server_uuid.map(|server| server.to_string());
        let view = View { vm: &vm, datacenter: node.datacenter_name.as_deref(), server };
        Ok(view.answer(command).unwrap_or(Answer::NotFound))
    }

    /// The record without what user-mode networks do not have.
    async fn told(&self, vm: VmRecord) -> Result<VmRecord, DriverError> {
        let taps = self.drivers.networks.holders().await?.remove(&vm.uuid).unwrap_or_default();
        let numbers = crate::drivers::network::numbers(vm.list("nics"));
        let uuid = vm.uuid;
        Ok(told(vm, |index| {
            let number = numbers.get(index).copied();
            number.is_some_and(|number| taps.contains(&tap_name(uuid, number)))
        }))
    }

    async fn change(&self, command: &Command) -> Result<Answer, DriverError> {
        let mut answer = Answer::NotFound;
        let change = |vm: &mut VmRecord| answer = keys::change(vm, command);
        self.drivers.vms.update(self.vm, change).await?;
        Ok(answer)
    }
}

fn tells_of_networks(key: &str) -> bool {
    ["sdc:nics", "sdc:routes"].contains(&key)
}

/// How many changes a guest may make now.
struct Changes {
    clock: SharedClock,
    left: u32,
    /// When the last one was earned.
    since: Duration,
}

impl Changes {
    fn new(clock: SharedClock) -> Self {
        let since = clock.monotonic();
        Self { clock, left: CHANGES_AT_ONCE, since }
    }

    /// Returns when the next change may be made.
    async fn turn(&mut self) {
        let passed = self.clock.monotonic().saturating_sub(self.since);
        let earned = passed.as_secs() / CHANGE_PERIOD.as_secs();
        if earned > 0 {
            let earned = u32::try_from(earned).unwrap_or(u32::MAX);
            self.left = self.left.saturating_add(earned).min(CHANGES_AT_ONCE);
            self.since = self.clock.monotonic();
        }
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => {
                tokio::time::sleep(CHANGE_PERIOD.saturating_sub(passed)).await;
                self.since = self.clock.monotonic();
            }
        }
    }
}

#[cfg(test)]
mod tests;
