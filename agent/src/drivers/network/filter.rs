//! The table of nftables that keeps guests to their own addresses and has their firewalls: one for each
//! agent, whose rules are replaced in one transaction. What they are made from is kept on disk, so that
//! an agent that comes after can make them again for guests that run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::guard::{Guard, table};
use crate::drivers::{DriverError, files};
use crate::host::{Command, ExecError, SharedExec};

/// Longest run of `nft`: the first one on a host that boots loads its kernel modules.
const NFT_TIMEOUT: Duration = Duration::from_secs(60);

/// The guards of one VM, by the names of their taps.
pub(super) type Guards = BTreeMap<String, Guard>;

/// The table, and what it is made from.
#[derive(Debug)]
pub(super) struct Filter {
    table: String,
    folder: PathBuf,
    exec: SharedExec,
    /// The rules that were put in force last, and how the kernel shows them.
    in_force: Mutex<Option<InForce>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct InForce {
    rules: String,
    shown: String,
}

impl Filter {
    /// The table of the agent with this prefix; what it is made from is kept in `folder`.
    pub(super) fn new(prefix: &str, folder: PathBuf, exec: SharedExec) -> Self {
        Self { table: format!("{prefix}_nics"), folder, exec, in_force: Mutex::default() }
    }

    fn file(&self, vm: VmUuid) -> PathBuf {
        self.folder.join(format!("{vm}.json"))
    }

    /// Keeps what a VM's table is made from, before any of it is in force.
    pub(super) async fn remember(&self, vm: VmUuid, guards: &Guards) -> Result<(), DriverError> {
        files::make_folder(&self.folder).await?;
        let content = serde_json::to_vec(guards)
            .map_err(|error| DriverError::failed(format!("write the NICs of VM {vm}"), error))?;
        files::write(&self.file(vm), &content).await
    }

    /// Forgets a VM that has no taps.
    pub(super) async fn forget(&self, vm: VmUuid) -> Result<(), DriverError> {
        files::remove(&self.file(vm)).await
    }

    async fn guards(&self, vm: VmUuid) -> Option<Guards> {
        let read = files::read(&self.file(vm)).await.map_err(|error| Chain(&error).to_string());
        let parsed = read.and_then(|content| {
            let content = content.unwrap_or_else(|| b"{}".to_vec());
            serde_json::from_slice(&content).map_err(|error| error.to_string())
        });
        match parsed {
            Ok(guards) => Some(guards),
            Err(error) => {
                tracing::warn!(vm_uuid = %vm, error, "what its NICs may send is not known");
                None
            }
        }
    }

    /// Whether rules can be put in force here.
    pub(super) async fn lacking(&self) -> Option<String> {
        let listed = self.nft(&["list", "tables", "bridge"], None).await.err()?;
        Some(format!(
            "guests can't be kept to their own addresses (package nftables): {}",
            Chain(&listed)
        ))
    }

    /// Puts the rules of these taps in force, in the place of those that are; where they are in
    /// force, nothing is done. The names of taps that nothing is known about, and that are cut off
    /// therefore, come back.
    pub(super) async fn keep(&self, taps: &[(String, VmUuid)]) -> Result<Vec<String>, DriverError> {
        let mut known: BTreeMap<VmUuid, Guards> = BTreeMap::new();
        for (_, vm) in taps {
            if !known.contains_key(vm) {
                known.insert(*vm, self.guards(*vm).await.unwrap_or_default());
            }
        }
        let mut guarded: Vec<(&str, Option<&Guard>)> =
            taps.iter().map(|(tap, vm)| (tap.as_str(), known[vm].get(tap))).collect();
        guarded.retain(|(_, guard)| guard.is_none_or(Guard::filters));
        let unknown = guarded.iter().filter(|(_, guard)| guard.is_none());
        let unknown = unknown.map(|(tap, _)| (*tap).to_owned()).collect();
        let of = |stale: &[String]| table(&self.table, guarded.iter().copied(), stale);
        match guarded.is_empty() {
            true => self.remove().await?,
            false => self.put_in_force(of).await?,
        }
        Ok(unknown)
    }

