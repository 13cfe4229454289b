//! The store's keys, and records to and from JSON.

use bytes::Bytes;
use muster_shared::api::ticket::QueueName;
use muster_shared::ids::{ServerUuid, TaskId, TicketUuid, VmUuid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};

use super::error::AppError;
use crate::store::Record;

/// Names the store; made at its first start and never changed.
pub(crate) const CLUSTER: &str = "cluster";
pub(crate) const SERVERS: &str = "server/";
pub(crate) const SYSINFOS: &str = "sysinfo/";
pub(crate) const ROSTER: &str = "roster/";
pub(crate) const FIGURES: &str = "figures/";
pub(crate) const VMS: &str = "vms/";
pub(crate) const TASKS: &str = "task/";
pub(crate) const OPEN: &str = "open/";
pub(crate) const MEMBERS: &str = "members/";
pub(crate) const PLACES: &str = "place/";
/// Marks of the coordinators that place VMs.
pub(crate) const PLACERS: &str = "placer/";
pub(crate) const PLACER_ROLL: &str = "placer/roll";
pub(crate) const RESERVATIONS: &str = "reserve/";
pub(crate) const ALLOCATIONS: &str = "allocation/";
pub(crate) const BOOT: &str = "boot/";
/// Packages, by name.
pub(crate) const PACKAGES: &str = "package/";
/// Names of packages, by uuid.
pub(crate) const PACKAGE_UUIDS: &str = "package-uuid/";
pub(crate) const JOBS: &str = "job/";
/// Which job of a kind runs on a server.
pub(crate) const JOB_GUARDS: &str = "jobrun/";
pub(crate) const TICKETS: &str = "ticket/";
pub(crate) const QUEUES: &str = "queue/";
/// The counter that gives tickets their order.
pub(crate) const TICKET_SEQ: &str = "ticket-seq";

pub(crate) fn server(uuid: ServerUuid) -> String {
    format!("{SERVERS}{uuid}")
}

pub(crate) fn sysinfo(uuid: ServerUuid) -> String {
    format!("{SYSINFOS}{uuid}")
}

pub(crate) fn roster(uuid: ServerUuid) -> String {
    format!("{ROSTER}{uuid}")
}

pub(crate) fn figures(uuid: ServerUuid) -> String {
    format!("{FIGURES}{uuid}")
}

pub(crate) fn vm(server: ServerUuid, vm: VmUuid) -> String {
    format!("{VMS}{server}/{vm}")
}

pub(crate) fn task(id: &TaskId) -> String {
    format!("{TASKS}{id}")
}

pub(crate) fn open(server: ServerUuid, id: &TaskId) -> String {
    format!("{OPEN}{server}/{id}")
}

pub(crate) fn place(vm: VmUuid) -> String {
    format!("{PLACES}{vm}")
}

pub(crate) fn placer(instance: &str) -> String {
    format!("{PLACERS}{instance}")
}

pub(crate) fn ticket(uuid: TicketUuid) -> String {
    format!("{TICKETS}{uuid}")
}

/// Scope and id are free text, so they are hashed; a byte that no text has parts them.
pub(crate) fn queue(name: &QueueName) -> String {
    let mut hash = Sha256::new();
    hash.update(&name.scope);
    hash.update([0xff]);
    hash.update(&name.id);
    format!("{QUEUES}{}/{}", name.server_uuid, hex::encode(hash.finalize()))
}

pub(crate) fn reservation(vm: VmUuid) -> String {
    format!("{RESERVATIONS}{vm}")
}

pub(crate) fn member(instance: &str) -> String {
    format!("{MEMBERS}{instance}")
}

/// The last part of a key as an identifier; `None` for a key that this version does not write.
pub(crate) fn last<T: std::str::FromStr>(key: &str) -> Option<T> {
    key.rsplit('/').next()?.parse().ok()
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    let text = serde_json::to_vec(value).expect("records have only string keys");
    // Some stay in memory for long, and a vector that grew has room to spare.
    Bytes::from(text.into_boxed_slice())
}

pub(crate) fn decode<T: DeserializeOwned>(record: &Record) -> Result<T, AppError> {
    serde_json::from_slice(&record.value)
        .map_err(|source| AppError::Corrupt { key: record.key.clone(), source })
}
