//! The pool of a server that is reset: marked first, and destroyed at the next boot if it still bears the
//! mark. Only a pool that the setup has made is ever touched, which its id tells.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use muster_shared::error_chain::Chain;
use muster_shared::ids::TaskId;
use muster_shared::wire::Code;

use super::pool::{self, LOOK_TIMEOUT, Owner, WRITE_TIMEOUT, must_run, run};
use crate::disk_layout::plan::PoolPlan;
use crate::drivers::DriverError;
use crate::host::SharedExec;

/// The property of a pool that is to be destroyed: the task that asked for it.
const MARK: &str = "muster:factoryreset";
/// ZFS makes this partition of a disk that it is given as a whole.
const PARTITION: &str = "-part1";

/// What becomes of the disks of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Wipe {
    /// Nothing says any more that they were in use.
    #[default]
    Labels,
    /// The same, and their blocks are given back.
    Discard,
    /// They are left as ZFS leaves those of a destroyed pool.
    None,
}

/// A reset that was asked for; kept until it is carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reset {
    /// The task that asked for it.
    pub task: TaskId,
    /// What becomes of the disks.
    pub wipe: Wipe,
    /// The pool that the setup has made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<PoolPlan>,
    /// The devices of that pool; told once it is about to be destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Vec<String>>,
    /// It was carried out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub done: bool,
}

/// Whether the pool can be marked.
///
/// # Errors
/// `PoolExists`: it is somebody else's. `PoolUnavailable`: it is not there.
pub(super) async fn ready(exec: &SharedExec, reset: &Reset) -> Result<(), DriverError> {
    let Some(plan) = &reset.pool else { return Ok(()) };
    match pool::owner(exec, plan).await? {
        Owner::Plan => Ok(()),
        Owner::Other => Err(pool::exists(plan)),
        Owner::Nobody => Err(gone(plan)),
    }
}

fn gone(plan: &PoolPlan) -> DriverError {
    let text = format!("pool {}, which the setup has made, is not there: import it", plan.pool);
    DriverError::refused(Code::PoolUnavailable, text)
}

/// Marks the pool; it is as it was otherwise.
///
/// # Errors
/// As [`ready`]; a command failed.
pub(super) async fn mark(exec: &SharedExec, reset: &Reset) -> Result<(), DriverError> {
    ready(exec, reset).await?;
    let Some(plan) = &reset.pool else { return Ok(()) };
    let mark = format!("{MARK}={}", reset.task);
    must_run(exec, &["zfs", "set", &mark, &plan.pool], WRITE_TIMEOUT).await.map(drop)
}

/// The devices of the pool if it is to be destroyed: a list, or null when its mark was taken away.
///
/// # Errors
/// As [`ready`]; a command failed.
pub(super) async fn devices(exec: &SharedExec, reset: &Reset) -> Result<Value, DriverError> {
    ready(exec, reset).await?;
    let Some(plan) = &reset.pool else { return Ok(json!([])) };
    let argv = ["zfs", "get", "-H", "-s", "local", "-o", "value", MARK, &plan.pool];
    let marked = must_run(exec, &argv, LOOK_TIMEOUT).await?;
    if String::from_utf8_lossy(&marked).trim() != reset.task.to_string() {
        return Ok(Value::Null);
    }
    let argv = ["zpool", "list", "-v", "-H", "-P", &plan.pool];
    let listed = must_run(exec, &argv, LOOK_TIMEOUT).await?;
    let listed = String::from_utf8_lossy(&listed);
    let words = listed.lines().filter_map(|line| line.split_whitespace().next());
    Ok(json!(words.filter(|word| word.starts_with('/')).collect::<Vec<_>>()))
}

