//! Makes the pool of a server, once: one that bears the plan's id is there already, any other of its name
//! is left alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::disk_layout::inventory::{self, Found, LINKS};
use crate::disk_layout::plan::PoolPlan;
use crate::drivers::DriverError;
use crate::host::{Command, ExecError, Output, SharedExec};

/// Longest run of a command that only looks.
pub(super) const LOOK_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest run of one that writes to many disks.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(600);
/// Attempts to make a pool, see [`make`].
const ATTEMPTS: u32 = 3;
/// Before the next attempt.
const PAUSE: Duration = Duration::from_secs(2);
/// What `zpool create` says when it can't open a disk.
const UNAVAILABLE: &str = "currently unavailable";
const COLUMNS: &str = "NAME,SIZE,TYPE,ROTA,RM,MODEL,VENDOR,TRAN,MOUNTPOINTS";

/// Runs a command, whatever its exit code.
pub(super) async fn run(
    exec: &SharedExec,
    argv: &[&str],
    limit: Duration,
) -> Result<Output, DriverError> {
    let command = Command::new(argv.iter().copied(), limit);
    exec.run(&command, &CancellationToken::new()).await.map_err(|error| failed(argv, error))
}

/// Runs a command that has to succeed.
pub(super) async fn must_run(
    exec: &SharedExec,
    argv: &[&str],
    limit: Duration,
) -> Result<Vec<u8>, DriverError> {
    let output = run(exec, argv, limit).await?;
    let program = argv.first().copied().unwrap_or_default();
    output.checked(program).map(|output| output.stdout).map_err(|error| failed(argv, error))
}

fn failed(argv: &[&str], error: ExecError) -> DriverError {
    // What ZFS says of disks is what helps; it is the operator's to know.
    let words = argv.get(..2).unwrap_or(argv).join(" ");
    let text = format!("{words}: {}", Chain(&error));
    DriverError::refused_because(Code::InternalError, text, error)
}

/// Whether pools can be made here.
///
/// # Errors
/// `ZfsUnavailable`.
pub(super) async fn ready(exec: &SharedExec) -> Result<(), DriverError> {
    match must_run(exec, &["zpool", "version"], LOOK_TIMEOUT).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let text = "ZFS can't be used here: install the packages zfsutils-linux and zfs-dkms";
            Err(DriverError::refused_because(Code::ZfsUnavailable, text, error))
        }
    }
}

/// The disks of the host.
pub(super) async fn disks(exec: &SharedExec) -> Result<Vec<Found>, DriverError> {
    let argv = ["lsblk", "-J", "-b", "-o", COLUMNS];
    let printed = must_run(exec, &argv, LOOK_TIMEOUT).await?;
    let listed: Value = serde_json::from_slice(&printed)
        .map_err(|error| DriverError::failed("read what lsblk printed", error))?;
    let mut links = Vec::new();
    for folder in LINKS {
        links.extend(read_links(Path::new(folder)).await?);
    }
    let mut found = inventory::read(&listed, &links);
    for disk in found.iter_mut().filter(|it| !it.disk.mounted && it.disk.bytes > 0) {
        let device = format!("/dev/{}", disk.disk.name);
        let printed = must_run(exec, &["wipefs", "-n", "-J", &device], LOOK_TIMEOUT).await?;
        disk.signatures = inventory::signatures(&printed).map_err(|error| {
            DriverError::failed(format!("read what wipefs printed of {device}"), error)
        })?;
    }
    Ok(found)
}

/// The links of a folder, with the names of the devices that they lead to. No folder has none.
async fn read_links(folder: &Path) -> Result<Vec<(String, String)>, DriverError> {
    let failed =
        |error| DriverError::failed(format!("read the links in {}", folder.display()), error);
    let mut entries = match tokio::fs::read_dir(folder).await {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut links = Vec::new();
    while let Some(entry) = entries.next_entry().await.map_err(failed)? {
        let target = match tokio::fs::read_link(entry.path()).await {
            Ok(target) => target,
            // A disk that was taken out meanwhile.
            Err(_) => continue,
        };
        let device = target.file_name().map(|name| name.to_string_lossy().into_owned());
        links.extend(device.map(|device| (entry.path().display().to_string(), device)));
    }
    Ok(links)
}

/// Whose a pool is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// There is none.
    Nobody,
    /// It was made by this plan.
    Plan,
    /// It was made otherwise.
    Other,
}

