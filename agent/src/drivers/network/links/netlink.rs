//! The kernel's own links.

mod pairs;
mod wires;

use std::path::Path;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, BridgeVlanInfoFlags, In6AddrGenMode, InfoBridge, InfoData, InfoKind,
    LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, Prop,
};
use rtnetlink::{Handle, LinkBridgeVlan, LinkHandle, LinkMessageBuilder, LinkUnspec};

use super::{Counters, FarEnd, Link, Links, NewTap};
use crate::drivers::DriverError;
use crate::host::{Tap, netns, procfs};

/// `CAP_NET_ADMIN`, see capabilities(7).
const NET_ADMIN: u32 = 12;

/// The links of the network namespace that this process is in.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetlinkLinks;

/// A conversation with the kernel, over when it is dropped.
fn talk() -> Result<Handle, DriverError> {
    let opened = rtnetlink::new_connection();
    let (connection, handle, _) =
        opened.map_err(|error| DriverError::failed("talk to the kernel about links", error))?;
    // Ends with its handle.
    drop(tokio::spawn(connection));
    Ok(handle)
}

fn errno(error: &rtnetlink::Error) -> Option<Errno> {
    match error {
        rtnetlink::Error::NetlinkError(message) => {
            message.code.map(|code| Errno::from_raw(code.get().wrapping_abs()))
        }
        _ => None,
    }
}

fn read(message: LinkMessage) -> Link {
    let up = message.header.flags.contains(LinkFlags::Up);
    let is_ether = message.header.link_layer_type == LinkLayerType::Ether;
    let mut link =
        Link { index: message.header.index, up, is_interface: is_ether, ..Link::default() };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
            LinkAttribute::PropList(names) => link.other_names = other_names(names),
            LinkAttribute::Address(mac) => link.mac = mac_text(&mac),
            LinkAttribute::PermAddress(mac) => link.hardware_mac = Some(mac_text(&mac)),
            LinkAttribute::Controller(bridge) => link.bridge = Some(bridge),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::LinkInfo(facts) => {
                let kind = facts.iter().find_map(|fact| match fact {
                    LinkInfo::Kind(kind) => Some(kind),
                    _ => None,
                });
                link.is_interface &= matches!(kind, None | Some(InfoKind::Bond | InfoKind::Veth));
                link.is_bridge = facts.contains(&LinkInfo::Kind(InfoKind::Bridge));
                link.default_vlan = facts.iter().find_map(default_vlan);
            }
            _ => {}
        }
    }
    link
}

fn other_names(properties: Vec<Prop>) -> Vec<String> {
    let name = |property| match property {
        Prop::AltIfName(name) => Some(name),
        _ => None,
    };
    properties.into_iter().filter_map(name).collect()
}

fn mac_text(mac: &[u8]) -> String {
    mac.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":")
}

/// What a host receives from a tap its guest has sent.
fn counters(attribute: &LinkAttribute) -> Option<Counters> {
    let LinkAttribute::Stats64(counted) = attribute else { return None };
    Some(Counters {
        received_bytes: counted.tx_bytes,
        sent_bytes: counted.rx_bytes,
        received_packets: counted.tx_packets,
        sent_packets: counted.rx_packets,
    })
}

/// See [`Link::default_vlan`].
fn default_vlan(fact: &LinkInfo) -> Option<u16> {
    let LinkInfo::Data(InfoData::Bridge(settings)) = fact else { return None };
    let apart = settings.contains(&InfoBridge::VlanFiltering(true));
    let default = settings.iter().find_map(|setting| match setting {
        InfoBridge::VlanDefaultPvid(vlan) => Some(*vlan),
        _ => None,
    });
    apart.then(|| default.unwrap_or(0))
}

