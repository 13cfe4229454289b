//! Network links as sysinfo tells them: physical ones with bonds, virtual ones, aggregations,
//! and the admin address.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use super::probe::Probe;
use super::{Group, Keys, interfaces, keys};
use crate::drivers::{DriverError, settings};
use crate::report::{InterfaceCounters, Neighbour};

pub(super) const GROUP: Group =
    Group { name: "network", collect: |probe| Box::pin(collect(probe)), unknown };

/// Which tag is on which link, as `{"nictags": [{name, mac}]}`.
pub(super) const NIC_TAGS_FILE: &str = "etc/muster/nic-tags.json";
/// Bridges that carry a nic tag.
const TAG_BRIDGE_PREFIX: &str = "mt-";
/// An address that is never reached (RFC 5737); the route to it is the default route.
const NOWHERE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(1);

/// A link of `ip -j -d addr`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Link {
    ifname: String,
    ifindex: u32,
    operstate: String,
    address: String,
    permaddr: Option<String>,
    master: Option<String>,
    /// The lower link.
    link: Option<String>,
    mtu: u32,
    link_type: String,
    linkinfo: LinkInfo,
    addr_info: Vec<Address>,
    /// Filled in from `/sys`: it is a device of its own.
    #[serde(skip)]
    device: bool,
    /// Filled in from `/sys`: Mbit/s.
    #[serde(skip)]
    speed_mb: Option<u64>,
    /// Filled in from `/sys`.
    #[serde(skip)]
    counters: InterfaceCounters,
    /// Filled in: who is at the other end of the cable.
    #[serde(skip)]
    neighbour: Option<Neighbour>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct LinkInfo {
    info_kind: String,
    info_data: Value,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    family: String,
    local: String,
    scope: String,
}

/// A nic tag.
#[derive(Clone, Debug, Deserialize)]
struct Tag {
    name: String,
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
struct TagFile {
    nictags: Vec<Tag>,
}

impl Link {
    fn mac(&self) -> &str {
        self.permaddr.as_deref().unwrap_or(&self.address)
    }

    fn kind(&self) -> &str {
        &self.linkinfo.info_kind
    }

    fn ip4(&self) -> Option<&str> {
        self.addr_info.iter().find(|a| a.family == "inet").map(|a| a.local.as_str())
    }

    fn ip6(&self) -> Vec<&str> {
        let global = self.addr_info.iter().filter(|a| a.family == "inet6" && a.scope == "global");
        global.map(|a| a.local.as_str()).collect()
    }

    fn status(&self) -> &'static str {
        match self.operstate.as_str() {
            "UP" => "up",
            "UNKNOWN" | "" => "unknown",
            _ => "down",
        }
    }
}

/// The agent's own file once it has one, else what was configured by hand.
pub(super) async fn tag_file(probe: &Probe) -> Option<String> {
    let own = probe.config.data_dir.join(settings::NIC_TAGS_FILE);
    match probe.text_of(&own).await {
        Some(text) => Some(text),
        None => probe.text(NIC_TAGS_FILE).await,
    }
}

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    let mut listed = probe.json(&["ip", "-j", "-d", "addr"]).await?;
    let entries = listed.as_array_mut().map(std::mem::take).unwrap_or_default();
    // iproute2 prints `{}` for links it can't show.
    let parsed = entries.into_iter().filter_map(|entry| serde_json::from_value::<Link>(entry).ok());
    let mut links: Vec<Link> = parsed.filter(|link| !link.ifname.is_empty()).collect();
    for link in &mut links {
        link.device = probe.exists(&format!("sys/class/net/{}/device", link.ifname)).await;
    }
    look_closer(probe, &mut links).await;
    let tags = match tag_file(probe).await {
        Some(text) => {
            serde_json::from_str::<TagFile>(&text)
                .map_err(|e| DriverError::failed("read the NIC tags", e))?
                .nictags
        }
        None => Vec::new(),
    };
    let address = match probe.config.admin_ip {
        Some(ip) => Some(ip),
        None => route_source(probe).await,
    };
    Ok(describe(&links, tags, &probe.config.admin_nic_tag, address, probe.config.admin_ip))
}

