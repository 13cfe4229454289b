//! Images that nobody needs go when the pool is full: as tasks of the agent's own, so that they
//! wait for who uses an image, and stand in the journal.

use std::sync::Arc;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use serde_json::json;

use super::Params;
use super::image_gc::{Policy, Pool, choose};
use super::runner::Engine;
use crate::drivers::DriverError;

/// How often the pool is looked at.
const PERIOD: Duration = Duration::from_secs(600);
/// A burst of tasks that found no room is one look.
const SETTLE: Duration = Duration::from_secs(1);

impl Engine {
    /// Looks after the room for images until the engine is closed: now and then, and when a task
    /// found none. Call once; returns at once.
    pub fn keep_room_for_images(self: &Arc<Self>, policy: Policy) {
        let engine = Arc::clone(self);
        self.spawn(async move {
            let work = engine.clone().look_after_images(policy);
            // What is left over is found again by the next start.
            engine.closing.clone().run_until_cancelled(work).await;
        });
    }

    async fn look_after_images(self: Arc<Self>, policy: Policy) {
        let mut is_wanted = false;
        loop {
            match self.make_room(&policy, is_wanted).await {
                Ok(remark) => self.parts.drivers.report.set_pool_remark(remark),
                Err(error) => {
                    let problem = Chain(&error).to_string();
                    tracing::warn!(problem, "the room for images is not known");
                    let remark = format!("pool: no image can be removed: {error}");
                    self.parts.drivers.report.set_pool_remark(Some(remark));
                }
            }
            tokio::time::sleep(SETTLE).await;
            is_wanted = tokio::select! {
                biased;
                () = self.room_wanted.notified() => true,
                () = tokio::time::sleep(PERIOD) => false,
            };
        }
    }

    /// Removes what is to go now. Returns what people must know: the pool is too full, and no image
    /// goes. With `is_wanted` a task found no room, however full the pool is: something large.
    async fn make_room(
        self: &Arc<Self>,
        policy: &Policy,
        is_wanted: bool,
    ) -> Result<Option<String>, DriverError> {
        let pool = self.pool().await?;
        if !is_wanted && !pool.is_above(policy.high_percent) {
            return Ok(None);
        }
        let drivers = &self.parts.drivers;
        let images = drivers.images.list().await?;
        let held = self.shared.lock().order.images();
        let policy = if is_wanted { policy.wanting(pool) } else { *policy };
        let chosen = choose(&policy, pool, &images, &held, self.parts.clock.wall());
        let (mut removed, mut why) = (0, "no image here can be removed".to_owned());
        for image in chosen {
            match self.remove_surplus(image, pool).await {
                Ok(()) => removed += 1,
                Err(problem) => {
                    tracing::warn!(image_uuid = %image, problem, "an image could not be removed");
                    why = format!("image {image} could not be removed: {problem}");
                }
            }
        }
        if removed > 0 || !pool.is_above(policy.high_percent) {
            return Ok(None);
        }
        let used_percent = pool.used_percent();
        tracing::warn!(used_percent, why, "the pool is too full");
        Ok(Some(format!("pool: {used_percent} % are used, and {why}")))
    }

    async fn pool(&self) -> Result<Pool, DriverError> {
        // Images are in the first.
        let usage = self.parts.drivers.storage.usage().await?.into_iter().next();
        let usage = usage.unwrap_or_default();
        Ok(Pool { size_bytes: usage.size_bytes, used_bytes: usage.alloc_bytes })
    }

    async fn remove_surplus(self: &Arc<Self>, image: ImageUuid, pool: Pool) -> Result<(), String> {
        let used_percent = pool.used_percent();
        tracing::info!(image_uuid = %image, used_percent, "removing an image that nobody needs");
        let params = Params::from_iter([("uuid".to_owned(), json!(image))]);
        self.do_task("image_delete", params).await
    }
}
