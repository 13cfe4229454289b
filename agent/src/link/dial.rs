//! Keeping a connection to one coordinator: dial, back off, dial again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_shared::backoff::Backoff;
use muster_shared::link::Dialer;
use muster_shared::wire::{PROTOCOL, close};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::LinkParts;
use super::desk::ToDesk;
use super::session::{self, End, SessionParts};

/// A connection that lasted so long was a good one: the next failure starts the back-off anew.
const STABLE: Duration = Duration::from_secs(30);
/// Wait after [`close::REPLACED`], so that two agents with one uuid do not push each other out quickly.
const REPLACED_WAIT: Duration = Duration::from_secs(5);
/// Longest wait after this agent was turned away, which only people can change; they should not
/// have to wait long after they did.
const TURNED_AWAY: Backoff =
    Backoff { first: Duration::from_secs(10), factor: 2.0, cap: Duration::from_secs(60) };
/// How often the thread shows that it is alive.
const TICK: Duration = Duration::from_secs(1);

/// How a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Waits before the next attempt.
    Disconnected,
    /// Dials.
    Connecting,
    /// Carries messages.
    Connected,
}

/// What others see of one link.
#[derive(Debug)]
pub struct LinkState {
    /// Where to.
    pub url: Url,
    phase: Mutex<Phase>,
    /// Why the coordinator turned this agent away, since it was last welcome.
    turned_away: Mutex<Option<&'static str>>,
    /// Monotonic time, ms, of the thread's last sign of life.
    alive_ms: AtomicU64,
    pub(super) stop: CancellationToken,
    /// It was this agent's own doing that the connection was replaced.
    pub(super) own_replacement: Notify,
}

impl LinkState {
    pub(super) fn new(url: Url, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            url,
            phase: Mutex::new(Phase::Connecting),
            turned_away: Mutex::new(None),
            alive_ms: AtomicU64::new(u64::MAX),
            stop,
            own_replacement: Notify::new(),
        })
    }

    /// How it stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        *self.phase.lock()
    }

    /// Why the coordinator turned this agent away, if it did the last time.
    #[must_use]
    pub fn turned_away(&self) -> Option<&'static str> {
        *self.turned_away.lock()
    }

    /// Whether its thread has shown itself within `limit` before `now` (or has not begun yet).
    #[must_use]
    pub fn is_alive(&self, now: Duration, limit: Duration) -> bool {
        let last = self.alive_ms.load(Ordering::Relaxed);
        last == u64::MAX || now.saturating_sub(Duration::from_millis(last)) <= limit
    }

    fn set(&self, phase: Phase) {
        *self.phase.lock() = phase;
    }
}

/// The whole life of a link; runs on a thread of its own.
pub(super) async fn run(
    parts: Arc<LinkParts>,
    state: Arc<LinkState>,
    desk: mpsc::Sender<ToDesk>,
    dialer: Arc<dyn Dialer>,
) {
    tokio::select! {
        biased;
        () = show_life(&parts, &state) => {}
        () = keep_connected(&parts, &state, &desk, dialer.as_ref()) => {}
    }
    state.set(Phase::Disconnected);
}

async fn show_life(parts: &LinkParts, state: &LinkState) {
    loop {
        let now = u64::try_from(parts.clock.monotonic().as_millis()).unwrap_or(0);
        state.alive_ms.store(now, Ordering::Relaxed);
        sleep(TICK).await;
    }
}

async fn keep_connected(
    parts: &LinkParts,
    state: &LinkState,
    desk: &mpsc::Sender<ToDesk>,
    dialer: &dyn Dialer,
) {
    let mut attempt = 0;
    let mut turned_away = 0;
    while !state.stop.is_cancelled() {
        state.set(Phase::Connecting);
        let began = parts.clock.monotonic();
        let dialed = tokio::select! {
            biased;
            () = state.stop.cancelled() => return,
            dialed = dialer.dial(&state.url, PROTOCOL) => dialed,
        };
        let mut wait = None;
        match dialed {
            Ok(connection) => {
                let id = parts.next_session.fetch_add(1, Ordering::Relaxed);
                state.set(Phase::Connected);
                let session = SessionParts {
                    id,
                    url: &state.url,
                    clock: &parts.clock,
                    cluster: &parts.drivers.cluster,
                    desk,
                    stop: &state.stop,
                };
                let end = session::run(connection, parts.hello(), &session).await;
                let lived = parts.clock.monotonic().saturating_sub(began);
                if lived >= STABLE {
                    attempt = 0;
                }
                wait = log_end(state, &end, lived);
                let reason = reason_to_turn_away(&end);
                *state.turned_away.lock() = reason;
                match reason {
                    Some(reason) => {
                        tracing::error!(url = %state.url, reason, "turned away by a coordinator");
                        let limit = TURNED_AWAY.delay(turned_away, parts.entropy.fraction());
                        wait = Some(limit.max(TURNED_AWAY.first / 2));
                        turned_away = turned_away.saturating_add(1);
                    }
                    None => turned_away = 0,
                }
            }
            Err(error) => {
                let error = muster_shared::error_chain::Chain(&error).to_string();
                tracing::warn!(url = %state.url, error, attempt, "coordinator not reached");
            }
        }
        state.set(Phase::Disconnected);
        let backoff = Backoff::RECONNECT.delay(attempt, parts.entropy.fraction());
        attempt = attempt.saturating_add(1);
        tokio::select! {
            biased;
            () = state.stop.cancelled() => return,
            () = state.own_replacement.notified() => {}
            () = sleep(wait.unwrap_or(backoff)) => {}
        }
    }
}

/// Why a coordinator does not want this agent, if that is how a session ended.
fn reason_to_turn_away(end: &End) -> Option<&'static str> {
    match end {
        End::Closed(Some(close::DUPLICATE)) => {
            Some("another agent claims to be this server: the server uuid must be unique")
        }
        End::Foreign(_) | End::Closed(Some(close::FOREIGN)) => {
            Some("the coordinator is of another cluster than the one this agent works for")
        }
        End::Stopped | End::Closed(_) | End::Broken(_) => None,
    }
}

/// Says how a session ended; returns a wait other than the usual one.
fn log_end(state: &LinkState, end: &End, lived: Duration) -> Option<Duration> {
    let lived_ms = u64::try_from(lived.as_millis()).unwrap_or(u64::MAX);
    match end {
        End::Stopped => tracing::info!(url = %state.url, "connection closed"),
        End::Closed(Some(close::REPLACED)) => {
            tracing::warn!(url = %state.url, "a newer connection of this server took the place");
            return Some(REPLACED_WAIT);
        }
        End::Closed(code) => {
            tracing::info!(url = %state.url, ?code, lived_ms, "the coordinator closed");
        }
        End::Foreign(foreign) => tracing::error!(url = %state.url, %foreign, "connection ended"),
        End::Broken(reason) => {
            tracing::warn!(url = %state.url, reason, lived_ms, "connection lost");
        }
    }
    None
}
