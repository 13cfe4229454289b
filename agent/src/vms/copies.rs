//! VM records with a copy beside the VMs' disks. An agent whose data folder is lost, or whose
//! record of a VM is damaged, has its VMs back from the copies.
//!
//! The first copy is written after its record, and the last removed before it: whatever a crash cuts
//! off, there is never a copy of a VM that is gone. One that is not as its record is written again at
//! the next start.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, VmUuid};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Loaded, Unusable, VmRecord, VmRecords};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::drivers::storage::{RecordCopy, Storage};

/// Longest wait for a copy to be written or read.
const COPY_TIMEOUT: Duration = Duration::from_secs(10);

/// The storage took longer than [`COPY_TIMEOUT`]. Whoever has more to ask of it asks later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the storage took longer than {} s", COPY_TIMEOUT.as_secs())]
struct Hangs;

/// Whose a VM is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// The server whose agent wrote it.
    pub server_uuid: ServerUuid,
    /// The cluster that agent worked for; none before its first coordinator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_id: Option<Uuid>,
}

impl Stamp {
    /// Whether the two can be the same agent's. Without a cluster nothing speaks against it.
    #[must_use]
    pub fn matches(&self, own: &Self) -> bool {
        let clusters = self.cluster_id.zip(own.cluster_id);
        self.server_uuid == own.server_uuid && clusters.is_none_or(|(one, other)| one == other)
    }
}

/// A copy as it is written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stamped {
    /// Whose it is.
    #[serde(flatten)]
    pub stamp: Stamp,
    /// The record.
    pub record: VmRecord,
}

/// Reads a copy.
///
/// # Errors
/// It is damaged, of a newer version, or of another VM.
pub fn parse(copy: &RecordCopy) -> Result<Stamped, Unusable> {
    #[derive(Deserialize)]
    struct Raw {
        #[serde(flatten)]
        stamp: Stamp,
        record: Value,
    }
    let damaged = |error: serde_json::Error| Unusable::Damaged(error.to_string());
    let raw: Raw = serde_json::from_slice(&copy.content).map_err(damaged)?;
    let record = super::from_value(raw.record)?;
    if record.uuid != copy.vm {
        return Err(Unusable::Damaged(format!("it is about VM {}", record.uuid)));
    }
    Ok(Stamped { stamp: raw.stamp, record })
}

/// Records, each with its copy.
#[derive(Debug)]
pub struct CopiedRecords {
    records: Arc<dyn VmRecords>,
    storage: Arc<dyn Storage>,
    server_uuid: ServerUuid,
    cluster: Arc<Cluster>,
}

impl CopiedRecords {
    /// Over these records; copies go to `storage`, stamped with server and cluster.
    #[must_use]
    pub fn new(
        records: Arc<dyn VmRecords>,
        storage: Arc<dyn Storage>,
        server_uuid: ServerUuid,
        cluster: Arc<Cluster>,
    ) -> Self {
        Self { records, storage, server_uuid, cluster }
    }

    fn stamp(&self) -> Stamp {
        Stamp { server_uuid: self.server_uuid, cluster_id: self.cluster.id() }
    }

    async fn copy(&self, record: &VmRecord) -> Result<(), DriverError> {
        let stamped = Stamped { stamp: self.stamp(), record: record.clone() };
        let json = serde_json::to_vec(&stamped)
            .map_err(|error| DriverError::failed("encode the copy of a VM record", error))?;
        self.storage.put_copy(record.uuid, &json).await
    }

    /// The record itself is what counts, so what becomes of its copy refuses nothing, and storage
    /// that hangs holds up no record for long.
    async fn copy_if_possible(&self, record: &VmRecord) -> Result<(), Hangs> {
        let copied = in_time(self.copy(record)).await;
        let problem = match &copied {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => Chain(error).to_string(),
            Err(hangs) => hangs.to_string(),
        };
        tracing::warn!(vm_uuid = %record.uuid, problem, "a VM record has no current copy");
        copied.map(drop)
    }

    /// A VM's copy, if there is one that can be read and used.
    async fn usable(&self, vm: VmUuid) -> Result<Option<Stamped>, Hangs> {
        let problem = match in_time(self.storage.copy(vm)).await? {
            Ok(None) => return Ok(None),
            Ok(Some(copy)) => match parse(&copy) {
                Ok(stamped) => return Ok(Some(stamped)),
                Err(problem) => problem.to_string(),
            },
            Err(error) => Chain(&error).to_string(),
        };
        tracing::warn!(vm_uuid = %vm, problem, "the copy of a VM record is of no use");
        Ok(None)
    }

    /// The VMs that have a copy, as far as the storage tells.
    async fn copied(&self) -> Result<Vec<VmUuid>, Hangs> {
        Ok(in_time(self.storage.copied()).await?.unwrap_or_else(|error| {
            let problem = Chain(&error).to_string();
            tracing::error!(problem, "VMs without a record can't be taken over from their copies");
            Vec::new()
        }))
    }

