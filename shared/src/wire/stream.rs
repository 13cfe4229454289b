//! Byte streams (consoles, displays) on a websocket of their own.
//!
//! The agent dials `<coordinator>/agent/streams/<stream_id>` with subprotocol [`PROTOCOL`]. Data
//! travels as binary frames of at most [`MAX_DATA_BYTES`]; control as the text frames of
//! [`Control`]. A sender may have at most [`WINDOW_BYTES`] outstanding; the receiver gives credit
//! back with [`Control::Window`] as it consumes.

use serde::{Deserialize, Serialize};

use super::Code;

/// Websocket subprotocol of a stream connection.
pub const PROTOCOL: &str = "muster.stream.v1";
/// Path of the endpoint, followed by the stream's id.
pub const ENDPOINT_PATH: &str = "/agent/streams";
/// Largest binary frame.
pub const MAX_DATA_BYTES: usize = 64 * 1024;
/// Bytes that may be on their way in one direction before credit must come back.
pub const WINDOW_BYTES: u64 = 256 * 1024;

/// A text frame of a stream connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind")]
pub enum Control {
    /// The receiver consumed this many bytes.
    #[serde(rename = "stream_window")]
    Window {
        /// Credit given back.
        bytes: u64,
    },
    /// Something happened that is no output, e.g. the guest was restarted. Agent to coordinator.
    #[serde(rename = "stream_notice")]
    Notice {
        /// For people.
        message: String,
    },
    /// The stream ends.
    #[serde(rename = "stream_close")]
    Close {
        /// `done`, `VmNotFound`, `VmNotRunning`, `error`.
        code: Code,
        /// For people.
        message: String,
    },
}
