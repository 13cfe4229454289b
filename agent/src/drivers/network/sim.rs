//! Simulated networks: what is on the host outlives the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::ids::VmUuid;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::{Attached, Backend, Counters, Networks, Nic, PublishOn, forwards};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

/// The VMs that have something on the host; clones share it.
#[derive(Clone, Debug, Default)]
pub struct SimHolders(Arc<Mutex<BTreeSet<VmUuid>>>);

impl SimHolders {
    /// Those VMs.
    #[must_use]
    pub fn vms(&self) -> BTreeSet<VmUuid> {
        self.0.lock().clone()
    }
}

/// The simulated driver.
#[derive(Debug)]
pub struct SimNetworks {
    holders: SimHolders,
    faults: Faults,
}

impl SimNetworks {
    /// On this host, with these faults.
    #[must_use]
    pub fn new(holders: SimHolders, faults: Faults) -> Self {
        Self { holders, faults }
    }
}

#[async_trait]
impl Networks for SimNetworks {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }

    async fn mend(&self) {}

    async fn check(&self, properties: &Map<String, Value>) -> Result<(), DriverError> {
        Nic::of(properties)?;
        PublishOn::default().check(&forwards(properties)?)
    }

    async fn lacks_bridge(&self, _tag: &str, _mac: &str) -> Result<bool, DriverError> {
        Ok(true)
    }

    async fn attach(&self, vm: VmUuid, nics: &[Nic]) -> Result<Vec<Attached>, DriverError> {
        let attach = || {
            for nic in nics {
                PublishOn::default().check(&nic.forwards)?;
            }
            let mut holders = self.holders.0.lock();
            if nics.is_empty() {
                holders.remove(&vm)
            } else {
                holders.insert(vm)
            };
            let backend = Backend::User { restricted: false };
            let attached = |nic: &Nic| Attached { nic: nic.clone(), backend: backend.clone() };
            Ok(nics.iter().map(attached).collect())
        };
        self.faults.call("networks.attach", attach).await
    }

    async fn detach(&self, vm: VmUuid) -> Result<(), DriverError> {
        let detach = || {
            self.holders.0.lock().remove(&vm);
            Ok(())
        };
        self.faults.call("networks.detach", detach).await
    }

    /// One packet that each has received.
    async fn counters(&self) -> Result<BTreeMap<VmUuid, Counters>, DriverError> {
        let counters = Counters { received_bytes: 64, received_packets: 1, ..Counters::default() };
        let counted = || Ok(self.holders.vms().into_iter().map(|vm| (vm, counters)).collect());
        self.faults.call("networks.counters", counted).await
    }

    async fn holders(&self) -> Result<BTreeMap<VmUuid, Vec<String>>, DriverError> {
        let named = |vm| (vm, vec![format!("sim-{vm}")]);
        let holders = || Ok(self.holders.vms().into_iter().map(named).collect());
        self.faults.call("networks.holders", holders).await
    }
}