    /// Gives the VMs without a record that of their copy, and records without a current copy one.
    /// One copy at a time is in memory. What can't be read or written keeps nobody from starting:
    /// such a VM is an orphan until the next start, or until somebody adopts it.
    async fn reconcile(&self, loaded: &mut Loaded) -> Result<(), Hangs> {
        let own = self.stamp();
        for record in &loaded.records {
            let copy = self.usable(record.uuid).await?;
            if copy.is_none_or(|copy| copy.record != *record || copy.stamp != own) {
                self.copy_if_possible(record).await?;
            }
        }
        let known: BTreeSet<VmUuid> = loaded.records.iter().map(|record| record.uuid).collect();
        for vm in self.copied().await?.into_iter().filter(|vm| !known.contains(vm)) {
            let newer = matches!(loaded.unusable.get(&vm), Some(Unusable::Newer(_)));
            let copy = self.usable(vm).await?.filter(|copy| copy.stamp.matches(&own));
            let Some(Stamped { record, .. }) = copy.filter(|_| !newer) else { continue };
            if let Err(error) = self.records.put(&record, true).await {
                let error = Chain(&error).to_string();
                tracing::error!(vm_uuid = %vm, error, "a VM can't be taken over from its copy");
                continue;
            }
            loaded.unusable.remove(&vm);
            tracing::warn!(
                vm_uuid = %vm,
                "a VM has no record: it is taken over from the copy beside its disks"
            );
            self.storage.expect(vm, Some(record.pools()));
            loaded.adopted.push(vm);
            loaded.records.push(record);
        }
        Ok(())
    }
}

async fn in_time<T>(asked: impl Future<Output = T>) -> Result<T, Hangs> {
    tokio::time::timeout(COPY_TIMEOUT, asked).await.map_err(|_| Hangs)
}

#[async_trait]
impl VmRecords for CopiedRecords {
    async fn load(&self) -> Result<Loaded, DriverError> {
        let mut loaded = self.records.load().await?;
        for record in &loaded.records {
            self.storage.expect(record.uuid, Some(record.pools()));
        }
        if let Err(hangs) = self.reconcile(&mut loaded).await {
            tracing::error!(problem = %hangs, "not every VM record was compared with its copy");
        }
        Ok(loaded)
    }

    /// A VM of that name may be here already, with disks that only its copy tells of.
    async fn check_new(&self, record: &VmRecord) -> Result<(), DriverError> {
        let copy = self.storage.copy(record.uuid).await?;
        let own = |copy: &RecordCopy| {
            parse(copy).is_ok_and(|found| found.record.create_task == record.create_task)
        };
        if !copy.as_ref().is_none_or(own) {
            return Err(super::orphaned(record.uuid));
        }
        self.records.check_new(record).await
    }

    async fn put(&self, record: &VmRecord, create: bool) -> Result<(), DriverError> {
        let pools = Some(record.pools());
        if create {
            self.records.put(record, true).await?;
            self.storage.expect(record.uuid, pools);
            // What went wrong is in the log.
            self.copy_if_possible(record).await.unwrap_or_default();
            return Ok(());
        }
        // Of a VM that is here anyway the two are made durable at once. Whichever a crash cuts off,
        // the record is what counts, and its copy follows at the next start.
        self.storage.expect(record.uuid, pools);
        let (put, copied) =
            tokio::join!(self.records.put(record, false), self.copy_if_possible(record));
        copied.unwrap_or_default();
        put
    }

    async fn archive(&self, record: &VmRecord, console: &[u8]) -> Result<(), DriverError> {
        self.records.archive(record, console).await
    }

