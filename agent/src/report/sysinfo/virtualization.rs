//! What kinds of VMs can run here: what the compute driver's probe found.

use serde_json::json;

use super::probe::Probe;
use super::{Group, Keys, keys};
use crate::drivers::DriverError;

pub(super) const GROUP: Group =
    Group { name: "virtualization", collect: |probe| Box::pin(collect(probe)), unknown };

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    Ok(unknown(probe))
}

/// The driver's answer is always at hand.
fn unknown(probe: &Probe) -> Keys {
    let abilities = probe.compute.abilities();
    keys(json!({
        "VM Capable": abilities.hvm,
        "Bhyve Capable": abilities.hvm,
        "Bhyve Max Vcpus": if abilities.hvm { abilities.max_vcpus } else { 0 },
        "HVM API": abilities.hvm,
    }))
}
