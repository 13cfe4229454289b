//! Decides from signs of life which servers are up. Pure: every input carries its time.
//!
//! ```text
//!            sign of life                     silence over the limit, or the socket closed
//! unknown ───────────────────► running ──────────────────────────────────────► unknown
//! ```
//!
//! A websocket is suspect after [`Limits::suspect`] without a byte and lost after
//! [`Limits::lost`], or at once when it closes; a server that POSTs is lost after
//! [`Limits::post`]. Nothing is decided about a server stored `running` that has not been heard
//! yet during [`Limits::startup_grace`], and nobody is blamed for silence while this coordinator
//! was itself not running (its own tick came late): such time counts for no period.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::ServerUuid;
use smallvec::SmallVec;

use super::authority::{Status, Via};

/// Names one connection of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The periods of the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A websocket without a byte for this long is suspect.
    pub suspect: Duration,
    /// A websocket without a byte for this long is lost.
    pub lost: Duration,
    /// A server that POSTs its heartbeats is lost after this long.
    pub post: Duration,
    /// A server that only registers its sysinfo is lost after this long.
    pub sysinfo: Duration,
    /// After a start, servers stored `running` have this long to be heard again.
    pub startup_grace: Duration,
    /// How often [`Liveness::tick`] is meant to be called.
    pub tick: Duration,
    /// A tick later than this is the coordinator's own fault.
    pub late: Duration,
    /// What a connection that closed while the coordinator was late has to come back.
    pub reconnect: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            suspect: Duration::from_secs(1),
            lost: Duration::from_secs(2),
            post: Duration::from_secs(11),
            sysinfo: Duration::from_secs(90),
            startup_grace: Duration::from_secs(30),
            tick: Duration::from_millis(250),
            late: Duration::from_millis(750),
            reconnect: Duration::from_secs(6),
        }
    }
}

/// How a server stands right now, for people and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Heard within its period.
    Alive,
    /// On a websocket that has been silent for [`Limits::suspect`].
    Suspect,
    /// Not heard, not yet decided: the coordinator started or was late.
    Excused,
    /// Not heard.
    Silent,
}

/// The open connections of a server and when each last brought a byte; mostly there is one.
#[derive(Debug, Default)]
struct Connections(SmallVec<[(ConnectionId, Duration); 1]>);

impl Connections {
    fn open(&mut self, connection: ConnectionId, now: Duration) {
        self.close(connection);
        self.0.push((connection, now));
    }

    fn close(&mut self, connection: ConnectionId) {
        self.0.retain(|(open, _)| *open != connection);
    }

    fn are_none(&self) -> bool {
        self.0.is_empty()
    }

    fn last_of(&self, connection: ConnectionId) -> Option<Duration> {
        self.0.iter().find(|(open, _)| *open == connection).map(|(_, last)| *last)
    }

    fn last_of_mut(&mut self, connection: ConnectionId) -> Option<&mut Duration> {
        self.0.iter_mut().find(|(open, _)| *open == connection).map(|(_, last)| last)
    }

    /// When the last byte of any of them came.
    fn last(&self) -> Option<Duration> {
        self.0.iter().map(|(_, last)| *last).max()
    }

    fn hear_all(&mut self, now: Duration) {
        self.0.iter_mut().for_each(|(_, last)| *last = now);
    }
}

#[derive(Debug)]
struct Heard {
    /// What the store holds; `None` when the server has no record.
    written: Option<Status>,
    wanted: Status,
    via: Via,
    /// The store knows it only by its sysinfo, and more is heard.
    more_heard: bool,
    /// Anything heard since the start.
    heard: bool,
    /// Heard within its period when last looked at.
    fresh: bool,
    /// Open connections and when each last brought a byte.
    connections: Connections,
    last_post: Duration,
    last_sysinfo: Duration,
    /// Not judged before this moment unless it was heard since the start.
    start_excuse: Duration,
    /// Not judged before this moment: it was lost while the coordinator was late.
    blame_excuse: Duration,
    /// The wish is not told again before this moment.
    yielded_until: Duration,
    /// By the wall clock; decides nothing.
    last_heartbeat: Option<Timestamp>,
    /// Decides nothing.
    clock_skew_ms: Option<i64>,
}

