//! The sysinfo document of a Linux host, in SmartOS's key names and types (smartos-live
//! src/sysinfo): one file per group of keys.
//!
//! Groups are collected at the same time, each within [`GROUP_TIMEOUT`]. One that fails yields its
//! unknown values and is named in `Muster.degraded`; the document as a whole never fails.

mod cpu;
mod disks;
mod dmi;
mod figures;
mod interfaces;
mod memory;
mod muster;
mod network;
mod probe;
mod system;
mod zpool;
/// Whether an interface or block device comes and goes with guests: those of the host are of
/// interest here, and a guest that starts is no reason to look at all of them again.
fn is_guests(name: &str) -> bool {
    let is_tap = || {
        let number = name.strip_prefix("mt");
        number
            .is_some_and(|number| number.len() > 8 && number.bytes().all(|b| b.is_ascii_hexdigit()))
    };
    ["tap", "veth", "vnet", "zd", "loop"].iter().any(|prefix| name.starts_with(prefix)) || is_tap()
}

#[cfg(test)]
mod tests;
mod virtualization;

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, join_all};
use muster_shared::error_chain::Chain;
use serde_json::{Map, Value, json};

use super::{Facts, Figures, Interface};
use crate::drivers::DriverError;
use crate::drivers::network::is_of_an_agent;
use probe::Probe;

pub use probe::{LinuxFacts, SysinfoConfig};

/// Of the software that clients of CNAPI expect; its presence is what they look at.
pub const SDC_VERSION: &str = "7.0";
/// Version of the agent `cn-agent` that this one stands for; the gates of CNAPI's clients ask for
/// at least 2.13.0.
pub const CN_AGENT_VERSION: &str = "2.14.0";
/// Longest time for one group.
const GROUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Where packages and operators put systemd's units.
const UNIT_FOLDERS: [&str; 3] =
    ["etc/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

/// Keys and values.
type Keys = Map<String, Value>;

/// A group of keys. A new group is one file and one line in [`GROUPS`].
#[derive(Debug)]
struct Group {
    /// As in `Muster.degraded`.
    name: &'static str,
    collect: for<'a> fn(&'a Probe) -> BoxFuture<'a, Result<Keys, DriverError>>,
    /// What the keys are when they can't be read.
    unknown: fn(&Probe) -> Keys,
}

static GROUPS: &[Group] = &[
    system::GROUP,
    dmi::GROUP,
    virtualization::GROUP,
    cpu::GROUP,
    memory::GROUP,
    network::GROUP,
    disks::GROUP,
    zpool::GROUP,
];

/// The agents list: this agent under its own name, and as the `cn-agent` of this version that
/// clients look for.
#[must_use]
pub fn agents(cn_agent_version: &str) -> Vec<Value> {
    vec![
        json!({ "name": "cn-agent", "version": cn_agent_version }),
        json!({ "name": "muster-agent", "version": env!("CARGO_PKG_VERSION") }),
    ]
}

/// An object's members; for literals.
fn keys(object: Value) -> Keys {
    match object {
        Value::Object(keys) => keys,
        _ => Keys::new(),
    }
}

async fn collect_group(group: &Group, probe: &Probe) -> (Keys, Option<&'static str>) {
    let problem = match tokio::time::timeout(GROUP_TIMEOUT, (group.collect)(probe)).await {
        Ok(Ok(keys)) => return (keys, None),
        Ok(Err(error)) => Chain(&error).to_string(),
        Err(_) => format!("not done after {} s", GROUP_TIMEOUT.as_secs()),
    };
    tracing::warn!(group = group.name, problem, "a part of sysinfo is unknown");
    ((group.unknown)(probe), Some(group.name))
}

#[async_trait]
impl Facts for LinuxFacts {
    async fn sysinfo(&self) -> Keys {
        let probe = &self.probe;
        let groups = join_all(GROUPS.iter().map(|group| collect_group(group, probe))).await;
        let mut document = Keys::new();
        let mut degraded: Vec<String> = Vec::new();
        for (keys, failed) in groups {
            document.extend(keys);
            degraded.extend(failed.map(str::to_owned));
        }
        degraded.extend(probe.compute.abilities().degraded);
        degraded.extend(probe.networks.degraded());
        degraded.extend(probe.neighbours.lacking().map(str::to_owned));
        degraded.extend(probe.journal_problem());
        degraded.extend(probe.zpools.problems());
        document.insert("Muster".to_owned(), muster::block(probe, &degraded).await);
        if let Err(error) = probe.publish(&document).await {
            tracing::warn!(error = %Chain(&error), "cannot write sysinfo for local tools");
        }
        document
    }

    async fn figures(&self) -> Result<Figures, DriverError> {
        figures::collect(&self.probe).await
    }

    async fn fingerprint(&self) -> String {
        let probe = &self.probe;
        let mut fingerprint = probe.text("proc/sys/kernel/hostname").await.unwrap_or_default();
        let own = |name: &String| !is_guests(name);
        for name in probe.names("sys/class/net").await.into_iter().filter(own) {
            let alias = probe.text(&format!("sys/class/net/{name}/ifalias")).await;
            if alias.is_some_and(|alias| is_of_an_agent(&alias)) {
                continue;
            }
            let state = probe.text(&format!("sys/class/net/{name}/operstate")).await;
            fingerprint.push_str(&format!(" {name}={}", state.unwrap_or_default()));
        }
        for name in probe.names("sys/block").await.into_iter().filter(own) {
            let sectors = probe.text(&format!("sys/block/{name}/size")).await;
            fingerprint.push_str(&format!(" {name}={}", sectors.unwrap_or_default()));
        }
        let tags = network::tag_file(probe).await.unwrap_or_default();
        let complete = probe.setup_complete().await;
        let neighbours = probe.neighbours.latest();
        format!("{fingerprint} tags={tags} setup={complete} neighbours={neighbours:?}")
    }

    async fn interfaces(&self) -> Vec<Interface> {
        interfaces::now(&self.probe).await
    }

    async fn has_service(&self, name: &str) -> bool {
        let root = &self.probe.config.root;
        let file = |folder: &&str| root.join(folder).join(format!("{name}.service"));
        // A name with a slash would lead elsewhere.
        !name.contains('/') && UNIT_FOLDERS.iter().any(|folder| file(folder).exists())
    }
}