    /// `table` writes the rules, and takes away what it is told is stale.
    async fn put_in_force(&self, table: impl Fn(&[String]) -> String) -> Result<(), DriverError> {
        let rules = table(&[]);
        let shown = self.shown().await.ok();
        let was = self.in_force.lock().clone();
        if let Some(was) = was.filter(|was| was.rules == rules) {
            if shown.as_ref() == Some(&was.shown) {
                return Ok(());
            }
            tracing::warn!(table = self.table, "somebody took the rules of guests' NICs away");
        }
        self.replace(table, shown.as_deref()).await.map_err(|error| self.failed("make", error))?;
        let shown = self.shown().await.map_err(|error| self.failed("list", error))?;
        *self.in_force.lock() = Some(InForce { rules, shown });
        Ok(())
    }

    /// Keeps what the sets hold, unless the table that is there has sets or chains of another kind.
    async fn replace(
        &self,
        table: impl Fn(&[String]) -> String,
        shown: Option<&str>,
    ) -> Result<(), ExecError> {
        let rules = table(&[]);
        let stale = shown.map(|shown| stale(shown, &rules)).unwrap_or_default();
        match self.nft(&["-f", "-"], Some(&table(&stale))).await {
            Ok(_) => Ok(()),
            Err(error) if shown.is_some() => {
                let (table, error) = (&self.table, Chain(&error).to_string());
                tracing::warn!(table, error, "the table is made anew, without its connections");
                let anew = format!("delete table bridge {}\n{rules}", self.table);
                self.nft(&["-f", "-"], Some(&anew)).await.map(drop)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the table, unless this agent knows that there is none.
    async fn remove(&self) -> Result<(), DriverError> {
        let none = InForce { rules: String::new(), shown: String::new() };
        if *self.in_force.lock() == Some(none.clone()) {
            return Ok(());
        }
        // Where it can't be listed there is none, or no `nft` that could have made it.
        if self.shown().await.is_ok() {
            let gone = self.nft(&["delete", "table", "bridge", &self.table], None).await;
            gone.map_err(|error| self.failed("remove", error))?;
        }
        *self.in_force.lock() = Some(none);
        Ok(())
    }

    fn failed(&self, action: &str, error: ExecError) -> DriverError {
        let text = format!("{action} nftables table {}: {}", self.table, Chain(&error));
        DriverError::refused_because(Code::HostToolMissing, text, error)
    }

    async fn shown(&self) -> Result<String, ExecError> {
        // Without what sets hold, which changes by itself.
        self.nft(&["--terse", "list", "table", "bridge", &self.table], None).await
    }

    async fn nft(&self, words: &[&str], rules: Option<&str>) -> Result<String, ExecError> {
        let argv = std::iter::once("nft").chain(words.iter().copied());
        let mut command = Command::new(argv, NFT_TIMEOUT);
        // One transaction.
        command.stdin = rules.unwrap_or_default().to_owned().into();
        let output = self.exec.run(&command, &CancellationToken::new()).await?.checked("nft")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The chains and sets in a table, as the kernel shows it, that are not in new rules: chains first,
/// since they use sets.
fn stale(shown: &str, rules: &str) -> Vec<String> {
    let declared = |text: &str| -> BTreeSet<String> {
        let words = |line: &str| {
            let mut words = line.split_whitespace();
            let kind = words.next().filter(|kind| ["chain", "set"].contains(kind))?;
            Some(format!("{kind} {}", words.next()?))
        };
        text.lines().filter_map(words).collect()
    };
    declared(shown).difference(&declared(rules)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_rule_needs_is_stale() {
        let shown = "table bridge t {\n\tset out4_a {\n\t\ttype ipv4_addr\n\t}\n\n\
                     \tset out4_b {\n\t}\n\tchain from_a {\n\t\tdrop\n\t}\n\tchain base {\n\t}\n}\n";
        let rules = "table bridge t {\n\tset out4_b { type ipv4_addr; }\n\tchain base {\n\t}\n}\n";
        assert_eq!(stale(shown, rules), ["chain from_a", "set out4_a"]);
        assert!(stale(shown, shown).is_empty());
    }
}
