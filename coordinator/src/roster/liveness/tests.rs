//! The state machine on made-up time.

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
    assert!(machine.heard(server(), CONN, ms(2_100)));
    assert!(!machine.heard(server(), CONN, ms(2_200)));
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
fn a_pause_during_the_grace_is_no_part_of_it() {
    let mut machine = machine(Status::Running);
    ticks(&mut machine, 250, 20_000);
    machine.tick(ms(60_000));
    check(&machine, Status::Running, 0);
    ticks(&mut machine, 60_250, 69_750);
    check(&machine, Status::Running, 0);
    machine.tick(ms(70_000));
    check(&machine, Status::Unknown, 1);
}

#[test]
fn a_second_pause_does_not_end_what_the_first_excused() {
    let mut machine = machine(Status::Running);
    machine.connected(server(), CONN, ms(0));
    machine.tick(ms(250));
    machine.closed(server(), CONN, ms(10_000));
    ticks(&mut machine, 10_000, 12_000);
    machine.tick(ms(30_000));
    check(&machine, Status::Running, 0);
    ticks(&mut machine, 30_250, 33_750);
    check(&machine, Status::Running, 0);
    machine.tick(ms(34_000));
    check(&machine, Status::Unknown, 1);
}

#[test]
fn a_wish_that_is_another_s_to_decide_is_not_told_at_every_tick() {
    let mut machine = machine(Status::Running);
    machine.connected(server(), CONN, ms(0));
    machine.closed(server(), CONN, ms(250));
    check(&machine, Status::Unknown, 1);
    machine.yielded(server());
    ticks(&mut machine, 250, 1_750);
    check(&machine, Status::Unknown, 0);
    ticks(&mut machine, 2_000, 2_500);
    check(&machine, Status::Unknown, 1);
    machine.yielded(server());
    machine.connected(server(), CONN, ms(2_600));
    machine.written(server(), Some(Status::Unknown));
    check(&machine, Status::Running, 1);
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
    /// exactly when the connection is closed or its last sign of life is `lost` old at a tick.
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
                machine.heard(server(), CONN, ms(frame));
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
                1 => {
                    let before = machine.wanted(server());
                    let changed = machine.heard(server(), connection, ms(now));
                    prop_assert_eq!(changed, machine.wanted(server()) != before);
                }
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

#[test]
fn a_heartbeat_is_noted_of_servers_that_are_known_and_decides_nothing() {
    let mut machine = machine(Status::Running);
    machine.connected(server(), CONN, ms(0));
    let at = jiff::Timestamp::UNIX_EPOCH;
    for server in [server(), ServerUuid(uuid::Uuid::nil())] {
        machine.beat(server, at);
        machine.skewed(server, Some(-3));
    }
    assert_eq!(machine.last_heartbeat(server()), Some(at));
    assert_eq!(machine.clock_skew_ms(server()), Some(-3));
    assert_eq!(machine.servers().len(), 1);
    ticks(&mut machine, 250, 2_000);
    check(&machine, Status::Unknown, 1);
    assert_eq!(machine.last_heartbeat(server()), Some(at));
}
