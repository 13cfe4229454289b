//! Folders with all that is in them, as the kernel sees them: read and copied without following a link,
//! within bounds, on a thread of their own that stops once nobody wants its result any more.

mod archive;
mod attributes;
mod content;
mod copy;
mod measure;
#[cfg(test)]
mod tests;
mod walk;

use std::path::Path;

use muster_shared::wire::Code;
use tokio_util::sync::CancellationToken;

use super::untar::Fault;
use super::{DriverError, files};

pub(crate) use archive::archive_here;
pub(crate) use copy::{copy_here, copy_into};
pub(crate) use measure::{Measure, clones_files};

/// Works on a thread that may block. When this is dropped, the work is told to stop; `turn` is held
/// until it has.
///
/// # Errors
/// What the work says; `NotSupported` for what is in a tree that can't be dealt with.
pub(crate) async fn beside<T: Send + 'static>(
    action: &'static str,
    turn: impl Send + 'static,
    work: impl FnOnce(&CancellationToken) -> Result<T, Fault> + Send + 'static,
) -> Result<T, DriverError> {
    let stop = CancellationToken::new();
    let _given_up = stop.clone().drop_guard();
    #[expect(
        clippy::disallowed_methods,
        reason = "this is behind the drivers of storage and images"
    )]
    let thread = tokio::task::spawn_blocking(move || {
        let done = work(&stop);
        drop(turn);
        done
    });
    let done = thread.await.map_err(|error| DriverError::failed(action, error))?;
    done.map_err(|fault| refusal(action, fault))
}

fn refusal(action: &str, fault: Fault) -> DriverError {
    match fault {
        Fault::Invalid(problem) | Fault::Unsupported(problem) => {
            DriverError::refused(Code::NotSupported, format!("{action}: {problem}"))
        }
        Fault::Stopped => DriverError::refused(Code::Cancelled, format!("{action}: given up")),
        Fault::Host(error) => error,
    }
}

/// Refuses to copy what there is no room for on the file system of `beside`, of which so much stays free.
///
/// # Errors
/// `StoreFull`.
pub(crate) fn check_room(
    wanted_bytes: u64,
    beside: &Path,
    stays_free_bytes: u64,
) -> Result<(), DriverError> {
    let free_bytes = files::space(beside)?.available_bytes;
    if wanted_bytes.saturating_add(stays_free_bytes) <= free_bytes {
        return Ok(());
    }
    let text = format!(
        "a copy of {wanted_bytes} bytes has no room: {free_bytes} are free in {}, of which \
         {stays_free_bytes} stay free",
        beside.display()
    );
    Err(super::storage::store_full(text))
}
