//! The host's interfaces, in Prometheus' text form. What is not known has no sample.

use muster_shared::exposition::{Exposition, Kind};

use crate::report::Interface;

/// A figure: its name, type and help, and where it is.
type Figure = (&'static str, Kind, &'static str, fn(&Interface) -> Option<u64>);

/// Bits of a Mbit.
const MEGA: u64 = 1_000_000;

const FIGURES: &[Figure] = &[
    ("muster_agent_interface_up", Kind::Gauge, "1 if it is on and has a partner.", |it| {
        Some(u64::from(it.up))
    }),
    (
        "muster_agent_interface_speed_bits_per_second",
        Kind::Gauge,
        "Speed that it agreed on with its partner.",
        |it| it.speed_mb.map(|speed| speed.saturating_mul(MEGA)),
    ),
    (
        "muster_agent_interface_receive_errors_total",
        Kind::Counter,
        "Packets received with an error.",
        |it| Some(it.counters.rx_errors),
    ),
    (
        "muster_agent_interface_transmit_errors_total",
        Kind::Counter,
        "Packets not sent because of an error.",
        |it| Some(it.counters.tx_errors),
    ),
    (
        "muster_agent_interface_receive_drops_total",
        Kind::Counter,
        "Packets received and dropped.",
        |it| Some(it.counters.rx_dropped),
    ),
    (
        "muster_agent_interface_transmit_drops_total",
        Kind::Counter,
        "Packets dropped before they were sent.",
        |it| Some(it.counters.tx_dropped),
    ),
];

#[expect(clippy::cast_precision_loss, reason = "Prometheus knows no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

/// Adds all figures of all interfaces.
pub(super) fn describe(page: &mut Exposition, interfaces: &[Interface]) {
    for (name, kind, help, get) in FIGURES {
        let known = interfaces.iter().filter_map(|it| Some((it.name.as_str(), get(it)?)));
        let samples: Vec<_> =
            known.map(|(name, value)| ([("interface", name)], number(value))).collect();
        page.family(name, *kind, help, samples.iter().map(|(labels, it)| (&labels[..], *it)));
    }
    let neighbours: Vec<_> = interfaces
        .iter()
        .filter_map(|it| {
            let neighbour = it.neighbour.as_ref()?;
            let system = neighbour.system_name.as_deref().unwrap_or(&neighbour.chassis_id);
            let port = neighbour.port_id.as_str();
            Some([("interface", it.name.as_str()), ("system", system), ("port", port)])
        })
        .collect();
    page.family(
        "muster_agent_interface_neighbor_info",
        Kind::Gauge,
        "Who is at the other end of its cable (LLDP); always 1.",
        neighbours.iter().map(|labels| (&labels[..], 1.0)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{InterfaceCounters, Neighbour};

    #[test]
    fn each_interface_has_its_lines() {
        let neighbour = Neighbour {
            chassis_id: "02:00:00:00:00:09".to_owned(),
            port_id: "Ethernet1/\"7\"".to_owned(),
            ..Neighbour::default()
        };
        let known = Interface {
            name: "eth0".to_owned(),
            up: true,
            speed_mb: Some(10_000),
            counters: InterfaceCounters { rx_dropped: 7, ..InterfaceCounters::default() },
            neighbour: Some(neighbour),
        };
        let unknown = Interface { name: "eth1".to_owned(), ..Interface::default() };
        let mut page = Exposition::default();
        describe(&mut page, &[known, unknown]);
        let text = page.into_text();
        for line in [
            "muster_agent_interface_up{interface=\"eth0\"} 1",
            "muster_agent_interface_up{interface=\"eth1\"} 0",
            "muster_agent_interface_speed_bits_per_second{interface=\"eth0\"} 10000000000",
            "muster_agent_interface_receive_drops_total{interface=\"eth0\"} 7",
            "muster_agent_interface_neighbor_info{interface=\"eth0\",\
             system=\"02:00:00:00:00:09\",port=\"Ethernet1/\\\"7\\\"\"} 1",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} in {text}");
        }
        assert!(!text.contains("speed_bits_per_second{interface=\"eth1\"}"), "{text}");
    }
}
