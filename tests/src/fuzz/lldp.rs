//! What switches send of themselves: `report::lldp::frame`.

use muster_agent::report::lldp::frame;

/// Longest text of an element, bytes, each of which may be shown as a character of three.
const MAX_TEXT_BYTES: usize = 3 * 255;

/// Reads a frame.
pub fn run(data: &[u8]) {
    let Ok(read) = frame::parse(data) else { return };
    let neighbour = read.neighbour;
    let texts = [neighbour.port_description, neighbour.system_name, neighbour.system_description];
    for text in texts.into_iter().flatten().chain([neighbour.chassis_id, neighbour.port_id]) {
        assert!(text.len() <= MAX_TEXT_BYTES, "{} bytes", text.len());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
    assert!(neighbour.vlan != Some(0) && read.holds.as_secs() <= u64::from(u16::MAX));
    assert!(data.len() >= 14, "more was read than there is");
}
