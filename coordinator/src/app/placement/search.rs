//! What is looked for after a decision and may take long: changes that would help, explanations.
//! It runs aside, so that nobody else waits for it; few at a time, so that shorter work passes; and
//! the search for changes has a deadline.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::threads::compute_aside;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::Placement;
use super::flow::Question;
use crate::alloc::{
    self, Explanation, Helpless, LeastChanges, Options, Outcome, explain, least_changes,
};
use crate::app::error::AppError;

/// Longest that a request waits for its turn.
const WAIT: Duration = Duration::from_secs(2);
/// Longest search.
const SEARCH: Duration = Duration::from_secs(1);
/// Requests that may wait for their turn.
const WAITING: usize = 64;
/// Of how many processors one is used.
const SHARE: usize = 2;

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Searches {
    turns: Semaphore,
    waiting: Semaphore,
}

impl Searches {
    pub(super) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let turns = Semaphore::new((processors / SHARE).max(1));
        Self { turns, waiting: Semaphore::new(WAITING) }
    }

    /// A turn; `None` when there is none soon enough.
    async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let _waiting = self.waiting.try_acquire().ok()?;
        tokio::time::timeout(WAIT, self.turns.acquire()).await.ok()?.ok()
    }
}

impl Placement {
    /// What would make the question's VM of this place fit; cut when there is no time to look.
    pub(super) async fn least_changes(
        &self,
        fleet: alloc::Fleet,
        question: &Arc<Question>,
        place: usize,
        options: Options,
    ) -> LeastChanges {
        let Some(_turn) = self.searches.turn().await else {
            return LeastChanges { cut: true, ..LeastChanges::default() };
        };
        let (question, clock) = (Arc::clone(question), Arc::clone(&self.ctx.parts.clock));
        let search = move || {
            let end = clock.monotonic() + SEARCH;
            let body = question.vms[place].body.as_map();
            let (fleet, config, options) = (&fleet, &*question.policy, &options);
            let is_over = || clock.monotonic() >= end;
            least_changes(Helpless { fleet, body, config, options }, &is_over)
        };
        compute_aside(&*self.ctx.parts.threads, search).await
    }

    /// What every algorithm made of every server.
    ///
    /// # Errors
    /// [`AppError::Busy`] when others are explained to, and it takes too long.
    pub(super) async fn explanation(
        &self,
        outcome: &Outcome,
        question: &Arc<Question>,
        place: usize,
        options: Options,
    ) -> Result<Explanation, AppError> {
        let Some(_turn) = self.searches.turn().await else {
            let text = "too many explanations are being made; try again".to_owned();
            return Err(AppError::Busy(text));
        };
        let (question, snapshot) = (Arc::clone(question), Arc::clone(outcome.snapshot()));
        let explain =
            move || explain(&snapshot, &question.vms[place].request, &question.policy, &options).1;
        Ok(compute_aside(&*self.ctx.parts.threads, explain).await)
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::api::Object;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::app::tests::start;

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_too_long_for_an_explanation_is_told() {
        let app = start().await;
        let body = json!({
            "vm": { "vm_uuid": Uuid::from_u128(1), "owner_uuid": Uuid::from_u128(2), "ram": 1 },
            "image": {}, "nic_tags": [], "explain": "full", "least_changes": false,
        });
        let searches = &app.placement.searches;
        let all = u32::try_from(searches.turns.available_permits()).unwrap();
        let held = searches.turns.acquire_many(all).await.unwrap();
        let busy = app.placement.allocate(&Object::of(&body)).await;
        assert!(matches!(busy, Err(AppError::Busy(_))), "{busy:?}");
        drop(held);
        let mut decided = app.placement.allocate(&Object::of(&body)).await.unwrap();
        assert!(decided.take_explanation().is_some());
    }
}
