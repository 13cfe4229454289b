//! Several compute drivers as one. A new VM goes to the driver of its brand; one that is here is where
//! something of it is, so that nothing has to be known of it but its uuid.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use muster_shared::wire::usage::{DiskUsage, VmUsage};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    Abilities, AgentChannel, Compute, GuestCommand, GuestConsole, GuestCounters, GuestDevices,
    GuestDisks, GuestDisplay, GuestFacts, GuestInside, GuestIo, GuestNic, GuestNics, GuestPort,
    GuestProcess, GuestProcesses, GuestSignal, InsideRoot, Logged, Observed, Picture, Resources,
    RunningGuest, SnapshotChange,
};
use crate::drivers::DriverError;
use crate::drivers::network::{Attached, Nic};
use crate::drivers::storage::{Disk, Role};
use crate::vm_record::VmRecord;

/// The drivers of a node.
#[derive(Debug)]
pub struct Router {
    first: Arc<dyn Compute>,
    others: Vec<Arc<dyn Compute>>,
    brands: Vec<&'static str>,
    changes: watch::Sender<u64>,
    _closing: DropGuard,
}

impl Router {
    /// Over these drivers, no two of which run the same brand. `first` answers for VMs of which
    /// nothing is here. Must be called in a runtime.
    #[must_use]
    pub fn new(first: Arc<dyn Compute>, others: Vec<Arc<dyn Compute>>) -> Self {
        let closing = CancellationToken::new();
        let changes = watch::channel(0).0;
        let drivers = std::iter::once(&first).chain(&others);
        let brands: BTreeSet<_> = drivers.clone().flat_map(|driver| driver.brands()).collect();
        let brands = brands.into_iter().copied().collect();
        for driver in drivers {
            let follow = follow(driver.changes(), changes.clone());
            // Ends with the router, or with its driver.
            drop(tokio::spawn(closing.clone().run_until_cancelled_owned(follow)));
        }
        Self { first, others, brands, changes, _closing: closing.drop_guard() }
    }

    fn drivers(&self) -> impl Iterator<Item = &Arc<dyn Compute>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The driver that has something of a VM.
    fn holder(&self, vm: VmUuid) -> &dyn Compute {
        self.drivers().find(|driver| driver.holds(vm)).unwrap_or(&self.first).as_ref()
    }

    /// The driver of a VM's brand.
    fn of_brand(&self, vm: &VmRecord) -> Result<&dyn Compute, DriverError> {
        let brand = vm.text("brand").unwrap_or_default();
        let driver = self.drivers().find(|driver| driver.brands().contains(&brand));
        driver.map(AsRef::as_ref).ok_or_else(|| {
            let known = self.brands.join(", ");
            let text = format!("brand: {brand:?} does not run here; {known} do");
            DriverError::refused(Code::NotSupported, text)
        })
    }
}

async fn follow(mut driver: watch::Receiver<u64>, changes: watch::Sender<u64>) {
    while driver.changed().await.is_ok() {
        changes.send_modify(|version| *version += 1);
    }
}

#[async_trait]
impl Compute for Router {
    fn brands(&self) -> &[&'static str] {
        &self.brands
    }

    fn holds(&self, vm: VmUuid) -> bool {
        self.drivers().any(|driver| driver.holds(vm))
    }

    /// Those of hardware VMs, and who runs containers; what any driver lacks is told.
    fn abilities(&self) -> Abilities {
        let all: Vec<_> = self.drivers().map(|driver| driver.abilities()).collect();
        let degraded = all.iter().flat_map(|one| one.degraded.clone()).collect();
        let containers = all.iter().find_map(|one| one.containers.clone());
        let no_containers = all.iter().find_map(|one| one.no_containers.clone());
        let user_ids = all.iter().find_map(|one| one.user_ids);
        let hvm = all.into_iter().find(|abilities| abilities.hvm);
        Abilities { degraded, containers, no_containers, user_ids, ..hvm.unwrap_or_default() }
    }