/// For metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Servers that are heard now.
    pub heard: usize,
    /// Servers that began to be heard.
    pub new: u64,
    /// Servers that ceased to be heard.
    pub stale: u64,
}

/// The state machine.
#[derive(Debug)]
pub struct Liveness {
    limits: Limits,
    last_tick: Duration,
    /// Closes seen before this moment are blamed on the coordinator.
    blamed_until: Duration,
    late_ticks: u64,
    tally: Tally,
    /// A sign of life finds its server in it, which nothing does as often; nothing depends on an order.
    servers: HashMap<ServerUuid, Heard>,
    dirty: BTreeSet<ServerUuid>,
}

impl Liveness {
    /// Starts at monotonic time `now`.
    #[must_use]
    pub fn new(limits: Limits, now: Duration) -> Self {
        Self {
            limits,
            last_tick: now,
            blamed_until: Duration::ZERO,
            late_ticks: 0,
            tally: Tally::default(),
            servers: HashMap::new(),
            dirty: BTreeSet::new(),
        }
    }

    /// A server that the store holds with this status, at the start of the coordinator.
    pub fn loaded(&mut self, server: ServerUuid, status: Status, via: Via, now: Duration) {
        let grace = match via {
            Via::Sysinfo => self.limits.startup_grace.max(self.limits.sysinfo),
            Via::Socket | Via::Post => self.limits.startup_grace,
        };
        let entry = self.entry(server);
        entry.written = Some(status);
        entry.wanted = status;
        entry.via = via;
        entry.start_excuse = now + grace;
    }

    /// The store now holds this status (`None`: no record) for the server.
    pub fn written(&mut self, server: ServerUuid, status: Option<Status>) {
        let entry = self.entry(server);
        (entry.written, entry.more_heard) = (status, false);
        self.refresh(server);
    }

    /// A connection of the server opened.
    pub fn connected(&mut self, server: ServerUuid, connection: ConnectionId, now: Duration) {
        self.notice(now);
        let entry = self.entry(server);
        entry.connections.open(connection, now);
        entry.hear(Via::Socket);
        entry.heard = true;
        self.judge(server, now);
    }

    /// Something arrived on a connection, be it a part of a frame. Returns whether the wanted status
    /// changed; nothing is called as often.
    pub fn heard(&mut self, server: ServerUuid, connection: ConnectionId, now: Duration) -> bool {
        self.notice(now);
        let Some(entry) = self.servers.get_mut(&server) else { return false };
        let Some(last) = entry.connections.last_of_mut(connection) else { return false };
        *last = now;
        entry.via = Via::Socket;
        if entry.wanted == Status::Running {
            return false;
        }
        self.judge(server, now);
        self.wanted(server) == Some(Status::Running)
    }

    /// A connection closed or broke.
    pub fn closed(&mut self, server: ServerUuid, connection: ConnectionId, now: Duration) {
        self.notice(now);
        let excuse = self.blamed_until;
        let Some(entry) = self.servers.get_mut(&server) else { return };
        entry.connections.close(connection);
        if now < excuse && entry.wanted == Status::Running {
            entry.blame_excuse = now + self.limits.reconnect;
        }
        self.judge(server, now);
    }

    /// The server POSTed a heartbeat.
    pub fn posted(&mut self, server: ServerUuid, now: Duration) {
        self.notice(now);
        let entry = self.entry(server);
        entry.last_post = now;
        entry.hear(Via::Post);
        entry.heard = true;
        self.judge(server, now);
    }

    /// Notes when a heartbeat came, by the wall clock, to be shown. It decides nothing: the sign of life is
    /// [`Liveness::heard`] or [`Liveness::posted`].
    pub fn beat(&mut self, server: ServerUuid, at: Timestamp) {
        if let Some(heard) = self.servers.get_mut(&server) {
            heard.last_heartbeat = Some(at);
        }
    }

