//! The bridges of nic tags: those of the table of tags, and for the time of a trial those of the next
//! one. A trial that ends without a new table, also with the end of this process, is taken back: the
//! bridges become those of the table again.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Drivers;
use crate::drivers::DriverError;
use crate::drivers::coordinators::Coordinators;
use crate::drivers::host::{HostAction, NicBridge};
use crate::drivers::settings::NicTag;
use crate::failure::TaskFailure;

/// How often bridges and what is on them are looked at.
const LOOK: Duration = Duration::from_secs(60);
/// Longest time until a coordinator is reached after a change. Well below the task's own limit, so
/// that there is time to take the change back.
pub const CONFIRM: Duration = Duration::from_secs(30);
/// Between two attempts to reach one.
const AGAIN: Duration = Duration::from_secs(1);

/// Whoever changes bridges, one at a time.
#[derive(Debug, Default)]
pub struct Bridges(tokio::sync::Mutex<()>);

/// The bridges that a table of tags asks for.
#[must_use]
pub fn of(tags: &[NicTag]) -> Vec<NicBridge> {
    let mut bridges: Vec<NicBridge> = Vec::new();
    for tag in tags.iter().filter(|tag| tag.bridge) {
        let nic = tag.mac.to_ascii_lowercase();
        match bridges.iter_mut().find(|bridge| bridge.nic == nic) {
            Some(bridge) => bridge.tags.push(tag.name.clone()),
            None => bridges.push(NicBridge { nic, tags: vec![tag.name.clone()] }),
        }
    }
    bridges
}

/// What could not be done.
async fn set(drivers: &Drivers, bridges: Vec<NicBridge>) -> Result<Vec<String>, DriverError> {
    let amiss = drivers.host.act(&HostAction::SetBridges(bridges)).await?;
    let text = |amiss: &Value| amiss.as_str().map(str::to_owned);
    Ok(amiss.as_array().into_iter().flatten().filter_map(text).collect())
}

/// Makes the bridges those of the table, unless another table is on trial; what can't be made is
/// among the node's remarks.
pub async fn mend(drivers: &Drivers) {
    let Ok(_alone) = drivers.bridges.0.try_lock() else { return };
    drivers.report.set_bridge_remarks(amiss(drivers).await);
}

async fn amiss(drivers: &Drivers) -> Vec<String> {
    let said = |error: DriverError| vec![Chain(&error).to_string()];
    let tags = match drivers.settings.nic_tags().await {
        Ok(tags) => tags,
        Err(error) => return said(error),
    };
    let bridges = of(&tags);
    if bridges.is_empty() && drivers.host.ready(&HostAction::SetBridges(Vec::new())).await.is_err()
    {
        return Vec::new();
    }
    match set(drivers, bridges).await {
        Ok(amiss) => amiss,
        Err(error) => said(error),
    }
}

/// Looks after bridges, and what guests have on them, until cancelled.
pub async fn keep(drivers: Arc<Drivers>, cancelled: CancellationToken) {
    let mut looks = tokio::time::interval(LOOK);
    while cancelled.run_until_cancelled(looks.tick()).await.is_some() {
        mend(&drivers).await;
        drivers.networks.mend().await;
    }
}

/// Takes back whatever is not of the table.
///
/// # Errors
/// Something could not be taken back; it is tried again with each look.
pub async fn take_back(drivers: &Drivers) -> Result<(), TaskFailure> {
    let _alone = drivers.bridges.0.lock().await;
    let bridges = of(&drivers.settings.nic_tags().await?);
    if bridges.is_empty() && drivers.host.ready(&HostAction::SetBridges(Vec::new())).await.is_err()
    {
        return Ok(());
    }
    let left = set(drivers, bridges).await?;
    drivers.networks.mend().await;
    if left.is_empty() {
        return Ok(());
    }
    Err(TaskFailure::new(Code::InternalError, left.join("; ")))
}

/// Makes another table the node's: its bridges first, then, if a coordinator is reached with them,
/// the table itself. After a failure the caller takes back what was made, see [`take_back`].
///
/// # Errors
/// The bridges could not be made, or no coordinator was reached with them.
pub async fn change(drivers: &Drivers, old: &[NicTag], new: &[NicTag]) -> Result<(), TaskFailure> {
    let _alone = drivers.bridges.0.lock().await;
    let (before, after) = (of(old), of(new));
    if before != after {
        try_out(drivers, after).await?;
    }
    if old != new {
        drivers.settings.set_nic_tags(new).await?;
    }
    drivers.networks.mend().await;
    Ok(())
}

async fn try_out(drivers: &Drivers, bridges: Vec<NicBridge>) -> Result<(), TaskFailure> {
    drivers.host.ready(&HostAction::SetBridges(bridges.clone())).await?;
    // Else nobody could tell afterwards what cut the node off.
    let before = tokio::time::timeout(CONFIRM, drivers.coordinators.reach()).await;
    if !matches!(before, Ok(Ok(()))) {
        let text = "no coordinator can be reached: whether the change cuts the node off could not be \
                    told, so nothing is changed";
        return Err(TaskFailure::new(Code::ServiceUnavailable, text));
    }
    let amiss = set(drivers, bridges).await?;
    if !amiss.is_empty() {
        return Err(TaskFailure::bad_param("nics", amiss.join("; ")));
    }
    confirm(&*drivers.coordinators).await
}

async fn confirm(coordinators: &dyn Coordinators) -> Result<(), TaskFailure> {
    let mut last = None;
    let attempts = async {
        while let Err(error) = coordinators.reach().await {
            last = Some(error);
            tokio::time::sleep(AGAIN).await;
        }
    };
    if tokio::time::timeout(CONFIRM, attempts).await.is_ok() {
        return Ok(());
    }
    let text = format!(
        "no coordinator was reached within {} s of the change, which is taken back",
        CONFIRM.as_secs()
    );
    let cause = last.map(|error| Chain(&error).to_string());
    Err(TaskFailure { cause, ..TaskFailure::new(Code::Timeout, text) })
}