/// At those that are shown: what goes wrong on them, and who is at their other ends.
async fn look_closer(probe: &Probe, links: &mut [Link]) {
    let shown: Vec<(String, u32)> =
        physical(links).iter().map(|link| (link.ifname.clone(), link.ifindex)).collect();
    probe.neighbours.listen(&shown);
    let mut neighbours = probe.neighbours.latest();
    for link in links {
        if shown.iter().any(|(name, _)| *name == link.ifname) {
            link.speed_mb = interfaces::speed_mb(probe, &link.ifname).await;
            link.counters = interfaces::counters(probe, &link.ifname).await;
            link.neighbour = neighbours.remove(&link.ifname);
        }
    }
    *probe.shown.lock() = shown.into_iter().map(|(name, _)| name).collect();
}

fn unknown(probe: &Probe) -> Keys {
    let ip = probe.config.admin_ip.map(|ip| ip.to_string()).unwrap_or_default();
    keys(json!({
        "Network Interfaces": {},
        "Virtual Network Interfaces": {},
        "Link Aggregations": {},
        "Admin IP": ip,
    }))
}

/// The address from which this host would talk to its coordinator, or to the world.
async fn route_source(probe: &Probe) -> Option<IpAddr> {
    let mut targets = Vec::new();
    if let Some(url) = probe.config.coordinators.first()
        && let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default())
    {
        let host = host.trim_matches(['[', ']']).to_owned();
        let found = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((host, port)));
        targets.extend(found.await.ok().and_then(Result::ok).into_iter().flatten());
    }
    targets.push(SocketAddr::new(NOWHERE, 9));
    targets.into_iter().filter(|target| !target.ip().is_loopback()).find_map(source_towards)
}

/// Connecting a datagram socket sends nothing; it only chooses the route.
fn source_towards(target: SocketAddr) -> Option<IpAddr> {
    let any = match target {
        SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
        SocketAddr::V6(_) => SocketAddr::from(([0_u16; 8], 0)),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|local| local.ip()).filter(|ip| !ip.is_loopback())
}

/// All keys of the group. `address` is the admin address as far as it is known from elsewhere.
fn describe(
    links: &[Link],
    mut tags: Vec<Tag>,
    admin_tag: &str,
    address: Option<IpAddr>,
    configured: Option<IpAddr>,
) -> Keys {
    let shown = physical(links);
    if !tags.iter().any(|tag| tag.name == admin_tag) {
        // Without a table, the admin tag is on the link that has the admin address, else on the
        // first one that is up.
        let has_address = |link: &&&Link| {
            let text = address.map(|ip| ip.to_string());
            text.is_some() && own_ip4(link, links).map(str::to_owned) == text
        };
        let carrier = shown.iter().find(has_address);
        let carrier = carrier.or_else(|| shown.iter().find(|link| link.status() == "up"));
        tags.extend(
            carrier.map(|link| Tag { name: admin_tag.to_owned(), mac: link.mac().to_owned() }),
        );
    }
    let mut interfaces = Keys::new();
    let mut admin_ip = None;
    for link in shown {
        let names: Vec<&str> = tags
            .iter()
            .filter(|tag| tag.mac.eq_ignore_ascii_case(link.mac()) || tag.mac == link.ifname)
            .map(|tag| tag.name.as_str())
            .collect();
        let is_admin = names.contains(&admin_tag);
        let ip4 = if is_admin { own_ip4(link, links) } else { link.ip4() };
        if is_admin {
            admin_ip = admin_ip.or(ip4);
        }
        let mut interface = keys(json!({
            "MAC Address": link.mac(),
            "ip4addr": ip4.unwrap_or_default(),
            "Link Status": link.status(),
            "NIC Names": names,
            "MTU": link.mtu,
            "ip6addrs": link.ip6(),
            "Counters": link.counters,
        }));
        interface.extend(link.speed_mb.map(|speed| ("Speed Mb".to_owned(), json!(speed))));
        let neighbour = link.neighbour.as_ref();
        interface.extend(neighbour.map(|it| ("LLDP Neighbor".to_owned(), json!(it))));
        interfaces.insert(link.ifname.clone(), Value::Object(interface));
    }
    let text = |ip: IpAddr| ip.to_string();
    let admin_ip = configured.map(text).or(admin_ip.map(str::to_owned)).or(address.map(text));
    keys(json!({
        "Network Interfaces": interfaces,
        "Virtual Network Interfaces": virtual_links(links),
        "Link Aggregations": aggregations(links),
        "Admin IP": admin_ip.unwrap_or_default(),
    }))
}

