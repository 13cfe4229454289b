//! User-mode networks: each guest's connections are those of its hypervisor's process. They must not
//! lead to what listens on the host for the host alone: this agent, coordinators, the displays of
//! other guests. A filter on the users of the guests' processes sees to that.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{Attached, Backend, Counters, Networks, Nic, PublishOn, forwards};
use crate::drivers::DriverError;
use crate::host::{Command, SharedExec};

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
    /// None: the networks are to lead nowhere.
    filter: Option<Filter>,
    /// Why there is no filter now.
    lacking: Mutex<Option<String>>,
    publish_on: PublishOn,
}

/// How the filter is made.
#[derive(Debug)]
struct Filter {
    /// Names what is made on the host.
    prefix: String,
    /// The users of guests' processes, where they have any of their own.
    uids: Option<RangeInclusive<u32>>,
    exec: SharedExec,
}

impl UserNetworks {
    /// Prepares the host. `prefix` names what is made on it; `uids` are the users of guests'
    /// processes, where they have any of their own.
    pub async fn open(
        wanted: UserNetwork,
        prefix: &str,
        uids: Option<RangeInclusive<u32>>,
        exec: SharedExec,
    ) -> Self {
        let filter = match wanted {
            UserNetwork::Restricted => None,
            UserNetwork::Filtered => Some(Filter { prefix: prefix.to_owned(), uids, exec }),
        };
        let networks = Self { filter, lacking: Mutex::default(), publish_on: PublishOn::default() };
        networks.mend().await;
        networks
    }

    /// With these places for ports that VMs publish.
    #[must_use]
    pub fn publish_on(self, publish_on: PublishOn) -> Self {
        Self { publish_on, ..self }
    }

    /// Networks that lead nowhere; nothing is made on the host.
    #[must_use]
    pub fn restricted() -> Self {
        Self { filter: None, lacking: Mutex::default(), publish_on: PublishOn::default() }
    }

    fn leads_nowhere(&self) -> bool {
        self.filter.is_none() || self.lacking.lock().is_some()
    }
}

#[async_trait]
impl Networks for UserNetworks {
    fn name(&self) -> &'static str {
        "user"
    }

    fn degraded(&self) -> Vec<String> {
        let lacking = self.lacking.lock();
        lacking.iter().map(|why| format!("guests' networks lead nowhere: {why}")).collect()
    }

    async fn check(&self, properties: &Map<String, Value>) -> Result<(), DriverError> {
        self.publish_on.check(&forwards(properties)?)
    }

    async fn lacks_bridge(&self, _tag: &str, _mac: &str) -> Result<bool, DriverError> {
        Ok(false)
    }

    async fn attach(&self, _vm: VmUuid, nics: &[Nic]) -> Result<Vec<Attached>, DriverError> {
        for nic in nics {
            self.publish_on.check(&nic.forwards)?;
        }
        if nics.is_empty() {
            // Nothing of it talks to this host.
            return Ok(Vec::new());
        }
        self.mend().await;
        let backend = Backend::User { restricted: self.leads_nowhere() };
        let attached = |nic: &Nic| Attached { nic: nic.clone(), backend: backend.clone() };
        Ok(nics.iter().map(attached).collect())
    }

    async fn mend(&self) {
        let Some(filter) = &self.filter else { return };
        let lacking = filter.keep().await.err();
        let mut known = self.lacking.lock();
        if let Some(why) = lacking.as_ref().filter(|_| known.is_none()) {
            tracing::warn!(why, "nothing keeps guests from what listens on this host");
        }
        *known = lacking;
    }

    async fn detach(&self, _vm: VmUuid) -> Result<(), DriverError> {
        Ok(())
    }

    async fn counters(&self) -> Result<BTreeMap<VmUuid, Counters>, DriverError> {
        Ok(BTreeMap::new())
    }

    async fn holders(&self) -> Result<BTreeMap<VmUuid, Vec<String>>, DriverError> {
        Ok(BTreeMap::new())
    }
}

