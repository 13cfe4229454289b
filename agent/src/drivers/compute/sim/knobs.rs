//! What tests see of the devices of simulated guests, and how these guests misbehave.

use super::*;

impl SimGuests {
    /// Addresses of the network interfaces that a running guest has, by number.
    #[must_use]
    pub fn nics(&self, vm: VmUuid) -> BTreeMap<usize, String> {
        self.content.lock().running.get(&vm).map(|guest| guest.nics.clone()).unwrap_or_default()
    }

    /// Memory that a running guest has, MiB.
    #[must_use]
    pub fn memory_mib(&self, vm: VmUuid) -> Option<u64> {
        Some(self.content.lock().running.get(&vm)?.memory_mib)
    }

    /// The guest gives no memory back.
    pub fn keep_memory(&self, vm: VmUuid) {
        self.content.lock().kept_memory.insert(vm);
    }

    /// Numbers of the disks that a running guest has.
    #[must_use]
    pub fn disks(&self, vm: VmUuid) -> BTreeSet<u32> {
        let content = self.content.lock();
        content.running.get(&vm).map(|guest| guest.disks.clone()).unwrap_or_default()
    }

    /// The guest does not give up this disk; or does again.
    pub fn keep_disk(&self, vm: VmUuid, number: u32, keeps: bool) {
        let mut content = self.content.lock();
        match keeps {
            true => drop(content.kept_disks.insert((vm, number))),
            false => drop(content.kept_disks.remove(&(vm, number))),
        }
    }

    /// The guest gives up a disk although nobody asks for it.
    pub fn lose_disk(&self, vm: VmUuid, number: u32) {
        if let Some(guest) = self.content.lock().running.get_mut(&vm) {
            guest.disks.remove(&number);
            guest.disks_unsettled = true;
        }
        self.changed();
    }

    /// Numbers of the network interfaces of a running guest whose cable is out.
    #[must_use]
    pub fn links_down(&self, vm: VmUuid) -> BTreeSet<usize> {
        let content = self.content.lock();
        content.running.get(&vm).map(|guest| guest.links_down.clone()).unwrap_or_default()
    }

    /// The guest does not give up this network interface; or does again.
    pub fn keep_nic(&self, vm: VmUuid, number: usize, keeps: bool) {
        let mut content = self.content.lock();
        match keeps {
            true => drop(content.kept_nics.insert((vm, number))),
            false => drop(content.kept_nics.remove(&(vm, number))),
        }
    }

    /// The guest gives up a network interface although nobody asks for it.
    pub fn lose_nic(&self, vm: VmUuid, number: usize) {
        if let Some(guest) = self.content.lock().running.get_mut(&vm) {
            guest.nics.remove(&number);
            guest.nics_unsettled = true;
        }
        self.changed();
    }
}
