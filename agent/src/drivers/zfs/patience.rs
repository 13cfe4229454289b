//! Waiting for devices of volumes to be closed.

use std::time::Duration;

use muster_shared::wire::Code;

use crate::drivers::DriverError;

/// Attempts to destroy what something has open.
const ATTEMPTS: u32 = 5;
/// Before the second attempt; each later one waits twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Does what a device that is open is in the way of: udev opens every one that appears or was written
/// to, for a moment.
pub(crate) async fn patiently<F: Future<Output = Result<(), DriverError>>>(
    act: impl Fn() -> F,
) -> Result<(), DriverError> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..ATTEMPTS {
        match act().await {
            Err(DriverError::Refused { code: Code::DatasetBusy, .. }) => {}
            done => return done,
        }
        tokio::time::sleep(pause).await;
        pause *= 2;
    }
    act().await
}
