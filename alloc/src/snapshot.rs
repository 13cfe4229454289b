//! What a request works on: all servers as they were at one moment, never changed.
//!
//! Servers sit in numbered slots, in chunks. What every filter of every request asks lies in one
//! array per question; the rest of a server is behind a pointer. A fleet that changes copies only
//! the chunk concerned.

use std::collections::BTreeMap;
use std::sync::Arc;

use uuid::Uuid;

use crate::flags::Flags;
use crate::order::{Order, SortKey};
use crate::owners::OwnerSlots;
use crate::persist::ShardMap;
use crate::promises::DiskPromise;
use crate::ratios::{RatioPolicy, Ratios};
use crate::server::{Nics, Platform, Server, Unreserved, flag};
use crate::server_name::ServerName;
use crate::slot_set::{CHUNK, WORD, slots_of};

/// Slots of a chunk's servers, one array per question.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) flags: Flags,
    pub(crate) vm_count: [u32; CHUNK],
    pub(crate) nics: [u32; CHUNK],
    pub(crate) platform: [u32; CHUNK],
    /// By [`SortKey`]; NaN if there is none.
    pub(crate) values: [[f64; CHUNK]; SortKey::COUNT],
    pub(crate) free_disk: [f64; CHUNK],
    pub(crate) id: [u64; CHUNK],
    pub(crate) servers: Vec<Option<Arc<Server>>>,
}

impl Chunk {
    pub(crate) fn new() -> Self {
        Self {
            flags: Flags::NONE,
            vm_count: [0; CHUNK],
            nics: [0; CHUNK],
            platform: [0; CHUNK],
            values: [[f64::NAN; CHUNK]; SortKey::COUNT],
            free_disk: [0.0; CHUNK],
            id: [0; CHUNK],
            servers: vec![None; CHUNK],
        }
    }

    /// The values of its servers.
    pub(crate) fn column(&self, key: SortKey) -> &[f64; CHUNK] {
        &self.values[key as usize]
    }
}

/// The servers at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) chunks: Vec<Arc<Chunk>>,
    /// By [`SortKey`].
    pub(crate) orders: [Order; SortKey::COUNT],
    pub(crate) by_name: Arc<BTreeMap<ServerName, u32>>,
    pub(crate) owners: ShardMap<OwnerSlots>,
    /// Which slot is a VM's home: the last that came to show it.
    pub(crate) vms: ShardMap<u32>,
    /// The slots that show a VM, if they are several; nothing keeps two servers from that.
    pub(crate) shown_twice: Arc<BTreeMap<Uuid, Vec<u32>>>,
    pub(crate) nics: Arc<Vec<Option<Arc<Nics>>>>,
    pub(crate) platforms: Arc<Vec<Option<Arc<Platform>>>>,
    pub(crate) policy: RatioPolicy,
    pub(crate) revision: u64,
}

impl Snapshot {
    /// Rises with every change of the fleet.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// How many servers there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Whether there is no server.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The servers, in the order of their uuids.
    pub fn servers(&self) -> impl Iterator<Item = &ServerName> {
        self.by_name.keys()
    }

    /// What a server has left beside its VMs and what is promised, under the fleet's policy;
    /// `None` for an unknown server.
    #[must_use]
    pub fn unreserved(&self, server: &ServerName) -> Option<Unreserved> {
        self.slot_of(server).map(|slot| self.fast_unreserved(slot))
    }

    /// What a server has left beside the VMs that it reports: as CNAPI shows it, promises not
    /// counted; `None` for an unknown server.
    #[must_use]
    pub fn unreserved_reported(&self, server: &ServerName) -> Option<Unreserved> {
        let slot = self.slot_of(server)?;
        if !self.has(slot, flag::PROMISED) {
            return Some(self.fast_unreserved(slot));
        }
        let server = self.server(slot);
        let ratios = self.ratios(slot, self.policy);
        Some(server.unreserved(ratios, server.loaded(), DiskPromise::default()))
    }

    /// Why the allocator can't use the server's record, if it can't.
    #[must_use]
    pub fn fault(&self, server: &ServerName) -> Option<&str> {
        self.slot_of(server).and_then(|slot| self.server(slot).fault())
    }

