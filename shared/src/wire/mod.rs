//! The protocol between agent and coordinator, version `muster.v1`; described in
//! `docs/protocol.md`, which a test compares with these types.
//!
//! Every message is one websocket text frame holding a JSON object whose `kind` names the message.
//! Unknown members are ignored; an unknown kind is answered with [`Error`] `UnknownKind`, so that
//! versions can be mixed. Byte streams run on a second websocket, see [`stream`].

mod code;
mod codec;
pub mod logs;
mod messages;
#[cfg(test)]
mod protocol_tests;
pub mod status;
pub mod stream;
pub mod usage;

pub use code::Code;
pub use codec::{DecodeError, FromAgent, FromCoordinator, Message, Unfit, decode, encode};
pub use messages::*;

/// Websocket subprotocol of the control connection.
pub const PROTOCOL: &str = "muster.v1";
/// Path of the coordinator's endpoint; added when a configured URL has no path.
pub const ENDPOINT_PATH: &str = "/agent";
/// Largest control frame either side sends or accepts: a request body of 1 MiB plus room for the
/// envelope, or a status report of a few thousand VMs; agents leave out tags to keep to it.
pub const MAX_FRAME_BYTES: usize = 2 * 1024 * 1024;
/// Result members over this size travel and are stored as blobs; inline stay the first and last
/// [`INLINE_EDGE_BYTES`].
pub const MAX_INLINE_BYTES: usize = 256 * 1024;
/// See [`MAX_INLINE_BYTES`].
pub const INLINE_EDGE_BYTES: usize = 64 * 1024;

/// The owner of a pause that people asked for; that of a job is [`job_owner`].
pub const OPERATOR: &str = "operator";

/// The owner of what a job pauses or drains.
#[must_use]
pub fn job_owner(job: &crate::ids::TaskId) -> String {
    format!("job/{job}")
}

/// Names of features in the capabilities of hello and welcome.
pub mod feature {
    /// Coordinators give signs of life, and agents listen to them.
    pub const HEARTBEAT: &str = "heartbeat";
    /// Coordinators acknowledge refusals, and agents repeat them until then.
    pub const REFUSALS: &str = "refusals";
}

/// Close codes of the control connection, besides websocket's own.
pub mod close {
    /// The same agent has a newer connection.
    pub const REPLACED: u16 = 4001;
    /// The agent belongs to another cluster.
    pub const FOREIGN: u16 = 4003;
    /// Another agent of this server is connected.
    pub const DUPLICATE: u16 = 4009;
}

/// The order in which waiting messages are sent: a large report never delays a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// Heartbeats.
    Heartbeat,
    /// Everything small that somebody waits for.
    Control,
    /// Results, status, sysinfo, progress.
    Bulk,
}