pub(super) async fn owner(exec: &SharedExec, plan: &PoolPlan) -> Result<Owner, DriverError> {
    let pools = must_run(exec, &["zpool", "list", "-H", "-o", "name"], LOOK_TIMEOUT).await?;
    let pools = String::from_utf8_lossy(&pools).into_owned();
    if !pools.lines().any(|name| name == plan.pool) {
        return Ok(Owner::Nobody);
    }
    let argv = ["zfs", "get", "-H", "-o", "value", "muster:setup_id", &plan.pool];
    let id = must_run(exec, &argv, LOOK_TIMEOUT).await?;
    let is_its = String::from_utf8_lossy(&id).trim() == plan.setup_id.to_string();
    Ok(if is_its { Owner::Plan } else { Owner::Other })
}

/// `PoolExists`.
pub(super) fn exists(plan: &PoolPlan) -> DriverError {
    let text = format!(
        "there is a pool {} that this setup has not made: it is left alone. Export it or give it \
         another name",
        plan.pool
    );
    DriverError::refused(Code::PoolExists, text)
}

/// Makes the pool of a plan; one that the plan has made is as good.
///
/// # Errors
/// `PoolExists`; a command failed.
pub(super) async fn create(
    exec: &SharedExec,
    plan: &PoolPlan,
    again: bool,
    wipe: &BTreeSet<String>,
) -> Result<(), DriverError> {
    match owner(exec, plan).await? {
        Owner::Plan => return Ok(()),
        Owner::Other => return Err(exists(plan)),
        Owner::Nobody => {}
    }
    if again && import(exec, plan).await? {
        return Ok(());
    }
    for (name, path) in plan.paths.iter().filter(|(name, _)| wipe.contains(*name)) {
        tracing::warn!(disk = name, path, "a disk is wiped for the pool");
        must_run(exec, &["wipefs", "-a", path], WRITE_TIMEOUT).await?;
    }
    make(exec, &plan.command(again)).await?;
    match owner(exec, plan).await? {
        Owner::Plan => Ok(()),
        Owner::Other => Err(exists(plan)),
        Owner::Nobody => {
            let text = format!("zpool create said that it made {}, which is not there", plan.pool);
            Err(DriverError::refused(Code::InternalError, text))
        }
    }
}

/// Makes it, also if a disk can't be opened at first: `zpool create` partitions each, and on a busy host
/// the partition may not be there when ZFS gives up looking for it. The partitions stay then, but nothing
/// of a pool is in them.
async fn make(exec: &SharedExec, command: &[String]) -> Result<(), DriverError> {
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    for _ in 1..ATTEMPTS {
        match must_run(exec, &words, WRITE_TIMEOUT).await {
            Err(error) if error.to_string().contains(UNAVAILABLE) => {
                tracing::warn!(error = %Chain(&error), "a disk can't be opened yet");
            }
            made => return made.map(drop),
        }
        tokio::time::sleep(PAUSE).await;
    }
    must_run(exec, &words, WRITE_TIMEOUT).await.map(drop)
}

