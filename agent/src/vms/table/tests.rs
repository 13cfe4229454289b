//! Records in memory and where they are kept agree.

use muster_shared::clock::TokioClock;

use super::*;
use crate::drivers::compute::Resources;
use crate::drivers::compute::sim::{SimCompute, SimGuests};
use crate::drivers::faults::Faults;
use crate::vms::sim::{SimVmRecords, record};

#[tokio::test(start_paused = true)]
async fn records_are_written_through_and_equal_updates_change_nothing() {
    let clock: SharedClock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
    let records = SimVmRecords::default();
    let table = VmTable::new(Arc::new(records.clone()), Arc::clone(&clock), Node::default());
    let vm = record(1).uuid;
    table.create(record(1)).await.unwrap();
    assert!(table.create(record(1)).await.is_err());
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let old = table.get(vm).unwrap();
    assert_eq!(table.update(vm, |_| ()).await.unwrap(), old);
    let new = table.update(vm, |record| record.provisioning = false).await.unwrap();
    assert_ne!(new.last_modified, old.last_modified);
    assert_eq!(records.records()[&vm], new);

    let mut changes = table.subscribe();
    let guests = SimGuests::default();
    let compute = SimCompute::new(guests.clone(), clock, Faults::none());
    compute.start(&new, &Resources::default()).await.unwrap();
    table.observe_all(&compute).await;
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(table.entry(vm).unwrap().state().state, "running");
    guests.exit(vm, 3);
    table.observe_all(&compute).await;
    let observed = table.entry(vm).unwrap().observed;
    assert!(matches!(observed, Observed::Stopped(ended) if ended.exit_status == Some(3)));
    table.remove(vm).await.unwrap();
    assert!(records.records().is_empty());

    compute.start(&new, &Resources::default()).await.unwrap();
    table.observe_all(&compute).await;
    assert_eq!(table.remarks(), [format!("orphan_vm: {vm} runs without a record")]);
    let report = &table.reports()[&vm];
    assert_eq!((report.vm.state.as_str(), report.vm.max_physical_memory), ("running", 256));
    guests.exit(vm, 0);
    table.observe_all(&compute).await;
    assert_eq!(table.remarks(), Vec::<String>::new());
    assert!(table.reports().is_empty());
}
