//! Decides from signs of life which servers are up. Pure: every input carries its time.
//!
//! ```text
//!            sign of life                     silence over the limit, or the socket closed
//! unknown ───────────────────► running ──────────────────────────────────────► unknown
//! ```
//!
//! A websocket is suspect after [`Limits::suspect`] without a frame and lost after
//! [`Limits::lost`], or at once when it closes; a server that POSTs is lost after
//! [`Limits::post`]. Nothing is decided about a server stored `running` that has not been heard
//! yet during [`Limits::startup_grace`], and nobody is blamed for silence while this coordinator
//! was itself not running (its own tick came late).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_shared::ids::ServerUuid;

use super::authority::{Status, Via};

/// Names one connection of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// The periods of the roster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A websocket without a frame for this long is suspect.
    pub suspect: Duration,
    /// A websocket without a frame for this long is lost.
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
    /// Open connections and when each last brought a frame.
    connections: BTreeMap<ConnectionId, Duration>,
    last_post: Duration,
    last_sysinfo: Duration,
    /// Not judged before this moment unless it was heard since the start.
    start_excuse: Duration,
    /// Not judged before this moment: it was lost while the coordinator was late.
    blame_excuse: Duration,
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
    servers: BTreeMap<ServerUuid, Heard>,
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
            servers: BTreeMap::new(),
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
        entry.connections.insert(connection, now);
        entry.hear(Via::Socket);
        entry.heard = true;
        self.judge(server, now);
    }

    /// A frame arrived on a connection.
    pub fn frame(&mut self, server: ServerUuid, connection: ConnectionId, now: Duration) {
        self.notice(now);
        let Some(entry) = self.servers.get_mut(&server) else { return };
        let Some(last) = entry.connections.get_mut(&connection) else { return };
        *last = now;
        entry.via = Via::Socket;
        if entry.wanted != Status::Running {
            self.judge(server, now);
        }
    }

    /// A connection closed or broke.
    pub fn closed(&mut self, server: ServerUuid, connection: ConnectionId, now: Duration) {
        self.notice(now);
        let excuse = self.blamed_until;
        let Some(entry) = self.servers.get_mut(&server) else { return };
        entry.connections.remove(&connection);
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
        let all: Vec<_> = self.servers.keys().copied().collect();
        for server in all {
            self.judge(server, now);
        }
        let limits = self.limits;
        self.servers.retain(|_, heard| {
            heard.written.is_some() || !heard.connections.is_empty() || heard.fresh(&limits, now)
        });
    }

    /// Servers whose stored status is not the wanted one, at most `max`.
    #[must_use]
    pub fn pending(&self, max: usize) -> Vec<(ServerUuid, Status, Via)> {
        let wanted = |s: &ServerUuid| self.servers.get(s).map(|h| (*s, h.wanted, h.via));
        self.dirty.iter().filter_map(wanted).take(max).collect()
    }

    /// Another live coordinator decides about this server; forget the wish until it changes.
    pub fn yielded(&mut self, server: ServerUuid) {
        self.dirty.remove(&server);
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
            let quiet = heard.connections.values().max().map(|last| now.saturating_sub(*last));
            let suspect = quiet.is_some_and(|quiet| quiet >= self.limits.suspect);
            return Some(if suspect { Standing::Suspect } else { Standing::Alive });
        }
        Some(if heard.excused(now) { Standing::Excused } else { Standing::Silent })
    }

    /// Servers that are heard, and how often one began or ceased to be.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let heard = self.servers.values().filter(|heard| heard.fresh).count();
        Tally { heard, ..self.tally }
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
            connections: BTreeMap::new(),
            last_post: Duration::ZERO,
            last_sysinfo: Duration::ZERO,
            start_excuse: Duration::ZERO,
            blame_excuse: Duration::ZERO,
        })
    }

    /// If this process did not run for a while, it could not have heard anybody.
    fn notice(&mut self, now: Duration) {
        if now.saturating_sub(self.last_tick) <= self.limits.tick + self.limits.late {
            return;
        }
        self.late_ticks += 1;
        self.last_tick = now;
        self.blamed_until = now + self.limits.lost;
        for heard in self.servers.values_mut().filter(|h| h.wanted == Status::Running) {
            for last in heard.connections.values_mut() {
                *last = now;
            }
            if !heard.connections.is_empty() || !heard.heard {
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
        let limits = self.limits;
        let Some(heard) = self.servers.get_mut(&server) else { return };
        let fresh = heard.fresh(&limits, now);
        match (std::mem::replace(&mut heard.fresh, fresh), fresh) {
            (false, true) => self.tally.new += 1,
            (true, false) => self.tally.stale += 1,
            (true, true) | (false, false) => {}
        }
        if fresh {
            heard.wanted = Status::Running;
        } else if !heard.excused(now) {
            heard.wanted = Status::Unknown;
        }
        self.refresh(server);
    }

    fn refresh(&mut self, server: ServerUuid) {
        let Some(heard) = self.servers.get(&server) else { return };
        match heard.written {
            Some(written) if written != heard.wanted || heard.more_heard => {
                self.dirty.insert(server)
            }
            Some(_) | None => self.dirty.remove(&server),
        };
    }
}

impl Heard {
    fn hear(&mut self, via: Via) {
        self.more_heard |= self.written.is_some() && self.via == Via::Sysinfo;
        self.via = via;
    }

    fn excused(&self, now: Duration) -> bool {
        now < self.blame_excuse || (!self.heard && now < self.start_excuse)
    }

    fn fresh(&self, limits: &Limits, now: Duration) -> bool {
        let within = |last: Duration, limit: Duration| now.saturating_sub(last) < limit;
        if self.connections.values().any(|last| within(*last, limits.lost)) {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn server() -> ServerUuid {
        ServerUuid(uuid::Uuid::from_u128(7))
    }

    const CONN: ConnectionId = ConnectionId(1);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A machine that ticked regularly from 0 to `until`, with a record of the server.
    fn machine(stored: Status) -> Liveness {
        let mut machine = Liveness::new(Limits::default(), Duration::ZERO);
        machine.loaded(server(), stored, Via::Socket, Duration::ZERO);
        machine
    }

    fn ticks(machine: &mut Liveness, from: u64, to: u64) {
        for at in (from..=to).step_by(250) {
            machine.tick(ms(at));
        }
    }

    #[track_caller]
    fn check(machine: &Liveness, wanted: Status, pending: usize) {
        assert_eq!(machine.wanted(server()), Some(wanted));
        assert_eq!(machine.pending(10).len(), pending);
    }

    #[test]
    fn a_silent_websocket_is_suspect_then_lost() {
        let mut machine = machine(Status::Running);
        machine.connected(server(), CONN, ms(0));
        ticks(&mut machine, 250, 1_000);
        assert_eq!(machine.standing(server(), ms(1_000)), Some(Standing::Suspect));
        check(&machine, Status::Running, 0);
        ticks(&mut machine, 1_250, 2_000);
        check(&machine, Status::Unknown, 1);
        assert_eq!(machine.tally(), Tally { heard: 0, new: 1, stale: 1 });
        machine.written(server(), Some(Status::Unknown));
        machine.frame(server(), CONN, ms(2_100));
        check(&machine, Status::Running, 1);
    }

    #[test]
    fn a_closed_socket_counts_at_once_unless_another_is_open() {
        let mut machine = machine(Status::Running);
        machine.connected(server(), CONN, ms(0));
        machine.connected(server(), ConnectionId(2), ms(100));
        machine.closed(server(), CONN, ms(200));
        check(&machine, Status::Running, 0);
        machine.closed(server(), ConnectionId(2), ms(300));
        check(&machine, Status::Unknown, 1);
    }

    #[test]
    fn after_a_start_nothing_is_decided_during_the_grace() {
        let mut machine = machine(Status::Running);
        ticks(&mut machine, 250, 29_750);
        check(&machine, Status::Running, 0);
        ticks(&mut machine, 30_000, 30_250);
        check(&machine, Status::Unknown, 1);
    }

    #[test]
    fn the_grace_ends_when_the_server_was_heard_again() {
        let mut machine = machine(Status::Running);
        machine.connected(server(), CONN, ms(500));
        machine.closed(server(), CONN, ms(700));
        check(&machine, Status::Unknown, 1);
    }

    #[test]
    fn a_late_tick_blames_nobody() {
        let mut machine = machine(Status::Running);
        machine.connected(server(), CONN, ms(0));
        ticks(&mut machine, 250, 1_000);
        machine.tick(ms(60_000));
        check(&machine, Status::Running, 0);
        assert_eq!(machine.late_ticks(), 1);
        ticks(&mut machine, 60_250, 61_750);
        check(&machine, Status::Running, 0);
        machine.tick(ms(62_000));
        check(&machine, Status::Unknown, 1);
    }

    #[test]
    fn a_close_found_after_a_pause_leaves_time_to_come_back() {
        let mut machine = machine(Status::Running);
        machine.connected(server(), CONN, ms(0));
        machine.tick(ms(250));
        machine.closed(server(), CONN, ms(10_000));
        check(&machine, Status::Running, 0);
        ticks(&mut machine, 10_000, 15_750);
        check(&machine, Status::Running, 0);
        ticks(&mut machine, 16_000, 16_000);
        check(&machine, Status::Unknown, 1);
    }

    #[test]
    fn posting_and_registering_servers_have_their_own_periods() {
        let mut machine = machine(Status::Unknown);
        machine.posted(server(), ms(0));
        check(&machine, Status::Running, 1);
        ticks(&mut machine, 250, 10_750);
        check(&machine, Status::Running, 1);
        ticks(&mut machine, 11_000, 11_000);
        check(&machine, Status::Unknown, 0);

        let mut machine = self::machine(Status::Unknown);
        machine.registered(server(), ms(0));
        ticks(&mut machine, 250, 89_750);
        check(&machine, Status::Running, 1);
        ticks(&mut machine, 90_000, 90_000);
        check(&machine, Status::Unknown, 0);
    }

    proptest! {
        /// Against a naive model: with ticks on time and one connection, a server is unknown
        /// exactly when the connection is closed or its last frame is `lost` old at a tick.
        #[test]
        fn agrees_with_a_naive_model(frames in proptest::collection::vec(0u64..8_000, 0..40)) {
            let mut frames = frames;
            frames.sort_unstable();
            let mut machine = machine(Status::Running);
            machine.connected(server(), CONN, Duration::ZERO);
            let mut last = 0;
            let mut up = true;
            let mut next = frames.into_iter().peekable();
            for tick in (250..10_000).step_by(250) {
                while let Some(frame) = next.next_if(|f| *f <= tick) {
                    machine.frame(server(), CONN, ms(frame));
                    last = frame;
                    up = true;
                }
                machine.tick(ms(tick));
                up = up && tick - last < 2_000;
                prop_assert_eq!(machine.wanted(server()) == Some(Status::Running), up);
            }
        }

        /// Whatever comes in whatever order, a pending write is a real change, and a server that
        /// was just heard is never about to be called unknown.
        #[test]
        fn never_unknown_while_heard(
            inputs in proptest::collection::vec((0u8..6, 0u64..5_000, 0u64..3), 1..80),
        ) {
            let mut machine = machine(Status::Running);
            let mut now = 0;
            for (input, wait, connection) in inputs {
                now += wait;
                let connection = ConnectionId(connection);
                match input {
                    0 => machine.connected(server(), connection, ms(now)),
                    1 => machine.frame(server(), connection, ms(now)),
                    2 => machine.closed(server(), connection, ms(now)),
                    3 => machine.posted(server(), ms(now)),
                    4 => machine.tick(ms(now)),
                    _ => {
                        for (server, status, _) in machine.pending(1) {
                            machine.written(server, Some(status));
                        }
                    }
                }
                if matches!(input, 0 | 3) {
                    prop_assert_eq!(machine.wanted(server()), Some(Status::Running));
                }
                prop_assert!(machine.pending(10).len() <= 1);
            }
        }
    }
}
