//! Places for connections: how many there may be, of one peer and of all, and which one goes when
//! there is no room.
//!
//! A connection on which no request is under way can be closed at any time: its client opens
//! another. So idle ones keep nobody out, and the limits are about connections that work. A part of
//! the places is the agents': who comes when the others are taken may only become an agent.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::watched::Activity;

/// One of so many places is kept for agents.
const RESERVE: usize = 8;

/// Who is at the other end, as far as limits go: an address, or for IPv6 its network. `None`:
/// somebody on a unix socket.
pub(crate) type PeerKey = Option<IpAddr>;

/// The peer that an address stands for: whoever has one IPv6 address has all of its network.
pub(crate) fn peer_key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
    }
}

/// How many connections there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceLimits {
    /// All together.
    pub(crate) all: usize,
    /// Of one peer, agents' not counted.
    pub(crate) of_peer: usize,
}

/// The connections of one listener.
#[derive(Debug)]
pub(crate) struct Places {
    limits: PlaceLimits,
    open: Mutex<Open>,
    freed: Notify,
    /// Counts connections that become idle.
    pub(crate) order: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    connections: BTreeMap<u64, Connection>,
    /// Connections that are no agent's, by peer.
    of_peers: HashMap<PeerKey, usize>,
    agents: usize,
}

#[derive(Debug)]
struct Connection {
    peer: PeerKey,
    agent: bool,
    activity: Arc<Activity>,
    end: CancellationToken,
}

/// A connection's place; free again when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    id: u64,
    /// Whose it is.
    pub(crate) peer: PeerKey,
    /// Only an agent may have it.
    reserved: AtomicBool,
    /// Somebody else needs the place.
    pub(crate) end: CancellationToken,
}

impl Places {
    /// No connections.
    pub(crate) fn new(limits: PlaceLimits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            open: Mutex::default(),
            freed: Notify::new(),
            order: Arc::default(),
        })
    }

    /// A place for a connection, as soon as there is one; `None` when its peer has enough.
    /// Cancel-safe.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        peer: PeerKey,
        activity: &Arc<Activity>,
    ) -> Option<Place> {
        loop {
            let freed = self.freed.notified();
            match self.try_enter(peer, activity) {
                Entry::Place(place) => return Some(place),
                Entry::Refused => return None,
                Entry::Full => freed.await,
            }
        }
    }

    fn try_enter(self: &Arc<Self>, peer: PeerKey, activity: &Arc<Activity>) -> Entry {
        let mut open = self.open.lock();
        let of_peer = open.of_peers.get(&peer).copied().unwrap_or(0);
        if of_peer >= self.limits.of_peer && !open.close_idle(Some(peer)) {
            return Entry::Refused;
        }
        let ordinary = open.connections.len() - open.agents;
        let for_ordinary = self.limits.all - self.limits.all / RESERVE;
        let reserved = ordinary >= for_ordinary && !open.close_idle(None);
        if open.connections.len() >= self.limits.all && !open.close_idle(None) {
            return Entry::Full;
        }
        let id = open.next;
        open.next += 1;
        *open.of_peers.entry(peer).or_insert(0) += 1;
        let end = CancellationToken::new();
        let (activity, token) = (Arc::clone(activity), end.clone());
        open.connections.insert(id, Connection { peer, agent: false, activity, end: token });
        let (places, reserved) = (Arc::clone(self), AtomicBool::new(reserved));
        Entry::Place(Place { places, id, peer, reserved, end })
    }
}

enum Entry {
    Place(Place),
    Refused,
    Full,
}

impl Open {
    /// Ends the connection that has been idle for longest, of this peer or of any; `false` if all
    /// work.
    fn close_idle(&mut self, peer: Option<PeerKey>) -> bool {
        let idle = self.connections.iter().filter(|(_, one)| peer.is_none_or(|it| it == one.peer));
        let idle = idle.filter_map(|(id, one)| Some((one.activity.idle_since()?, *id)));
        let Some((_, oldest)) = idle.min() else { return false };
        if let Some(closed) = self.remove(oldest) {
            closed.end.cancel();
        }
        true
    }

    fn remove(&mut self, id: u64) -> Option<Connection> {
        let gone = self.connections.remove(&id)?;
        if gone.agent {
            self.agents -= 1;
        } else {
            self.leave(gone.peer);
        }
        Some(gone)
    }

