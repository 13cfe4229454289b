//! What a guest has to talk with its agent: a second serial port for metadata, and a channel to the
//! guest agent.

use std::path::PathBuf;

use serde_json::Value;

use super::argv::escaped;
use super::folder::GuestFolder;
use crate::drivers::compute::AgentChannel;

/// Names the guest agent's channel on the host's side.
const AGENT: &str = "qga0";
/// Names it in the guest; guest agents look for this name.
const AGENT_IN_GUEST: &str = "org.qemu.guest_agent.0";

/// The arguments that make both. The serial port is the second one: the console's is told before.
pub(super) fn arguments(folder: &GuestFolder) -> [(&'static str, String); 5] {
    let socket = |id: &str, path: PathBuf| {
        let path = escaped(&path.display().to_string());
        format!("socket,id={id},path={path},server=on,wait=off")
    };
    let port = format!("virtserialport,bus=channels0.0,nr=1,chardev={AGENT},name={AGENT_IN_GUEST}");
    [
        ("-chardev", socket("serial1", folder.metadata_channel())),
        ("-serial", "chardev:serial1".to_owned()),
        ("-chardev", socket(AGENT, folder.guest_agent())),
        ("-device", "virtio-serial-pci,id=channels0".to_owned()),
        ("-device", port),
    ]
}

/// What the hypervisor's list of character devices says of the guest agent's channel.
pub(super) fn agent_channel(chardevs: &Value) -> AgentChannel {
    let mut all = chardevs.as_array().into_iter().flatten();
    match all.find(|chardev| chardev["label"] == AGENT) {
        None => AgentChannel::Absent,
        Some(chardev) if chardev["frontend-open"] == true => AgentChannel::Open,
        Some(_) => AgentChannel::Closed,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hypervisor_tells_whether_a_guest_agent_is_there() {
        let other = json!({ "label": "serial0", "frontend-open": true });
        let with = |open: bool| json!([other, { "label": "qga0", "frontend-open": open }]);
        assert_eq!(agent_channel(&json!([other])), AgentChannel::Absent);
        assert_eq!(agent_channel(&with(false)), AgentChannel::Closed);
        assert_eq!(agent_channel(&with(true)), AgentChannel::Open);
    }
}
