//! Bridges for the host's interfaces, and the addresses and routes that go with them.

use std::net::IpAddr;

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::AddressFamily;
use rtnetlink::packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use rtnetlink::packet_route::link::BridgeVlanInfoFlags;
use rtnetlink::packet_route::route::{
    RouteAttribute, RouteFlags, RouteMessage, RouteProtocol, RouteType,
};
use rtnetlink::{Error, Handle, LinkBridge, LinkBridgeVlan, LinkMessageBuilder, LinkUnspec};

use super::super::{Link, Links as _, NewBridge, Wires};
use super::{NetlinkLinks, errno, talk};
use crate::drivers::DriverError;

/// The VLANs beside the one of frames without tags.
const TAGGED: (u16, u16) = (2, 4094);

/// Done, or done before.
pub(super) fn unless(done: Result<(), Error>, before: Errno) -> Result<(), Error> {
    match done {
        Err(error) if errno(&error) == Some(before) => Ok(()),
        other => other,
    }
}

pub(super) fn octets(mac: &str) -> Option<Vec<u8>> {
    let parsed: Option<Vec<u8>> =
        mac.split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    parsed.filter(|mac| mac.len() == 6)
}

fn flags(address: &AddressMessage) -> AddressFlags {
    let own = address.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Flags(flags) => Some(*flags),
        _ => None,
    });
    own.unwrap_or_else(|| AddressFlags::from_bits_retain(u32::from(address.header.flags.bits())))
}

fn ip(address: &AddressMessage) -> Option<IpAddr> {
    let find = |wanted: fn(&AddressAttribute) -> Option<IpAddr>| {
        address.attributes.iter().find_map(wanted)
    };
    let local = find(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    local.or_else(|| {
        find(|attribute| match attribute {
            AddressAttribute::Address(ip) => Some(*ip),
            _ => None,
        })
    })
}

/// Each link has its own one, made from its own hardware address.
fn is_link_local(address: &AddressMessage) -> bool {
    address.header.family == AddressFamily::Inet6 && address.header.scope == AddressScope::Link
}

/// The addresses of a link but its link-local ones.
async fn addresses(handle: &Handle, link: u32) -> Result<Vec<AddressMessage>, Error> {
    let all: Vec<_> = handle.address().get().execute().try_collect().await?;
    let own = |it: &AddressMessage| it.header.index == link && !is_link_local(it);
    Ok(all.into_iter().filter(own).collect())
}

/// The same address on another link, usable at once: nobody else has taken it meanwhile.
fn address_on(address: &AddressMessage, link: u32) -> AddressMessage {
    let mut new = address.clone();
    (new.header.index, new.header.flags) = (link, AddressHeaderFlags::Nodad);
    let kept = flags(address) & AddressFlags::Noprefixroute;
    new.attributes.retain(|attribute| {
        matches!(
            attribute,
            AddressAttribute::Address(_)
                | AddressAttribute::Local(_)
                | AddressAttribute::Broadcast(_)
                | AddressAttribute::RoutePriority(_)
        )
    });
    new.attributes.push(AddressAttribute::Flags(kept | AddressFlags::Nodad));
    new
}

/// The routes over a link that somebody set: the others come with its addresses, or from routers.
async fn routes(handle: &Handle, link: u32) -> Result<Vec<RouteMessage>, Error> {
    let mut found = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let all: Vec<_> = handle.route().get(question).execute().try_collect().await?;
        found.extend(all.into_iter().filter(|route| {
            route.attributes.contains(&RouteAttribute::Oif(link))
                && route.header.kind == RouteType::Unicast
                && !matches!(route.header.protocol, RouteProtocol::Kernel | RouteProtocol::Ra)
        }));
    }
    Ok(found)
}

/// The same route over another link.
fn route_over(route: &RouteMessage, link: u32) -> RouteMessage {
    let mut new = route.clone();
    new.header.flags &= RouteFlags::Onlink;
    new.attributes.retain(|attribute| {
        matches!(
            attribute,
            RouteAttribute::Destination(_)
                | RouteAttribute::Gateway(_)
                | RouteAttribute::Via(_)
                | RouteAttribute::PrefSource(_)
                | RouteAttribute::Priority(_)
                | RouteAttribute::Table(_)
                | RouteAttribute::Metrics(_)
                | RouteAttribute::Preference(_)
        )
    });
    new.attributes.push(RouteAttribute::Oif(link));
    new
}

