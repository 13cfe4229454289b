//! What a guest's process can do to its host. It has a user of its own, so that a guest that breaks
//! out of the hypervisor owns nothing.

use std::collections::BTreeSet;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::folder::GuestFolder;
use crate::host::idmap::IdRange;
use crate::host::user_has_processes;

/// Users for guests begin here: systemd's list of assigned numbers leaves the range to nobody.
pub const FIRST_UID: u32 = 1_900_000_000;
/// Users for guests.
const UIDS: u32 = 65_536;

/// All of them.
pub const GUESTS: IdRange = IdRange { first: FIRST_UID, count: UIDS };

/// Users of the processes of guests, where the agent may give them any.
#[must_use]
pub fn guest_uids() -> Option<RangeInclusive<u32>> {
    nix::unistd::geteuid().is_root().then_some(FIRST_UID..=FIRST_UID + UIDS - 1)
}

/// How guests are confined on this host.
#[derive(Debug)]
pub(super) struct Isolation {
    has_uids: bool,
    guests: PathBuf,
    /// Whether a process of a user runs.
    in_use: fn(u32) -> io::Result<bool>,
    // Two guests that start at once must not get one user.
    choosing: Mutex<()>,
}

impl Isolation {
    /// `data_dir` holds the guests' folders.
    pub(super) fn new(data_dir: &Path) -> Self {
        Self {
            has_uids: guest_uids().is_some(),
            guests: data_dir.join("guests"),
            in_use: user_has_processes,
            choosing: Mutex::default(),
        }
    }

    /// What could not be had, for `Muster.degraded`.
    pub(super) fn degraded(&self) -> Option<String> {
        let text = "guests have no users of their own: the agent is not root";
        (!self.has_uids).then(|| text.to_owned())
    }

    /// User and group of a guest's process, the same one each time; `None`: the agent's.
    ///
    /// # Errors
    /// The users of the other guests could not be read, or the choice not be kept.
    pub(super) fn uid_of(&self, folder: &GuestFolder) -> io::Result<Option<u32>> {
        if self.has_uids { self.uid(folder).map(Some) } else { Ok(None) }
    }

    fn uid(&self, folder: &GuestFolder) -> io::Result<u32> {
        let _choosing = self.choosing.lock();
        if let Some(uid) = folder.uid()? {
            return Ok(uid);
        }
        let mut taken = BTreeSet::new();
        for entry in std::fs::read_dir(&self.guests)? {
            taken.extend(GuestFolder::uid_in(&entry?.path())?);
        }
        for uid in (FIRST_UID..FIRST_UID + UIDS).filter(|uid| !taken.contains(uid)) {
            // By another agent's guest, or one whose folder was lost.
            if !(self.in_use)(uid)? {
                folder.set_uid(uid)?;
                return Ok(uid);
            }
        }
        Err(io::Error::other("all users for guests are taken"))
    }
}

/// Whether a user is one of guests.
pub(super) fn is_guest(uid: u64) -> bool {
    (u64::from(FIRST_UID)..u64::from(FIRST_UID + UIDS)).contains(&uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn users_are_kept_and_not_shared() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let isolation = Isolation {
            has_uids: true,
            guests: data.join("guests"),
            in_use: |uid| Ok(uid == FIRST_UID + 2),
            choosing: Mutex::default(),
        };
        let guest = |number: u128| {
            let vm = muster_shared::ids::VmUuid(uuid::Uuid::from_u128(number));
            let guest = GuestFolder::new(&data.join("run"), data, vm);
            guest.make().unwrap();
            guest
        };
        let (one, two) = (guest(1), guest(2));
        let uid = |guest: &GuestFolder| isolation.uid_of(guest).unwrap().unwrap();
        assert_eq!((uid(&one), uid(&two), uid(&one)), (FIRST_UID, FIRST_UID + 1, FIRST_UID));
        one.purge().await.unwrap();
        assert_eq!(uid(&guest(3)), FIRST_UID);
        assert_eq!(uid(&guest(4)), FIRST_UID + 3);
        assert!(is_guest(u64::from(uid(&two))) && !is_guest(0));
    }
}
