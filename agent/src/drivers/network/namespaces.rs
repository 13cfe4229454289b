//! The network namespaces of containers: each VM of several NICs has one, named by its uuid, from its
//! start until its NICs are detached.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use super::Nic;
use super::links::FarEnd;
use crate::drivers::DriverError;

/// The folder of the namespaces in the run folder.
const FOLDER: &str = "netns";
/// Names of links have at most so many bytes.
const MAX_NAME_BYTES: usize = 15;

/// Where namespaces are kept.
#[derive(Clone, Debug)]
pub(super) struct Namespaces(PathBuf);

impl Namespaces {
    pub(super) fn new(run_dir: &Path) -> Self {
        Self(run_dir.join(FOLDER))
    }

    pub(super) fn of(&self, vm: VmUuid) -> PathBuf {
        self.0.join(vm.to_string())
    }

    /// The VMs that have one.
    pub(super) fn all(&self) -> std::io::Result<Vec<VmUuid>> {
        let entries = match std::fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in entries {
            all.extend(entry?.file_name().to_str().and_then(|name| name.parse::<VmUuid>().ok()));
        }
        Ok(all)
    }

    /// The end of a NIC that its container has.
    ///
    /// # Errors
    /// `InvalidParameters` names what it can't have.
    pub(super) fn far_end(&self, vm: VmUuid, nic: &Nic, mtu: u32) -> Result<FarEnd, DriverError> {
        Ok(FarEnd {
            namespace: self.of(vm),
            name: name(nic)?,
            mac: nic.mac.clone(),
            mtu,
            addresses: addresses(nic)?,
            gateways: gateways(nic)?,
            up: !nic.link_down,
        })
    }
}

fn refused(nic: &Nic, member: &str, problem: &str) -> DriverError {
    let text = format!("nics.{}.{member}: {problem}", nic.index);
    DriverError::refused(Code::InvalidParameters, text)
}

/// What is asked of a NIC is something that a container can be given.
pub(super) fn check(nic: &Nic) -> Result<(), DriverError> {
    name(nic)?;
    addresses(nic)?;
    gateways(nic).map(drop)
}

fn name(nic: &Nic) -> Result<String, DriverError> {
    let given = nic.described.get("interface").and_then(Value::as_str);
    let name = given.map_or_else(|| format!("net{}", nic.number), str::to_owned);
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let fits = !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(plain);
    if fits && !matches!(name.as_str(), "lo" | "." | "..") {
        return Ok(name);
    }
    let problem = "must be at most 15 letters, digits, `_`, `-` and `.`, and not lo";
    Err(refused(nic, "interface", problem))
}

fn addresses(nic: &Nic) -> Result<Vec<IpNet>, DriverError> {
    let given = nic.described.get("ips").and_then(Value::as_array);
    let mut addresses = Vec::new();
    for text in given.into_iter().flatten().filter_map(Value::as_str) {
        match text {
            // Its kernel does it unasked.
            "addrconf" => {}
            "dhcp" => {
                let problem = "containers get the addresses that their NICs name, and no DHCP \
                               client runs for them: give it an address as a.b.c.d/len";
                return Err(refused(nic, "ips", problem));
            }
            text => {
                let parsed = text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
                let parsed = parsed.map_err(|_| refused(nic, "ips", "must be addresses"));
                addresses.push(parsed?);
            }
        }
    }
    Ok(addresses)
}

/// The routers of the NIC with the default route.
fn gateways(nic: &Nic) -> Result<Vec<IpAddr>, DriverError> {
    if !nic.described.get("primary").is_some_and(|primary| *primary == true) {
        return Ok(Vec::new());
    }
    let given = nic.described.get("gateways").and_then(Value::as_array);
    let given = given.into_iter().flatten().filter_map(Value::as_str);
    let parsed = |text: &str| {
        text.parse().map_err(|_| refused(nic, "gateways", "must be addresses of routers"))
    };
    given.map(parsed).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nic(described: Value) -> Nic {
        Nic { number: 1, mac: "02:00:00:00:00:01".to_owned(), described, ..Nic::default() }
    }

    #[test]
    fn a_container_gets_what_its_nic_names() {
        let vm = VmUuid(uuid::Uuid::from_u128(7));
        let namespaces = Namespaces::new(Path::new("/run/muster"));
        let described = json!({
            "interface": "eth0", "ips": ["10.0.0.5/24", "fd00::5/64", "addrconf"],
            "gateways": ["10.0.0.1"], "primary": true,
        });
        let end = namespaces.far_end(vm, &nic(described), 1400).unwrap();
        assert_eq!(end.namespace, Path::new("/run/muster/netns").join(vm.to_string()));
        assert_eq!((end.name.as_str(), end.mtu), ("eth0", 1400));
        assert_eq!(end.addresses.len(), 2);
        assert_eq!(end.gateways, ["10.0.0.1".parse::<IpAddr>().unwrap()]);
        let plain =
            namespaces.far_end(vm, &nic(json!({ "gateways": ["10.0.0.1"] })), 1500).unwrap();
        assert_eq!((plain.name.as_str(), plain.gateways.len()), ("net1", 0));
    }

    #[test]
    fn what_a_container_can_not_be_given_is_refused_by_name() {
        for (described, member) in [
            (json!({ "ips": ["dhcp"] }), "nics.0.ips"),
            (json!({ "ips": ["10.0.0.500/24"] }), "nics.0.ips"),
            (json!({ "interface": "a/b" }), "nics.0.interface"),
            (json!({ "interface": "lo" }), "nics.0.interface"),
            (json!({ "interface": "0123456789abcdef" }), "nics.0.interface"),
            (json!({ "primary": true, "gateways": ["x"] }), "nics.0.gateways"),
        ] {
            let error = check(&nic(described.clone())).unwrap_err().to_string();
            assert!(error.starts_with(member), "{described}: {error}");
        }
    }
}
