//! The agent's own file system in a pool.
//!
//! Where a pool is not imported, or the file system not mounted, its place is an empty folder of the
//! host's: the pool's marker tells the two apart, see [`Marker`].

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use std::sync::Arc;

use super::ZfsStorageConfig;
use super::pool::Pool;
use super::stamp::Owner;
use crate::drivers::DriverError;
use crate::drivers::storage::copies::Copies;
use crate::drivers::storage::marker::Marker;

/// What lies there, as long as it is there.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) copies: Copies,
    pub(super) folder: PathBuf,
    marker: Marker,
}

/// The file system.
#[derive(Debug)]
pub(super) struct Home {
    dataset: String,
    pool: String,
    data_dir: PathBuf,
    root: PathBuf,
    open: Mutex<Option<Arc<Open>>>,
    /// Held by whoever looks for it: one that is being made is there before it is mounted. Holds the
    /// error of the last look, which answers those who waited for it: were each to look again, a
    /// pool that hangs would keep each for its own time limit after the one before.
    looking: tokio::sync::Mutex<Option<DriverError>>,
    /// How many looks have ended.
    looks: AtomicU64,
    problem: Mutex<Option<String>>,
}

impl Home {
    pub(super) fn new(dataset: String, config: &ZfsStorageConfig) -> Self {
        Self {
            dataset,
            pool: config.pool.clone(),
            data_dir: config.data_dir.clone(),
            root: config.root.clone(),
            open: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            looks: AtomicU64::default(),
            problem: Mutex::default(),
        }
    }

    /// Whether it is there; made if it never was.
    pub(super) async fn open(&self, pool: &Pool, owner: &Owner) -> bool {
        self.ready(pool, owner).await.is_ok()
    }

    /// # Errors
    /// `DatasetNotFound`: the pool is not there, or not mounted.
    pub(super) async fn ready(&self, pool: &Pool, owner: &Owner) -> Result<Arc<Open>, DriverError> {
        let ready = match self.known() {
            Some(open) => open.marker.check().await.map(|()| open),
            None => self.find_once(pool, owner).await,
        };
        match &ready {
            Ok(_) => *self.problem.lock() = None,
            Err(error) => {
                // Looked for again: it may be mounted elsewhere then.
                *self.open.lock() = None;
                let problem = Chain(error).to_string();
                let before = self.problem.lock().replace(problem.clone());
                if before.as_ref() != Some(&problem) {
                    tracing::error!(problem, "a pool can't be used");
                }
            }
        }
        ready
    }

    fn known(&self) -> Option<Arc<Open>> {
        self.open.lock().clone()
    }

    /// Looks for it, or waits for a look that goes on and takes its answer.
    async fn find_once(&self, pool: &Pool, owner: &Owner) -> Result<Arc<Open>, DriverError> {
        let looks = self.looks.load(Ordering::Acquire);
        let mut failed = self.looking.lock().await;
        if self.looks.load(Ordering::Acquire) != looks {
            let answer = self.known().map(Ok).or_else(|| failed.clone().map(Err));
            if let Some(answer) = answer {
                return answer;
            }
        }
        let found = self.find(pool, owner).await;
        *self.open.lock() = found.as_ref().ok().cloned();
        *failed = found.as_ref().err().cloned();
        self.looks.fetch_add(1, Ordering::Release);
        found
    }

    async fn find(&self, pool: &Pool, owner: &Owner) -> Result<Arc<Open>, DriverError> {
        let folder = self.mounted(pool, owner).await?;
        let marker = Marker::new(&self.pool, &folder, &self.data_dir);
        marker.open(owner.server_uuid).await?;
        marker.check().await?;
        let copies = Copies::new(folder.join("records"));
        copies.make().await?;
        Ok(Arc::new(Open { copies, folder, marker }))
    }