impl Filter {
    /// Makes the filter unless it is there: a firewall that is loaded again takes away what others
    /// have made.
    async fn keep(&self) -> Result<(), String> {
        let uids =
            self.uids.as_ref().ok_or("without users of their own nothing tells them apart")?;
        let table = format!("{}_guests", self.prefix);
        let list = Command::new(["nft", "list", "table", "inet", &table], NFT_TIMEOUT);
        match self.nft(list).await {
            Ok(rules) if rules.contains("skuid") => return Ok(()),
            // There is none, or it can't be told: making it says why.
            Ok(_) | Err(_) => {}
        }
        let mut make = Command::new(["nft", "-f", "-"], NFT_TIMEOUT);
        // One transaction.
        make.stdin = rules(&table, uids).into();
        self.nft(make).await?;
        tracing::info!(table, "guests are kept from what listens on this host");
        Ok(())
    }

    async fn nft(&self, command: Command) -> Result<String, String> {
        let output = self.exec.run(&command, &CancellationToken::new()).await;
        let output = output.and_then(|output| output.checked("nft"));
        let output = output.map_err(|error| Chain(&error).to_string())?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// All addresses of this host are reached over its loopback. Answers of a guest's published ports
/// go there, and its questions for names, which its process hands to the host's resolver.
fn rules(table: &str, uids: &RangeInclusive<u32>) -> String {
    let (first, last) = (uids.start(), uids.end());
    format!(
        "table inet {table}\n\
         delete table inet {table}\n\
         table inet {table} {{\n\
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
    use std::sync::Arc;

    use super::*;
    use crate::host::FakeExec;

    const UIDS: Option<RangeInclusive<u32>> = Some(1..=2);

    async fn leads_nowhere(networks: &UserNetworks) -> bool {
        let vm = VmUuid(uuid::Uuid::nil());
        let attached = networks.attach(vm, &[Nic::default()]).await.unwrap();
        attached[0].backend == Backend::User { restricted: true }
    }

    #[tokio::test]
    async fn without_a_filter_the_network_leads_nowhere_and_says_why() {
        let exec = Arc::new(FakeExec::default());
        exec.fails(&["nft"], 1, "Error: Could not process rule");
        let open = |wanted, uids| UserNetworks::open(wanted, "muster", uids, exec.clone());
        for uids in [UIDS, None] {
            let failed = open(UserNetwork::Filtered, uids).await;
            assert!(leads_nowhere(&failed).await);
            assert!(failed.degraded()[0].contains("lead nowhere"), "{failed:?}");
        }
        let wanted = open(UserNetwork::Restricted, UIDS).await;
        assert!(leads_nowhere(&wanted).await && wanted.degraded().is_empty());
    }

    /// A firewall that is loaded again flushes the tables of others as well.
    #[tokio::test]
    async fn a_filter_that_somebody_took_away_is_made_again() {
        let exec = Arc::new(FakeExec::default());
        exec.prints(&["nft", "-f"], "");
        let opened = UserNetworks::open(UserNetwork::Filtered, "muster", UIDS, exec.clone()).await;
        assert!(!leads_nowhere(&opened).await && opened.degraded().is_empty());
        let made = || exec.calls().iter().filter(|argv| argv[1] == "-f").count();
        let before = made();
        opened.mend().await;
        assert_eq!(made(), before + 1);
        exec.prints(&["nft", "list", "table", "inet", "muster_guests"], "meta skuid != 1-2 accept");
        opened.mend().await;
        assert_eq!(made(), before + 1);
        // What is gone and can't be made is said, and no guest is let out.
        let exec = Arc::new(FakeExec::default());
        exec.fails(&["nft"], 1, "Error: Could not process rule");
        let opened = UserNetworks { filter: opened.filter.map(|f| Filter { exec, ..f }), ..opened };
        assert!(leads_nowhere(&opened).await && opened.degraded().len() == 1);
    }
}
