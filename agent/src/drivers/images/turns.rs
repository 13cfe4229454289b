//! Whose turn it is with an image: one at a time works on each.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::drivers::DriverError;

/// The images that somebody works on.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeMap<ImageUuid, Arc<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits until nobody else works on the image, then does `work`.
    pub(super) async fn wait<T>(&self, image: ImageUuid, work: impl Future<Output = T>) -> T {
        let turn = Arc::clone(self.0.lock().entry(image).or_default());
        let done = {
            let _turn = turn.lock().await;
            work.await
        };
        drop(turn);
        self.0.lock().retain(|_, turn| Arc::strong_count(turn) > 1);
        done
    }

    /// Installs an image that is not `there`, or of which that can't be told. Dropping `install`
    /// anywhere leaves at most what the next attempt goes on with or replaces.
    ///
    /// # Errors
    /// Those of `install`; `Cancelled`.
    pub(super) async fn ensure(
        &self,
        image: ImageUuid,
        cancelled: &CancellationToken,
        there: impl Future<Output = Result<bool, DriverError>>,
        install: impl Future<Output = Result<(), DriverError>>,
    ) -> Result<(), DriverError> {
        let ensure = self.wait(image, async {
            match there.await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    let error = Chain(&error).to_string();
                    tracing::warn!(image_uuid = %image, error, "the image is fetched once more");
                }
            }
            install.await
        });
        match cancelled.run_until_cancelled(ensure).await {
            Some(done) => done,
            None => Err(super::cancelled(image)),
        }
    }
}
