//! Life under the reference's CNAPI, which knows no websockets: the agent POSTs who it is and how it
//! is, and is called back for its tasks. Both are off unless the configuration names them.
//!
//! Tasks that come this way are journaled like all others; what the caller does not hear of their
//! end, `GET /history` tells.

mod listener;
mod post;

pub use listener::LegacyListener;
pub use post::Poster;
