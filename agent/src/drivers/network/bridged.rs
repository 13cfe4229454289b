//! Networks that are bridges of the host: each NIC has a tap, which is a port of the bridge of its
//! nic tag, behind a filter that keeps its guest to its own addresses. Bridges are made by the host
//! driver or the operator; a NIC whose tag has none here is on a user-mode network.

mod checks;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::vm::Rule;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use self::checks::{check_nic, check_user_nic};
use super::filter::{Filter, Guards};
use super::firewall::Firewall;
use super::guard::Guard;
use super::links::{self, Link, Links, NewTap};
use super::namespaces::Namespaces;
use super::stamp::{Place, Stamp, bridge_name, is_tag_bridge, tap_name};
use super::{Attached, Backend, Counters, Networks, Nic};
use crate::drivers::DriverError;
use crate::drivers::cluster::Cluster;
use crate::host::SharedExec;

/// Where what guests may send is kept.
const FOLDER: &str = "nics";

/// What the driver is made from.
#[derive(Debug)]
pub struct BridgedConfig {
    /// The server whose NICs these are.
    pub server_uuid: ServerUuid,
    /// The cluster that it works for.
    pub cluster: Arc<Cluster>,
    /// Nic tags whose NICs are on user-mode networks although there is a bridge.
    pub user_tags: Vec<String>,
    /// Nic tags whose guests reach the addresses that the host has on their bridge.
    pub server_tags: Vec<String>,
    /// Names what is made on the host.
    pub prefix: String,
    /// Keeps what guests may send.
    pub data_dir: PathBuf,
    /// Keeps the namespaces of containers.
    pub run_dir: PathBuf,
    /// Runs `nft`.
    pub exec: SharedExec,
}

/// The driver.
#[derive(Debug)]
pub struct BridgedNetworks {
    config: BridgedConfig,
    links: Arc<dyn Links>,
    filter: Filter,
    namespaces: Namespaces,
    /// The networks of all other NICs.
    user: Arc<dyn Networks>,
    /// What is amiss, by what was found last.
    lacking: Mutex<Vec<String>>,
    // What is found stays so until it was changed.
    changing: tokio::sync::Mutex<()>,
}

/// A tap of this server's, with what is written on it.
#[derive(Debug)]
struct Tap<'a> {
    link: &'a Link,
    stamp: Stamp,
}

impl BridgedNetworks {
    /// Looks at the host. NICs without a bridge are on networks of `user`.
    pub async fn open(
        config: BridgedConfig,
        links: Arc<dyn Links>,
        user: Arc<dyn Networks>,
    ) -> Self {
        let (lacking, changing) = (Mutex::default(), tokio::sync::Mutex::default());
        // Agents of one prefix do not take each other's rules away.
        let server = config.server_uuid.to_string();
        let prefix = format!("{}_{}", config.prefix, &server[..8]);
        let filter = Filter::new(&prefix, config.data_dir.join(FOLDER), config.exec.clone());
        let namespaces = Namespaces::new(&config.run_dir);
        let networks = Self { config, links, filter, namespaces, user, lacking, changing };
        networks.look().await;
        networks
    }

