//! Questions to a pool that may never answer, as one on a network file system does not while its
//! server is away.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::Storage;
use crate::drivers::DriverError;

/// Longest wait for what a pool has.
const PATIENCE: Duration = Duration::from_secs(5);

/// A pool that is waited for only so long.
#[derive(Debug)]
pub(super) struct Patient {
    pub(super) pool: Arc<dyn Storage>,
    // The one that was not answered in time. Each holds a thread, so nobody asks again before.
    unanswered: Mutex<Option<JoinHandle<()>>>,
}

impl Patient {
    pub(super) fn new(pool: Arc<dyn Storage>) -> Self {
        Self { pool, unanswered: Mutex::default() }
    }

    /// The answer to a look-up, which goes on when nobody waits for it any more; `None` while the pool
    /// does not answer.
    ///
    /// # Errors
    /// What the pool refuses.
    pub(super) async fn ask<T, A>(
        &self,
        question: impl FnOnce(Arc<dyn Storage>) -> A,
    ) -> Result<Option<T>, DriverError>
    where
        T: Send + 'static,
        A: Future<Output = Result<T, DriverError>> + Send + 'static,
    {
        if self.unanswered.lock().as_ref().is_some_and(|asked| !asked.is_finished()) {
            return Ok(None);
        }
        let (answered, answer) = tokio::sync::oneshot::channel();
        let asked = question(Arc::clone(&self.pool));
        // Ends with its answer, or with the agent's runtime.
        let asked = tokio::spawn(async move {
            // Nobody may wait for it any more.
            drop(answered.send(asked.await));
        });
        if let Ok(Ok(answer)) = tokio::time::timeout(PATIENCE, answer).await {
            return answer.map(Some);
        }
        tracing::warn!(pool = self.pool.pools().join(", "), "a pool does not answer");
        *self.unanswered.lock() = Some(asked);
        Ok(None)
    }

    /// As [`ask`](Self::ask), where nothing goes on without the answer.
    ///
    /// # Errors
    /// What the pool refuses; or it does not answer.
    pub(super) async fn insist<T, A>(
        &self,
        question: impl FnOnce(Arc<dyn Storage>) -> A,
    ) -> Result<T, DriverError>
    where
        T: Send + 'static,
        A: Future<Output = Result<T, DriverError>> + Send + 'static,
    {
        let late = || {
            let text = format!("look into pool {}", self.pool.pools().join(", "));
            DriverError::failed(text, std::io::Error::from(std::io::ErrorKind::TimedOut))
        };
        self.ask(question).await?.ok_or_else(late)
    }
}
