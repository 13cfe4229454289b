//! The kernel's own links.

use async_trait::async_trait;
use futures_util::TryStreamExt as _;
use nix::errno::Errno;
use rtnetlink::packet_route::link::{
    AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoKind, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};

use super::{Link, Links, NewTap};
use crate::drivers::DriverError;
use crate::host::{Tap, procfs};

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
    let mut link = Link { index: message.header.index, up, ..Link::default() };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::IfAlias(alias) => link.alias = Some(alias),
            LinkAttribute::Controller(bridge) => link.bridge = Some(bridge),
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::LinkInfo(facts) => {
                link.is_bridge = facts.contains(&LinkInfo::Kind(InfoKind::Bridge));
            }
            _ => {}
        }
    }
    link
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

    async fn plug(&self, link: u32, bridge: &Link) -> Result<(), DriverError> {
        let links = talk()?.link();
        // Before it is a port: a bridge takes the smallest packet of its ports for its own.
        let wanted = LinkUnspec::new_with_index(link).mtu(bridge.mtu).controller(bridge.index).up();
        let plugged = links.set(wanted.build()).execute().await;
        plugged.map_err(|error| {
            DriverError::failed(format!("plug into bridge {}", bridge.name), error)
        })
    }

    async fn remove(&self, link: u32) -> Result<(), DriverError> {
        match talk()?.link().del(link).execute().await {
            Err(error) if errno(&error) == Some(Errno::ENODEV) => Ok(()),
            other => other
                .map_err(|error| DriverError::failed(format!("remove network link {link}"), error)),
        }
    }
}
