//! The audit log: a line for each answered request.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, StatusCode};
use tracing::Level;

/// A request that was answered.
#[derive(Debug)]
pub(super) struct Handled<'a> {
    pub(super) operation: &'a str,
    pub(super) method: &'a Method,
    pub(super) path: &'a str,
    pub(super) status: StatusCode,
    pub(super) elapsed: Duration,
    pub(super) req_id: &'a str,
    /// The name in the client's certificate.
    pub(super) who: Option<&'a str>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) user_agent: &'a str,
    /// What a refusal said.
    pub(super) failure: Option<&'a str>,
}

impl Handled<'_> {
    /// Writes the line. `changes`: the request may have changed something.
    pub(super) fn tell(&self, changes: bool) {
        // The level of an event is part of its place in the code.
        macro_rules! line {
            ($level:expr) => {
                tracing::event!(
                    target: "audit",
                    $level,
                    operation = self.operation,
                    method = %self.method,
                    path = self.path,
                    status = self.status.as_u16(),
                    elapsed_ms = u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
                    req_id = self.req_id,
                    who = self.who,
                    peer = self.peer.map(tracing::field::display),
                    user_agent = self.user_agent,
                    failure = self.failure,
                    "handled"
                )
            };
        }
        match level(changes, self.status) {
            Level::WARN => line!(Level::WARN),
            Level::INFO => line!(Level::INFO),
            _ => line!(Level::DEBUG),
        }
    }
}

/// What failed here is a warning, what changes something is told by default, reads are many.
fn level(changes: bool, status: StatusCode) -> Level {
    if status.is_server_error() {
        Level::WARN
    } else if changes {
        Level::INFO
    } else {
        Level::DEBUG
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::table;

    #[test]
    fn reads_are_told_at_debug_and_changes_at_info() {
        let table = table();
        let of = |method: Method, pattern: &str| {
            let found = table.iter().find(|it| it.method == method && it.pattern == pattern);
            found.expect(pattern).changes()
        };
        assert_eq!(level(of(Method::GET, "/servers"), StatusCode::OK), Level::DEBUG);
        assert_eq!(level(of(Method::GET, "/servers"), StatusCode::CONFLICT), Level::DEBUG);
        let failed = StatusCode::INTERNAL_SERVER_ERROR;
        assert_eq!(level(of(Method::GET, "/servers"), failed), Level::WARN);
        let pause = "/servers/:server_uuid/cn-agent/pause";
        for method in [Method::GET, Method::POST] {
            assert_eq!(level(of(method, pause), StatusCode::NO_CONTENT), Level::INFO);
        }
        assert_eq!(level(of(Method::POST, "/vms"), StatusCode::CONFLICT), Level::INFO);
    }
}
