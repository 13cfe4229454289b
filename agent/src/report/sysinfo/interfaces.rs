//! What the kernel tells of an interface in `/sys`.

use super::probe::Probe;
use crate::report::{Interface, InterfaceCounters};

/// The interfaces of the last document, as they are now.
pub(super) async fn now(probe: &Probe) -> Vec<Interface> {
    let shown = probe.shown.lock().clone();
    let neighbours = probe.neighbours.latest();
    let mut found = Vec::new();
    for name in shown {
        let state = probe.text(&format!("sys/class/net/{name}/operstate")).await;
        let Some(state) = state else { continue };
        found.push(Interface {
            up: state == "up",
            speed_mb: speed_mb(probe, &name).await,
            counters: counters(probe, &name).await,
            neighbour: neighbours.get(&name).cloned(),
            name,
        });
    }
    found
}

/// `None`: the driver does not know it, e.g. without a partner.
pub(super) async fn speed_mb(probe: &Probe, name: &str) -> Option<u64> {
    let speed = probe.text(&format!("sys/class/net/{name}/speed")).await?;
    speed.parse().ok().filter(|speed| *speed > 0)
}

pub(super) async fn counters(probe: &Probe, name: &str) -> InterfaceCounters {
    let count = async |counter: &str| {
        let text = probe.text(&format!("sys/class/net/{name}/statistics/{counter}")).await;
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    InterfaceCounters {
        rx_errors: count("rx_errors").await,
        tx_errors: count("tx_errors").await,
        rx_dropped: count("rx_dropped").await,
        tx_dropped: count("tx_dropped").await,
    }
}
