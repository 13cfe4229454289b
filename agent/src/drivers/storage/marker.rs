//! Whether a pool's folder is the one that was used before: where its file system is not mounted
//! there is an empty folder, which looks like a fresh pool.
//!
//! At its first use a pool gets a marker, and the agent's data folder a copy of it. From then on a
//! folder without the marker is not the pool.

use std::path::{Path, PathBuf};

use muster_shared::ids::ServerUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::drivers::{DriverError, files};

/// The marker's name in the pool's folder.
const NAME: &str = "muster-pool.json";
/// The folder of the copies in the data folder.
const COPIES: &str = "pools";

/// What a marker says.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    /// The pool, by the name that it had then.
    pool: String,
    /// The server that used it first.
    server_uuid: ServerUuid,
}

/// The marker of one pool.
#[derive(Debug)]
pub(super) struct Marker {
    pool: String,
    path: PathBuf,
    /// None of a pool within the data folder: whoever has lost that has lost the copy, too.
    copy: Option<PathBuf>,
    problem: Mutex<Option<String>>,
}

impl Marker {
    /// Of the pool whose folder is `dir`.
    pub(super) fn new(pool: &str, dir: &Path, data_dir: &Path) -> Self {
        Self {
            path: dir.join(NAME),
            copy: (dir != data_dir).then(|| data_dir.join(COPIES).join(format!("{pool}.json"))),
            problem: Mutex::default(),
            pool: pool.to_owned(),
        }
    }

    /// Marks a pool that was never used. False when the folder is not that of the pool: nothing may
    /// be made in it.
    pub(super) async fn open(&self, server_uuid: ServerUuid) -> Result<bool, DriverError> {
        let Some(copy) = &self.copy else { return Ok(true) };
        if files::read(copy).await?.is_some() {
            return Ok(self.check().await.is_ok());
        }
        let content = Content { pool: self.pool.clone(), server_uuid };
        let content = serde_json::to_vec(&content)
            .map_err(|error| DriverError::failed("encode the marker of a pool", error))?;
        if files::read(&self.path).await?.is_none() {
            files::write(&self.path, &content).await?;
        }
        if let Some(folder) = copy.parent() {
            files::make_folder(folder).await?;
        }
        files::write(copy, &content).await?;
        Ok(self.check().await.is_ok())
    }

    /// Refuses what needs the pool's own folder.
    ///
    /// # Errors
    /// `DatasetNotFound`: something else is in its place.
    pub(super) async fn check(&self) -> Result<(), DriverError> {
        let Some(copy) = &self.copy else { return Ok(()) };
        let found = match files::read(&self.path).await {
            Ok(Some(content)) => match serde_json::from_slice::<Content>(&content) {
                Ok(content) if content.pool == self.pool => None,
                Ok(content) => Some(format!("says that this is pool {}", content.pool)),
                Err(error) => Some(format!("can't be used ({error})")),
            },
            Ok(None) => Some("is missing: is its file system mounted?".to_owned()),
            Err(error) => {
                let error = muster_shared::error_chain::Chain(&error);
                Some(format!("can't be read ({error})"))
            }
        };
        let Some(found) = found else {
            *self.problem.lock() = None;
            return Ok(());
        };
        let problem = format!(
            "pool {} is not there: its marker {} {found} (a pool that is to begin anew: remove {} \
             and start the agent again)",
            self.pool,
            self.path.display(),
            copy.display()
        );
        let before = self.problem.lock().replace(problem.clone());
        if before.as_ref() != Some(&problem) {
            tracing::error!(problem, "a pool can't be used");
        }
        Err(DriverError::refused(Code::DatasetNotFound, problem))
    }

    /// What the last check found, for people.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }
}
