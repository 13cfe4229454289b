//! With pairs of links in a network namespace of the test.

use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::clock::TokioClock;
use nix::sched::{CloneFlags, unshare};

use super::frame::tests::{begin, tlv};
use super::*;

const SYSTEM_NAME: u8 = 5;

#[track_caller]
fn ip(words: &str) {
    #[expect(clippy::disallowed_methods, reason = "the host is prepared as an operator would")]
    let done = std::process::Command::new("ip").args(words.split(' ')).output().unwrap();
    assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
}

fn index(name: &str) -> u32 {
    nix::net::if_::if_nametoindex(name).unwrap()
}

/// `None`: there are no rights for it.
fn pair() -> Option<(Neighbours, Vec<(String, u32)>)> {
    if unshare(CloneFlags::CLONE_NEWNET).is_err() {
        println!("SKIPPED: no right to make a network namespace");
        return None;
    }
    ip("link add eth0 type veth peer name far0");
    ip("link set eth0 up");
    ip("link set far0 up");
    let neighbours = Neighbours::new(Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH)));
    let interfaces = vec![("eth0".to_owned(), index("eth0"))];
    neighbours.listen(&interfaces);
    Some((neighbours, interfaces))
}

/// The other end of the cable.
struct Far(EthernetListener);

impl Far {
    fn say(&self, content: &[u8]) {
        self.0.send(frame::GROUP, frame::ETHERTYPE, content).unwrap();
    }
}

fn far() -> Far {
    Far(EthernetListener::open(index("far0"), frame::ETHERTYPE, frame::GROUP).unwrap())
}

fn named(name: &str, seconds: u16) -> Vec<u8> {
    [begin("7", seconds), tlv(SYSTEM_NAME, name.as_bytes()), tlv(0, &[])].concat()
}

fn name(neighbours: &Neighbours) -> Option<String> {
    neighbours.latest().get("eth0")?.system_name.clone()
}

#[tokio::test(start_paused = true)]
async fn a_neighbour_is_known_as_long_as_its_word_holds() {
    let Some((neighbours, interfaces)) = pair() else { return };
    let far = far();
    assert_eq!(neighbours.latest(), BTreeMap::new());
    far.say(&named("leaf-1", 120));
    assert_eq!(name(&neighbours).as_deref(), Some("leaf-1"));
    neighbours.listen(&interfaces);
    far.say(&named("leaf-2", 120));
    // What is none changes nothing.
    far.say(&named("leaf-3", 120)[..20]);
    far.say(&[]);
    assert_eq!(name(&neighbours).as_deref(), Some("leaf-2"));
    tokio::time::advance(Duration::from_secs(119)).await;
    assert_eq!(name(&neighbours).as_deref(), Some("leaf-2"));
    tokio::time::advance(Duration::from_secs(1)).await;
    assert_eq!(name(&neighbours), None);
    far.say(&named("leaf-2", 120));
    assert!(name(&neighbours).is_some());
    far.say(&named("leaf-2", 0));
    assert_eq!(name(&neighbours), None, "it has left");
    neighbours.listen(&[]);
    far.say(&named("leaf-2", 120));
    assert_eq!(name(&neighbours), None, "nobody listens");
}

#[tokio::test(start_paused = true)]
async fn a_port_of_a_bridge_still_hears_its_neighbour() {
    let Some((neighbours, _)) = pair() else { return };
    ip("link add mt-one type bridge");
    ip("link set mt-one up");
    ip("link set eth0 master mt-one");
    far().say(&named("leaf-1", 120));
    assert_eq!(name(&neighbours).as_deref(), Some("leaf-1"));
}

/// More than fits neither stops the agent nor hides who comes after it.
#[tokio::test(start_paused = true)]
async fn a_flood_is_read_bit_by_bit() {
    let Some((neighbours, _)) = pair() else { return };
    let far = far();
    for number in 0..2000 {
        far.say(&named(&format!("n{number}"), 120));
    }
    let first = name(&neighbours).unwrap();
    assert_eq!(first, format!("n{}", MAX_FRAMES - 1));
    let mut last = first;
    loop {
        let next = name(&neighbours).unwrap();
        if next == last {
            break;
        }
        last = next;
    }
    far.say(&named("after", 120));
    assert_eq!(name(&neighbours).as_deref(), Some("after"));
}

#[tokio::test(start_paused = true)]
async fn an_interface_that_goes_away_and_returns_is_listened_to_again() {
    let Some((neighbours, _)) = pair() else { return };
    far().say(&named("leaf-1", 120));
    assert!(name(&neighbours).is_some());
    ip("link del eth0");
    neighbours.listen(&[]);
    assert_eq!(neighbours.latest(), BTreeMap::new());
    ip("link add eth0 type veth peer name far0");
    ip("link set eth0 up");
    ip("link set far0 up");
    neighbours.listen(&[("eth0".to_owned(), index("eth0"))]);
    far().say(&named("leaf-2", 120));
    assert_eq!(name(&neighbours).as_deref(), Some("leaf-2"));
}