/// Links with a device of their own, and bonds. A host without any (a network namespace) shows
/// its virtual ethernet links in their place.
fn physical(links: &[Link]) -> Vec<&Link> {
    let found: Vec<&Link> =
        links.iter().filter(|link| link.device || link.kind() == "bond").collect();
    if !found.is_empty() {
        return found;
    }
    let ethernet = links.iter().filter(|link| link.link_type == "ether");
    ethernet.filter(|link| matches!(link.kind(), "" | "veth" | "macvlan" | "ipvlan")).collect()
}

/// The link's address, or that of the bridge it is a port of.
fn own_ip4<'a>(link: &'a Link, links: &'a [Link]) -> Option<&'a str> {
    let bridge = || {
        let master = link.master.as_deref()?;
        links.iter().find(|other| other.ifname == master && other.kind() == "bridge")?.ip4()
    };
    link.ip4().or_else(bridge)
}

fn virtual_links(links: &[Link]) -> Keys {
    let shown = links.iter().filter(|link| match link.kind() {
        "vlan" | "macvlan" | "vxlan" => true,
        "bridge" => link.ifname.starts_with(TAG_BRIDGE_PREFIX),
        _ => false,
    });
    let describe = |link: &Link| {
        let data = &link.linkinfo.info_data;
        let vlan = data.get("id").and_then(Value::as_u64).filter(|_| link.kind() == "vlan");
        let lower = link.link.as_deref().or_else(|| {
            let port = links.iter().find(|port| port.master.as_deref() == Some(&link.ifname))?;
            Some(port.ifname.as_str())
        });
        json!({
            "MAC Address": link.address,
            "ip4addr": link.ip4().unwrap_or_default(),
            "Link Status": link.status(),
            "Host Interface": lower.unwrap_or_default(),
            "VLAN": vlan.unwrap_or(0).to_string(),
        })
    };
    shown.map(|link| (link.ifname.clone(), describe(link))).collect()
}