/// Destroys the pool and wipes those of its devices that the setup was given. May be repeated.
///
/// # Errors
/// `PoolExists`: it is somebody else's; nothing is done then. A command failed.
pub(super) async fn destroy(exec: &SharedExec, reset: &Reset) -> Result<(), DriverError> {
    let (Some(plan), Some(devices)) = (&reset.pool, &reset.devices) else { return Ok(()) };
    match pool::owner(exec, plan).await? {
        Owner::Plan => {
            tracing::warn!(pool = plan.pool, "the pool is destroyed");
            must_run(exec, &["zpool", "destroy", "-f", &plan.pool], WRITE_TIMEOUT).await?;
        }
        Owner::Other => return Err(pool::exists(plan)),
        Owner::Nobody => {}
    }
    if reset.wipe == Wipe::None {
        return Ok(());
    }
    for device in devices {
        let disk = device.strip_suffix(PARTITION).unwrap_or(device);
        if plan.paths.values().any(|path| path == disk) {
            wipe(exec, device, disk, reset.wipe == Wipe::Discard).await?;
        } else {
            // Another boot may give a name that is not of the disk itself to another disk.
            tracing::warn!(device, "not a disk that the setup was given: it is not wiped");
        }
    }
    Ok(())
}

/// Wipes a disk, which the pool was given as a whole and has as `device`.
async fn wipe(
    exec: &SharedExec,
    device: &str,
    disk: &str,
    discard: bool,
) -> Result<(), DriverError> {
    // What has no label is as it should be, and the signatures go below in any case.
    let cleared = run(exec, &["zpool", "labelclear", "-f", device], WRITE_TIMEOUT).await?;
    if cleared.exit.code != Some(0) {
        let said = String::from_utf8_lossy(&cleared.stderr).into_owned();
        tracing::warn!(device, said, "the label of a device was not cleared");
    }
    if discard {
        let discarded = run(exec, &["blkdiscard", "-f", disk], WRITE_TIMEOUT).await?;
        if discarded.exit.code != Some(0) {
            let said = String::from_utf8_lossy(&discarded.stderr).into_owned();
            tracing::warn!(disk, said, "the blocks of a disk can't be given back");
        }
    }
    match must_run(exec, &["wipefs", "-a", disk], WRITE_TIMEOUT).await {
        // It was pulled, or is dead: nobody can wipe it, and the node needs its reset all the same.
        Err(error) if !Path::new(disk).exists() => {
            let error = Chain(&error).to_string();
            tracing::warn!(disk, error, "a disk is not there: what is on it stays");
            Ok(())
        }
        wiped => wiped.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::disk_layout::inventory::Found;
    use crate::disk_layout::{Disk, Wishes};
    use crate::host::FakeExec;

    const ID: &str = "00000000-0000-0000-0000-000000000001\n";
    const DISK: &str = "/dev/disk/by-id/wwn-1";

    fn reset() -> Reset {
        let disk = Disk { name: "vdb".to_owned(), bytes: 1_000_000_000_000, ..Disk::default() };
        let found = [Found { disk, path: Some(DISK.to_owned()), signatures: BTreeSet::new() }];
        let ids = (Uuid::from_u128(1), Uuid::from_u128(2));
        let plan = PoolPlan::new("zones", ids, &found, &Wishes::default(), &BTreeSet::new());
        let task = "t1".parse().unwrap();
        Reset { task, wipe: Wipe::Labels, pool: Some(plan.unwrap()), devices: None, done: false }
    }

    /// A host with these pools, of which `zones` has this setup id and this mark.
    fn host(pools: &str, id: &str, mark: &str) -> (Arc<FakeExec>, SharedExec) {
        let fake = Arc::new(FakeExec::default());
        for (command, printed) in [
            (&["zpool", "list", "-H", "-o", "name"][..], pools),
            (&["zfs", "get", "-H", "-o", "value", "muster:setup_id"], id),
            (&["zfs", "get", "-H", "-s", "local"], mark),
            (
                &["zpool", "list", "-v"],
                "zones\t1G\n\tmirror-0\t1G\n\t/dev/disk/by-id/wwn-1-part1\t1G\n",
            ),
            (&["zfs", "set"], ""),
            (&["zpool", "destroy"], ""),
            (&["zpool", "labelclear"], ""),
            (&["blkdiscard"], ""),
            (&["wipefs"], ""),
        ] {
            fake.prints(command, printed);
        }
        (fake.clone(), fake)
    }

    /// What changed something.
    fn changes(fake: &FakeExec) -> Vec<String> {
        let looks = ["zpool list", "zfs get"];
        let all = fake.calls().into_iter().map(|argv| argv.join(" "));
        all.filter(|line| !looks.iter().any(|look| line.starts_with(look))).collect()
    }

    #[tokio::test]
    async fn a_pool_is_destroyed_only_with_its_mark_and_its_disks_are_wiped_whole() {
        let (fake, exec) = host("zones\n", ID, "t1\n");
        mark(&exec, &reset()).await.unwrap();
        let devices = devices(&exec, &reset()).await.unwrap();
        assert_eq!(devices, json!([format!("{DISK}-part1")]));
        assert_eq!(changes(&fake), ["zfs set muster:factoryreset=t1 zones"]);
        let devices = serde_json::from_value(devices).unwrap();
        let begun = Reset { devices, wipe: Wipe::Discard, ..reset() };
        destroy(&exec, &begun).await.unwrap();
        assert_eq!(
            changes(&fake)[1..],
            [
                "zpool destroy -f zones".to_owned(),
                format!("zpool labelclear -f {DISK}-part1"),
                format!("blkdiscard -f {DISK}"),
                format!("wipefs -a {DISK}"),
            ]
        );
        // Cut off after the pool was gone: the disks are wiped all the same.
        let (fake, exec) = host("", "", "");
        destroy(&exec, &Reset { wipe: Wipe::Labels, ..begun }).await.unwrap();
        assert_eq!(changes(&fake).last(), Some(&format!("wipefs -a {DISK}")));
    }

    #[tokio::test]
    async fn what_is_not_the_setups_or_has_lost_its_mark_stays() {
        let begun = Reset { devices: Some(vec![format!("{DISK}-part1")]), ..reset() };
        let (fake, exec) = host("zones\n", "-\n", "t1\n");
        mark(&exec, &reset()).await.unwrap_err();
        devices(&exec, &reset()).await.unwrap_err();
        destroy(&exec, &begun).await.unwrap_err();
        assert!(changes(&fake).is_empty());
        for mark in ["", "t2\n"] {
            let (_, exec) = host("zones\n", ID, mark);
            assert_eq!(devices(&exec, &reset()).await.unwrap(), Value::Null, "{mark}");
        }
        let (fake, exec) = host("rpool\n", "", "");
        let refused = mark(&exec, &reset()).await.unwrap_err();
        assert!(refused.to_string().contains("import it"), "{refused}");
        assert!(changes(&fake).is_empty());
    }

    #[tokio::test]
    async fn a_disk_that_was_pulled_keeps_no_other_from_being_wiped() {
        let (fake, exec) = host("", "", "");
        fake.fails(&["wipefs", "-a", DISK], 1, "probing initialization failed: No such file");
        let other = tempfile::NamedTempFile::new().unwrap();
        let other = other.path().to_str().unwrap().to_owned();
        let mut begun = Reset { devices: Some(vec![DISK.to_owned(), other.clone()]), ..reset() };
        begun.pool.as_mut().unwrap().paths.insert("vdc".to_owned(), other.clone());
        destroy(&exec, &begun).await.unwrap();
        assert_eq!(changes(&fake).last(), Some(&format!("wipefs -a {other}")));
        // One that is there and can't be wiped is tried again at the next boot.
        fake.fails(&["wipefs", "-a", &other], 1, "busy");
        destroy(&exec, &begun).await.unwrap_err();
    }

    #[tokio::test]
    async fn a_disk_that_the_setup_was_not_given_is_left_alone() {
        let (fake, exec) = host("", "", "");
        let devices = Some(vec!["/dev/sdz3".to_owned()]);
        destroy(&exec, &Reset { devices, ..reset() }).await.unwrap();
        assert!(changes(&fake).is_empty());
    }
}
