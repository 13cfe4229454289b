//! The part of a host's ZFS that is the agent's.

use std::sync::Arc;

use muster_shared::wire::Code;

use super::{CommandZfs, Dataset, Name, Zfs};
use crate::drivers::DriverError;

/// ZFS, and the datasets below which the agent may do something on behalf of others.
#[derive(Clone, Debug)]
pub struct Delegated {
    /// All of it.
    pub zfs: Arc<dyn Zfs>,
    /// The agent's: pools, or datasets in them.
    pub roots: Vec<Dataset>,
}

impl Delegated {
    /// Of a host without ZFS.
    #[must_use]
    pub fn none() -> Self {
        Self { zfs: Arc::new(CommandZfs::missing("it is not looked for")), roots: Vec::new() }
    }

    /// Checks that a name from outside is of the agent's part.
    ///
    /// # Errors
    /// `DatasetProtected`.
    pub fn check(&self, name: &Name) -> Result<(), DriverError> {
        if self.roots.iter().any(|root| name.dataset().is_within(root)) {
            return Ok(());
        }
        let roots: Vec<_> = self.roots.iter().map(Dataset::as_str).collect();
        let text = format!("{name} is outside of what this agent may use: {}", roots.join(", "));
        Err(DriverError::refused(Code::DatasetProtected, text))
    }
}

#[cfg(test)]
mod tests {
    use super::super::sim::{SimPools, SimZfs};
    use super::*;
    use crate::drivers::faults::Faults;

    #[test]
    fn what_is_outside_is_refused_by_name() {
        let zfs = Arc::new(SimZfs::new(SimPools::default(), Faults::none()));
        let roots = vec!["zones".parse().unwrap(), "tank/muster".parse().unwrap()];
        let delegated = Delegated { zfs, roots };
        for inside in ["zones", "zones/a", "zones/a@b", "tank/muster/x"] {
            delegated.check(&inside.parse().unwrap()).unwrap();
        }
        for outside in ["tank", "tank/a", "zonesx", "tank/musters", "tank/a@b"] {
            let refused = delegated.check(&outside.parse().unwrap()).unwrap_err().to_string();
            assert!(refused.ends_with("zones, tank/muster"), "{refused}");
        }
    }
}