fn aggregations(links: &[Link]) -> Keys {
    let describe = |bond: &Link| {
        let of_bond = links.iter().filter(|link| link.master.as_deref() == Some(&bond.ifname));
        let interfaces: Vec<&str> = of_bond.map(|link| link.ifname.as_str()).collect();
        let data = &bond.linkinfo.info_data;
        let active = data.get("ad_lacp_active").and_then(Value::as_str) != Some("off");
        let lacp = match data.get("mode").and_then(Value::as_str) {
            Some("802.3ad") if active => "active",
            Some("802.3ad") => "passive",
            _ => "off",
        };
        json!({ "LACP mode": lacp, "Interfaces": interfaces })
    };
    let bonds = links.iter().filter(|link| link.kind() == "bond");
    bonds.map(|bond| (bond.ifname.clone(), describe(bond))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(listed: Value, devices: &[&str]) -> Vec<Link> {
        let mut links: Vec<Link> = serde_json::from_value(listed).unwrap();
        for link in &mut links {
            link.device = devices.contains(&link.ifname.as_str());
        }
        links
    }

    fn address(ip: &str) -> Value {
        json!([
            {"family": "inet", "local": ip, "scope": "global"},
            {"family": "inet6", "local": "2001:db8::1", "scope": "global"},
            {"family": "inet6", "local": "fe80::1", "scope": "link"},
        ])
    }

    #[test]
    fn one_nic_carries_the_admin_tag() {
        let found = links(
            json!([
                {"ifname": "lo", "operstate": "UNKNOWN", "link_type": "loopback",
                 "addr_info": [{"family": "inet", "local": "127.0.0.1", "scope": "host"}]},
                {"ifname": "eth0", "operstate": "UP", "address": "02:00:00:00:00:01", "mtu": 1500,
                 "link_type": "ether", "addr_info": address("10.0.0.7")},
                {"ifname": "eth1", "operstate": "DOWN", "address": "02:00:00:00:00:02",
                 "link_type": "ether"},
                {"ifname": "tap0", "operstate": "UP", "link_type": "ether",
                 "linkinfo": {"info_kind": "tun"}},
            ]),
            &["eth0", "eth1"],
        );
        let keys = describe(&found, Vec::new(), "admin", "10.0.0.7".parse().ok(), None);
        assert_eq!(keys["Admin IP"], "10.0.0.7");
        let interfaces = keys["Network Interfaces"].as_object().unwrap();
        assert_eq!(interfaces.keys().collect::<Vec<_>>(), ["eth0", "eth1"]);
        assert_eq!(
            interfaces["eth0"],
            json!({
                "MAC Address": "02:00:00:00:00:01", "ip4addr": "10.0.0.7", "Link Status": "up",
                "NIC Names": ["admin"], "MTU": 1500, "ip6addrs": ["2001:db8::1"],
                "Counters": {"rx_errors": 0, "tx_errors": 0, "rx_dropped": 0, "tx_dropped": 0},
            })
        );
        assert_eq!(interfaces["eth1"]["Link Status"], "down");
        assert_eq!(interfaces["eth1"]["NIC Names"], json!([]));
    }

    #[test]
    fn bonds_vlans_and_tag_bridges_are_told() {
        let found = links(
            json!([
                {"ifname": "eth0", "operstate": "UP", "address": "02:00:00:00:00:0a",
                 "permaddr": "02:00:00:00:00:01", "master": "bond0"},
                {"ifname": "bond0", "operstate": "UP", "address": "02:00:00:00:00:0a",
                 "master": "mt-admin",
                 "linkinfo": {"info_kind": "bond",
                              "info_data": {"mode": "802.3ad", "ad_lacp_active": "on"}}},
                {"ifname": "mt-admin", "operstate": "UP", "address": "02:00:00:00:00:0b",
                 "linkinfo": {"info_kind": "bridge"}, "addr_info": address("10.0.0.8")},
                {"ifname": "br0", "linkinfo": {"info_kind": "bridge"}},
                {"ifname": "bond0.7", "operstate": "LOWERLAYERDOWN", "link": "bond0",
                 "address": "02:00:00:00:00:0c",
                 "linkinfo": {"info_kind": "vlan", "info_data": {"id": 7}}},
            ]),
            &["eth0"],
        );
        let tags = vec![Tag { name: "admin".to_owned(), mac: "bond0".to_owned() }];
        let keys = describe(&found, tags, "admin", None, None);
        assert_eq!(keys["Admin IP"], "10.0.0.8");
        assert_eq!(keys["Network Interfaces"]["bond0"]["ip4addr"], "10.0.0.8");
        assert_eq!(keys["Network Interfaces"]["eth0"]["MAC Address"], "02:00:00:00:00:01");
        assert_eq!(
            keys["Link Aggregations"],
            json!({ "bond0": {"LACP mode": "active", "Interfaces": ["eth0"]} })
        );
        assert_eq!(
            keys["Virtual Network Interfaces"],
            json!({
                "mt-admin": {"MAC Address": "02:00:00:00:00:0b", "ip4addr": "10.0.0.8",
                             "Link Status": "up", "Host Interface": "bond0", "VLAN": "0"},
                "bond0.7": {"MAC Address": "02:00:00:00:00:0c", "ip4addr": "",
                            "Link Status": "down", "Host Interface": "bond0", "VLAN": "7"},
            })
        );
    }

    #[test]
    fn a_network_namespace_shows_its_virtual_links() {
        let found = links(
            json!([
                {"ifname": "lo", "link_type": "loopback"},
                {"ifname": "v0", "operstate": "UP", "link_type": "ether", "address": "02::1",
                 "linkinfo": {"info_kind": "veth"}, "addr_info": address("10.9.0.2")},
            ]),
            &[],
        );
        let keys = describe(&found, Vec::new(), "admin", None, None);
        assert_eq!(keys["Network Interfaces"]["v0"]["NIC Names"], json!(["admin"]));
        assert_eq!(keys["Admin IP"], "10.9.0.2");
    }

    #[test]
    fn a_configured_address_wins() {
        let ip = "10.1.1.1".parse().ok();
        let keys = describe(&[], Vec::new(), "admin", ip, ip);
        assert_eq!(keys["Admin IP"], "10.1.1.1");
        assert_eq!(keys["Network Interfaces"], json!({}));
    }
}
