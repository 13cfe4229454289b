//! Simulated host actions: recorded, and successful unless a fault is planned.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{Host, HostAction, NicBridge};
use crate::disk_layout::Disk;
use crate::disk_layout::inventory::Found;
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

/// Most actions that are remembered; older ones are forgotten.
const MAX_RECORDED: usize = 1024;

/// What was done to the simulated host; clones share it.
#[derive(Clone, Debug, Default)]
pub struct HostLog(Arc<Mutex<Vec<HostAction>>>);

impl HostLog {
    /// The latest actions, oldest first.
    #[must_use]
    pub fn actions(&self) -> Vec<HostAction> {
        self.0.lock().clone()
    }

    /// The bridges of nic tags, as they were last changed.
    #[must_use]
    pub fn bridges(&self) -> Vec<NicBridge> {
        let set = |action: &HostAction| match action {
            HostAction::SetBridges(bridges) => Some(bridges.clone()),
            _ => None,
        };
        self.0.lock().iter().rev().find_map(set).unwrap_or_default()
    }
}

/// Records actions instead of doing them.
#[derive(Debug, Default)]
pub struct SimHost {
    log: HostLog,
    faults: Faults,
}

impl SimHost {
    /// Operations in `faults` are `host.act` and `host.disks`.
    #[must_use]
    pub fn new(log: HostLog, faults: Faults) -> Self {
        Self { log, faults }
    }
}

#[async_trait]
impl Host for SimHost {
    async fn act(&self, action: &HostAction) -> Result<Value, DriverError> {
        let record = || {
            let mut log = self.log.0.lock();
            if log.len() == MAX_RECORDED {
                log.remove(0);
            }
            log.push(action.clone());
            Ok(match action {
                HostAction::Execute { .. } | HostAction::FinishSetup { .. } => {
                    json!({ "exitCode": 0, "signal": null, "stdout": "", "stderr": "" })
                }
                HostAction::Reboot => json!(false),
                HostAction::SetBridges(_) | HostAction::BeginWipe(_) => json!([]),
                _ => Value::Null,
            })
        };
        // They are looked at again and again, and mostly as they should be.
        if matches!(action, HostAction::SetBridges(wanted) if *wanted == self.log.bridges()) {
            return Ok(json!([]));
        }
        tracing::info!(action = action.name(), "host action simulated");
        self.faults.call("host.act", record).await
    }

    async fn ready(&self, _action: &HostAction) -> Result<(), DriverError> {
        Ok(())
    }

    async fn disks(&self) -> Result<Vec<Found>, DriverError> {
        let found = |number: usize| {
            let name = format!("sim{number}");
            let path = Some(format!("/dev/disk/by-id/wwn-{name}"));
            let disk = Disk { name, bytes: 4_000_000_000_000, ..Disk::default() };
            Found { disk, path, signatures: BTreeSet::new() }
        };
        self.faults.call("host.disks", || Ok((0..4).map(found).collect())).await
    }
}
