//! A pool that is to be made on a host: which disks, by which names, with which command. What was planned
//! once is what is made, also after a restart.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::units::GIB;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::inventory::Found;
use super::{Device, LayoutError, PoolLayout, Vdev, Wishes, lay_out};

/// Names of pools, as ZFS has them, that begin a word of its own.
const RESERVED: [&str; 5] = ["mirror", "raidz", "draid", "spare", "log"];

/// A pool that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolPlan {
    /// Its name.
    pub pool: String,
    /// Tells it from every other pool of this name.
    pub setup_id: Uuid,
    /// The server's.
    pub server_uuid: Uuid,
    /// What its disks are for.
    pub layout: PoolLayout,
    /// Where the disks of the layout are, by their names in it.
    pub paths: BTreeMap<String, String>,
}

/// Why no pool can be planned.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The disks make none.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A disk would not be found again.
    #[error(
        "disk {0} has no name in /dev/disk/by-id or /dev/disk/by-path; name it in disk_exclude"
    )]
    Nameless(String),
    /// What somebody may want to keep is on it.
    #[error(
        "disk {name} is not empty ({}): name it in wipe_disks to have it wiped, or in disk_exclude",
        signatures.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
    )]
    NotEmpty {
        /// The disk.
        name: String,
        /// What is on it.
        signatures: BTreeSet<String>,
    },
    /// ZFS does not take the name.
    #[error("pool: {0:?} is no name for a pool")]
    BadName(String),
}

impl PoolPlan {
    /// The pool that a host's disks make; those named in `wipe` need not be empty.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn new(
        pool: &str,
        (setup_id, server_uuid): (Uuid, Uuid),
        found: &[Found],
        wishes: &Wishes,
        wipe: &BTreeSet<String>,
    ) -> Result<Self, PlanError> {
        check_name(pool)?;
        let disks: Vec<_> = found.iter().map(|found| found.disk.clone()).collect();
        let layout = lay_out(&disks, wishes)?;
        let mut paths = BTreeMap::new();
        for device in layout.devices() {
            let name = device.name.clone();
            let Some(disk) = found.iter().find(|it| it.disk.name == name) else { continue };
            if !disk.signatures.is_empty() && !wipe.contains(&name) {
                return Err(PlanError::NotEmpty { name, signatures: disk.signatures.clone() });
            }
            let path = disk.path.clone().ok_or_else(|| PlanError::Nameless(name.clone()))?;
            paths.insert(name, path);
        }
        Ok(Self { pool: pool.to_owned(), setup_id, server_uuid, layout, paths })
    }

    fn path(&self, device: &Device) -> String {
        self.paths.get(&device.name).unwrap_or(&device.name).clone()
    }

    /// The command that makes it. `again`: disks that an earlier run has begun with are taken.
    #[must_use]
    pub fn command(&self, again: bool) -> Vec<String> {
        let mut words: Vec<String> = ["zpool", "create"].map(str::to_owned).into();
        if again {
            words.push("-f".to_owned());
        }
        let mut option = |switch: &str, name: &str, value: &str| {
            words.extend([switch.to_owned(), format!("{name}={value}")]);
        };
        option("-o", "ashift", "12");
        let storing = self.layout.vdevs.first().and_then(|vdev| vdev.devices().first());
        if storing.is_some_and(|device| device.solid_state) {
            option("-o", "autotrim", "on");
        }
        let properties =
            [("atime", "off"), ("compression", "lz4"), ("xattr", "sa"), ("acltype", "posixacl")];
        for (name, value) in properties {
            option("-O", name, value);
        }
        option("-O", "mountpoint", &format!("/{}", self.pool));
        // With the pool, not after it: there is no moment at which it is nobody's.
        option("-O", "muster:setup_id", &self.setup_id.to_string());
        option("-O", "muster:server_uuid", &self.server_uuid.to_string());
        words.push(self.pool.clone());
        for vdev in &self.layout.vdevs {
            if let Vdev::Group { kind, .. } = vdev {
                words.push(kind.clone());
            }
            words.extend(vdev.devices().iter().map(|device| self.path(device)));
        }
        let PoolLayout { spares, logs, cache, .. } = &self.layout;
        for (word, devices) in [("spare", spares), ("log", logs), ("cache", cache)] {
            if !devices.is_empty() {
                words.push(word.to_owned());
                words.extend(devices.iter().map(|device| self.path(device)));
            }
        }
        words
    }

    /// Refuses a pool that is small beside the server's memory; `ratio` 0 refuses none.
    ///
    /// # Errors
    /// What operators of SmartOS are told.
    pub fn check_memory(&self, memory_bytes: u64, ratio: u64) -> Result<(), String> {
        let (disk, least) = (self.layout.capacity.bytes(), memory_bytes.saturating_mul(ratio));
        if disk >= least {
            return Ok(());
        }
        let [memory, disk, least] = [memory_bytes, disk, least].map(|bytes| bytes / GIB);
        Err(format!(
            "Cannot setup: system has {memory}G memory but {disk}G disk (>= {least}G expected)"
        ))
    }
}