    fn leave(&mut self, peer: PeerKey) {
        if let Some(count) = self.of_peers.get_mut(&peer) {
            *count -= 1;
            if *count == 0 {
                self.of_peers.remove(&peer);
            }
        }
    }
}

impl Place {
    /// The connection becomes an agent's.
    pub(crate) fn give_to_agent(&self) {
        let mut open = self.places.open.lock();
        let Some(one) = open.connections.get_mut(&self.id) else { return };
        if !std::mem::replace(&mut one.agent, true) {
            let peer = one.peer;
            open.agents += 1;
            open.leave(peer);
        }
        self.reserved.store(false, Ordering::Relaxed);
    }

    /// Whether only an agent may use it.
    pub(crate) fn is_reserved(&self) -> bool {
        self.reserved.load(Ordering::Relaxed)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        drop(self.places.open.lock().remove(self.id));
        self.places.freed.notify_waiters();
    }
}

/// How much of something each peer has.
#[derive(Debug, Default)]
pub(crate) struct Shares(Arc<Mutex<HashMap<PeerKey, usize>>>);

/// One of a peer's; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    taken: Arc<Mutex<HashMap<PeerKey, usize>>>,
    peer: PeerKey,
}

impl Shares {
    /// One more for a peer; `None` when it has `most`.
    pub(crate) fn take(&self, peer: PeerKey, most: usize) -> Option<Share> {
        let mut taken = self.0.lock();
        let count = taken.entry(peer).or_insert(0);
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Share { taken: Arc::clone(&self.0), peer })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(count) = taken.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn peer(n: u8) -> PeerKey {
        Some(IpAddr::from([10, 0, 0, n]))
    }

    /// A connection that came and has not asked anything.
    fn idle() -> Arc<Activity> {
        Arc::default()
    }

    #[track_caller]
    fn enter(places: &Arc<Places>, n: u8, activity: &Arc<Activity>) -> Option<Place> {
        places.enter(peer(n), activity).now_or_never().expect("there is a place")
    }

    #[tokio::test]
    async fn the_oldest_idle_connection_makes_room() {
        let places = Places::new(PlaceLimits { all: 2, of_peer: 2 });
        let working = idle();
        let request = working.begin();
        let first = enter(&places, 1, &working).unwrap();
        let second = enter(&places, 1, &idle()).unwrap();
        let third = enter(&places, 2, &working).unwrap();
        assert!(second.end.is_cancelled() && !first.end.is_cancelled());
        // Both work now.
        assert!(places.enter(peer(3), &idle()).now_or_never().is_none());
        drop(second);
        assert!(
            places.enter(peer(3), &idle()).now_or_never().is_none(),
            "its place is the third's"
        );
        drop((first, request));
        assert!(enter(&places, 3, &idle()).is_some());
        drop(third);
    }

    #[tokio::test]
    async fn a_peer_has_its_share_and_agents_have_a_reserve() {
        let places = Places::new(PlaceLimits { all: 16, of_peer: 10 });
        let working = idle();
        let _request = working.begin();
        let mut held: Vec<_> = (0..10).map(|_| enter(&places, 1, &working).unwrap()).collect();
        assert!(enter(&places, 1, &working).is_none());
        held.extend((0..4).map(|_| enter(&places, 2, &working).unwrap()));
        assert!(held.iter().all(|place| !place.is_reserved()));
        let agent = enter(&places, 2, &working).unwrap();
        assert!(agent.is_reserved());
        agent.give_to_agent();
        assert!(!agent.is_reserved());
        // An agent is not one of its peer's connections.
        held.truncate(9);
        held.push(enter(&places, 1, &working).unwrap());
        assert!(enter(&places, 1, &working).is_none());
        drop((held, agent));
        let open = places.open.lock();
        assert!(open.of_peers.is_empty() && open.connections.is_empty() && open.agents == 0);
    }

    #[test]
    fn a_network_is_one_peer() {
        let key = |text: &str| peer_key(text.parse().unwrap());
        assert_eq!(key("2001:db8::1"), key("2001:db8::2:3:4:5"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:10.0.0.1"), key("10.0.0.1"));
    }

    #[test]
    fn shares_come_back() {
        let shares = Shares::default();
        let held = shares.take(None, 1).unwrap();
        assert!(shares.take(None, 1).is_none());
        assert!(shares.take(peer(1), 1).is_some());
        drop(held);
        assert!(shares.take(None, 1).is_some());
        assert!(shares.0.lock().is_empty());
    }
}