    /// Notes the server's wall clock minus ours, ms, to be shown.
    pub fn skewed(&mut self, server: ServerUuid, ms: Option<i64>) {
        if let Some(heard) = self.servers.get_mut(&server) {
            heard.clock_skew_ms = ms;
        }
    }

    /// The server registered its sysinfo over HTTP. A sign of life only of servers that give no
    /// other.
    pub fn registered(&mut self, server: ServerUuid, now: Duration) {
        self.notice(now);
        let entry = self.entry(server);
        if entry.heard && entry.via != Via::Sysinfo {
            return;
        }
        entry.last_sysinfo = now;
        entry.via = Via::Sysinfo;
        entry.heard = true;
        self.judge(server, now);
    }

    /// Time passed. Call every [`Limits::tick`].
    pub fn tick(&mut self, now: Duration) {
        self.notice(now);
        self.last_tick = now;
        let Self { limits, tally, dirty, .. } = self;
        // In one go: whoever brings a sign of life waits for it.
        self.servers.retain(|server, heard| {
            heard.judge(limits, now, tally);
            mark(dirty, *server, heard.is_told(now));
            heard.written.is_some() || !heard.connections.are_none() || heard.fresh
        });
    }

    /// Servers whose stored status is not the wanted one, at most `max`.
    #[must_use]
    pub fn pending(&self, max: usize) -> Vec<(ServerUuid, Status, Via)> {
        let wanted = |s: &ServerUuid| self.servers.get(s).map(|h| (*s, h.wanted, h.via));
        self.dirty.iter().filter_map(wanted).take(max).collect()
    }

    /// Another live coordinator decides about this server. The wish is told again when it changes,
    /// or after [`Limits::lost`], as that coordinator may have died.
    pub fn yielded(&mut self, server: ServerUuid) {
        let until = self.last_tick + self.limits.lost;
        if let Some(heard) = self.servers.get_mut(&server) {
            heard.yielded_until = until;
        }
        self.dirty.remove(&server);
    }

    /// Every server that it knows of.
    #[must_use]
    pub fn servers(&self) -> BTreeSet<ServerUuid> {
        self.servers.keys().copied().collect()
    }

    /// What this coordinator believes.
    #[must_use]
    pub fn wanted(&self, server: ServerUuid) -> Option<Status> {
        self.servers.get(&server).map(|s| s.wanted)
    }

    /// How a server stands; `None` if it was never heard of.
    #[must_use]
    pub fn standing(&self, server: ServerUuid, now: Duration) -> Option<Standing> {
        let heard = self.servers.get(&server)?;
        if heard.fresh(&self.limits, now) {
            let quiet = heard.connections.last().map(|last| now.saturating_sub(last));
            let suspect = quiet.is_some_and(|quiet| quiet >= self.limits.suspect);
            return Some(if suspect { Standing::Suspect } else { Standing::Alive });
        }
        Some(if heard.excused(now) { Standing::Excused } else { Standing::Silent })
    }

    /// When the last heartbeat came, by the wall clock.
    #[must_use]
    pub fn last_heartbeat(&self, server: ServerUuid) -> Option<Timestamp> {
        self.servers.get(&server)?.last_heartbeat
    }

    /// The server's wall clock minus ours, ms, as its last heartbeat said.
    #[must_use]
    pub fn clock_skew_ms(&self, server: ServerUuid) -> Option<i64> {
        self.servers.get(&server)?.clock_skew_ms
    }

    /// Whether a connection was heard within its period.
    #[must_use]
    pub fn hears(&self, server: ServerUuid, connection: ConnectionId, now: Duration) -> bool {
        let silence = self.silence(server, connection, now);
        silence.is_some_and(|silence| silence < self.limits.lost)
    }

    /// How long nothing has arrived on a connection; `None` when it is not open.
    #[must_use]
    pub fn silence(
        &self,
        server: ServerUuid,
        connection: ConnectionId,
        now: Duration,
    ) -> Option<Duration> {
        let last = self.servers.get(&server)?.connections.last_of(connection)?;
        Some(now.saturating_sub(last))
    }

    /// Servers that are heard, and how often one began or ceased to be.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// How often the coordinator was late and blamed itself.
    #[must_use]
    pub fn late_ticks(&self) -> u64 {
        self.late_ticks
    }