/// A letter, then letters, digits and `_-.:`; words of `zpool` are none.
fn check_name(pool: &str) -> Result<(), PlanError> {
    let begins = pool.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    let usable = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte);
    let is_device = pool.starts_with('c') && pool[1..].starts_with(|c: char| c.is_ascii_digit());
    let reserved = RESERVED.iter().any(|word| pool.starts_with(word)) || is_device;
    if begins && pool.bytes().all(usable) && pool.len() <= 64 && !reserved {
        return Ok(());
    }
    Err(PlanError::BadName(pool.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::super::Disk;
    use super::*;

    fn found(name: &str, gb: u64, solid_state: bool) -> Found {
        let disk = Disk {
            name: name.to_owned(),
            bytes: gb * 1_000_000_000,
            solid_state,
            ..Disk::default()
        };
        let path = Some(format!("/dev/disk/by-id/wwn-{name}"));
        Found { disk, path, signatures: BTreeSet::new() }
    }

    fn ids() -> (Uuid, Uuid) {
        (Uuid::from_u128(1), Uuid::from_u128(2))
    }

    fn plan(found: &[Found], wishes: &Wishes) -> Result<PoolPlan, PlanError> {
        PoolPlan::new("zones", ids(), found, wishes, &BTreeSet::new())
    }

    const OPTIONS: &str = "-O atime=off -O compression=lz4 -O xattr=sa -O acltype=posixacl \
        -O mountpoint=/zones -O muster:setup_id=00000000-0000-0000-0000-000000000001 \
        -O muster:server_uuid=00000000-0000-0000-0000-000000000002 zones";

    #[test]
    fn the_command_names_disks_by_what_they_are() {
        let mut disks: Vec<Found> =
            ["a", "b", "c", "d", "e"].map(|name| found(name, 1000, false)).into();
        disks.extend([found("l", 100, true), found("x", 400, true)]);
        let wishes = Wishes { spares: Some(1), cache: true, ..Wishes::default() };
        let plan = plan(&disks, &wishes).unwrap();
        let by_id = |names: &str| {
            let names = names.split(' ').map(|name| format!("/dev/disk/by-id/wwn-{name}"));
            names.collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            plan.command(false).join(" "),
            format!(
                "zpool create -o ashift=12 {OPTIONS} raidz1 {} spare {} log {} cache {}",
                by_id("a b c d"),
                by_id("e"),
                by_id("l"),
                by_id("x"),
            )
        );
        assert!(plan.command(true).join(" ").starts_with("zpool create -f -o ashift=12 "));
        let kept: PoolPlan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(kept, plan, "it is what it is stored as");
    }

    #[test]
    fn a_single_disk_has_no_word_and_fast_ones_are_trimmed() {
        let plan = plan(&[found("a", 400, true)], &Wishes::default()).unwrap();
        assert_eq!(
            plan.command(false).join(" "),
            format!("zpool create -o ashift=12 -o autotrim=on {OPTIONS} /dev/disk/by-id/wwn-a")
        );
    }

    #[test]
    fn what_can_not_be_made_is_refused_by_name() {
        let nameless = Found { path: None, ..found("b", 1000, false) };
        let all = [found("a", 1000, false), nameless];
        assert_eq!(plan(&all, &Wishes::default()), Err(PlanError::Nameless("b".to_owned())));
        let without = Wishes { exclude: vec!["b".to_owned()], ..Wishes::default() };
        assert!(plan(&all, &without).is_ok());
        assert_eq!(plan(&[], &without), Err(PlanError::Layout(LayoutError::NoDisks)));
        let full =
            Found { signatures: BTreeSet::from(["ext4".to_owned()]), ..found("c", 1000, false) };
        let refused = plan(std::slice::from_ref(&full), &Wishes::default()).unwrap_err();
        assert!(refused.to_string().contains("disk c is not empty (ext4)"), "{refused}");
        let wipe = BTreeSet::from(["c".to_owned()]);
        assert!(PoolPlan::new("zones", ids(), &[full], &Wishes::default(), &wipe).is_ok());
        let disks = [found("a", 1000, false)];
        for bad in
            ["", "1a", "-f", "a b", "a/b", "mirrored", "raidz2", "spares", "log", "c0t1", "é"]
        {
            let refused = PoolPlan::new(bad, ids(), &disks, &Wishes::default(), &BTreeSet::new());
            assert_eq!(refused, Err(PlanError::BadName(bad.to_owned())), "{bad}");
        }
    }

    #[test]
    fn a_pool_is_at_least_twice_the_memory() {
        let plan = plan(&[found("a", 100, false)], &Wishes::default()).unwrap();
        assert_eq!(plan.check_memory(46 * GIB, 2), Ok(()));
        assert_eq!(
            plan.check_memory(64 * GIB, 2).unwrap_err(),
            "Cannot setup: system has 64G memory but 93G disk (>= 128G expected)"
        );
        assert_eq!(plan.check_memory(64 * GIB, 0), Ok(()));
    }
}
