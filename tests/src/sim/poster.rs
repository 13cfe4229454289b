//! A server with an agent of another kind. It has no connection: it POSTs what it is, that it is
//! alive, and how it is. No VM is placed on it, as it is not set up.

use std::time::Duration;

use muster_shared::ids::ServerUuid;

use super::Sim;
use super::ask::{Ask, Post};
use super::client::Patience;

/// How often it does.
const PERIOD: Duration = Duration::from_secs(5);

/// Such a server.
#[derive(Debug)]
pub struct Poster {
    server: ServerUuid,
    next: Duration,
    /// It POSTs nothing.
    pub is_silent: bool,
}

impl Poster {
    /// One that begins now.
    #[must_use]
    pub fn new(server: ServerUuid) -> Self {
        Self { server, next: Duration::ZERO, is_silent: false }
    }
}

/// POSTs what is due.
pub fn post(sim: &mut Sim) {
    let now = sim.now;
    let Some(poster) = &mut sim.poster else { return };
    if poster.is_silent || now < poster.next {
        return;
    }
    poster.next = now + PERIOD;
    let server = poster.server;
    for what in [Post::Sysinfo, Post::Heartbeat, Post::Status] {
        sim.ask(Ask::Post(server, what), Patience::Endless);
    }
}
