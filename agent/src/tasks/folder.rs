//! The folder of the task journal. One that can't be read is moved aside and the agent starts
//! without it: guests need their agent more than the history of its tasks. Coordinators are told
//! of each task that it does not know any more, and the VMs come from their own records.

use std::io;
use std::path::Path;
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::error_chain::Chain;
use muster_shared::kv::{KvError, SharedKv, SledKv};
use muster_shared::threads::Threads;
use muster_shared::units::MIB;

use super::journal::{Journal, JournalError};
use crate::report::ASIDE;

/// Page cache of the journal; the default of sled itself is 1 GiB.
const CACHE_BYTES: u64 = 8 * MIB;
/// Name of the folder in the data folder.
pub const NAME: &str = "journal";
/// The journal can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// It could not be opened, for another reason than damage.
    #[error("open the task journal")]
    Open(#[source] KvError),
    /// It could not be moved aside.
    #[error("move the damaged task journal aside, to {to}")]
    Aside {
        /// Where to.
        to: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Opens the journal of a data folder, a new one if what is there is damaged.
///
/// # Errors
/// See [`FolderError`].
pub async fn open(
    data_dir: &Path,
    now: Timestamp,
    threads: &dyn Threads,
) -> Result<SharedKv, FolderError> {
    let folder = data_dir.join(NAME);
    let problem = match readable(&folder, threads).await {
        Err(problem) if problem.is_damage() => problem,
        opened => return opened.map_err(FolderError::Open),
    };
    let to = data_dir.join(format!("{ASIDE}{}", now.as_millisecond()));
    std::fs::rename(&folder, &to)
        .map_err(|source| FolderError::Aside { to: to.display().to_string(), source })?;
    tracing::error!(
        error = %Chain(&problem), to = %to.display(),
        "the task journal is damaged: moved aside, starting with an empty one; \
         remove it once it was looked at"
    );
    let kv = SledKv::open(&folder, CACHE_BYTES, threads).map_err(FolderError::Open)?;
    Ok(Arc::new(kv))
}

/// Opens the journal, if all of it can be understood.
async fn readable(folder: &Path, threads: &dyn Threads) -> Result<SharedKv, KvError> {
    let kv: SharedKv = Arc::new(SledKv::open(folder, CACHE_BYTES, threads)?);
    match Journal::new(kv.clone()).load().await {
        Ok(_) => Ok(kv),
        Err(error) => {
            kv.close().await;
            Err(match error {
                JournalError::Kv { source, .. } => source,
                JournalError::Damaged { key, source } => {
                    KvError::Corrupt { key, detail: source.to_string() }
                }
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use muster_shared::kv::Change;
    use muster_shared::threads::OsThreads;

    use super::*;
    use crate::report::aside;

    async fn put(kv: &SharedKv, key: &str, value: &str) {
        let change = Change::Put(key.to_owned().into(), value.to_owned().into());
        kv.commit(vec![change]).await.unwrap();
        kv.close().await;
    }

    #[tokio::test]
    async fn a_damaged_journal_is_moved_aside_once() {
        let data = tempfile::tempdir().unwrap();
        let now = Timestamp::from_millisecond(7).unwrap();
        let open = || open(data.path(), now, &OsThreads);
        put(&open().await.unwrap(), "ticket/a", "no JSON").await;
        assert_eq!(aside(data.path()).unwrap(), Vec::<PathBuf>::new());
        let kv = open().await.unwrap();
        assert_eq!(kv.get(b"ticket/a").await.unwrap(), None);
        assert_eq!(aside(data.path()).unwrap(), [data.path().join("journal.corrupt.7")]);
        put(&kv, "x", "y").await;
        let kv = open().await.unwrap();
        assert!(kv.get(b"x").await.unwrap().is_some());
        kv.close().await;
    }

    #[tokio::test]
    async fn a_journal_in_use_stays_where_it_is() {
        let data = tempfile::tempdir().unwrap();
        let open = || open(data.path(), Timestamp::UNIX_EPOCH, &OsThreads);
        let kv = open().await.unwrap();
        assert!(matches!(open().await, Err(FolderError::Open(KvError::InUse { .. }))));
        assert!(aside(data.path()).unwrap().is_empty());
        kv.close().await;
    }
}