    async fn remove(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.storage.remove_copy(vm).await?;
        self.records.remove(vm).await?;
        self.storage.expect(vm, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_shared::wire::Code;
    use serde_json::json;

    use super::*;
    use crate::drivers::faults::{Fault, Faults};
    use crate::drivers::node::SimDocuments;
    use crate::drivers::storage::sim::{SimPool, SimStorage};
    use crate::vms::sim::{SimVmRecords, record};

    /// One server with its disks; its data folder can be lost.
    #[derive(Default)]
    struct Server {
        records: SimVmRecords,
        pool: SimPool,
        documents: SimDocuments,
        faults: Faults,
        number: u128,
    }

    impl Server {
        async fn open(&self) -> CopiedRecords {
            let storage = SimStorage::new(self.pool.clone(), self.faults.clone());
            let cluster = Cluster::open(Arc::new(self.documents.clone())).await.unwrap();
            let server = Uuid::from_u128(self.number).into();
            let records = Arc::new(self.records.clone());
            CopiedRecords::new(records, Arc::new(storage), server, Arc::new(cluster))
        }
    }

    #[tokio::test]
    async fn a_lost_record_comes_back_from_its_copy() {
        let server = Server::default();
        let records = server.open().await;
        for number in 1..=2 {
            records.put(&record(number), true).await.unwrap();
        }
        let changed = VmRecord { provisioning: false, ..record(1) };
        records.put(&changed, false).await.unwrap();
        records.remove(record(2).uuid).await.unwrap();
        let lost = Server { records: SimVmRecords::default(), ..server };
        let loaded = lost.open().await.load().await.unwrap();
        assert_eq!((loaded.records, loaded.adopted), (vec![changed.clone()], vec![changed.uuid]));
        assert_eq!(lost.records.records()[&changed.uuid], changed);
        let again = lost.open().await.load().await.unwrap();
        assert_eq!((again.records, again.adopted), (vec![changed], vec![]));
    }

    #[tokio::test]
    async fn copies_of_another_server_or_cluster_are_left_alone() {
        let server = Server::default();
        let records = server.open().await;
        records.cluster.welcomed(Uuid::from_u128(7)).await.unwrap();
        records.put(&record(1), true).await.unwrap();
        let other = Server { number: 1, pool: server.pool.clone(), ..Server::default() };
        assert_eq!(other.open().await.load().await.unwrap(), Loaded::default());
        let other = Server { pool: server.pool.clone(), ..Server::default() };
        let records = other.open().await;
        records.cluster.welcomed(Uuid::from_u128(8)).await.unwrap();
        assert_eq!(records.load().await.unwrap(), Loaded::default());
        let fresh = Server { pool: server.pool.clone(), ..Server::default() };
        assert_eq!(fresh.open().await.load().await.unwrap().adopted, [record(1).uuid]);
    }

    #[tokio::test]
    async fn a_copy_that_could_not_be_written_refuses_nothing_and_is_made_up_for() {
        let server = Server::default();
        let records = server.open().await;
        server.faults.fail_nth("storage.put_copy", 1, Fault::refusal(Code::StoreFull));
        records.put(&record(1), true).await.unwrap();
        assert_eq!(server.pool.copies(), BTreeMap::new());
        server.open().await.load().await.unwrap();
        let copy: serde_json::Value =
            serde_json::from_slice(&server.pool.copies()[&record(1).uuid]).unwrap();
        assert_eq!(copy["record"]["uuid"], json!(record(1).uuid));
    }

    /// Its VM is an orphan then, and the others are served.
    #[tokio::test(start_paused = true)]
    async fn a_copy_that_can_not_be_read_or_taken_over_keeps_no_agent_from_starting() {
        let failures = [
            ("storage.copy", Fault::before(), 1),
            ("storage.copied", Fault::before(), 0),
            ("storage.copy", Fault::hangs(), 0),
        ];
        for (call, fault, adopted) in failures {
            let server = Server::default();
            let records = server.open().await;
            for number in 1..=2 {
                records.put(&record(number), true).await.unwrap();
            }
            let lost = Server { records: SimVmRecords::default(), ..server };
            lost.faults.fail_nth(call, 1, fault);
            let loaded = lost.open().await.load().await.unwrap();
            assert_eq!(loaded.adopted.len(), adopted, "{call}");
            assert_eq!(lost.pool.copies().len(), 2);
            assert_eq!(lost.open().await.load().await.unwrap().records.len(), 2);
        }
    }

    /// The orphan's copy is all that tells of its disks.
    #[tokio::test]
    async fn a_create_that_can_not_look_for_an_orphan_takes_nothing_of_it_away() {
        let server = Server::default();
        server.open().await.put(&record(1), true).await.unwrap();
        let lost = Server { records: SimVmRecords::default(), ..server };
        let clock = Arc::new(muster_shared::clock::SystemClock::new());
        let records = Arc::new(lost.open().await);
        let table = crate::vms::VmTable::new(records, clock, crate::vms::Node::default());
        let new = VmRecord { create_task: "other".parse().unwrap(), ..record(1) };
        lost.faults.fail_nth("storage.copy", 1, Fault::refusal(Code::StoreFull));
        table.create(new.clone()).await.unwrap_err();
        assert_eq!(lost.pool.copies().len(), 1);
        let error = table.create(new).await.unwrap_err();
        assert!(matches!(error, DriverError::Refused { code: Code::VmExists, .. }), "{error}");
        assert_eq!(lost.pool.copies().len(), 1);
        assert_eq!(lost.open().await.load().await.unwrap().adopted, [record(1).uuid]);
    }

    #[tokio::test]
    async fn a_copy_that_can_not_be_used_is_left_alone() {
        let server = Server::default();
        let storage = SimStorage::new(server.pool.clone(), Faults::none());
        let vm = record(1).uuid;
        let newer = json!({ "server_uuid": Uuid::nil(), "record": { "schema": 3, "uuid": vm } });
        for content in [b"{".to_vec(), Vec::new(), newer.to_string().into_bytes()] {
            storage.put_copy(vm, &content).await.unwrap();
            assert_eq!(server.open().await.load().await.unwrap(), Loaded::default());
            assert_eq!(server.pool.copies()[&vm], content);
        }
    }
}