    /// The bridge that a NIC is to be on; `None`: it is on a user-mode network.
    fn bridge_of<'a>(&self, nic: &Nic, links: &'a [Link]) -> Option<&'a Link> {
        let tag = nic.tag.as_ref().filter(|tag| !self.config.user_tags.contains(tag))?;
        let name = bridge_name(tag);
        let bridge = links.iter().find(|link| link.is_bridge && link.is_called(&name))?;
        self.links.lacking().is_none().then_some(bridge)
    }

    /// The tap of a NIC whose bridge is gone, and that bridge. A guest that runs may have it open, and
    /// goes on when the bridge is back.
    fn stranded(&self, vm: VmUuid, nic: &Nic, links: &[Link]) -> Option<(String, Place)> {
        let (tap, bridge) = (tap_name(vm, nic.number), bridge_name(nic.tag.as_ref()?));
        let mut taps = self.taps(links).into_iter().filter(|it| it.stamp.vm == vm);
        let place = (bridge, nic.vlan_id);
        let is_it = taps.any(|it| it.link.name == tap && it.stamp.place() == place);
        let is_gone = !links.iter().any(|link| link.is_bridge && link.is_called(&place.0));
        (is_it && is_gone).then_some((tap, place))
    }

    /// What is written on a link, if it is a tap of this server's.
    fn own(&self, link: &Link) -> Option<Stamp> {
        let stamp = Stamp::parse(link.alias.as_deref()?)?;
        (stamp.server == self.config.server_uuid).then_some(stamp)
    }

    fn taps<'a>(&self, links: &'a [Link]) -> Vec<Tap<'a>> {
        links.iter().filter_map(|link| Some(Tap { link, stamp: self.own(link)? })).collect()
    }

    /// What its guest may send and get. No rule of the firewall is for a VM that is not known yet.
    fn guard(&self, nic: &Nic, vm: Option<VmUuid>) -> Result<Guard, DriverError> {
        let firewall = nic.firewall.as_ref().map(|firewall| {
            let is_for = |rule: &&Rule| vm.is_some_and(|vm| rule.is_for(vm, Some(&firewall.tags)));
            Firewall::new(firewall.rules.iter().filter(is_for))
        });
        let reaches_server =
            nic.tag.as_ref().is_some_and(|tag| self.config.server_tags.contains(tag));
        Ok(Guard { reaches_server, firewall, ..Guard::of(nic.index, &nic.described)? })
    }

    fn stamp(&self, vm: VmUuid, nic: &Nic) -> Stamp {
        let BridgedConfig { server_uuid, cluster, .. } = &self.config;
        let (cluster, bridge) = (cluster.id(), place(nic).0);
        Stamp { server: *server_uuid, cluster, vm, bridge, vlan: nic.vlan_id }
    }

    /// Makes one tap, or pair, unless it is there.
    async fn make(
        &self,
        vm: VmUuid,
        (nic, bridge): (&Nic, &Link),
        links: &[Link],
    ) -> Result<(), DriverError> {
        let tap = tap_name(vm, nic.number);
        let stamp = self.stamp(vm, nic);
        let ours = |alias: &str| {
            Stamp::parse(alias).is_some_and(|found| {
                (found.server, found.vm, found.place()) == (stamp.server, vm, stamp.place())
            })
        };
        let found = links.iter().find(|link| link.name == tap);
        if found.is_some_and(|found| !found.alias.as_deref().is_some_and(ours)) {
            return Err(taken(nic, &tap));
        }
        let alias = stamp.to_string();
        let new = NewTap { name: &tap, alias: &alias };
        if nic.in_namespace {
            let far = self.namespaces.far_end(vm, nic, nic.mtu.unwrap_or(bridge.mtu))?;
            return self.links.make_pair(new, &far).await;
        }
        if found.is_some() { Ok(()) } else { self.links.make_tap(new).await }
    }

    /// Makes the taps of these NICs, each with its bridge. None is plugged in before its rules are
    /// in force.
    async fn make_all(
        &self,
        vm: VmUuid,
        bridged: &BTreeMap<usize, (Nic, Link)>,
    ) -> Result<Vec<Attached>, DriverError> {
        let links = self.links.list().await?;
        for (nic, bridge) in bridged.values() {
            self.make(vm, (nic, bridge), &links).await?;
        }
        let links = self.links.list().await?;
        self.filter.keep(&self.guarded(&links)).await?;
        let mut attached = Vec::new();
        for (nic, bridge) in bridged.values() {
            let name = tap_name(vm, nic.number);
            let link = links.iter().find(|link| link.name == name).ok_or_else(|| gone(&name))?;
            self.links.plug(link.index, bridge, nic.vlan_id).await?;
            let mtu = nic.mtu.unwrap_or(bridge.mtu);
            let backend = match nic.in_namespace {
                true => Backend::Pair { name, namespace: self.namespaces.of(vm) },
                false => Backend::Tap { name, mtu },
            };
            attached.push(Attached { nic: nic.clone(), backend });
        }
        Ok(attached)
    }

    /// All taps, with their VMs.
    fn guarded(&self, links: &[Link]) -> Vec<(String, VmUuid)> {
        let mut taps: Vec<(String, VmUuid)> =
            self.taps(links).iter().map(|tap| (tap.link.name.clone(), tap.stamp.vm)).collect();
        taps.sort();
        taps
    }

    /// Removes the taps of a VM but those in `kept`, and those of them that are elsewhere.
    async fn remove_others(
        &self,
        vm: VmUuid,
        kept: &BTreeMap<String, Place>,
        links: &[Link],
    ) -> Result<bool, DriverError> {
        let mut removed = false;
        for Tap { link, stamp } in self.taps(links).into_iter().filter(|tap| tap.stamp.vm == vm) {
            if kept.get(&link.name) != Some(&stamp.place()) {
                self.links.remove(link.index).await?;
                removed = true;
            }
        }
        Ok(removed)
    }

    /// Mends what can be mended and notes the rest.
    async fn look(&self) {
        let _changing = self.changing.lock().await;
        let problems = match self.mend_links().await {
            Ok(problems) => problems,
            Err(error) => vec![Chain(&error).to_string()],
        };
        self.lacking.lock().retain(|known| problems.contains(known));
        self.note(problems);
    }

    fn note(&self, problems: Vec<String>) {
        let mut lacking = self.lacking.lock();
        for problem in problems {
            if !lacking.contains(&problem) {
                tracing::warn!(problem, "networks on bridges do not work as they should");
                lacking.push(problem);
            }
        }
    }

    /// Makes the rules again that somebody took away.
    async fn mend_filter(&self, links: &[Link]) -> Vec<String> {
        match self.filter.keep(&self.guarded(links)).await {
            Ok(unknown) => {
                let cut_off = |tap: String| {
                    format!(
                        "tap {tap} is cut off: what its guest may send is not known; start its VM anew"
                    )
                };
                unknown.into_iter().map(cut_off).collect()
            }
            Err(error) => vec![format!("nothing keeps guests to their own addresses: {error}")],
        }
    }

    /// Puts the taps back into bridges that were made anew.
    async fn mend_links(&self) -> Result<Vec<String>, DriverError> {
        let links = self.links.list().await?;
        let is_own = |link: &&Link| link.is_bridge && link.name.starts_with("mt-");
        if let Some(why) = self.links.lacking() {
            let bridge = links.iter().find(is_own);
            let unused = |bridge: &Link| format!("bridge {} is not used: {why}", bridge.name);
            return Ok(bridge.map(unused).into_iter().collect());
        }
        let mut problems = self.mend_filter(&links).await;
        if let (Some(_), true) = (links.iter().find(is_own), problems.is_empty()) {
            problems.extend(self.filter.lacking().await);
        }
        let mut without = BTreeSet::new();
        for Tap { link, stamp } in self.taps(&links) {
            let bridge =
                links.iter().find(|other| other.is_bridge && other.is_called(&stamp.bridge));
            match bridge {
                Some(bridge) if link.bridge == Some(bridge.index) && link.up => {}
                Some(bridge) => match self.links.plug(link.index, bridge, stamp.vlan).await {
                    Ok(()) => tracing::info!(tap = link.name, vm_uuid = %stamp.vm, "plugged in"),
                    Err(error) => problems.push(Chain(&error).to_string()),
                },
                None => drop(without.insert(stamp.bridge)),
            }
        }
        let gone = |bridge: String| format!("bridge {bridge} is gone: its guests reach nothing");
        problems.extend(without.into_iter().map(gone));
        Ok(problems)
    }
}

