//! What the owner of a VM wants of how its disks are kept, where a pool can do it.

use serde_json::Value;

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
}