async fn hand_over(handle: &Handle, from: u32, to: u32) -> Result<(), Error> {
    let lasting = |it: &AddressMessage| flags(it).contains(AddressFlags::Permanent);
    let addresses: Vec<_> = addresses(handle, from).await?.into_iter().filter(lasting).collect();
    // Before an address goes: routes go with the address that they name as their source.
    let routes = routes(handle, from).await?;
    for address in &addresses {
        let mut add = handle.address().add(to, IpAddr::from([0, 0, 0, 0]), 0).replace();
        *add.message_mut() = address_on(address, to);
        add.execute().await?;
    }
    for route in &routes {
        handle.route().add(route_over(route, to)).replace().execute().await?;
    }
    for address in addresses {
        let gone = handle.address().del(address).execute().await;
        unless(gone, Errno::EADDRNOTAVAIL)?;
    }
    for route in routes {
        unless(handle.route().del(route_over(&route, from)).execute().await, Errno::ESRCH)?;
    }
    Ok(())
}

/// Makes it under the name of a draft, on which nobody relies.
async fn make_bridge(handle: &Handle, new: NewBridge<'_>, draft: Option<u32>) -> Result<(), Error> {
    let links = handle.link();
    if let Some(left) = draft {
        unless(links.del(left).execute().await, Errno::ENODEV)?;
    }
    let mac = new.mac.and_then(octets);
    let bridge = |apart: bool| {
        let mut bridge = LinkMessageBuilder::<LinkBridge>::new(new.draft);
        if let Some(mac) = mac.clone() {
            bridge = bridge.address(mac);
        }
        if apart { bridge.vlan_filtering(true).build() } else { bridge.build() }
    };
    match links.add(bridge(true)).execute().await {
        Err(error) if errno(&error) == Some(Errno::EOPNOTSUPP) => {
            links.add(bridge(false)).execute().await?;
        }
        made => made?,
    }
    // In one message: the name comes with what says whose bridge it is.
    let mut found = links.get().match_name(new.draft.to_owned()).execute();
    let Some(made) = found.try_next().await? else { return Err(Error::RequestFailed) };
    let index = made.header.index;
    let complete = LinkUnspec::new_with_index(index).name(new.name).alias(new.alias).up();
    links.set(complete.build()).execute().await
}

async fn join(handle: &Handle, nic: u32, bridge: &Link) -> Result<(), Error> {
    let links = handle.link();
    let port = LinkUnspec::new_with_index(nic).controller(bridge.index).up();
    links.set(port.build()).execute().await?;
    if bridge.default_vlan.is_some() {
        let tagged = BridgeVlanInfoFlags::empty();
        let all = LinkBridgeVlan::new(nic)
            .vlan_range_start(TAGGED.0, tagged)
            .vlan_range_end(TAGGED.1, tagged);
        links.set(all.build()).execute().await?;
    }
    Ok(())
}

#[async_trait]
impl Wires for NetlinkLinks {
    async fn make_bridge(&self, new: NewBridge<'_>) -> Result<(), DriverError> {
        let links = self.list().await?;
        let draft = links.iter().find(|link| link.name == new.draft).map(|link| link.index);
        let made = make_bridge(&talk()?, new, draft).await;
        made.map_err(|error| DriverError::failed(format!("make bridge {}", new.name), error))
    }

    async fn add_name(&self, link: u32, name: &str) -> Result<(), DriverError> {
        let added = talk()?.link().property_add(link).alt_ifname(&[name]).execute().await;
        added.map_err(|error| DriverError::failed(format!("give a bridge the name {name}"), error))
    }

    async fn remove_name(&self, link: u32, name: &str) -> Result<(), DriverError> {
        let removed = talk()?.link().property_del(link).alt_ifname(&[name]).execute().await;
        removed.map_err(|error| DriverError::failed(format!("take the name {name} away"), error))
    }

    async fn join(&self, nic: u32, bridge: &Link) -> Result<(), DriverError> {
        let joined = join(&talk()?, nic, bridge).await;
        joined.map_err(|error| {
            DriverError::failed(format!("put interface {nic} into bridge {bridge}"), error)
        })
    }

    async fn leave(&self, nic: u32) -> Result<(), DriverError> {
        let port = LinkUnspec::new_with_index(nic).nocontroller();
        let left = talk()?.link().set(port.build()).execute().await;
        left.map_err(|error| {
            DriverError::failed(format!("take interface {nic} out of its bridge"), error)
        })
    }

    async fn leased(&self, nic: u32) -> Result<Vec<IpAddr>, DriverError> {
        let found = addresses(&talk()?, nic).await;
        let found = found
            .map_err(|error| DriverError::failed("read the addresses of an interface", error))?;
        let leased = |it: &&AddressMessage| !flags(it).contains(AddressFlags::Permanent);
        Ok(found.iter().filter(leased).filter_map(ip).collect())
    }

    async fn hand_over(&self, from: u32, to: u32) -> Result<(), DriverError> {
        let moved = hand_over(&talk()?, from, to).await;
        moved.map_err(|error| {
            DriverError::failed(format!("move addresses from link {from} to link {to}"), error)
        })
    }
}