    /// Where it is mounted.
    async fn mounted(&self, pool: &Pool, owner: &Owner) -> Result<PathBuf, DriverError> {
        let missing = |problem: &str| {
            let text = format!("pool {} can't be used: {} {problem}", self.pool, self.dataset);
            DriverError::refused(Code::DatasetNotFound, text)
        };
        match pool.row(pool.name()).await {
            Ok(Some(_)) => {}
            Ok(None) | Err(DriverError::Refused { code: Code::DatasetNotFound, .. }) => {
                let text = format!("pool {} is not there: is it imported?", self.pool);
                return Err(DriverError::refused(Code::DatasetNotFound, text));
            }
            Err(error) => return Err(error),
        }
        match pool.create_filesystem(&self.dataset, owner.stamp()).await {
            Err(DriverError::Refused { code: Code::DatasetExists, .. }) => {}
            made => made?,
        }
        let place = pool.mounted_at(&self.dataset).await?;
        let place = place.ok_or_else(|| missing("is not mounted"))?;
        let below = place.strip_prefix('/').ok_or_else(|| missing("has no mountpoint"))?;
        Ok(self.root.join(below))
    }

    /// What was found wrong last, for people.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_shared::entropy::SeededEntropy;

    use super::*;
    use crate::drivers::cluster::Cluster;
    use crate::drivers::faults::{Fault, Faults};
    use crate::drivers::zfs::sim::{SimPools, SimZfs};

    struct Bench {
        folder: tempfile::TempDir,
        owner: Owner,
        pool: Pool,
        home: Home,
        faults: Faults,
    }

    impl Bench {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let owner =
                Owner { server_uuid: uuid::Uuid::nil().into(), cluster: Cluster::unknown() };
            let config = ZfsStorageConfig {
                pool: "zones".to_owned(),
                data_dir: folder.path().join("data"),
                root: folder.path().to_owned(),
                roots: folder.path().join("shown"),
                owner: owner.clone(),
            };
            std::fs::create_dir_all(folder.path().join("zones/muster")).unwrap();
            let entropy = Arc::new(SeededEntropy::new(1));
            let faults = Faults::with_delays(entropy, Duration::from_secs(1));
            let zfs = Arc::new(SimZfs::new(SimPools::new("zones"), faults.clone()));
            let pool = Pool::new("zones", zfs);
            let home = Home::new("zones/muster".to_owned(), &config);
            Self { folder, owner, pool, home, faults }
        }

        async fn ready(&self) -> Result<Arc<Open>, DriverError> {
            self.home.ready(&self.pool, &self.owner).await
        }
    }

    /// Whoever finds the file system that another is making would see it before it is mounted.
    #[tokio::test(start_paused = true)]
    async fn two_callers_at_once_make_the_file_system_once() {
        let bench = Bench::new();
        let (first, second) = tokio::join!(bench.ready(), bench.ready());
        assert!(Arc::ptr_eq(&first.unwrap(), &second.unwrap()));
        assert_eq!(bench.faults.calls("zfs.create"), 1);
        assert_eq!(bench.home.problem(), None);
        assert!(bench.folder.path().join("zones/muster/records").is_dir());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_look_at_a_pool_that_hangs_is_told_what_it_found() {
        let bench = Bench::new();
        bench.faults.fail_nth("zfs.create", 1, Fault::hangs());
        let (first, second, third) = tokio::join!(bench.ready(), bench.ready(), bench.ready());
        let told = [first, second, third].map(|found| Chain(&found.unwrap_err()).to_string());
        assert_eq!(told, ["zfs.create: injected fault"; 3]);
        assert_eq!(bench.faults.calls("zfs.create"), 1);
        assert!(bench.home.problem().is_some());

        bench.ready().await.unwrap();
        assert_eq!(bench.faults.calls("zfs.create"), 2, "whoever asks later looks again");
        assert_eq!(bench.home.problem(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_is_given_up_answers_nobody() {
        let bench = Bench::new();
        bench.faults.fail_nth("zfs.create", 1, Fault::hangs());
        let given_up = tokio::time::timeout(Duration::from_secs(60), bench.ready());
        let (given_up, waiting) = tokio::join!(given_up, bench.ready());
        given_up.unwrap_err();
        waiting.unwrap();
        assert_eq!(bench.faults.calls("zfs.create"), 2);
    }
}
