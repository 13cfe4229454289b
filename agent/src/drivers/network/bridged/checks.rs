//! What can be asked for a NIC, by where it is.

use muster_shared::wire::Code;
use serde_json::Value;

use crate::drivers::DriverError;
use crate::drivers::network::links::Link;
use crate::drivers::network::{Nic, bridge_name, namespaces};

/// Of IEEE 802.1Q; 4095 is reserved.
const MAX_VLAN: u16 = 4094;

fn refused(nic: &Nic, member: &str, problem: &str) -> DriverError {
    let text = format!("nics.{}.{member}: {problem}", nic.index);
    DriverError::refused(Code::InvalidParameters, text)
}

/// Refuses what is asked for a NIC and its bridge can't give.
pub(super) fn check_nic(nic: &Nic, bridge: &Link) -> Result<(), DriverError> {
    if nic.in_namespace {
        namespaces::check(nic)?;
    }
    if nic.vlan_id > MAX_VLAN {
        return Err(refused(nic, "vlan_id", "VLANs have numbers from 1 to 4094"));
    }
    if nic.vlan_id != 0 && bridge.default_vlan.is_none() {
        let problem = format!(
            "bridge {bridge} does not keep VLANs apart: ip link set {bridge} type bridge \
             vlan_filtering 1, and put the server's interface into VLAN {vlan}: bridge vlan add dev \
             INTERFACE vid {vlan}",
            bridge = bridge.name,
            vlan = nic.vlan_id,
        );
        return Err(refused(nic, "vlan_id", &problem));
    }
    if let Some(mtu) = nic.mtu.filter(|mtu| *mtu > bridge.mtu) {
        let problem = format!("{mtu} is more than bridge {} carries: {}", bridge.name, bridge.mtu);
        return Err(refused(nic, "mtu", &problem));
    }
    if let Some(forward) = nic.forwards.first() {
        let text = format!(
            "internal_metadata[\"muster:hostfwd\"]: {forward}: ports are published on user-mode \
             networks only, and nics.{} is on bridge {}; take the ports away, or name its tag in \
             network.user_tags",
            nic.index, bridge.name
        );
        return Err(DriverError::refused(Code::InvalidParameters, text));
    }
    Ok(())
}

/// Refuses what is asked for a NIC and a user-mode network can't give.
pub(super) fn check_user_nic(nic: &Nic) -> Result<(), DriverError> {
    if nic.in_namespace {
        let tag = nic.tag.as_deref().unwrap_or_default();
        let problem = format!(
            "containers are on bridges only, and this server has no bridge {} for nic tag {tag:?}",
            bridge_name(tag)
        );
        return Err(refused(nic, "nic_tag", &problem));
    }
    if nic.firewall.as_ref().is_some_and(|firewall| !firewall.rules.is_empty()) {
        let text = format!(
            "firewall_rules: nics.{} is on a user-mode network, where no rules are in force and \
             published ports alone lead to the guest; make a bridge for its nic tag, or take the \
             rules away",
            nic.index
        );
        return Err(DriverError::refused(Code::InvalidParameters, text));
    }
    if nic.vlan_id != 0 {
        let problem = "the interface is on a user-mode network, which has no VLANs; make a bridge for \
                       its nic tag that keeps them apart, or take the VLAN away";
        return Err(refused(nic, "vlan_id", problem));
    }
    match nic.described.get("max_mbit_per_second").and_then(Value::as_u64) {
        None | Some(0) => Ok(()),
        Some(_) => Err(refused(
            nic,
            "max_mbit_per_second",
            "the interface is on a user-mode network, which has no limits; make a bridge for its nic \
             tag, or take the limit away",
        )),
    }
}
