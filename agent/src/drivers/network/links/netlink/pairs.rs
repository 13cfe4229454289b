//! Pairs of links, one end of which is a container's.
//!
//! A pair is made inside the container's namespace, and its near end comes out when it is named and
//! says whose it is: whatever is cut off is in the namespace, and goes with it.

use std::io;
use std::path::Path;

use futures_util::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::{Error, Handle, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};

use super::wires::{octets, unless};
use super::{errno, read, without_address};
use crate::drivers::DriverError;
use crate::drivers::network::links::{FarEnd, Link, NewTap};
use crate::host::netns;

/// The link that every namespace has.
const LOOPBACK: &str = "lo";

pub(super) async fn make(near: NewTap<'_>, far: &FarEnd) -> Result<(), DriverError> {
    let failed = |error: Error| DriverError::failed(format!("make link {}", near.name), error);
    let namespace = far.namespace.display();
    let made = make_namespace(&far.namespace).and_then(|()| talk_within(&far.namespace));
    let inside = made.map_err(|error| {
        DriverError::failed(format!("make network namespace {namespace}"), error)
    })?;
    let outside = super::talk()?;
    let is_outside = find(&outside, near.name).await.map_err(failed)?;
    let is_inside = find(&inside, &far.name).await.map_err(failed)?;
    match (is_outside, is_inside) {
        (Some(_), Some(_)) => {}
        (near_end, far_end) => {
            // Half a pair is of no use: the other end was taken away, or never came out.
            if let Some(link) = near_end {
                remove(&outside, link.index).await.map_err(failed)?;
            }
            if let Some(link) = far_end {
                remove(&inside, link.index).await.map_err(failed)?;
            }
            add(&inside, near, far).await.map_err(failed)?;
            // What was said of addresses stays behind when a link comes out.
            let own = without_address(LinkUnspec::new_with_name(near.name));
            outside.link().set(own.build()).execute().await.map_err(failed)?;
        }
    }
    set_up(&inside, far).await.map_err(failed)
}

fn make_namespace(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        muster_shared::folders::make_private(folder)?;
    }
    netns::make(path)
}

/// A conversation with the kernel about a namespace.
fn talk_within(path: &Path) -> io::Result<Handle> {
    let runtime = tokio::runtime::Handle::current();
    let (connection, handle, _) = netns::within(path, move || {
        let _runtime = runtime.enter();
        rtnetlink::new_connection()
    })?;
    // Ends with its handle.
    drop(tokio::spawn(connection));
    Ok(handle)
}

async fn find(handle: &Handle, name: &str) -> Result<Option<Link>, Error> {
    let all: Vec<Link> = handle.link().get().execute().map_ok(read).try_collect().await?;
    Ok(all.into_iter().find(|link| link.name == name))
}

async fn remove(handle: &Handle, link: u32) -> Result<(), Error> {
    unless(handle.link().del(link).execute().await, Errno::ENODEV)
}

async fn add(inside: &Handle, near: NewTap<'_>, far: &FarEnd) -> Result<(), Error> {
    let mut end = LinkMessage::default();
    end.attributes.push(LinkAttribute::IfName(far.name.clone()));
    end.attributes.extend(octets(&far.mac).map(LinkAttribute::Address));
    let pair = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth)
        .name(near.name)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(end)));
    inside.link().add(pair.build()).execute().await?;
    let own = LinkUnspec::new_with_name(near.name).alias(near.alias);
    inside.link().set(own.build()).execute().await?;
    let out = LinkUnspec::new_with_name(near.name).setns_by_pid(std::process::id());
    inside.link().set(out.build()).execute().await
}

/// Addresses and routes, as often as it likes.
async fn set_up(inside: &Handle, far: &FarEnd) -> Result<(), Error> {
    let lost = || Error::RequestFailed;
    let loopback = find(inside, LOOPBACK).await?.ok_or_else(lost)?;
    let link = find(inside, &far.name).await?.ok_or_else(lost)?;
    let set = |index: u32| LinkUnspec::new_with_index(index);
    inside.link().set(set(loopback.index).up().build()).execute().await?;
    let own = set(link.index).mtu(far.mtu);
    let own = if far.up { own.up() } else { own.down() };
    inside.link().set(own.build()).execute().await?;
    for address in &far.addresses {
        let add = inside.address().add(link.index, address.addr(), address.prefix_len());
        unless(add.execute().await, Errno::EEXIST)?;
    }
    if !far.up {
        return Ok(());
    }
    for gateway in &far.gateways {
        let added = match gateway {
            std::net::IpAddr::V4(gateway) => {
                let route = RouteMessageBuilder::<std::net::Ipv4Addr>::new().gateway(*gateway);
                inside.route().add(route.output_interface(link.index).build()).execute().await
            }
            std::net::IpAddr::V6(gateway) => {
                let route = RouteMessageBuilder::<std::net::Ipv6Addr>::new().gateway(*gateway);
                inside.route().add(route.output_interface(link.index).build()).execute().await
            }
        };
        match added {
            Err(error) if errno(&error) == Some(Errno::EEXIST) => {}
            other => other?,
        }
    }
    Ok(())
}
