//! One connection of a server works at a time: what a connection brought is handled to its end
//! before anything that the next one brings.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::ids::ServerUuid;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Turn = Arc<tokio::sync::Mutex<()>>;

/// Whose connection works for which server.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeMap<ServerUuid, Turn>>);

/// The turn of one connection; over when dropped.
#[derive(Debug)]
pub(super) struct Working {
    turns: Arc<Turns>,
    server: ServerUuid,
    _turn: OwnedMutexGuard<()>,
}

impl Turns {
    /// Waits for the turn; those who wait have it in the order in which they came.
    pub(super) async fn take(self: &Arc<Self>, server: ServerUuid) -> Working {
        let turn = Arc::clone(self.0.lock().entry(server).or_default());
        Working { turns: Arc::clone(self), server, _turn: turn.lock_owned().await }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut turns = self.turns.0.lock();
        // The map's and this one's: nobody waits.
        if turns.get(&self.server).is_some_and(|turn| Arc::strong_count(turn) <= 2) {
            turns.remove(&self.server);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_of_one_server_follow_each_other_and_leave_nothing_behind() {
        let turns = Arc::new(Turns::default());
        let server = |n| ServerUuid(uuid::Uuid::from_u128(n));
        let first = turns.take(server(1)).await;
        let mut second = Box::pin(turns.take(server(1)));
        assert!(futures_util::poll!(&mut second).is_pending());
        drop(turns.take(server(2)).await);
        drop(first);
        drop(second.await);
        assert!(turns.0.lock().is_empty());
    }
}
