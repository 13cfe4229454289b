//! What a kind of task needs of its node.

use crate::drivers::zfs::Availability;
use crate::node::Drivers;

/// What some nodes have and others do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// ZFS, with a pool or without.
    Zfs,
    /// A program that runs containers.
    Containers,
    /// One that builds images of them.
    Builder,
}

impl Need {
    /// Its name, as in a refusal's `capability`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zfs => "zfs",
            Self::Containers => "containers",
            Self::Builder => "builder of container images",
        }
    }

    /// Why the node does not have it; `None` when it does.
    #[must_use]
    pub fn missing(self, drivers: &Drivers) -> Option<String> {
        match self {
            Self::Zfs => match drivers.zfs.zfs.availability() {
                Availability::Works { .. } => None,
                Availability::Missing(reason) => Some(reason),
            },
            Self::Builder => drivers.builder.missing(),
            Self::Containers => {
                let abilities = drivers.compute.abilities();
                let unsaid = || "nothing runs them".to_owned();
                let missing = abilities.containers.is_none();
                missing.then(|| abilities.no_containers.unwrap_or_else(unsaid))
            }
        }
    }
}