    /// Slots exist for numbers below this.
    pub(crate) fn capacity(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    pub(crate) fn slot_of(&self, server: &ServerName) -> Option<u32> {
        self.by_name.get(server).copied()
    }

    #[inline]
    fn chunk(&self, slot: u32) -> (&Chunk, usize) {
        let slot = slot as usize;
        (&self.chunks[slot / CHUNK], slot % CHUNK)
    }

    /// The chunk that a word of slots is in, and the place of its first slot there.
    pub(crate) fn chunk_of(&self, word: usize) -> (&Chunk, usize) {
        let first = word * WORD;
        (&self.chunks[first / CHUNK], first % CHUNK)
    }

    pub(crate) fn server(&self, slot: u32) -> &Server {
        let (chunk, i) = self.chunk(slot);
        chunk.servers[i].as_deref().expect("lists hold only slots in use")
    }

    #[inline]
    pub(crate) fn has(&self, slot: u32, bit: u32) -> bool {
        let (chunk, i) = self.chunk(slot);
        chunk.flags.has(i, bit)
    }

    /// Words of slots.
    pub(crate) fn words(&self) -> usize {
        self.capacity() / WORD
    }

    /// Which of the slots from `word * WORD` on have the flag, the first one in the lowest bit.
    pub(crate) fn flagged(&self, word: usize, bit: u32) -> u64 {
        const WORDS: usize = CHUNK / WORD;
        self.chunks[word / WORDS].flags.word(word % WORDS, bit)
    }

    #[inline]
    pub(crate) fn fast_vm_count(&self, slot: u32) -> u32 {
        let (chunk, i) = self.chunk(slot);
        chunk.vm_count[i]
    }

    #[inline]
    pub(crate) fn fast_unreserved(&self, slot: u32) -> Unreserved {
        let (chunk, i) = self.chunk(slot);
        let left = |key| chunk.column(key)[i];
        Unreserved { cpu: left(SortKey::Cpu), ram: left(SortKey::Ram), disk: left(SortKey::Disk) }
    }

    #[inline]
    pub(crate) fn free_disk(&self, slot: u32) -> f64 {
        let (chunk, i) = self.chunk(slot);
        chunk.free_disk[i]
    }

    #[inline]
    pub(crate) fn nic_class(&self, slot: u32) -> u32 {
        let (chunk, i) = self.chunk(slot);
        chunk.nics[i]
    }

    #[inline]
    pub(crate) fn platform_class(&self, slot: u32) -> u32 {
        let (chunk, i) = self.chunk(slot);
        chunk.platform[i]
    }

    /// NaN if there is none.
    #[inline]
    pub(crate) fn value(&self, slot: u32, key: SortKey) -> f64 {
        let (chunk, i) = self.chunk(slot);
        chunk.column(key)[i]
    }

    /// The servers in order of a value.
    pub(crate) fn order(&self, key: SortKey) -> &Order {
        &self.orders[key as usize]
    }

    /// What stands for the server in a fingerprint.
    #[inline]
    pub(crate) fn id(&self, slot: u32) -> u64 {
        let (chunk, i) = self.chunk(slot);
        chunk.id[i]
    }

    /// [`Snapshot::id`] by slot, in one piece: for looks at most servers in any order.
    pub(crate) fn ids(&self) -> Vec<u64> {
        let mut ids = Vec::with_capacity(self.capacity());
        self.chunks.iter().for_each(|chunk| ids.extend_from_slice(&chunk.id));
        ids
    }

    /// The slots in use, in order.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> {
        (0..self.words()).flat_map(|word| slots_of(word, self.flagged(word, flag::USED)))
    }

    /// Where the owner has VMs, in the order of slots, and how many of them count there.
    pub(crate) fn owner_slots(&self, owner: Uuid) -> impl Iterator<Item = (u32, u32)> {
        self.owners.get(owner).into_iter().flat_map(OwnerSlots::iter)
    }

    /// The ratios in force for a server under a policy.
    pub(crate) fn ratios(&self, slot: u32, policy: RatioPolicy) -> Ratios {
        match policy {
            RatioPolicy::Forced(ratios) => ratios,
            RatioPolicy::Own => self.server(slot).own_ratios(),
        }
    }
}