    fn machine_type(&self, vm: &VmRecord) -> Option<String> {
        self.of_brand(vm).ok()?.machine_type(vm)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    async fn prepare(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.of_brand(vm)?.prepare(vm).await
    }

    fn firmware_template(&self, vm: &VmRecord) -> Result<Option<PathBuf>, DriverError> {
        self.of_brand(vm)?.firmware_template(vm)
    }

    async fn start(&self, vm: &VmRecord, with: &Resources) -> Result<(), DriverError> {
        self.of_brand(vm)?.start(vm, with).await
    }

    async fn limit(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.of_brand(vm)?.limit(vm).await
    }

    async fn observe(&self, vm: VmUuid) -> Result<Observed, DriverError> {
        self.holder(vm).observe(vm).await
    }

    async fn signal(&self, vm: VmUuid, signal: GuestSignal) -> Result<(), DriverError> {
        self.holder(vm).signal(vm, signal).await
    }

    async fn wait_stopped(&self, vm: VmUuid, timeout: Duration) -> Result<bool, DriverError> {
        self.holder(vm).wait_stopped(vm, timeout).await
    }

    async fn cleanup(&self, vm: VmUuid, purge: bool) -> Result<(), DriverError> {
        self.holder(vm).cleanup(vm, purge).await
    }

    fn guests_leave(&self) -> bool {
        self.drivers().any(|driver| driver.guests_leave())
    }

    async fn running(&self) -> Result<Vec<RunningGuest>, DriverError> {
        let mut running = Vec::new();
        for driver in self.drivers() {
            running.extend(driver.running().await?);
        }
        Ok(running)
    }
}

#[async_trait]
impl GuestConsole for Router {
    async fn open(&self, vm: VmUuid, port: GuestPort) -> Result<Box<dyn GuestIo>, DriverError> {
        self.holder(vm).open(vm, port).await
    }

    async fn agent_channel(&self, vm: VmUuid) -> Result<AgentChannel, DriverError> {
        self.holder(vm).agent_channel(vm).await
    }

    async fn console_log(&self, vm: VmUuid, from: Option<u64>) -> Result<Logged, DriverError> {
        self.holder(vm).console_log(vm, from).await
    }
}

#[async_trait]
impl GuestDevices for Router {
    async fn info(&self, vm: VmUuid, types: &[String]) -> Result<Value, DriverError> {
        self.holder(vm).info(vm, types).await
    }

    async fn snapshot(
        &self,
        vm: VmUuid,
        change: &SnapshotChange,
    ) -> Result<Vec<Role>, DriverError> {
        self.holder(vm).snapshot(vm, change).await
    }

    async fn grow_disk(&self, vm: VmUuid, index: u32, size_bytes: u64) -> Result<(), DriverError> {
        self.holder(vm).grow_disk(vm, index, size_bytes).await
    }

    async fn set_memory(&self, vm: VmUuid, ram_mib: u64) -> Result<(), DriverError> {
        self.holder(vm).set_memory(vm, ram_mib).await
    }

    async fn disks(&self, vm: VmUuid) -> Result<Option<GuestDisks>, DriverError> {
        self.holder(vm).disks(vm).await
    }

    async fn plug_disk(
        &self,
        vm: VmUuid,
        disk: &Disk,
        described: &Value,
    ) -> Result<(), DriverError> {
        self.holder(vm).plug_disk(vm, disk, described).await
    }

    async fn unplug_disk(&self, vm: VmUuid, number: u32) -> Result<(), DriverError> {
        self.holder(vm).unplug_disk(vm, number).await
    }

    fn settle_disks(&self, vm: VmUuid) {
        self.holder(vm).settle_disks(vm);
    }

    async fn nics(&self, vm: VmUuid) -> Result<Option<GuestNics>, DriverError> {
        self.holder(vm).nics(vm).await
    }

    async fn plug_nic(&self, vm: VmUuid, nic: &Attached) -> Result<(), DriverError> {
        self.holder(vm).plug_nic(vm, nic).await
    }

    async fn unplug_nic(&self, vm: VmUuid, nic: &GuestNic) -> Result<(), DriverError> {
        self.holder(vm).unplug_nic(vm, nic).await
    }

