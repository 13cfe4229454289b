//! Whose a network link is, and what it is called.

use std::fmt;

use muster_shared::ids::{ServerUuid, VmUuid};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::links::Link;

/// Names of links have at most 15 characters: so many are left of a bridge's for its tag.
const TAG_CHARS: usize = 11;
/// Characters of a longer tag that are kept; the rest of its room tells it from others.
const KEPT_CHARS: usize = 7;
/// The first word on a link of an agent's.
const WORD: &str = "muster";

/// The bridge of a network.
#[must_use]
pub fn bridge_name(tag: &str) -> String {
    let is_long = tag.len() > TAG_CHARS || !tag.is_ascii();
    if !is_long {
        return format!("mt-{tag}");
    }
    let kept: String = tag.chars().filter(char::is_ascii_alphanumeric).take(KEPT_CHARS).collect();
    let hash = hex::encode(Sha256::digest(tag));
    format!("mt-{kept}{}", &hash[..TAG_CHARS - KEPT_CHARS])
}

/// The tap of a VM's NIC.
pub fn tap_name(vm: VmUuid, nic: usize) -> String {
    let vm = vm.0.simple().to_string();
    format!("mt{}{nic}", &vm[..8])
}

/// What an agent writes on each link that it makes. Nothing without it is ever changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) server: ServerUuid,
    pub(super) cluster: Option<Uuid>,
    pub(super) vm: VmUuid,
    /// The bridge that it belongs to.
    pub(super) bridge: String,
    /// The VLAN that it is in; 0: none.
    pub(super) vlan: u16,
}

/// Where a link is plugged in: the bridge and the VLAN.
pub(super) type Place = (String, u16);

impl Stamp {
    pub(super) fn place(&self) -> Place {
        (self.bridge.clone(), self.vlan)
    }
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WORD} server={} vm={} bridge={}", self.server, self.vm, self.bridge)?;
        if self.vlan != 0 {
            write!(f, " vlan={}", self.vlan)?;
        }
        match self.cluster {
            Some(cluster) => write!(f, " cluster={cluster}"),
            None => Ok(()),
        }
    }
}

impl Stamp {
    /// The stamp in an alias; `None`: it is no agent's link.
    pub(super) fn parse(alias: &str) -> Option<Self> {
        let mut words = alias.split(' ');
        if words.next() != Some(WORD) {
            return None;
        }
        let members: Vec<(&str, &str)> = words.filter_map(|word| word.split_once('=')).collect();
        let of = |name: &str| {
            members.iter().find(|(member, _)| *member == name).map(|(_, value)| *value)
        };
        Some(Self {
            server: of("server")?.parse().ok()?,
            cluster: of("cluster").and_then(|cluster| cluster.parse().ok()),
            vm: of("vm")?.parse().ok()?,
            bridge: of("bridge")?.to_owned(),
            vlan: of("vlan").map_or(Some(0), |vlan| vlan.parse().ok())?,
        })
    }
}

/// What an agent writes on each bridge that it makes for nic tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeStamp {
    /// The server whose bridge it is.
    pub server: ServerUuid,
    /// The interface that it carries, as nic tags name it.
    pub nic: String,
}

impl fmt::Display for BridgeStamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{WORD} server={} nic={}", self.server, self.nic)
    }
}

impl BridgeStamp {
    /// The stamp of a link; `None`: no agent made it for nic tags.
    #[must_use]
    pub fn of(link: &Link) -> Option<Self> {
        let rest = link.alias.as_deref()?.strip_prefix(WORD)?.strip_prefix(" server=")?;
        let (server, nic) = rest.split_once(" nic=")?;
        let stamp = Self { server: server.parse().ok()?, nic: nic.to_owned() };
        link.is_bridge.then_some(stamp)
    }
}

/// Whether an agent made it for nic tags.
pub(super) fn is_tag_bridge(link: &Link) -> bool {
    BridgeStamp::of(link).is_some()
}

/// Whether an agent wrote this on a link that it made.
#[must_use]
pub fn is_of_an_agent(alias: &str) -> bool {
    alias.strip_prefix(WORD).is_some_and(|rest| rest.starts_with(" server="))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_fit_and_long_tags_differ() {
        assert_eq!(bridge_name("admin"), "mt-admin");
        assert_eq!(bridge_name("elevenchars"), "mt-elevenchars");
        assert_eq!(bridge_name("customer_network"), "mt-custome6d77");
        let (one, two) = (bridge_name("customer_network_1"), bridge_name("customer_network_2"));
        assert!(one.starts_with("mt-custome") && one.len() == 14 && one != two, "{one} {two}");
        let vm: VmUuid = "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01".parse().unwrap();
        assert_eq!(tap_name(vm, 0), "mt6c1a5a440");
        assert!(tap_name(vm, 63).len() <= 15);
    }

    #[test]
    fn a_stamp_is_read_as_it_was_written() {
        let stamp = Stamp {
            server: Uuid::from_u128(1).into(),
            cluster: Some(Uuid::from_u128(2)),
            vm: VmUuid(Uuid::from_u128(3)),
            bridge: "mt-admin".to_owned(),
            vlan: 0,
        };
        let unknown = Stamp { cluster: None, vlan: 4094, ..stamp.clone() };
        for stamp in [stamp, unknown] {
            let alias = stamp.to_string();
            // The kernel's limit.
            assert!(alias.len() < 256);
            assert_eq!(Stamp::parse(&alias), Some(stamp));
        }
        for other in ["", "uplink to the lab", "muster", "muster server=x vm=y bridge=z"] {
            assert_eq!(Stamp::parse(other), None, "{other}");
        }
    }

    #[test]
    fn the_stamp_of_a_bridge_is_none_of_a_tap() {
        let stamp =
            BridgeStamp { server: Uuid::from_u128(1).into(), nic: "02:00:00:00:00:01".to_owned() };
        let alias = stamp.to_string();
        let link = Link { alias: Some(alias.clone()), is_bridge: true, ..Link::default() };
        assert_eq!(BridgeStamp::of(&link), Some(stamp));
        assert_eq!(BridgeStamp::of(&Link { is_bridge: false, ..link }), None);
        assert_eq!(Stamp::parse(&alias), None);
        assert!(is_of_an_agent(&alias));
        for other in ["", "muster", "mustered server=x", "uplink"] {
            assert!(!is_of_an_agent(other), "{other}");
        }
    }

    proptest! {
        #[test]
        fn every_tag_has_a_name_of_a_link(tag in "\\PC{1,40}") {
            let name = bridge_name(&tag);
            prop_assert!(name.len() <= 15, "{}", name);
        }
    }
}
