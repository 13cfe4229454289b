//! Whether new mutating tasks are taken: pauses and drains, each of which only its owner lifts.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::TaskId;
use muster_shared::wire::{Code, Intake};
use tokio::sync::oneshot;

use super::Class;
use super::journal::{self, JournalError, StoredDrain, StoredIntake};
use super::live::{Live, Shared, Stop};
use super::record::State;
use super::runner::{Engine, Refusal};

/// Longest time a drain may be asked for.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 3600);
/// Owners of pauses, and of drains, at a time.
const MAX_OWNERS: usize = 16;
/// Longest name of an owner, bytes.
const MAX_OWNER_BYTES: usize = 200;
/// Before the end of a drain that could not be written is tried again.
const RETRY: Duration = Duration::from_secs(5);

impl Engine {
    /// Refuses new mutating tasks until this owner resumes; durable for this boot of the host.
    ///
    /// # Errors
    /// The journal can't be written, or there are too many owners; nothing has changed then.
    pub async fn pause(self: &Arc<Self>, owner: &str, reason: &str) -> Result<(), Refusal> {
        let (owner, reason) = (owner.to_owned(), reason.to_owned());
        self.set_intake(move |intake| {
            check_owner(&owner, intake.pauses.keys())?;
            intake.pauses.insert(owner, reason);
            Ok(())
        })
        .await
    }

    /// Ends the pause and the drain of an owner; without one, of all.
    ///
    /// # Errors
    /// As [`Engine::pause`].
    pub async fn resume(self: &Arc<Self>, owner: Option<&str>) -> Result<(), Refusal> {
        let owner = owner.map(str::to_owned);
        self.set_intake(move |intake| {
            let stays = |other: &String| owner.as_ref().is_some_and(|owner| owner != other);
            intake.pauses.retain(|other, _| stays(other));
            intake.drains.retain(|other, _| stays(other));
            Ok(())
        })
        .await
    }

    /// Refuses new mutating tasks and gives back those that have not started; ends by itself
    /// after `ttl`.
    ///
    /// # Errors
    /// As [`Engine::pause`].
    pub async fn drain(
        self: &Arc<Self>,
        owner: &str,
        reason: &str,
        token: &TaskId,
        ttl: Duration,
    ) -> Result<(), Refusal> {
        let until = self.parts.clock.wall() + ttl.min(MAX_DRAIN);
        let drain = StoredDrain { reason: reason.to_owned(), token: token.clone(), until };
        let (name, stored) = (owner.to_owned(), drain.clone());
        self.set_intake(move |intake| {
            check_owner(&name, intake.drains.keys())?;
            intake.drains.insert(name, stored);
            Ok(())
        })
        .await?;
        self.give_back_waiting();
        self.arm_drain(owner.to_owned(), drain);
        Ok(())
    }

    fn give_back_waiting(&self) {
        let shared = self.shared.lock();
        for id in shared.order.waiting() {
            let Some(live) = shared.live.get(&id) else { continue };
            if live.durable() {
                let record = live.record.lock();
                // A task that ran before a restart has begun, although it waits again.
                let begun = record.state != State::Queued;
                let local = record.origin.is_local();
                drop(record);
                if !begun {
                    live.stop(if local { Stop::Cancelled } else { Stop::Returned });
                }
            }
        }
    }

    /// Changes the intake on disk, then in memory. The change belongs to the engine: it is made as a
    /// whole also when whoever asked for it has gone.
    async fn set_intake<F>(self: &Arc<Self>, change: F) -> Result<(), Refusal>
    where
        F: FnOnce(&mut StoredIntake) -> Result<(), Refusal> + Send + 'static,
    {
        let engine = Arc::clone(self);
        let (done, result) = oneshot::channel();
        self.spawn(async move {
            // Nobody may wait any more, which is fine.
            done.send(engine.change_intake(change).await).ok();
        });
        result.await.unwrap_or_else(|_| Err(Refusal::new(Code::Draining, "the agent is stopping")))
    }

    async fn change_intake<F>(&self, change: F) -> Result<(), Refusal>
    where
        F: FnOnce(&mut StoredIntake) -> Result<(), Refusal>,
    {
        let _one_at_a_time = self.intake_changes.lock().await;
        let mut intake = self.shared.lock().intake.clone();
        change(&mut intake)?;
        let written = self.write(vec![journal::put_intake(&intake)]).await;
        written.map_err(|error: JournalError| {
            tracing::warn!(error = %Chain(&error), "an order can't be made durable");
            Refusal::new(Code::JournalFull, error.to_string())
        })?;
        self.shared.lock().intake = intake;
        self.touch();
        Ok(())
    }

    /// Ends the drains of an earlier start when their time has come.
    pub(super) fn arm_drains(self: &Arc<Self>) {
        let drains = self.shared.lock().intake.drains.clone();
        for (owner, drain) in drains {
            self.arm_drain(owner, drain);
        }
    }

    /// Ends a drain when its time has come.
    fn arm_drain(self: &Arc<Self>, owner: String, drain: StoredDrain) {
        let left = drain.until.duration_since(self.parts.clock.wall());
        let left = Duration::try_from(left).unwrap_or_default().min(MAX_DRAIN);
        let engine = self.clone();
        self.spawn(async move {
            let end = async {
                tokio::time::sleep(left).await;
                engine.end_drain(&owner, &drain.token).await;
            };
            engine.closing.run_until_cancelled(end).await;
        });
    }

    async fn end_drain(&self, owner: &str, token: &TaskId) {
        let is_on = |intake: &StoredIntake| {
            intake.drains.get(owner).is_some_and(|drain| drain.token == *token)
        };
        while is_on(&self.shared.lock().intake) {
            let ended = self.change_intake(|intake| {
                if is_on(intake) {
                    tracing::info!(owner, %token, "a drain was not ended, it expires");
                    intake.drains.remove(owner);
                }
                Ok(())
            });
            if let Err(error) = ended.await {
                tracing::error!(%error, owner, "a drain continues: its end can't be written");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Whether new mutating tasks are taken.
    #[must_use]
    pub fn intake(&self) -> Intake {
        self.intake_of(&self.shared.lock())
    }

    /// Whose pauses and drains are in the way.
    #[must_use]
    pub fn paused_by(&self) -> Vec<String> {
        let shared = self.shared.lock();
        let owners = shared.intake.pauses.keys().chain(shared.intake.drains.keys());
        owners.cloned().collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn intake_of(&self, shared: &Shared) -> Intake {
        if self.given_up.get().is_some() {
            return Intake::Paused;
        }
        if !shared.intake.drains.is_empty() {
            let mutating = |live: &Arc<Live>| live.handler.kind().class == Class::Mutate;
            let busy = shared.live.values().any(mutating) || !shared.recovered.is_empty();
            return if busy { Intake::Draining } else { Intake::Drained };
        }
        if shared.intake.pauses.is_empty() { Intake::Accepting } else { Intake::Paused }
    }
}

fn check_owner<'a>(
    owner: &String,
    mut others: impl ExactSizeIterator<Item = &'a String>,
) -> Result<(), Refusal> {
    if owner.len() > MAX_OWNER_BYTES {
        return Err(Refusal::new(Code::Malformed, "the owner has too long a name"));
    }
    if others.len() >= MAX_OWNERS && !others.any(|other| other == owner) {
        return Err(Refusal::new(Code::QueueFull, "too many have paused this agent already"));
    }
    Ok(())
}
