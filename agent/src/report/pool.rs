//! The pools' figures, from file systems that may hang: what is to be told of the VMs does not
//! wait for it.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::drivers::DriverError;
use crate::drivers::storage::{Storage, Usage};

/// Longest wait for fresh figures.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the storage is asked for.
type Question = JoinHandle<Result<Vec<Usage>, DriverError>>;

/// The figures, and the question that is open.
#[derive(Debug)]
pub(super) struct PoolFigures {
    storage: Arc<dyn Storage>,
    clock: SharedClock,
    // One at a time: each that hangs holds a thread.
    question: tokio::sync::Mutex<Option<Question>>,
    latest: Mutex<Option<(Duration, Vec<Usage>)>>,
}

impl PoolFigures {
    pub(super) fn new(storage: Arc<dyn Storage>, clock: SharedClock) -> Self {
        Self { storage, clock, question: tokio::sync::Mutex::default(), latest: Mutex::default() }
    }

    /// Fresh figures; or the latest there are, with a word for people, while nobody answers.
    ///
    /// # Errors
    /// The figures could not be read, or there never were any.
    pub(super) async fn get(&self) -> Result<(Vec<Usage>, Option<String>), DriverError> {
        let mut question = self.question.lock().await;
        let asked = question.get_or_insert_with(|| {
            let storage = Arc::clone(&self.storage);
            // Ends with its answer, or with the agent's runtime.
            tokio::spawn(async move { storage.usage().await })
        });
        let Ok(answer) = tokio::time::timeout(PATIENCE, asked).await else {
            return self.without_answer();
        };
        *question = None;
        let usages = answer.map_err(|error| DriverError::failed("read the pools", error))??;
        *self.latest.lock() = Some((self.clock.monotonic(), usages.clone()));
        let remark = self.untold(&usages);
        Ok((usages, remark))
    }

    /// The latest there are; asks nobody.
    pub(super) fn latest(&self) -> Vec<Usage> {
        self.latest.lock().as_ref().map_or_else(Vec::new, |(_, usages)| usages.clone())
    }

    /// Names the pools of which there are no figures.
    fn untold(&self, usages: &[Usage]) -> Option<String> {
        let mut pools = self.storage.pools();
        pools.retain(|pool| !usages.iter().any(|usage| usage.pool == *pool));
        let names = pools.join(", ");
        (!pools.is_empty()).then(|| format!("pool {names}: its figures can't be read"))
    }

    fn without_answer(&self) -> Result<(Vec<Usage>, Option<String>), DriverError> {
        let Some((at, usages)) = self.latest.lock().clone() else {
            let late = std::io::Error::from(std::io::ErrorKind::TimedOut);
            return Err(DriverError::failed("read the pools", late));
        };
        let age = self.clock.monotonic().saturating_sub(at).as_secs();
        let pools = self.storage.pools().join(", ");
        let text = format!("pool {pools} does not answer: its figures are {age} s old");
        tracing::warn!(text);
        Ok((usages, Some(text)))
    }
}
