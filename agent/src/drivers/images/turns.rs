//! Whose turn it is with an image: one at a time works on each.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::ids::ImageUuid;
use parking_lot::Mutex;

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
}
