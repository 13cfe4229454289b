//! What a VM that is about to be made will take.

use muster_shared::vm::{DEFAULT_RAM_MIB, NOBODY, VmSpec};

use crate::num::float;
use crate::promises::Extra;

impl Extra {
    /// Of a VM that nothing but its specification says anything about.
    #[must_use]
    pub fn of_new_vm(spec: &VmSpec) -> Self {
        Self {
            owner_uuid: spec.owner_uuid.as_deref().unwrap_or(NOBODY).to_lowercase(),
            max_physical_memory: float(spec.ram.unwrap_or(DEFAULT_RAM_MIB)),
            cpu_cap: spec.cpu_cap.filter(|cap| *cap > 0).map(float),
            quota: float(spec.quota.unwrap_or(0)),
            brand: spec.brand.clone().unwrap_or_default(),
            disks_mib: if spec.is_hvm() { float(spec.disks_mib()) } else { 0.0 },
        }
    }
}
