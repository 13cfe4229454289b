//! Defects that this coordinator once had, to be put back by a test: the simulation must find
//! them.
//!
//! None is there unless a test puts it into [`AppConfig`](crate::app::AppConfig), for which it
//! needs the feature `planted`. Without the feature the compiler leaves out what asks for them.
//!
//! Three of them have one cause: memory was changed by the code that made a change of the store,
//! after it, and that code ended with a connection. [`Planted::tells_memory`] makes it so again.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::task::AbortOnDropHandle;

use crate::store::{Damaged, Event, Follow, Record, Store, StoreError};

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// A change ends when its client goes away. A task that was stored by then is unknown in
    /// memory: it is not listed and not sent, and runs after the next start.
    ChangeOfConnection,
    /// The refusal of a task that is being stored ends with the agent's connection. In memory the
    /// task stays open on its server, which is sent it again.
    RefusalOfConnection,
    /// The result of a task that is being stored ends with the agent's connection. In memory the
    /// room of a VM that could not be made stays promised.
    RoomOfConnection,
    /// Who cancels a task looks whether it was sent before it is its turn to change the task, and
    /// not again.
    CancelBeforeTurn,
}

/// What is wrong with a coordinator: at most one thing. Clones share what came of it.
#[derive(Clone, Debug, Default)]
pub struct Planted {
    defect: Option<Defect>,
    late: Arc<Mutex<Late>>,
}

/// By key, what the feed told and memory has not learned.
type Late = BTreeMap<String, Vec<(Arc<dyn Follow>, Event)>>;

impl Planted {
    /// A coordinator with a defect.
    #[cfg(feature = "planted")]
    #[must_use]
    pub fn new(defect: Option<Defect>) -> Self {
        Self { defect, late: Arc::default() }
    }

    /// Whether it is this one.
    pub(crate) fn has(&self, defect: Defect) -> bool {
        cfg!(feature = "planted") && self.defect == Some(defect)
    }

    /// Does `work`, which changes the record of `key`. With the defect, memory learns of changes of
    /// that record when the work is done, and never when it is dropped.
    pub(crate) async fn tells_memory<T>(
        &self,
        defect: Defect,
        key: String,
        work: impl Future<Output = T>,
    ) -> T {
        if !self.has(defect) {
            return work.await;
        }
        self.late.lock().entry(key.clone()).or_default();
        let done = work.await;
        let deliveries = self.late.lock().remove(&key).unwrap_or_default();
        for (follower, event) in deliveries {
            follower.apply(&[event], &Damaged::default());
        }
        done
    }

    /// The worker of a session, which ends with it if that is the defect.
    pub(crate) fn worker(&self, worker: JoinHandle<()>) -> Option<AbortOnDropHandle<()>> {
        let owned = self.has(Defect::RefusalOfConnection) || self.has(Defect::RoomOfConnection);
        owned.then(|| AbortOnDropHandle::new(worker))
    }

    /// An index that learns some things late.
    pub(crate) fn follower(&self, index: Arc<dyn Follow>) -> Arc<dyn Follow> {
        match self.defect {
            None => index,
            Some(_) => Arc::new(Belated { index, late: Arc::clone(&self.late) }),
        }
    }
}

/// An index from which the feed's changes of some records are held back.
#[derive(Debug)]
struct Belated {
    index: Arc<dyn Follow>,
    late: Arc<Mutex<Late>>,
}

#[async_trait]
impl Follow for Belated {
    fn wants(&self, key: &str) -> bool {
        self.index.wants(key)
    }

    async fn read(&self, store: &dyn Store) -> Result<Vec<Record>, StoreError> {
        self.index.read(store).await
    }

    fn reset(&self, records: &BTreeMap<String, Record>, damaged: &Damaged) {
        self.index.reset(records, damaged);
    }

    fn apply(&self, changes: &[Event], damaged: &Damaged) {
        let mut now = Vec::with_capacity(changes.len());
        let mut late = self.late.lock();
        for event in changes {
            match late.get_mut(&event.key) {
                Some(deliveries) => deliveries.push((Arc::clone(&self.index), event.clone())),
                None => now.push(event.clone()),
            }
        }
        drop(late);
        self.index.apply(&now, damaged);
    }
}