/// Puts a port into this VLAN alone.
async fn put_into_vlan(
    links: &LinkHandle,
    port: u32,
    bridge: &Link,
    vlan: u16,
) -> Result<(), rtnetlink::Error> {
    let own = BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged;
    links.set(LinkBridgeVlan::new(port).vlan(vlan, own).build()).execute().await?;
    if let Some(default) = bridge.default_vlan.filter(|default| ![0, vlan].contains(default)) {
        let message = LinkBridgeVlan::new(port).vlan(default, BridgeVlanInfoFlags::empty());
        links.del_with_message(message.build()).execute().await?;
    }
    Ok(())
}

/// The host is to have no address of its own on a guest's tap.
fn without_address(link: LinkMessageBuilder<LinkUnspec>) -> LinkMessageBuilder<LinkUnspec> {
    let none = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
    link.append_extra_attribute(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![none])]))
}

#[async_trait]
impl Links for NetlinkLinks {
    fn lacking(&self) -> Option<String> {
        match procfs::has_capability(NET_ADMIN) {
            Ok(true) => None,
            Ok(false) => Some(
                "the agent may not change networks: run it as root, or give its unit \
                 AmbientCapabilities=CAP_NET_ADMIN"
                    .to_owned(),
            ),
            Err(error) => Some(format!("the agent's own rights can't be read: {error}")),
        }
    }

    async fn list(&self) -> Result<Vec<Link>, DriverError> {
        let links = talk()?.link().get().execute().map_ok(read).try_collect().await;
        links.map_err(|error| DriverError::failed("list the network links", error))
    }

    async fn counters(&self) -> Result<Vec<(Link, Counters)>, DriverError> {
        let counted = |message: LinkMessage| {
            let counters = message.attributes.iter().find_map(counters).unwrap_or_default();
            (read(message), counters)
        };
        let links = talk()?.link().get().execute().map_ok(counted).try_collect().await;
        links.map_err(|error| DriverError::failed("read the counters of the network links", error))
    }

    async fn make_tap(&self, new: NewTap<'_>) -> Result<(), DriverError> {
        let NewTap { name, alias } = new;
        let failed = |error| DriverError::failed(format!("make tap {name}"), error);
        let tap = Tap::make(name, nix::unistd::geteuid().as_raw()).map_err(failed)?;
        let link = without_address(LinkUnspec::new_with_name(name).alias(alias));
        let named = talk()?.link().set(link.build()).execute().await;
        named.map_err(|error| DriverError::failed(format!("name tap {name}"), error))?;
        // Not before: one that nobody can tell whose it is must not outlive this process.
        tap.keep().map_err(failed)
    }

    async fn make_pair(&self, near: NewTap<'_>, far: &FarEnd) -> Result<(), DriverError> {
        pairs::make(near, far).await
    }

    fn remove_namespace(&self, namespace: &Path) -> Result<(), DriverError> {
        let failed = |error| {
            let action = format!("remove network namespace {}", namespace.display());
            DriverError::failed(action, error)
        };
        netns::remove(namespace).map_err(failed)
    }

    async fn plug(&self, link: u32, bridge: &Link, vlan: u16) -> Result<(), DriverError> {
        let failed =
            |error| DriverError::failed(format!("plug into bridge {}", bridge.name), error);
        let links = talk()?.link();
        // Before it is a port: a bridge takes the smallest packet of its ports for its own.
        let port = LinkUnspec::new_with_index(link).mtu(bridge.mtu).controller(bridge.index);
        if vlan == 0 {
            return links.set(port.up().build()).execute().await.map_err(failed);
        }
        // Nothing comes through before it is in its VLAN.
        links.set(port.down().build()).execute().await.map_err(failed)?;
        put_into_vlan(&links, link, bridge, vlan).await.map_err(failed)?;
        let up = LinkUnspec::new_with_index(link).up();
        links.set(up.build()).execute().await.map_err(failed)
    }

    async fn remove(&self, link: u32) -> Result<(), DriverError> {
        match talk()?.link().del(link).execute().await {
            Err(error) if errno(&error) == Some(Errno::ENODEV) => Ok(()),
            other => other
                .map_err(|error| DriverError::failed(format!("remove network link {link}"), error)),
        }
    }
}
