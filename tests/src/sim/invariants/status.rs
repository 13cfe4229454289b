//! The roster: what is stored of a server is what can be heard of it, within bounds of time.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_shared::ids::ServerUuid;
use serde_json::Value;

use super::{Verdict, Violation, text};

/// Heartbeats come every second; with what the network adds, no gap is longer.
const GAP: Duration = Duration::from_millis(1_400);
/// A server that was heard so long without a gap is up for everybody.
const SURELY_HEARD: Duration = Duration::from_secs(6);
/// A server that was not heard for so long is lost: 2 s, and time to write that down.
const SURELY_LOST: Duration = Duration::from_secs(6);
/// The same of a server that POSTs every 5 s, and is lost after 11 s.
const POST_GAP: Duration = Duration::from_millis(5_400);
const POST_SURELY_HEARD: Duration = Duration::from_secs(12);
const POST_SURELY_LOST: Duration = Duration::from_secs(15);
/// After a disturbance of the coordinator itself, agents have time to come back.
const EXCUSED: Duration = Duration::from_secs(14);
/// After a start, servers that were up have time to be heard.
const GRACE: Duration = Duration::from_secs(30);
/// How late a tick of the coordinator may notice the end of the grace.
const GRACE_EARLY: Duration = Duration::from_secs(1);

/// How the coordinator's machine is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// Since when its process runs.
    pub up_since: Option<Duration>,
    /// Time that this process had, without its pauses.
    pub ran: Duration,
    /// When it was last paused, or without a store that works.
    pub disturbed: Duration,
    /// When its store last failed to answer.
    pub store_failed: Duration,
}

#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    /// Without a gap since.
    since: Option<Duration>,
    last: Option<Duration>,
}

#[derive(Debug, Default)]
struct Server {
    registered: Option<Duration>,
    heard: Heard,
    roster: Option<Value>,
    /// It has no connection, and POSTs.
    posts: bool,
}

impl Server {
    /// The longest gap between two signs of life while it is up.
    fn gap(&self) -> Duration {
        if self.posts { POST_GAP } else { GAP }
    }

    fn surely_heard(&self) -> Duration {
        if self.posts { POST_SURELY_HEARD } else { SURELY_HEARD }
    }

    fn surely_lost(&self) -> Duration {
        if self.posts { POST_SURELY_LOST } else { SURELY_LOST }
    }

    fn is_running(&self) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster["status"] == "running")
    }
}

/// Who is heard, and what is stored.
#[derive(Debug, Default)]
pub struct Statuses {
    pub(super) conditions: Conditions,
    servers: BTreeMap<ServerUuid, Server>,
    started: Duration,
}

impl Statuses {
    pub(super) fn coordinator_started(&mut self, now: Duration) {
        self.started = now;
    }

    /// A server that POSTs.
    pub fn posts(&mut self, server: ServerUuid) {
        self.servers.entry(server).or_default().posts = true;
    }

    pub(super) fn heard(&mut self, server: ServerUuid, now: Duration) {
        let server = self.servers.entry(server).or_default();
        let (longest, heard) = (server.gap(), &mut server.heard);
        let gap = heard.last.is_none_or(|last| now.saturating_sub(last) > longest);
        if gap || heard.since.is_none() {
            heard.since = Some(now);
        }
        heard.last = Some(now);
    }

    pub(super) fn link_ended(&mut self, server: ServerUuid) {
        self.servers.entry(server).or_default().heard.since = None;
    }

    pub(super) fn registered(&mut self, server: &str, now: Duration) {
        if let Ok(server) = server.parse() {
            self.servers.entry(server).or_default().registered.get_or_insert(now);
        }
    }

    /// Whether every server with a connection is registered and stored as running.
    #[must_use]
    pub fn all_running(&self, servers: usize) -> bool {
        let up =
            |server: &&Server| !server.posts && server.registered.is_some() && server.is_running();
        self.servers.values().filter(up).count() == servers
    }

    /// A status was written. It is written when it changes, or when another life of a coordinator
    /// takes over. Two changes may lie between two looks: then it holds since another moment.
    pub(super) fn written(&mut self, server: &str, value: &Value, now: Duration) -> Verdict {
        let Ok(uuid) = server.parse::<ServerUuid>() else { return Ok(()) };
        let (conditions, started) = (self.conditions, self.started);
        let entry = self.servers.entry(uuid).or_default();
        let before = entry.roster.replace(value.clone());
        let Some(before) = before else { return Ok(()) };
        let same = |name: &str| before[name] == value[name];
        if ["status", "since", "authority", "via"].into_iter().all(same) {
            let detail = format!("{server}: {value}");
            return Err(Violation::new("status-is-written-on-change", detail));
        }
        if text(value, "status") == "running" || text(&before, "status") != "running" {
            return Ok(());
        }
        let Heard { since, last } = entry.heard;
        let (gap, surely_heard) = (entry.gap(), entry.surely_heard());
        let fresh = last.is_some_and(|last| now.saturating_sub(last) <= gap);
        let steady = since.is_some_and(|since| since + surely_heard <= now);
        let store_works = conditions.store_failed + SURELY_HEARD <= now;
        if fresh && steady && store_works {
            let detail = format!("{server} is heard since {since:?}, and becomes unknown");
            return Err(Violation::new("heard-server-is-not-lost", detail));
        }
        let unheard = last.is_none_or(|last| last < started);
        if unheard && conditions.ran + GRACE_EARLY < GRACE {
            let ran = conditions.ran;
            let detail = format!("{server} becomes unknown {ran:?} after the start");
            return Err(Violation::new("start-grants-a-grace", detail));
        }
        Ok(())
    }

    /// Looks whether time has made a stored status wrong.
    pub(super) fn check(&self, now: Duration) -> Verdict {
        let Conditions { up_since, disturbed, .. } = self.conditions;
        let Some(up) = up_since else { return Ok(()) };
        let calm = |time: Duration| up + time <= now && disturbed + time <= now;
        for (uuid, server) in &self.servers {
            let surely_heard = server.surely_heard();
            if server.registered.is_none_or(|at| at + surely_heard > now) {
                continue;
            }
            let Heard { since, last } = server.heard;
            let silent = last.map_or(now, |last| now.saturating_sub(last));
            let heard =
                silent <= server.gap() && since.is_some_and(|since| since + surely_heard <= now);
            if heard && calm(surely_heard) && !server.is_running() {
                let detail =
                    format!("{uuid} is heard since {since:?}, stored: {:?}", server.roster);
                return Err(Violation::new("heard-server-is-running", detail));
            }
            let known = last.is_some_and(|last| last > up);
            let excuse = if known { EXCUSED } else { GRACE + EXCUSED };
            if silent > server.surely_lost() && calm(excuse) && server.is_running() {
                let detail = format!("{uuid} was last heard at {last:?}, and is still running");
                return Err(Violation::new("silent-server-is-unknown", detail));
            }
        }
        Ok(())
    }
}
