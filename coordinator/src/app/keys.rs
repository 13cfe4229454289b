//! The store's keys, and records to and from JSON.

use bytes::Bytes;
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::AppError;
use crate::store::Record;

pub(crate) const SERVERS: &str = "server/";
pub(crate) const SYSINFOS: &str = "sysinfo/";
pub(crate) const ROSTER: &str = "roster/";
pub(crate) const FIGURES: &str = "figures/";
pub(crate) const VMS: &str = "vms/";
pub(crate) const TASKS: &str = "task/";
pub(crate) const OPEN: &str = "open/";
pub(crate) const MEMBERS: &str = "members/";
pub(crate) const PLACES: &str = "place/";
pub(crate) const BOOT_DEFAULT: &str = "boot/default";

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

pub(crate) fn member(instance: &str) -> String {
    format!("{MEMBERS}{instance}")
}

/// The last part of a key as an identifier; `None` for a key that this version does not write.
pub(crate) fn last<T: std::str::FromStr>(key: &str) -> Option<T> {
    key.rsplit('/').next()?.parse().ok()
}

pub(crate) fn encode<T: Serialize>(value: &T) -> Bytes {
    Bytes::from(serde_json::to_vec(value).expect("records have only string keys"))
}

pub(crate) fn decode<T: DeserializeOwned>(record: &Record) -> Result<T, AppError> {
    serde_json::from_slice(&record.value)
        .map_err(|source| AppError::Corrupt { key: record.key.clone(), source })
}
