//! Consoles for sessions with containers.

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::ids::VmUuid;

use super::line::{AGAIN, ENDED};
use super::{Consoles, Event, Viewer};
use crate::drivers::DriverError;
use crate::sessions::attach;

/// Most of what was printed that is taken at a time, bytes.
const ROOM_BYTES: usize = 16 * 1024;

#[async_trait]
impl attach::Consoles for Consoles {
    async fn look(&self, vm: VmUuid) -> Result<Box<dyn attach::Console>, DriverError> {
        Ok(Box::new(self.attach(vm).await?))
    }
}

#[async_trait]
impl attach::Console for Viewer {
    async fn next(&self) -> Option<Bytes> {
        loop {
            match Viewer::next(self, ROOM_BYTES).await {
                Ok(Event::Output(bytes)) => return Some(bytes),
                // A session is with one life of the container.
                Ok(Event::Notice(notice)) if [ENDED, AGAIN].contains(&notice.as_str()) => {
                    return None;
                }
                // What people are told is nothing that the container has printed.
                Ok(Event::Notice(notice)) => tracing::debug!(notice, "of a console"),
                Err(end) => {
                    tracing::debug!(code = %end.code, end.message, "a console has ended");
                    return None;
                }
            }
        }
    }

    async fn write(&self, bytes: Bytes) {
        Viewer::write(self, bytes).await;
    }
}
