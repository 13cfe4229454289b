//! The roster: which servers are alive, and which coordinator may say so.
//!
//! [`liveness`] decides from signs of life, [`authority`] says whether this coordinator may write
//! the decision; both are pure. The shell around them is `background::roster`.

pub mod authority;
pub mod liveness;

pub use authority::{RosterRecord, Status, Via};
pub use liveness::{ConnectionId, Limits, Liveness, Standing, Tally};
