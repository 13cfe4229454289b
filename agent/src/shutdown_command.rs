//! `muster-agent shutdown-guests`: powers all guests of this node down, in the reverse of the order
//! in which they start with the host. Their records stay as they are, so that those with `autoboot`
//! come back with it.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::ids::VmUuid;

use crate::drivers::compute::oci::LeavingContainers;
use crate::drivers::compute::qemu::{Leaving, Left};
use crate::vms::{self, VmRecord};

/// How the guests are shut down.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Longest time of a guest whose record names none.
    pub timeout: Duration,
    /// Nothing is done unless the host is going down.
    pub only_with_host: bool,
}

/// One guest and its wishes.
#[derive(Debug)]
struct Guest {
    vm: VmUuid,
    alias: String,
    priority: i64,
    timeout: Duration,
}

/// Runs the command; `say` gets a line for each thing that happens. True when no guest runs any
/// more, or nothing was to be done.
///
/// # Errors
/// The guests can't be found.
pub async fn run(
    data_dir: &Path,
    run_dir: &Path,
    options: Options,
    mut say: impl FnMut(String),
) -> anyhow::Result<bool> {
    if options.only_with_host && !host_goes_down().await {
        say("the host is not going down: its guests go on".to_owned());
        return Ok(true);
    }
    let leaving = Leaving::find(data_dir, run_dir)?;
    let containers = LeavingContainers::find(data_dir, run_dir)?;
    let mut groups: BTreeMap<i64, Vec<Guest>> = BTreeMap::new();
    for vm in leaving.running().into_iter().chain(containers.running()) {
        let guest = guest(data_dir, vm, options.timeout);
        groups.entry(guest.priority).or_default().push(guest);
    }
    if groups.is_empty() {
        say("no guest runs".to_owned());
    }
    // Who starts first may be needed by all others, so it leaves last.
    for (_, group) in groups.into_iter().rev() {
        let clock = SystemClock::new();
        let leave = async |guest: Guest| {
            let left = match containers.power_down(guest.vm, guest.timeout).await {
                Some(left) => left,
                None => leaving.power_down(guest.vm, guest.timeout).await,
            };
            (guest, left)
        };
        let mut waiting: FuturesUnordered<_> = group.into_iter().map(leave).collect();
        while let Some((guest, left)) = waiting.next().await {
            let after = clock.monotonic().as_secs();
            let what = match left {
                Left::ByItself => "shut down",
                Left::Killed => "was killed, its time was over",
                Left::Not => "does not end",
            };
            say(format!("VM {} ({}) {what} after {after} s", guest.vm, guest.alias));
        }
    }
    Ok(leaving.running().is_empty() && containers.running().is_empty())
}

/// What the guest's record says; one that can't be read says nothing.
fn guest(data_dir: &Path, vm: VmUuid, timeout: Duration) -> Guest {
    let path = data_dir.join("vms").join(format!("{vm}.json"));
    let read = std::fs::read(&path).map_err(|error| error.to_string());
    let record = read.and_then(|json| vms::decode(&json).map_err(|error| error.to_string()));
    let record = record.inspect_err(|error| {
        tracing::warn!(path = %path.display(), error, "a guest's wishes can't be read");
    });
    let record = record.ok();
    let seconds = record.as_ref().and_then(VmRecord::shutdown_timeout_s);
    Guest {
        vm,
        alias: record.as_ref().and_then(|r| r.text("alias")).unwrap_or("no alias").to_owned(),
        priority: record.as_ref().map_or(i64::MAX, VmRecord::boot_priority),
        timeout: seconds.map_or(timeout, Duration::from_secs),
    }
}

async fn host_goes_down() -> bool {
    use crate::host::{Command, Exec as _, SystemExec};
    const LIMIT: Duration = Duration::from_secs(10);
    let command = Command::new(["systemctl", "is-system-running"], LIMIT);
    let asked = SystemExec::new().run(&command, &Default::default()).await;
    // Exits with 1 for everything but "running".
    asked.is_ok_and(|output| output.stdout.trim_ascii() == b"stopping")
}
