//! Waiting for conditions.

use std::fmt::Debug;
use std::future::Future;
use std::time::Duration;

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(20);

/// Looks at a condition until it holds and returns what it yields.
///
/// # Panics
/// After `deadline`, with the last state seen.
pub async fn wait_for<T, S, F, R>(what: &str, deadline: Duration, mut look: F) -> T
where
    S: Debug,
    F: FnMut() -> R,
    R: Future<Output = Result<T, S>>,
{
    let mut last = None;
    let waited = tokio::time::timeout(deadline, async {
        loop {
            match look().await {
                Ok(found) => return found,
                Err(state) => last = Some(state),
            }
            tokio::time::sleep(POLL).await;
        }
    })
    .await;
    match waited {
        Ok(found) => found,
        Err(_) => panic!("{what}: not within {deadline:?}; last seen: {last:#?}"),
    }
}
