//! A guest's network interfaces as the hypervisor has them, whether it starts with them or they are
//! plugged in later: both ways they are the same devices in the same slots. Pure.

use serde_json::{Map, Value, json};

use crate::drivers::network::{Attached, Backend, NicModel};

/// Slots for paravirtual interfaces, used or not, that every machine with PCI Express has. Whatever is
/// plugged in elsewhere can't be pulled out.
pub(super) const SLOTS: usize = 4;

/// The interface with this number, among the hypervisor's devices.
pub(super) fn device_id(number: usize) -> String {
    format!("nic{number}")
}

/// The number of the interface that is this device.
pub(super) fn number_of(device: &str) -> Option<usize> {
    device.strip_prefix("nic")?.parse().ok()
}

/// Its host's side.
pub(super) fn netdev_id(number: usize) -> String {
    format!("net{number}")
}

/// The port that is the slot of the interface with this number.
pub(super) fn port_id(number: usize) -> String {
    format!("spare{}", number + 1)
}

/// The number of the interface whose slot this device is.
pub(super) fn slot_of(device: &str) -> Option<usize> {
    device.strip_prefix("spare")?.parse::<usize>().ok()?.checked_sub(1)
}

/// A port, as the command line has it.
pub(super) fn port(number: usize) -> String {
    let (id, slot) = (port_id(number), number + 1);
    format!("pcie-root-port,id={id},chassis={slot},slot={slot}")
}

/// The host's side, as the command line has it.
pub(super) fn netdev_argument(attached: &Attached) -> String {
    let id = netdev_id(attached.nic.number);
    match &attached.backend {
        Backend::User { restricted } => {
            let restrict = if *restricted { ",restrict=on" } else { "" };
            let forwards =
                attached.nic.forwards.iter().map(|forward| format!(",hostfwd={forward}"));
            format!("user,id={id}{restrict}{}", forwards.collect::<String>())
        }
        // The agent has set it up: no script is to.
        Backend::Tap { name, .. } => {
            format!("tap,id={id},ifname={name},script=no,downscript=no")
        }
        // Of containers only; a hardware VM that got one would reach nothing.
        Backend::Pair { .. } => format!("user,id={id},restrict=on"),
    }
}

/// The host's side of one that is plugged in. A tap was handed over under the name of its netdev: by
/// then the hypervisor may open none itself.
pub(super) fn netdev(attached: &Attached) -> Value {
    let id = netdev_id(attached.nic.number);
    match &attached.backend {
        Backend::User { restricted } => {
            let forward = |forward: &_| json!({ "str": format!("{forward}") });
            let forwards: Vec<Value> = attached.nic.forwards.iter().map(forward).collect();
            json!({ "type": "user", "id": id, "restrict": restricted, "hostfwd": forwards })
        }
        Backend::Tap { .. } => json!({ "type": "tap", "id": id, "fd": id }),
        Backend::Pair { .. } => json!({ "type": "user", "id": id, "restrict": true }),
    }
}

/// The card: its driver and options.
#[derive(Debug)]
pub(super) struct Card {
    driver: &'static str,
    options: Vec<(&'static str, Value)>,
}

impl Card {
    /// In its slot, if the machine has slots for it.
    pub(super) fn new(attached: &Attached, in_slot: bool) -> Self {
        let Attached { nic, backend } = attached;
        let driver = match nic.model {
            NicModel::E1000 => "e1000",
            NicModel::Rtl8139 => "rtl8139",
            NicModel::Virtio => "virtio-net-pci",
        };
        let mut options = vec![
            ("netdev", json!(netdev_id(nic.number))),
            ("mac", json!(nic.mac)),
            ("id", json!(device_id(nic.number))),
        ];
        if nic.model == NicModel::Virtio {
            // The other cards have no way to tell it to the guest.
            if let Backend::Tap { mtu, .. } = backend {
                options.push(("host_mtu", json!(mtu)));
            }
            if in_slot {
                options.push(("bus", json!(port_id(nic.number))));
            }
        }
        Self { driver, options }
    }

    /// With its place in the boot order. Without its boot ROM a card that is not booted from delays
    /// nothing.
    pub(super) fn booted_from(mut self, place: Option<usize>) -> Self {
        self.options.push(match place {
            Some(place) => ("bootindex", json!(place)),
            None => ("romfile", json!("")),
        });
        self
    }

    /// As the command line has it.
    pub(super) fn argument(&self) -> String {
        let mut argument = self.driver.to_owned();
        for (name, value) in &self.options {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            argument.push_str(&format!(",{name}={value}"));
        }
        argument
    }

    /// As it is plugged in.
    pub(super) fn members(self) -> Map<String, Value> {
        let options = self.options.into_iter().map(|(name, value)| (name.to_owned(), value));
        std::iter::once(("driver".to_owned(), json!(self.driver))).chain(options).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::network::Nic;

    #[test]
    fn devices_are_known_by_their_names() {
        assert_eq!((number_of(&device_id(3)), slot_of(&port_id(3))), (Some(3), Some(3)));
        for other in ["nic", "nicx", "disk0dev", "spare", "spare0", "cidatadev", "net1"] {
            assert_eq!((number_of(other), slot_of(other)), (None, None), "{other}");
        }
    }

    /// The hypervisor takes numbers for numbers only.
    #[test]
    fn what_is_plugged_in_is_what_the_guest_would_start_with() {
        let backend = Backend::Tap { name: "mtx1".to_owned(), mtu: 1400 };
        let nic = Nic { number: 1, mac: "02:00:00:00:00:01".to_owned(), ..Nic::default() };
        let tap = Attached { nic, backend };
        let card = || Card::new(&tap, true).booted_from(None);
        let text = "virtio-net-pci,netdev=net1,mac=02:00:00:00:00:01,id=nic1,host_mtu=1400,\
                    bus=spare2,romfile=";
        assert_eq!(card().argument(), text);
        let members = json!({
            "driver": "virtio-net-pci", "netdev": "net1", "mac": "02:00:00:00:00:01", "id": "nic1",
            "host_mtu": 1400, "bus": "spare2", "romfile": "",
        });
        assert_eq!(Value::Object(card().members()), members);
        assert_eq!(netdev(&tap), json!({ "type": "tap", "id": "net1", "fd": "net1" }));
        let user = Attached { backend: Backend::User { restricted: true }, ..tap };
        let netdev = netdev(&user);
        assert_eq!((&netdev["restrict"], &netdev["hostfwd"]), (&json!(true), &json!([])));
        let card = Card::new(&user, false).booted_from(Some(100)).argument();
        assert!(!card.contains("bus=") && card.ends_with(",bootindex=100"), "{card}");
    }
}