/// Where a NIC on a bridge belongs: under the name that follows from its tag, also where that is a
/// further name of the bridge.
fn place(nic: &Nic) -> Place {
    (bridge_name(nic.tag.as_deref().unwrap_or_default()), nic.vlan_id)
}

fn taken(nic: &Nic, tap: &str) -> DriverError {
    let text = format!(
        "nics.{}: there is a network link {tap} on the server, which this agent has not made for it",
        nic.index
    );
    DriverError::refused(Code::InternalError, text)
}

fn gone(tap: &str) -> DriverError {
    DriverError::failed(
        format!("find tap {tap}"),
        std::io::Error::from(std::io::ErrorKind::NotFound),
    )
}

#[async_trait]
impl Networks for BridgedNetworks {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn degraded(&self) -> Vec<String> {
        let mut degraded = self.user.degraded();
        degraded.extend(self.lacking.lock().iter().cloned());
        degraded
    }

    async fn mend(&self) {
        self.user.mend().await;
        self.look().await;
    }

    async fn check(&self, properties: &Map<String, Value>) -> Result<(), DriverError> {
        self.user.check(properties).await?;
        let links = self.links.list().await?;
        let mut filtered = None;
        for nic in Nic::of(properties)? {
            let Some(bridge) = self.bridge_of(&nic, &links) else {
                check_user_nic(&nic)?;
                continue;
            };
            check_nic(&nic, bridge)?;
            if self.guard(&nic, None)?.filters() {
                filtered = Some((nic.index, bridge));
            }
        }
        let Some((index, bridge)) = filtered else { return Ok(()) };
        let Some(lacking) = self.filter.lacking().await else { return Ok(()) };
        let text = format!("nics.{index}: is on bridge {}, and {lacking}", bridge.name);
        Err(DriverError::refused(Code::HostToolMissing, text))
    }