/// Takes in a pool that was made before the host restarted; false: there is none.
async fn import(exec: &SharedExec, plan: &PoolPlan) -> Result<bool, DriverError> {
    let argv = ["zpool", "import", "-N", "-d", LINKS[0], "-d", LINKS[1], &plan.pool];
    let output = run(exec, &argv, WRITE_TIMEOUT).await?;
    if output.exit.code != Some(0) {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if said.contains("no such pool") {
            return Ok(false);
        }
        output.checked("zpool").map_err(|error| failed(&argv, error))?;
    }
    if owner(exec, plan).await? == Owner::Plan {
        // Its file systems are where a new pool's would be.
        must_run(exec, &["zfs", "mount", "-a"], WRITE_TIMEOUT).await?;
        return Ok(true);
    }
    must_run(exec, &["zpool", "export", &plan.pool], WRITE_TIMEOUT).await?;
    Err(exists(plan))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::disk_layout::{Disk, Wishes};
    use crate::host::FakeExec;

    const ID: &str = "00000000-0000-0000-0000-000000000001";

    fn plan() -> PoolPlan {
        let disk = Disk { name: "vdb".to_owned(), bytes: 1_000_000_000_000, ..Disk::default() };
        let path = Some("/dev/disk/by-id/wwn-1".to_owned());
        let found = [Found { disk, path, signatures: BTreeSet::new() }];
        let ids = (Uuid::from_u128(1), Uuid::from_u128(2));
        PoolPlan::new("zones", ids, &found, &Wishes::default(), &BTreeSet::new()).unwrap()
    }

    struct Bench {
        fake: Arc<FakeExec>,
        exec: SharedExec,
    }

    impl Bench {
        /// A host with these pools, of which `zones` has this id.
        fn new(pools: &str, id: &str) -> Self {
            let fake = Arc::new(FakeExec::default());
            fake.prints(&["zpool", "list"], pools);
            fake.prints(&["zfs", "get"], id);
            for command in [&["zpool", "create"][..], &["zpool", "export"], &["zfs", "mount"]] {
                fake.prints(command, "");
            }
            fake.prints(&["wipefs", "-a"], "");
            let exec: SharedExec = fake.clone();
            Self { fake, exec }
        }

        /// What was done, without what was only looked at.
        fn done(&self) -> Vec<String> {
            let all = self.fake.calls();
            let looks = [["zpool", "list"], ["zfs", "get"]];
            let done = all
                .iter()
                .filter(|argv| !looks.iter().any(|it| argv.starts_with(&it.map(str::to_owned))));
            done.map(|argv| argv.join(" ")).collect()
        }
    }

    fn code(refused: &DriverError) -> Option<&Code> {
        match refused {
            DriverError::Refused { code, .. } => Some(code),
            DriverError::Failed { .. } => None,
        }
    }

    #[tokio::test]
    async fn a_pool_of_the_plan_is_not_made_twice_and_another_is_left_alone() {
        let none = BTreeSet::new();
        let own = Bench::new("rpool\nzones\n", &format!("{ID}\n"));
        for again in [false, true] {
            create(&own.exec, &plan(), again, &none).await.unwrap();
        }
        let other = Bench::new("zones\n", "-\n");
        let refused = create(&other.exec, &plan(), true, &none).await.unwrap_err();
        assert_eq!(code(&refused), Some(&Code::PoolExists), "{refused}");
        assert_eq!((own.done(), other.done()), (Vec::new(), Vec::new()));
    }

    #[tokio::test]
    async fn disks_are_wiped_by_their_lasting_names_and_only_if_named() {
        let bench = Bench::new("rpool\n", "");
        let wipe = BTreeSet::from(["vdb".to_owned(), "vdc".to_owned()]);
        // Whatever the fake host says: it has no pool afterwards.
        create(&bench.exec, &plan(), false, &wipe).await.unwrap_err();
        let make = plan().command(false).join(" ");
        assert_eq!(bench.done(), ["wipefs -a /dev/disk/by-id/wwn-1".to_owned(), make]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_disk_that_cannot_be_opened_is_tried_again() {
        for (said, attempts) in [
            ("cannot create 'zones': one or more devices is currently unavailable", 3),
            ("cannot create 'zones': permission denied", 1),
        ] {
            let bench = Bench::new("rpool\n", "");
            bench.fake.fails(&["zpool", "create"], 1, said);
            let refused = create(&bench.exec, &plan(), false, &BTreeSet::new()).await.unwrap_err();
            assert!(refused.to_string().contains(said), "{refused}");
            assert_eq!(bench.done(), vec![plan().command(false).join(" "); attempts]);
        }
    }

    #[tokio::test]
    async fn what_was_begun_is_taken_in_or_begun_anew() {
        let none = BTreeSet::new();
        let bench = Bench::new("rpool\n", "");
        bench.fake.fails(&["zpool", "import"], 1, "cannot import 'zones': no such pool available");
        create(&bench.exec, &plan(), true, &none).await.unwrap_err();
        let import = "zpool import -N -d /dev/disk/by-id -d /dev/disk/by-path zones".to_owned();
        assert_eq!(bench.done(), [import.clone(), plan().command(true).join(" ")]);
        // It can't be told whether it is there: nothing is overwritten.
        let bench = Bench::new("rpool\n", "");
        bench.fake.fails(
            &["zpool", "import"],
            1,
            "cannot import 'zones': pool was previously in use",
        );
        let refused = create(&bench.exec, &plan(), true, &none).await.unwrap_err();
        assert!(refused.to_string().contains("previously in use"), "{refused}");
        assert_eq!(bench.done(), [import]);
    }

    #[tokio::test]
    async fn without_zfs_the_reason_says_what_to_install() {
        let exec: SharedExec = Arc::new(FakeExec::default());
        let refused = ready(&exec).await.unwrap_err();
        assert_eq!(code(&refused), Some(&Code::ZfsUnavailable));
        assert!(refused.to_string().contains("zfsutils-linux"), "{refused}");
    }
}
