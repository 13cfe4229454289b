//! What a guest's process can do to its host. It has a user of its own, so that a guest that breaks
//! out of the hypervisor owns nothing; and user-mode networking, which makes the guest's connections
//! its process's, must not lead to what listens on the host for the host alone: this agent,
//! coordinators, the displays of other guests.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_shared::error_chain::Chain;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::folder::GuestFolder;
use crate::host::{Command, Exec, procfs};

/// Users for guests begin here: systemd's list of assigned numbers leaves the range to nobody.
pub const FIRST_UID: u32 = 1_900_000_000;
/// Users for guests.
const UIDS: u32 = 65_536;
/// Longest run of `nft`: the first one on a host that boots loads its kernel modules.
const NFT_TIMEOUT: Duration = Duration::from_secs(60);

/// `compute.user_network`: how far guests with user-mode networking reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UserNetwork {
    /// Wherever the host does, but not to the host itself.
    #[default]
    Filtered,
    /// Nowhere; ports that are published still lead to the guest.
    Restricted,
}

/// What one guest's process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Confinement {
    /// Its user and group; `None`: the agent's.
    pub(super) uid: Option<u32>,
    /// Whether its network leads nowhere.
    pub(super) restricted: bool,
}

/// How guests are confined on this host.
#[derive(Debug)]
pub(super) struct Isolation {
    has_uids: bool,
    restricted: bool,
    /// What could not be had, for `Muster.degraded`.
    pub(super) degraded: Vec<String>,
    guests: PathBuf,
    /// Users of processes that run.
    in_use: fn() -> io::Result<BTreeSet<u32>>,
    // Two guests that start at once must not get one user.
    choosing: Mutex<()>,
}

impl Isolation {
    /// Prepares the host. `prefix` names what is made on it, `data_dir` holds the guests' folders.
    pub(super) async fn open(
        wanted: UserNetwork,
        prefix: &str,
        data_dir: &Path,
        exec: &dyn Exec,
    ) -> Self {
        let has_uids = nix::unistd::geteuid().is_root();
        let mut degraded = Vec::new();
        if !has_uids {
            degraded.push("guests have no users of their own: the agent is not root".to_owned());
        }
        let filtered = match wanted {
            UserNetwork::Restricted => false,
            UserNetwork::Filtered => match filter(has_uids, prefix, exec).await {
                Ok(()) => true,
                Err(why) => {
                    degraded.push(format!("guests' networks lead nowhere: {why}"));
                    false
                }
            },
        };
        let guests = data_dir.join("guests");
        Self {
            has_uids,
            restricted: !filtered,
            degraded,
            guests,
            in_use: users_of_guests,
            choosing: Mutex::default(),
        }
    }

    /// What a guest gets; the same one each time.
    ///
    /// # Errors
    /// The users of the other guests could not be read, or the choice not be kept.
    pub(super) fn confine(&self, folder: &GuestFolder) -> io::Result<Confinement> {
        let uid = if self.has_uids { Some(self.uid(folder)?) } else { None };
        Ok(Confinement { uid, restricted: self.restricted })
    }

    fn uid(&self, folder: &GuestFolder) -> io::Result<u32> {
        let _choosing = self.choosing.lock();
        if let Some(uid) = folder.uid()? {
            return Ok(uid);
        }
        // Of another agent's guests, too, and of those whose folder was lost.
        let mut taken = (self.in_use)()?;
        for entry in std::fs::read_dir(&self.guests)? {
            taken.extend(GuestFolder::uid_in(&entry?.path())?);
        }
        let free = (FIRST_UID..FIRST_UID + UIDS).find(|uid| !taken.contains(uid));
        let uid = free.ok_or_else(|| io::Error::other("all users for guests are taken"))?;
        folder.set_uid(uid)?;
        Ok(uid)
    }
}

fn users_of_guests() -> io::Result<BTreeSet<u32>> {
    let mut users = BTreeSet::new();
    for pid in procfs::pids()? {
        let user = procfs::status(pid)?.map(|status| status.uid).filter(|uid| is_guest(*uid));
        users.extend(user.and_then(|uid| u32::try_from(uid).ok()));
    }
    Ok(users)
}

/// Whether a user is one of guests.
pub(super) fn is_guest(uid: u64) -> bool {
    (u64::from(FIRST_UID)..u64::from(FIRST_UID + UIDS)).contains(&uid)
}

/// Keeps guests' processes from connecting to this host, in one transaction.
async fn filter(has_uids: bool, prefix: &str, exec: &dyn Exec) -> Result<(), String> {
    if !has_uids {
        return Err("without users of their own nothing tells them apart".to_owned());
    }
    let mut command = Command::new(["nft", "-f", "-"], NFT_TIMEOUT);
    command.stdin = rules(prefix).into();
    let output = exec.run(&command, &CancellationToken::new()).await;
    let output = output.and_then(|output| output.checked("nft"));
    output.map(drop).map_err(|error| Chain(&error).to_string())
}

/// All addresses of this host are reached over its loopback. Answers of a guest's published ports
/// go there, and its questions for names, which its process hands to the host's resolver.
fn rules(prefix: &str) -> String {
    let last = FIRST_UID + UIDS - 1;
    format!(
        "table inet {prefix}_guests\n\
         delete table inet {prefix}_guests\n\
         table inet {prefix}_guests {{\n\
         \tchain output {{\n\
         \t\ttype filter hook output priority filter; policy accept;\n\
         \t\tmeta skuid != {FIRST_UID}-{last} accept\n\
         \t\toifname != \"lo\" accept\n\
         \t\tct state established,related accept\n\
         \t\tudp dport 53 accept\n\
         \t\tmeta l4proto tcp reject with tcp reset\n\
         \t\treject\n\
         \t}}\n\
         }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Exit, FakeExec, Output};

    #[tokio::test]
    async fn without_a_filter_the_network_leads_nowhere_and_says_why() {
        let folder = tempfile::tempdir().unwrap();
        let exec = FakeExec::default();
        let exit = Exit { code: Some(1), signal: None };
        let stderr = b"Error: Could not process rule".to_vec();
        exec.answers(&["nft"], Output { exit, stderr, ..Output::default() });
        let open = |wanted| Isolation::open(wanted, "muster", folder.path(), &exec);
        let failed = open(UserNetwork::Filtered).await;
        assert!(failed.restricted);
        assert!(failed.degraded.iter().any(|why| why.contains("lead nowhere")), "{failed:?}");
        assert!(open(UserNetwork::Restricted).await.restricted);
    }

    #[test]
    fn users_are_kept_and_not_shared() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path();
        let isolation = Isolation {
            has_uids: true,
            restricted: true,
            degraded: Vec::new(),
            guests: data.join("guests"),
            in_use: || Ok(BTreeSet::from([FIRST_UID + 2])),
            choosing: Mutex::default(),
        };
        let guest = |number: u128| {
            let vm = muster_shared::ids::VmUuid(uuid::Uuid::from_u128(number));
            let guest = GuestFolder::new(&data.join("run"), data, vm);
            guest.make().unwrap();
            guest
        };
        let (one, two) = (guest(1), guest(2));
        let uid = |guest: &GuestFolder| isolation.confine(guest).unwrap().uid.unwrap();
        assert_eq!((uid(&one), uid(&two), uid(&one)), (FIRST_UID, FIRST_UID + 1, FIRST_UID));
        one.purge().unwrap();
        assert_eq!(uid(&guest(3)), FIRST_UID);
        assert_eq!(uid(&guest(4)), FIRST_UID + 3);
        assert!(is_guest(u64::from(uid(&two))) && !is_guest(0));
    }
}
