//! Collections that a snapshot shares with the fleet it was taken of: copied only in the parts
//! that change afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

/// How many parts a [`ShardMap`] has. A change copies one part and the table of parts; at 400,000
/// keys both take a few microseconds.
const SHARDS: usize = 1024;

/// A map by uuid in parts.
#[derive(Clone, Debug)]
pub(crate) struct ShardMap<V>(Arc<Vec<Arc<BTreeMap<Uuid, V>>>>);

impl<V: Clone> ShardMap<V> {
    pub(crate) fn new() -> Self {
        let empty = Arc::new(BTreeMap::new());
        Self(Arc::new((0..SHARDS).map(|_| Arc::clone(&empty)).collect()))
    }

    fn shard(key: Uuid) -> usize {
        // The last bytes are random in every kind of uuid that names a VM or owner.
        let [.., a, b] = key.into_bytes();
        usize::from(u16::from_be_bytes([a, b])) % SHARDS
    }

    pub(crate) fn get(&self, key: Uuid) -> Option<&V> {
        self.0.get(Self::shard(key)).and_then(|shard| shard.get(&key))
    }

    fn shard_mut(&mut self, key: Uuid) -> &mut BTreeMap<Uuid, V> {
        let shards = Arc::make_mut(&mut self.0);
        Arc::make_mut(&mut shards[Self::shard(key)])
    }

    pub(crate) fn insert(&mut self, key: Uuid, value: V) {
        self.shard_mut(key).insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: Uuid) {
        self.shard_mut(key).remove(&key);
    }

    /// Changes the value under the key, starting from `V::default()`; an empty result (as `empty`
    /// says) is removed.
    pub(crate) fn update(
        &mut self,
        key: Uuid,
        change: impl FnOnce(&mut V),
        empty: impl FnOnce(&V) -> bool,
    ) where
        V: Default,
    {
        let shard = self.shard_mut(key);
        let value = shard.entry(key).or_default();
        change(value);
        if empty(value) {
            shard.remove(&key);
        }
    }
}

/// Distinct values under small numbers, so that a request judges each value once and not once
/// per server.
#[derive(Clone, Debug)]
pub(crate) struct Classes<T> {
    items: Arc<Vec<Option<Arc<T>>>>,
    users: Vec<u32>,
    numbers: BTreeMap<Arc<T>, u32>,
    free: Vec<u32>,
}

impl<T: Ord> Classes<T> {
    pub(crate) fn new() -> Self {
        Self {
            items: Arc::new(Vec::new()),
            users: Vec::new(),
            numbers: BTreeMap::new(),
            free: Vec::new(),
        }
    }

    /// The values by number, as a snapshot keeps them.
    pub(crate) fn items(&self) -> Arc<Vec<Option<Arc<T>>>> {
        Arc::clone(&self.items)
    }

    /// The value's number, with one user more.
    pub(crate) fn intern(&mut self, value: &Arc<T>) -> u32 {
        if let Some(number) = self.numbers.get(value) {
            self.users[*number as usize] += 1;
            return *number;
        }
        let items = Arc::make_mut(&mut self.items);
        let number = self.free.pop().unwrap_or_else(|| {
            items.push(None);
            self.users.push(0);
            u32::try_from(items.len() - 1).expect("there are fewer classes than servers")
        });
        items[number as usize] = Some(Arc::clone(value));
        self.users[number as usize] = 1;
        self.numbers.insert(Arc::clone(value), number);
        number
    }

    /// Takes back one [`Classes::intern`].
    pub(crate) fn release(&mut self, number: u32) {
        let users = &mut self.users[number as usize];
        *users -= 1;
        if *users > 0 {
            return;
        }
        if let Some(value) = Arc::make_mut(&mut self.items)[number as usize].take() {
            self.numbers.remove(&value);
        }
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_shared_and_reused() {
        let mut classes = Classes::new();
        let a = classes.intern(&Arc::new("a"));
        assert_eq!(classes.intern(&Arc::new("a")), a);
        let before = classes.items();
        let b = classes.intern(&Arc::new("b"));
        assert_ne!(a, b);
        classes.release(a);
        assert_eq!(classes.items()[a as usize].as_deref(), Some(&"a"));
        classes.release(a);
        assert_eq!(classes.intern(&Arc::new("c")), a);
        assert_eq!(before[a as usize].as_deref(), Some(&"a"), "an old snapshot stays as it was");
    }
}