    async fn lacks_bridge(&self, tag: &str, mac: &str) -> Result<bool, DriverError> {
        if self.config.user_tags.iter().any(|user| user == tag) {
            return Ok(false);
        }
        let (links, name) = (self.links.list().await?, bridge_name(tag));
        let bridge = links.iter().find(|link| link.is_bridge && link.is_called(&name));
        let nic = links::nic(&links, mac);
        let is_port = |bridge: &Link| nic.is_some_and(|nic| nic.bridge == Some(bridge.index));
        Ok(!bridge.is_some_and(|bridge| !is_tag_bridge(bridge) && is_port(bridge)))
    }

    async fn attach(&self, vm: VmUuid, nics: &[Nic]) -> Result<Vec<Attached>, DriverError> {
        let _changing = self.changing.lock().await;
        let links = self.links.list().await?;
        let (mut bridged, mut user) = (BTreeMap::new(), Vec::new());
        let (mut kept, mut guards) = (BTreeMap::new(), Guards::new());
        for nic in nics {
            let Some(bridge) = self.bridge_of(nic, &links) else {
                match self.stranded(vm, nic, &links) {
                    Some((tap, place)) => {
                        guards.insert(tap.clone(), self.guard(nic, Some(vm))?);
                        kept.insert(tap, place);
                    }
                    None => check_user_nic(nic)?,
                }
                user.push(nic.clone());
                continue;
            };
            check_nic(nic, bridge)?;
            let tap = tap_name(vm, nic.number);
            guards.insert(tap.clone(), self.guard(nic, Some(vm))?);
            kept.insert(tap, place(nic));
            bridged.insert(nic.index, (nic.clone(), bridge.clone()));
        }
        // Without rights nothing was made that could be removed.
        if self.links.lacking().is_none() {
            self.remove_others(vm, &kept, &links).await?;
        }
        let mut attached = self.user.attach(vm, &user).await?;
        if !guards.is_empty() {
            self.filter.remember(vm, &guards).await?;
            attached.extend(self.make_all(vm, &bridged).await?);
        }
        attached.sort_by_key(|attached| attached.nic.index);
        Ok(attached)
    }

    async fn detach(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.user.detach(vm).await?;
        let _changing = self.changing.lock().await;
        let links = self.links.list().await?;
        let removed = self.remove_others(vm, &BTreeMap::new(), &links).await?;
        self.links.remove_namespace(&self.namespaces.of(vm))?;
        self.filter.forget(vm).await?;
        if removed {
            // Rules of a tap that is gone do no harm, and no VM is kept for their sake.
            let problems = self.mend_filter(&self.links.list().await?).await;
            self.note(problems);
        }
        Ok(())
    }

    async fn counters(&self) -> Result<BTreeMap<VmUuid, Counters>, DriverError> {
        let mut counters = self.user.counters().await?;
        for (link, counted) in self.links.counters().await? {
            if let Some(stamp) = self.own(&link) {
                let sum = counters.entry(stamp.vm).or_default();
                *sum = sum.plus(counted);
            }
        }
        Ok(counters)
    }

    async fn holders(&self) -> Result<BTreeMap<VmUuid, Vec<String>>, DriverError> {
        let mut holders = self.user.holders().await?;
        for Tap { link, stamp } in self.taps(&self.links.list().await?) {
            holders.entry(stamp.vm).or_default().push(link.name.clone());
        }
        let failed = |error| DriverError::failed("look for network namespaces", error);
        for vm in self.namespaces.all().map_err(failed)? {
            // Of one without links nothing else would tell.
            holders.entry(vm).or_insert_with(|| vec![self.namespaces.of(vm).display().to_string()]);
        }
        Ok(holders)
    }
}

#[cfg(test)]
mod tests;
