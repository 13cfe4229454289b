//! How simulated guests come, what they are told, and how they look.

use super::*;

impl SimCompute {
    pub(super) fn launch(&self, record: &VmRecord, with: &Resources) {
        let vm = record.uuid;
        let ram_mib = record.number("ram").unwrap_or(256);
        let started_at_ms = u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0);
        let mut content = self.guests.content.lock();
        content.prepared.insert(vm, record.clone());
        if content.running.contains_key(&vm) {
            return;
        }
        content.last_pid += 1;
        let pid = content.last_pid + 1000;
        let mut guest = Guest {
            pid,
            ram_mib,
            memory_mib: ram_mib,
            started_at_ms,
            booted_at_ms: started_at_ms,
            reboots: 0,
            activity: Activity::Running,
            leaves_at: None,
            leaves_with: 0,
            cpu_cap: record.number("cpu_cap"),
            boot: record.text("boot").map(str::to_owned),
            grown: BTreeMap::new(),
            nics: with.nics.iter().map(|it| (it.nic.number, it.nic.mac.clone())).collect(),
            links_down: BTreeSet::new(),
            nics_unsettled: false,
            disks: with.disks.iter().map(|disk| disk.index).collect(),
            disks_unsettled: false,
            password: record.text("vnc_password").map(str::to_owned),
            frozen: false,
        };
        with.nics.iter().for_each(|attached| guest.set_link(&attached.nic));
        content.running.insert(vm, guest);
        content.exits.remove(&vm);
        *content.starts.entry(vm).or_insert(0) += 1;
        drop(content);
        self.guests.changed();
    }

    pub(super) fn deliver(&self, vm: VmUuid, signal: GuestSignal) -> Result<(), DriverError> {
        let mut content = self.guests.content.lock();
        let deaf = content.ignores_acpi.contains(&vm);
        let slow = content.dies_slowly.contains(&vm);
        let Some(guest) = content.running.get_mut(&vm) else { return Err(not_running(vm)) };
        match signal {
            GuestSignal::PowerDown if deaf || guest.activity != Activity::Running => {}
            GuestSignal::PowerDown => {
                guest.leaves_at = self.clock.wall().checked_add(SHUTDOWN).ok();
                let (guests, clock) = (self.guests.clone(), Arc::clone(&self.clock));
                // Dies with the simulated agent; the next one settles what is due.
                drop(tokio::spawn(async move {
                    tokio::time::sleep(SHUTDOWN).await;
                    guests.settle(clock.wall());
                }));
            }
            GuestSignal::Kill if slow => {
                guest.leaves_at = self.clock.wall().checked_add(DEATH).ok();
                guest.leaves_with = 137;
            }
            GuestSignal::Kill => content.end(vm, 137),
            GuestSignal::Quit => content.end(vm, 0),
            GuestSignal::Pause => guest.activity = Activity::Paused,
            GuestSignal::Resume => guest.activity = Activity::Running,
            GuestSignal::Reset => {
                guest.reboots += 1;
                if guest.activity == Activity::Panicked {
                    guest.activity = Activity::Running;
                }
                guest.booted_at_ms = u64::try_from(self.clock.wall().as_millisecond()).unwrap_or(0);
            }
            GuestSignal::Nmi | GuestSignal::Number(_) => {}
        }
        drop(content);
        self.guests.changed();
        Ok(())
    }

    pub(super) fn look(&self, vm: VmUuid) -> Observed {
        self.guests.settle(self.clock.wall());
        let content = self.guests.content.lock();
        match content.running.get(&vm) {
            Some(guest) => Observed::Running(Live {
                pid: guest.pid,
                started_at_ms: guest.started_at_ms,
                booted_at_ms: guest.booted_at_ms,
                reboots: guest.reboots,
                activity: guest.activity,
                reason: (guest.activity != Activity::Running)
                    .then(|| format!("the hypervisor says {:?}", guest.activity.word()).into()),
                nics_unsettled: guest.nics_unsettled,
                disks_unsettled: guest.disks_unsettled,
                memory_mib: Some(guest.memory_mib),
            }),
            None => Observed::Stopped(Ended {
                exit_status: content.exits.get(&vm).copied(),
                ..Ended::default()
            }),
        }
    }
}