    async fn set_link(&self, vm: VmUuid, nic: &Nic) -> Result<(), DriverError> {
        self.holder(vm).set_link(vm, nic).await
    }

    fn settle_nics(&self, vm: VmUuid) {
        self.holder(vm).settle_nics(vm);
    }
}

#[async_trait]
impl GuestFacts for Router {
    async fn process_usage(&self, vm: VmUuid) -> Result<Option<VmUsage>, DriverError> {
        self.holder(vm).process_usage(vm).await
    }

    async fn disk_usage(&self, vm: VmUuid) -> Result<DiskUsage, DriverError> {
        self.holder(vm).disk_usage(vm).await
    }

    async fn processes(&self, vm: VmUuid) -> Result<Value, DriverError> {
        self.holder(vm).processes(vm).await
    }
}

#[async_trait]
impl GuestDisplay for Router {
    async fn screenshot(&self, vm: VmUuid) -> Result<Picture, DriverError> {
        self.holder(vm).screenshot(vm).await
    }

    async fn set_password(&self, vm: &VmRecord) -> Result<(), DriverError> {
        self.holder(vm.uuid).set_password(vm).await
    }
}

#[async_trait]
impl GuestInside for Router {
    async fn root(&self, vm: VmUuid) -> Result<InsideRoot, DriverError> {
        self.holder(vm).root(vm).await
    }

    async fn counters(&self, vm: VmUuid) -> Result<GuestCounters, DriverError> {
        self.holder(vm).counters(vm).await
    }
}

#[async_trait]
impl GuestProcesses for Router {
    async fn exec(
        &self,
        vm: VmUuid,
        command: &GuestCommand,
    ) -> Result<Box<dyn GuestProcess>, DriverError> {
        self.holder(vm).exec(vm, command).await
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use muster_shared::clock::TokioClock;
    use serde_json::json;

    use super::*;
    use crate::drivers::compute::sim::{SimCompute, SimGuests};
    use crate::drivers::faults::Faults;
    use crate::vms::sim::record;

    fn vm(number: u128, brand: &str) -> VmRecord {
        let mut vm = record(number);
        vm.properties.insert("brand".to_owned(), json!(brand));
        vm
    }

    #[tokio::test(start_paused = true)]
    async fn a_vm_is_run_by_the_driver_of_its_brand_and_found_there() {
        let guests = [SimGuests::default(), SimGuests::default()];
        let driver = |number: usize, brands| -> Arc<dyn Compute> {
            let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
            let driver = SimCompute::new(guests[number].clone(), clock, Faults::none());
            Arc::new(driver.for_brands(brands))
        };
        let router = Router::new(driver(0, &["kvm"]), vec![driver(1, &["lx"])]);
        assert_eq!(router.brands(), ["kvm", "lx"]);
        let (kvm, lx) = (vm(1, "kvm"), vm(2, "lx"));
        let mut changes = router.changes();
        for vm in [&kvm, &lx] {
            assert!(!router.holds(vm.uuid));
            router.prepare(vm).await.unwrap();
            router.start(vm, &Resources::default()).await.unwrap();
            assert!(router.observe(vm.uuid).await.unwrap().is_running());
            changes.changed().await.unwrap();
        }
        let starts = |number: usize| [&kvm, &lx].map(|vm| guests[number].starts(vm.uuid));
        assert_eq!((starts(0), starts(1)), ([1, 0], [0, 1]));
        assert_eq!(router.running().await.unwrap().len(), 2);
        router.signal(lx.uuid, GuestSignal::Kill).await.unwrap();
        assert!(router.wait_stopped(lx.uuid, Duration::ZERO).await.unwrap());
        router.cleanup(lx.uuid, true).await.unwrap();
        assert!(!router.holds(lx.uuid) && router.holds(kvm.uuid));
        let error = router.start(&vm(3, "lipkg"), &Resources::default()).await.unwrap_err();
        assert!(error.to_string().contains("kvm, lx do"), "{error}");
    }
}