    fn entry(&mut self, server: ServerUuid) -> &mut Heard {
        self.servers.entry(server).or_insert_with(|| Heard {
            written: None,
            wanted: Status::Unknown,
            via: Via::Socket,
            more_heard: false,
            heard: false,
            fresh: false,
            connections: Connections::default(),
            last_post: Duration::ZERO,
            last_sysinfo: Duration::ZERO,
            start_excuse: Duration::ZERO,
            blame_excuse: Duration::ZERO,
            yielded_until: Duration::ZERO,
            last_heartbeat: None,
            clock_skew_ms: None,
        })
    }

    /// If this process did not run for a while, it could not have heard anybody.
    fn notice(&mut self, now: Duration) {
        let away = now.saturating_sub(self.last_tick);
        if away <= self.limits.tick + self.limits.late {
            return;
        }
        for heard in self.servers.values_mut() {
            for excuse in [&mut heard.start_excuse, &mut heard.blame_excuse] {
                if *excuse > self.last_tick {
                    *excuse += away;
                }
            }
        }
        self.late_ticks += 1;
        self.last_tick = now;
        self.blamed_until = now + self.limits.lost;
        for heard in self.servers.values_mut().filter(|h| h.wanted == Status::Running) {
            heard.connections.hear_all(now);
            if !heard.connections.are_none() || !heard.heard {
                continue;
            }
            match heard.via {
                Via::Socket => {}
                Via::Post => heard.last_post = now,
                Via::Sysinfo => heard.last_sysinfo = now,
            }
        }
    }

    fn judge(&mut self, server: ServerUuid, now: Duration) {
        let Some(heard) = self.servers.get_mut(&server) else { return };
        heard.judge(&self.limits, now, &mut self.tally);
        self.refresh(server);
    }

    fn refresh(&mut self, server: ServerUuid) {
        let Some(heard) = self.servers.get(&server) else { return };
        mark(&mut self.dirty, server, heard.is_told(self.last_tick));
    }
}

fn mark(dirty: &mut BTreeSet<ServerUuid>, server: ServerUuid, is_dirty: bool) {
    match is_dirty {
        true => dirty.insert(server),
        false => dirty.remove(&server),
    };
}

impl Heard {
    /// Decides how it stands.
    fn judge(&mut self, limits: &Limits, now: Duration, tally: &mut Tally) {
        let fresh = self.fresh(limits, now);
        match (std::mem::replace(&mut self.fresh, fresh), fresh) {
            (false, true) => {
                tally.new += 1;
                tally.heard += 1;
            }
            (true, false) => {
                tally.stale += 1;
                tally.heard -= 1;
            }
            (true, true) | (false, false) => {}
        }
        let before = self.wanted;
        if fresh {
            self.wanted = Status::Running;
        } else if !self.excused(now) {
            self.wanted = Status::Unknown;
        }
        if self.wanted != before {
            self.yielded_until = Duration::ZERO;
        }
    }

    /// Whether the store is to be told what is wanted.
    fn is_told(&self, last_tick: Duration) -> bool {
        let differs = |written| written != self.wanted || self.more_heard;
        self.written.is_some_and(differs) && last_tick >= self.yielded_until
    }

    fn hear(&mut self, via: Via) {
        self.more_heard |= self.written.is_some() && self.via == Via::Sysinfo;
        self.via = via;
    }

    fn excused(&self, now: Duration) -> bool {
        now < self.blame_excuse || (!self.heard && now < self.start_excuse)
    }

    fn fresh(&self, limits: &Limits, now: Duration) -> bool {
        let within = |last: Duration, limit: Duration| now.saturating_sub(last) < limit;
        if self.connections.last().is_some_and(|last| within(last, limits.lost)) {
            return true;
        }
        match self.via {
            Via::Socket => false,
            Via::Post => self.heard && within(self.last_post, limits.post),
            Via::Sysinfo => self.heard && within(self.last_sysinfo, limits.sysinfo),
        }
    }
}

#[cfg(test)]
mod tests;
