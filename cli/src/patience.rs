//! Work in many requests, which goes on when one of them is not answered: the coordinator, or the
//! agent behind it, may be restarting.

use std::time::Duration;

use muster_shared::clock::{Clock as _, SystemClock};

use crate::CliError;
use crate::output::warn;

/// How long one request is tried again.
const PATIENCE: Duration = Duration::from_secs(300);
/// Between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// What `ask` answers, asked again while that is that nobody can answer now.
pub(crate) async fn patiently<T>(
    ask: impl AsyncFn() -> Result<T, CliError>,
) -> Result<T, CliError> {
    let clock = SystemClock::new();
    let mut said = false;
    loop {
        match ask().await {
            Err(error) if may_pass(&error) && clock.monotonic() < PATIENCE => {
                if !said {
                    warn(&format!("{error}; trying again"));
                    said = true;
                }
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}

fn may_pass(error: &CliError) -> bool {
    match error {
        CliError::Unreachable { .. } => true,
        CliError::Server { status, .. } => (502..=504).contains(status),
        CliError::Refused { code, .. } => code == "ServerNotRunning",
        _ => false,
    }
}
