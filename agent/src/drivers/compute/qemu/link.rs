//! The cables of a guest's network interfaces: whether its system sees a carrier. The hypervisor keeps
//! it over restarts of the guest, and forgets it with its process.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::nics::netdev_id;
use super::qmp::{ANSWER_TIMEOUT, Qmp, QmpError};
use crate::drivers::network::{Attached, Nic};

/// The guest's card follows its host's side.
#[derive(Debug, Serialize)]
struct SetLink {
    name: String,
    up: bool,
}

impl qapi::Command for SetLink {
    type Ok = Value;
    const NAME: &'static str = "set_link";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for SetLink {}

/// Puts the cable of an interface in or out.
pub(super) async fn set(qmp: &Arc<Qmp>, nic: &Nic) -> Result<(), QmpError> {
    let command = SetLink { name: netdev_id(nic.number), up: !nic.link_down };
    match qmp.send(command, ANSWER_TIMEOUT).await {
        // The guest gets it when it starts next.
        Err(QmpError::Refused { not_found: true, .. }) => Ok(()),
        other => other.map(drop),
    }
}

/// Pulls the cables that are to be out of a guest that is about to start.
pub(super) async fn pull(qmp: &Arc<Qmp>, nics: &[Attached]) -> Result<(), QmpError> {
    for attached in nics.iter().filter(|attached| attached.nic.link_down) {
        set(qmp, &attached.nic).await?;
    }
    Ok(())
}
