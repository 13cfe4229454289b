//! What the owner of a VM wants of how its disks are kept, where a pool can do it.

use muster_shared::units::GIB;
use muster_shared::wire::Code;
use serde_json::{Map, Value};

use crate::drivers::DriverError;

/// Records of a file system are as long as a power of two between these, bytes.
const RECORD_BYTES: std::ops::RangeInclusive<u64> = 512..=1024 * 1024;

/// Of one disk. A pool of files has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Size of the volume's blocks, bytes; the pool's own choice without. Not for a clone, which has
    /// those of its image.
    pub block_bytes: Option<u64>,
    /// Space that nobody else gets; the size of the disk without.
    pub set_aside: Option<SetAside>,
    /// As ZFS spells it; the pool's own without.
    pub compression: Option<String>,
}

/// Space that is set aside for a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAside {
    /// As much as it can ever take, with what the pool needs to keep it.
    Auto,
    /// MiB.
    Mib(u64),
}

impl Wishes {
    /// As a disk of a VM's record says it.
    #[must_use]
    pub fn of(disk: &Value) -> Self {
        let number = |name: &str| disk.get(name).and_then(Value::as_u64);
        let text = |name: &str| disk.get(name).and_then(Value::as_str);
        let set_aside = match text("refreservation") {
            Some("auto") => Some(SetAside::Auto),
            Some("none") => Some(SetAside::Mib(0)),
            Some(digits) => digits.parse().ok().map(SetAside::Mib),
            None => number("refreservation").map(SetAside::Mib),
        };
        let compression = text("compression").map(str::to_owned);
        Self { block_bytes: number("block_size"), set_aside, compression }
    }
}

/// Of the root folder of a container. A pool of files has none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootWishes {
    /// Most that it may take beside its image, its snapshots among it, bytes; without, all that there is.
    pub quota_bytes: Option<u64>,
    /// Longest block of a file, bytes; the pool's own choice without.
    pub record_bytes: Option<u64>,
    /// As ZFS spells it; the pool's own without.
    pub compression: Option<String>,
}

impl RootWishes {
    /// As the properties of a VM say it.
    #[must_use]
    pub fn of(vm: &Map<String, Value>) -> Self {
        let number = |name: &str| vm.get(name).and_then(Value::as_u64).filter(|value| *value > 0);
        let compression = vm.get("zfs_root_compression").and_then(Value::as_str);
        Self {
            quota_bytes: number("quota").map(|gib| gib.saturating_mul(GIB)),
            record_bytes: number("zfs_root_recsize"),
            compression: compression.map(str::to_owned),
        }
    }

    /// Refuses what no file system has.
    ///
    /// # Errors
    /// `InvalidParameters`.
    pub(super) fn check(&self) -> Result<(), DriverError> {
        match self.record_bytes {
            Some(bytes) if !bytes.is_power_of_two() || !RECORD_BYTES.contains(&bytes) => {
                let text = format!(
                    "zfs_root_recsize: {bytes} is no power of two from {} to {}",
                    RECORD_BYTES.start(),
                    RECORD_BYTES.end()
                );
                Err(DriverError::refused(Code::InvalidParameters, text))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wishes_are_read_as_clients_spell_them() {
        let none = Wishes::of(&json!({ "size": 5 }));
        assert_eq!(none, Wishes::default());
        let all = json!({ "block_size": 4096, "refreservation": "auto", "compression": "lz4" });
        let all = Wishes::of(&all);
        assert_eq!((all.block_bytes, all.set_aside), (Some(4096), Some(SetAside::Auto)));
        assert_eq!(all.compression.as_deref(), Some("lz4"));
        for (given, mib) in [(json!(7), 7), (json!("7"), 7), (json!(0), 0), (json!("none"), 0)] {
            let wishes = Wishes::of(&json!({ "refreservation": given }));
            assert_eq!(wishes.set_aside, Some(SetAside::Mib(mib)));
        }
    }
    #[test]
    fn wishes_of_a_root_are_those_of_its_vm() {
        let of = |vm: Value| RootWishes::of(vm.as_object().expect("an object"));
        assert_eq!(of(json!({ "quota": 0, "zfs_root_recsize": 0 })), RootWishes::default());
        let all = json!({ "quota": 2, "zfs_root_recsize": 4096, "zfs_root_compression": "lz4" });
        let wanted = RootWishes {
            quota_bytes: Some(2 << 30),
            record_bytes: Some(4096),
            compression: Some("lz4".to_owned()),
        };
        assert_eq!(of(all), wanted);
        wanted.check().unwrap();
        for bytes in [1, 511, 4097, 2 << 20] {
            let refused = RootWishes { record_bytes: Some(bytes), ..RootWishes::default() }.check();
            assert!(refused.unwrap_err().to_string().contains("zfs_root_recsize"), "{bytes}");
        }
    }
}
