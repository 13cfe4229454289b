//! The bridges that an agent makes for nic tags: one for each interface that carries some, called by
//! the first of them, with the others as further names. The host's addresses are where its interface
//! is: on the bridge as long as it is a port, on itself again afterwards.
//!
//! What there is is compared with what is wanted, and made so. Whatever was cut off goes on from what
//! it left, and what was tried is taken back by wanting what was before.

use muster_shared::error_chain::Chain;
use muster_shared::ids::ServerUuid;

use crate::drivers::DriverError;
use crate::drivers::network::links::{self, Link, NewBridge, Wires};
use crate::drivers::network::{BridgeStamp, bridge_name};

/// What names of the bridges of nic tags begin with.
const PREFIX: &str = "mt-";

/// The bridge of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicBridge {
    /// The interface's address, or the name of a bond.
    pub nic: String,
    /// Nic tags; at least one.
    pub tags: Vec<String>,
}

impl NicBridge {
    /// Its name, and its further names.
    fn names(&self) -> (String, Vec<String>) {
        let mut names = self.tags.iter().map(|tag| bridge_name(tag));
        (names.next().unwrap_or_default(), names.collect())
    }
}

/// Why a bridge is not as it should be.
#[derive(Debug, thiserror::Error)]
enum Amiss {
    #[error("{0}")]
    Refused(String),
    #[error("{}", Chain(.0))]
    Failed(#[from] DriverError),
}

/// Makes the bridges of this server's nic tags what is wanted; says what could not be.
///
/// # Errors
/// The links could not be read.
pub(super) async fn converge(
    wires: &dyn Wires,
    server: ServerUuid,
    wanted: &[NicBridge],
) -> Result<Vec<String>, DriverError> {
    let mut amiss = Vec::new();
    let found = wires.list().await?;
    for (bridge, stamp) in own(&found, server) {
        let is_it = |it: &&NicBridge| it.nic == stamp.nic && it.names().0 == bridge.name;
        let done = match wanted.iter().find(is_it) {
            None => take_down(wires, bridge, &stamp, &found).await,
            // All names are free before a bridge takes one that another had.
            Some(wanted) => free_names(wires, bridge, &wanted.names().1).await,
        };
        amiss.extend(done.err());
    }
    for bridge in wanted {
        amiss.extend(set_up(wires, server, bridge).await.err());
    }
    Ok(amiss.iter().map(ToString::to_string).collect())
}

fn own(links: &[Link], server: ServerUuid) -> Vec<(&Link, BridgeStamp)> {
    let stamped = links.iter().filter_map(|link| Some((link, BridgeStamp::of(link)?)));
    stamped.filter(|(_, stamp)| stamp.server == server).collect()
}

/// The interface leaves it with its addresses.
async fn take_down(
    wires: &dyn Wires,
    bridge: &Link,
    stamp: &BridgeStamp,
    links: &[Link],
) -> Result<(), Amiss> {
    if let Some(nic) = links::nic(links, &stamp.nic) {
        if nic.bridge == Some(bridge.index) {
            wires.leave(nic.index).await?;
        }
        wires.hand_over(bridge.index, nic.index).await?;
    }
    wires.remove(bridge.index).await?;
    tracing::info!(bridge = bridge.name, nic = stamp.nic, "the bridge of a nic tag is removed");
    Ok(())
}

async fn set_up(wires: &dyn Wires, server: ServerUuid, wanted: &NicBridge) -> Result<(), Amiss> {
    let (name, others) = wanted.names();
    let found = wires.list().await?;
    let nic = links::nic(&found, &wanted.nic);
    if is_others(&found, nic, server, wanted)? {
        return Ok(());
    }
    check_free(wires, nic, &found, server).await?;
    let stamp = BridgeStamp { server, nic: wanted.nic.clone() };
    if !found.iter().any(|link| link.name == name) {
        let (alias, draft) = (stamp.to_string(), format!("mtnew{}", &server.to_string()[..8]));
        let mac = nic.map_or(wanted.nic.as_str(), |nic| nic.mac.as_str());
        let new = NewBridge { name: &name, draft: &draft, alias: &alias, mac: Some(mac) };
        wires.make_bridge(new).await?;
        tracing::info!(bridge = name, nic = wanted.nic, "a bridge is made for a nic tag");
    }
    let found = wires.list().await?;
    let Some(bridge) = found.iter().find(|link| link.name == name) else {
        return Err(Amiss::Refused(format!("bridge {name} is gone again")));
    };
    for name in others.iter().filter(|name| !bridge.other_names.contains(name)) {
        wires.add_name(bridge.index, name).await?;
    }
    let Some(nic) = links::nic(&found, &wanted.nic) else {
        let tags = wanted.tags.join(", ");
        let text = format!("no interface has the address {} (nic tag {tags})", wanted.nic);
        return Err(Amiss::Refused(text));
    };
    if nic.bridge != Some(bridge.index) {
        wires.join(nic.index, bridge).await?;
        tracing::info!(bridge = name, nic = nic.name, "an interface is put into its bridge");
    }
    wires.hand_over(nic.index, bridge.index).await?;
    // It began when the interface was a port already.
    match wires.leased(nic.index).await?.first() {
        None => Ok(()),
        Some(address) => Err(Amiss::Refused(format!(
            "{nic} has got the address {address} for some time only (by DHCP or from a router), where it \
             is of no use, since {nic} is a port of {bridge}: have {bridge} ask for it, in the server's \
             own network configuration, and nothing on {nic}"
        ))),
    }
}

/// Whether somebody else has made the bridge, with the interface in it.
fn is_others(
    found: &[Link],
    nic: Option<&Link>,
    server: ServerUuid,
    wanted: &NicBridge,
) -> Result<bool, Amiss> {
    let (name, _) = wanted.names();
    let Some(link) = found.iter().find(|link| link.is_called(&name)) else { return Ok(false) };
    match BridgeStamp::of(link) {
        Some(stamp) if stamp.server == server && stamp.nic == wanted.nic => return Ok(false),
        Some(stamp) if stamp.server == server => {
            let text = format!("bridge {name} can't be taken from {}", stamp.nic);
            return Err(Amiss::Refused(text));
        }
        _ => {}
    }
    if link.is_bridge && nic.is_some_and(|nic| nic.bridge == Some(link.index)) {
        return Ok(true);
    }
    let nic = nic.map_or("the interface", |nic| nic.name.as_str());
    Err(Amiss::Refused(format!(
        "there is a network link {name} on the server, which this agent has not made, and {nic} is \
         no port of it: put it in, or remove the link"
    )))
}

/// Refuses an interface that somebody else makes use of in ways that a bridge would end.
async fn check_free(
    wires: &dyn Wires,
    nic: Option<&Link>,
    found: &[Link],
    server: ServerUuid,
) -> Result<(), Amiss> {
    let Some(nic) = nic else { return Ok(()) };
    let master = nic.bridge.and_then(|index| found.iter().find(|link| link.index == index));
    let Some(master) = master else {
        let leased = wires.leased(nic.index).await?;
        let Some(address) = leased.first() else { return Ok(()) };
        return Err(Amiss::Refused(format!(
            "{nic} has the address {address} for some time only (by DHCP or from a router), and what \
             renews it works on {nic}: make the bridge in the server's own network configuration"
        )));
    };
    if BridgeStamp::of(master).is_some_and(|stamp| stamp.server == server) {
        return Ok(());
    }
    Err(Amiss::Refused(format!(
        "{nic} is a port of {master}, which this agent has not made: give that bridge the further \
         name that the tag asks for (ip link property add dev {master} altname mt-TAG), or take {nic} \
         out of it"
    )))
}

/// Takes the names of tags away that are not wanted any more.
async fn free_names(wires: &dyn Wires, bridge: &Link, wanted: &[String]) -> Result<(), Amiss> {
    let own = bridge.other_names.iter().filter(|name| name.starts_with(PREFIX));
    for name in own.filter(|name| !wanted.contains(name)) {
        wires.remove_name(bridge.index, name).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
