//! User-mode networks: each guest's connections are those of its hypervisor's process. They must not
//! lead to what listens on the host for the host alone: this agent, coordinators, the displays of
//! other guests. A filter on the users of the guests' processes sees to that.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Attached, Backend, Networks, Nic};
use crate::drivers::DriverError;
use crate::host::{Command, Exec};

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

/// The driver `user`.
#[derive(Debug)]
pub struct UserNetworks {
    restricted: bool,
    degraded: Vec<String>,
}

impl UserNetworks {
    /// Prepares the host. `prefix` names what is made on it; `uids` are the users of guests'
    /// processes, where they have any of their own.
    pub async fn open(
        wanted: UserNetwork,
        prefix: &str,
        uids: Option<RangeInclusive<u32>>,
        exec: &dyn Exec,
    ) -> Self {
        let mut networks = Self::restricted();
        match wanted {
            UserNetwork::Restricted => {}
            UserNetwork::Filtered => match filter(uids, prefix, exec).await {
                Ok(()) => networks.restricted = false,
                Err(why) => {
                    networks.degraded.push(format!("guests' networks lead nowhere: {why}"));
                }
            },
        }
        networks
    }

    /// Networks that lead nowhere; nothing is made on the host.
    #[must_use]
    pub fn restricted() -> Self {
        Self { restricted: true, degraded: Vec::new() }
    }
}

#[async_trait]
impl Networks for UserNetworks {
    fn name(&self) -> &'static str {
        "user"
    }

    fn degraded(&self) -> Vec<String> {
        self.degraded.clone()
    }

    async fn attach(&self, _vm: VmUuid, nics: &[Nic]) -> Result<Vec<Attached>, DriverError> {
        let backend = Backend::User { restricted: self.restricted };
        let attached = |nic: &Nic| Attached { nic: nic.clone(), backend: backend.clone() };
        Ok(nics.iter().map(attached).collect())
    }

    async fn detach(&self, _vm: VmUuid) -> Result<(), DriverError> {
        Ok(())
    }

    async fn holders(&self) -> Result<BTreeSet<VmUuid>, DriverError> {
        Ok(BTreeSet::new())
    }
}

/// Keeps guests' processes from connecting to this host, in one transaction.
async fn filter(
    uids: Option<RangeInclusive<u32>>,
    prefix: &str,
    exec: &dyn Exec,
) -> Result<(), String> {
    let uids = uids.ok_or("without users of their own nothing tells them apart")?;
    let mut command = Command::new(["nft", "-f", "-"], NFT_TIMEOUT);
    command.stdin = rules(prefix, &uids).into();
    let output = exec.run(&command, &CancellationToken::new()).await;
    let output = output.and_then(|output| output.checked("nft"));
    output.map(drop).map_err(|error| Chain(&error).to_string())
}

/// All addresses of this host are reached over its loopback. Answers of a guest's published ports
/// go there, and its questions for names, which its process hands to the host's resolver.
fn rules(prefix: &str, uids: &RangeInclusive<u32>) -> String {
    let (first, last) = (uids.start(), uids.end());
    format!(
        "table inet {prefix}_guests\n\
         delete table inet {prefix}_guests\n\
         table inet {prefix}_guests {{\n\
         \tchain output {{\n\
         \t\ttype filter hook output priority filter; policy accept;\n\
         \t\tmeta skuid != {first}-{last} accept\n\
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
        let exec = FakeExec::default();
        let exit = Exit { code: Some(1), signal: None };
        let stderr = b"Error: Could not process rule".to_vec();
        exec.answers(&["nft"], Output { exit, stderr, ..Output::default() });
        let open = |wanted, uids| UserNetworks::open(wanted, "muster", uids, &exec);
        for uids in [Some(1..=2), None] {
            let failed = open(UserNetwork::Filtered, uids).await;
            assert!(failed.restricted);
            assert!(failed.degraded[0].contains("lead nowhere"), "{failed:?}");
        }
        let wanted = open(UserNetwork::Restricted, Some(1..=2)).await;
        assert!(wanted.restricted && wanted.degraded.is_empty());
    }
}
