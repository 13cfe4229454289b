//! The one writer of the waitlist in this process: takes the operations that wait, makes them one
//! transaction, and starts over when another coordinator was first.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::Tickets;
use super::draft::{Draft, Effect, Op, Stuck};
use crate::app::error::AppError;
use crate::store::StoreError;

/// Operations that may wait.
pub(super) const QUEUE: usize = 4_096;
/// Operations of one transaction; its limits allow about so many.
const BATCH: usize = 96;
/// Lost races before the operations are refused.
const ATTEMPTS: u64 = 20;

/// An operation and who wants to know of its end.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) op: Op,
    pub(super) done: oneshot::Sender<Result<Effect, AppError>>,
}

/// Why a batch was not written.
#[derive(Debug)]
enum Failed {
    /// Another coordinator was first.
    Race,
    Store(StoreError),
}

impl Tickets {
    /// Writes what is asked for, for ever.
    pub(crate) async fn write(&self) {
        let Some(mut inbox) = self.inbox.lock().take() else { return };
        let mut waiting = VecDeque::new();
        loop {
            if waiting.is_empty() {
                waiting.extend(inbox.recv().await);
            }
            take_more(&mut inbox, &mut waiting);
            self.commit(&mut waiting).await;
        }
    }

    /// Writes the first operations, as many as fit one transaction, and answers them.
    async fn commit(&self, waiting: &mut VecDeque<Job>) {
        for attempt in 1..=ATTEMPTS {
            match self.try_commit(waiting, attempt == ATTEMPTS).await {
                Ok(effects) => {
                    for (job, effect) in waiting.drain(..effects.len()).zip(effects) {
                        // Who asked may have gone.
                        job.done.send(effect).ok();
                    }
                    return;
                }
                Err(Failed::Race) => {
                    // Not in step with the other the next time.
                    let pause = self.ctx.parts.entropy.u64() % attempt;
                    tokio::time::sleep(Duration::from_millis(pause)).await;
                }
                Err(Failed::Store(error)) => {
                    for job in waiting.drain(..) {
                        job.done.send(Err(error.clone().into())).ok();
                    }
                    return;
                }
            }
        }
        for job in waiting.drain(..) {
            job.done.send(Err(AppError::Busy("the waitlist changes too fast".to_owned()))).ok();
        }
    }

    async fn try_commit(
        &self,
        waiting: &VecDeque<Job>,
        last: bool,
    ) -> Result<Vec<Result<Effect, AppError>>, Failed> {
        let mut draft = Draft::new(self.ctx.parts.clock.wall());
        let mut effects = Vec::new();
        for job in waiting {
            if !draft.has_room() {
                break;
            }
            effects.push(self.apply(&mut draft, &job.op, last).await?);
        }
        let writes = draft.writes();
        if writes.is_empty() {
            return Ok(effects);
        }
        match self.ctx.feed.commit(writes).await {
            Ok(_) => Ok(effects),
            Err(error) if error.is_conflict() => Err(Failed::Race),
            Err(error) => Err(Failed::Store(error)),
        }
    }

    async fn apply(
        &self,
        draft: &mut Draft,
        op: &Op,
        last: bool,
    ) -> Result<Result<Effect, AppError>, Failed> {
        loop {
            match draft.apply(op) {
                Ok(effect) => return Ok(Ok(effect)),
                Err(Stuck::Need(key)) => {
                    let record = self.ctx.parts.store.get(&key).await.map_err(Failed::Store)?;
                    draft.load(key, record.map(|record| (record.value, record.revision)));
                }
                Err(Stuck::Corrupt(key, source)) => {
                    return Ok(Err(AppError::Corrupt { key, source }));
                }
                // Records are read one by one, so another coordinator may have come between.
                Err(Stuck::Lost(_)) if !last => return Err(Failed::Race),
                Err(Stuck::Lost(key)) => {
                    let source = serde::de::Error::custom("it does not exist");
                    return Ok(Err(AppError::Corrupt { key, source }));
                }
            }
        }
    }
}

fn take_more(inbox: &mut mpsc::Receiver<Job>, waiting: &mut VecDeque<Job>) {
    while waiting.len() < BATCH
        && let Ok(job) = inbox.try_recv()
    {
        waiting.push_back(job);
    }
}
