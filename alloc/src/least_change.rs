//! Single changes that may make a request fit, and guesses which could help where.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::config::Config;
use crate::num::truthy;
use crate::outcome::Outcome;
use crate::request::{Package, Request};
use crate::server::Server;
use crate::vm::{Brand, Vm};

/// A server shared with the changes that concern it.
type Subject = Arc<Server>;

/// What a server may get more of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// MiB of memory, of which a share is kept for the host.
    Memory,
    /// MiB of the pool, of which a share is kept free.
    Disk,
    /// Cores.
    Cores,
}

/// A figure of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    /// Member of `vm`.
    name: &'static str,
    unit: &'static str,
}

/// Figures of a request that may be smaller.
const FIGURES: [Figure; 4] = [
    Figure { name: "ram", unit: "MiB of memory" },
    Figure { name: "quota", unit: "GiB of disk" },
    Figure { name: "cpu_cap", unit: "percent of a core" },
    Figure { name: "vcpus", unit: "vCPUs" },
];

/// One change.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// A server has more of something.
    Grow { server: Subject, what: Resource, amount: u64 },
    /// A server's record has other members.
    Server { server: Subject, members: Map<String, Value>, text: String },
    /// A VM is not there.
    RemoveVm { vm: Uuid, text: String },
    /// A default of the policy is another one.
    Policy { key: &'static str, value: Value },
    /// The request asks for less of something.
    Less { figure: Figure, from: u64, amount: u64 },
    /// The request's body is another one at a place; `None` removes the member or item.
    Patch { path: Vec<String>, value: Option<Value>, text: String },
}

impl Change {
    /// The figure in it, which a larger one includes.
    pub(crate) fn amount(&self) -> Option<u64> {
        match self {
            Self::Grow { amount, .. } | Self::Less { amount, .. } => Some(*amount),
            _ => None,
        }
    }

    /// The largest figure that makes sense, if there is one.
    pub(crate) fn most(&self) -> Option<u64> {
        match self {
            Self::Less { from, .. } => Some(from - 1),
            _ => None,
        }
    }

    pub(crate) fn with_amount(&self, new: u64) -> Self {
        let mut changed = self.clone();
        if let Self::Grow { amount, .. } | Self::Less { amount, .. } = &mut changed {
            *amount = new;
        }
        changed
    }

    /// Whether several of its kind may be needed for one step.
    pub(crate) fn is_partial(&self) -> bool {
        matches!(self, Self::RemoveVm { .. })
    }

    /// Whether it removes this member of the body.
    pub(crate) fn removes(&self, name: &str) -> bool {
        matches!(self, Self::Patch { path, value: None, .. } if path.len() == 1 && path[0] == name)
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Grow { server, what, amount } => {
                let n = grouped(*amount);
                match what {
                    Resource::Memory => format!("{n} MiB more memory on server {}", server.uuid),
                    Resource::Disk => format!("{n} MiB more disk on server {}", server.uuid),
                    Resource::Cores if *amount == 1 => {
                        format!("1 more core on server {}", server.uuid)
                    }
                    Resource::Cores => format!("{n} more cores on server {}", server.uuid),
                }
            }
            Self::Server { text, .. } | Self::RemoveVm { text, .. } | Self::Patch { text, .. } => {
                text.clone()
            }
            Self::Policy { key, value } => format!("with {key} = {value}"),
            Self::Less { figure, from, amount } => {
                let (to, from) = (grouped(from - amount), grouped(*from));
                format!("with {to} {} instead of {from}", figure.unit)
            }
        }
    }

    /// The members of the server's record that change, with its uuid.
    pub(crate) fn members(&self) -> Option<Map<String, Value>> {
        let (server, mut members) = match self {
            Self::Server { server, members, .. } => (server, members.clone()),
            Self::Grow { server, what, amount } => (server, grown(server, *what, *amount)?),
            _ => return None,
        };
        members.insert("uuid".to_owned(), json!(server.uuid.as_ref()));
        Some(members)
    }

    /// Changes the request's body.
    pub(crate) fn patch(&self, body: &mut Map<String, Value>) {
        match self {
            Self::Less { figure, from, amount } => {
                if let Some(vm) = body.get_mut("vm").and_then(Value::as_object_mut) {
                    vm.insert(figure.name.to_owned(), json!(from - amount));
                }
            }
            Self::Patch { path, value, .. } => patch(body, path, value.as_ref()),
            _ => {}
        }
    }
}

fn patch(body: &mut Map<String, Value>, path: &[String], value: Option<&Value>) {
    let Some((last, parents)) = path.split_last() else { return };
    let Some((first, parents)) = parents.split_first() else {
        match value {
            Some(value) => drop(body.insert(last.clone(), value.clone())),
            None => drop(body.remove(last)),
        }
        return;
    };
    let mut at = body.get_mut(first);
    for name in parents {
        at = at.and_then(|at| match at {
            Value::Object(members) => members.get_mut(name),
            Value::Array(items) => items.get_mut(name.parse::<usize>().ok()?),
            _ => None,
        });
    }
    match (at, value) {
        (Some(Value::Object(members)), Some(value)) => {
            members.insert(last.clone(), value.clone());
        }
        (Some(Value::Object(members)), None) => drop(members.remove(last)),
        (Some(Value::Array(items)), None) => items.retain(|item| item.as_str() != Some(last)),
        _ => {}
    }
}

/// 2048 as `2,048`.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// What the record of a server with more of something says.
fn grown(server: &Subject, what: Resource, amount: u64) -> Option<Map<String, Value>> {
    let (name, old) = match what {
        Resource::Memory => ("memory_total_bytes", server.figures.memory_total()),
        Resource::Disk => ("disk_pool_size_bytes", server.figures.pool_size()),
        Resource::Cores => {
            let cores = whole(server.parsed.cores)?.checked_add(amount)?;
            let sysinfo = server.record.get("sysinfo").and_then(Value::as_object);
            let says = |name: &str| sysinfo.is_some_and(|sysinfo| sysinfo.contains_key(name));
            let (online, total) = ("CPU Online Count", "CPU Total Cores");
            // The total counts where nothing is said of those online.
            let name = if says(total) && !says(online) { total } else { online };
            return Some([("sysinfo".to_owned(), json!({ name: cores }))].into_iter().collect());
        }
    };
    let bytes = whole(old)?.checked_add(amount.checked_mul(1024 * 1024)?)?;
    Some([(name.to_owned(), json!(bytes))].into_iter().collect())
}

/// A size as an integer, if it is one.
fn whole(x: f64) -> Option<u64> {
    let fits = x >= 0.0 && x.fract() == 0.0 && x < 9_007_199_254_740_992.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked: an integer from 0 to 2^53"
    )]
    let integer = x as u64;
    fits.then_some(integer)
}

/// What could help where a server by itself fails, the likeliest first.
pub(crate) fn remedies(outcome: &Outcome, request: &Request, config: &Config) -> Vec<Change> {
    let snapshot = &outcome.snapshot;
    let Some(slot) = snapshot.slots().next() else { return Vec::new() };
    let server: Subject = Arc::new(snapshot.server(slot).clone());
    let set = |name: &str, value: Value, text: &str| Change::Server {
        server: Arc::clone(&server),
        members: [(name.to_owned(), value)].into_iter().collect(),
        text: format!("{text} on server {}", server.uuid),
    };
    let sysinfo = |name: &str, value: Value, text: &str| {
        let members: Map<String, Value> = [(name.to_owned(), value)].into_iter().collect();
        set("sysinfo", Value::Object(members), text)
    };
    let grow = |what| Change::Grow { server: Arc::clone(&server), what, amount: 1 };
    let without = |vm: &Vm, what: &str| Change::RemoveVm {
        vm: vm.uuid,
        text: format!("one VM less{what} ({}) on server {}", vm.uuid, server.uuid),
    };
    let owner = request.vm.owner;
    let of = |vm: &Vm| if vm.owner == owner { " of this owner" } else { "" };
    let last = outcome.steps.last();
    let algorithm = last.and_then(crate::outcome::Step::algorithm);
    match algorithm.unwrap_or("") {
        // Not even looked at.
        "" => {
            let (set_up, reserved) =
                (server.record.get("setup"), truthy(server.record.get("reserved")));
            let mut changes = Vec::new();
            if !truthy(set_up) {
                changes.push(set("setup", json!(true), "the setup done"));
            }
            if reserved {
                changes.push(set("reserved", json!(false), "the reservation lifted"));
            }
            // Both are needed before it is looked at.
            match changes.as_slice() {
                [_, _] => {
                    let members = json!({ "setup": true, "reserved": false });
                    let text = "setup done and reservation lifted";
                    vec![Change::Server {
                        server: Arc::clone(&server),
                        members: members.as_object().cloned().unwrap_or_default(),
                        text: format!("{text} on server {}", server.uuid),
                    }]
                }
                _ => changes,
            }
        }
        "hard-filter-setup" => vec![set("setup", json!(true), "the setup done")],
        "hard-filter-running" => vec![set("status", json!("running"), "status running")],
        "hard-filter-reserved" => vec![set("reserved", json!(false), "the reservation lifted")],
        "hard-filter-reservoir" => vec![set("reservoir", json!(false), "no reservoir mark")],
        "hard-filter-headnode" => {
            vec![Change::Policy { key: "filter_headnode", value: json!(false) }]
        }
        "hard-filter-owners-servers" => {
            vec![Change::Policy { key: "filter_owner_server", value: json!({}) }]
        }
        "hard-filter-min-free-disk" | "hard-filter-min-disk" => vec![grow(Resource::Disk)],
        "hard-filter-min-ram" => vec![grow(Resource::Memory)],
        "hard-filter-min-cpu" => vec![grow(Resource::Cores)],
        "hard-filter-vlans" => nic_tag(&server, request)
            .map(|(tag, interfaces)| {
                let text = format!("NIC tag {tag}");
                sysinfo("Network Interfaces", interfaces, &text)
            })
            .into_iter()
            .collect(),
        "hard-filter-platform-versions" | "hard-filter-feature-min-platform" => {
            let stamps = stamps(request, config);
            let change = |stamp: String| {
                let text = format!("platform {stamp}");
                sysinfo("Live Image", json!(stamp), &text)
            };
            stamps.into_iter().map(change).collect()
        }
        "hard-filter-overprovision-ratios" => {
            let to_package = |package: &Package| {
                let r = package.ratios;
                let named = [
                    ("cpu", r.cpu),
                    ("ram", r.ram),
                    ("disk", r.disk),
                    ("io", r.io),
                    ("net", r.net),
                ];
                let known = named.into_iter().filter(|(_, ratio)| ratio.is_some());
                let ratios = known.map(|(name, ratio)| (name.to_owned(), json!(ratio))).collect();
                set("overprovision_ratios", Value::Object(ratios), "the package's ratios")
            };
            request.package.as_ref().map(to_package).into_iter().collect()
        }
        "hard-filter-traits" => {
            let wanted = wanted_traits(request);
            let text = format!("traits {}", Value::Object(wanted.clone()));
            vec![set("traits", Value::Object(wanted), &text)]
        }
        "hard-filter-capness" => {
            let package = request.package.as_ref().and_then(|package| package.cpu_cap);
            let capped = request.vm.cpu_cap.or(package).is_some();
            let differs = server.counted().find(|vm| vm.cpu_cap.is_some() != capped);
            differs.map(|vm| without(vm, of(vm))).into_iter().collect()
        }
        "hard-filter-hvm" => {
            let brand = Brand::of(&request.vm.brand);
            let clash = server.counted().find(|vm| vm.brand.is_hvm() && vm.brand != brand);
            let mut changes: Vec<Change> =
                clash.map(|vm| without(vm, of(vm))).into_iter().collect();
            changes.push(sysinfo("Bhyve Capable", json!(true), "support for bhyve"));
            changes
        }
        "hard-filter-vm-count" => {
            let vm = server.counted().last();
            vm.map(|vm| without(vm, of(vm))).into_iter().collect()
        }
        "hard-filter-owner-same-servers" | "hard-filter-owner-same-racks" => {
            let vm = server.counted().find(|vm| vm.owner == owner);
            vm.map(|vm| without(vm, of(vm))).into_iter().collect()
        }
        "hard-filter-locality-hints" => {
            let reasons = outcome.reasons(outcome.steps.len() - 1);
            let reason = reasons.get(server.uuid.as_ref()).and_then(Value::as_str);
            let too_near = reason.and_then(|text| text.strip_prefix("exclude: inst!="));
            let vm = server.counted().find(|vm| too_near == Some(&vm.uuid.to_string()));
            vm.map(|vm| without(vm, of(vm))).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// A tag that the server lacks, and its interfaces with one that has it.
fn nic_tag(server: &Subject, request: &Request) -> Option<(String, Value)> {
    let nics = &server.parsed.nics;
    let groups = request.vm.nic_groups.as_ref()?;
    let unmet = groups.iter().find(|group| !group.iter().any(|tag| nics.online.contains(tag)))?;
    let tag = unmet.first()?;
    let known = server.record.get("sysinfo").and_then(|s| s.get("Network Interfaces"));
    let mut interfaces = known.and_then(Value::as_object).cloned().unwrap_or_default();
    let name = format!("for-{tag}");
    interfaces.insert(name, json!({ "Link Status": "up", "NIC Names": [tag] }));
    Some((tag.clone(), Value::Object(interfaces)))
}

/// Platforms that the request or its features name as limits, the oldest first.
fn stamps(request: &Request, config: &Config) -> Vec<String> {
    let package = request.package.as_ref().and_then(|package| package.min_platform.as_ref());
    let image = &request.image;
    let limits = [package, image.min_platform.as_ref(), image.max_platform.as_ref()];
    let limits = limits.into_iter().flatten().flat_map(|limits| limits.values());
    let platforms = &config.settings.platforms;
    let features = [
        &platforms.docker,
        &platforms.docker_volumes,
        &platforms.other_volumes,
        &platforms.volapi_nfs_v2,
        &platforms.flexible_disk,
    ];
    let mut stamps: Vec<String> = limits
        .filter_map(|stamp| stamp.as_str().map(str::to_owned))
        .chain(features.into_iter().flatten().cloned())
        .collect();
    stamps.sort();
    stamps.dedup();
    stamps
}

fn wanted_traits(request: &Request) -> Map<String, Value> {
    let package = request.package.as_ref().and_then(|package| package.traits.as_ref());
    let mut wanted = request.vm.traits.as_ref().or(package).cloned().unwrap_or_default();
    wanted.extend(request.image.traits.clone().unwrap_or_default());
    wanted
}

/// Everything in a body that could be asked for less strictly.
pub(crate) fn relaxations(body: &Map<String, Value>) -> Vec<Change> {
    let get = |path: &[&str]| {
        let mut at = body.get(*path.first()?)?;
        for name in &path[1..] {
            at = at.get(name)?;
        }
        truthy(Some(at)).then_some(at)
    };
    let patch = |path: &[&str], value: Option<Value>, text: String| Change::Patch {
        path: path.iter().map(|name| (*name).to_owned()).collect(),
        value,
        text,
    };
    let mut changes = Vec::new();
    for place in ["vm", "package", "image"] {
        for name in
            get(&[place, "traits"]).and_then(Value::as_object).into_iter().flat_map(Map::keys)
        {
            changes.push(patch(&[place, "traits", name], None, format!("without trait {name}")));
        }
    }
    for tag in get(&["nic_tags"]).and_then(Value::as_array).into_iter().flatten() {
        if let Some(tag) = tag.as_str() {
            changes.push(patch(&["nic_tags", tag], None, format!("without NIC tag {tag}")));
        }
    }
    for (path, text) in [
        (&["nic_tag_requirements"][..], "without NIC tag requirements"),
        (&["servers"], "on any server"),
        (&["package", "min_platform"], "without the package's platform limit"),
        (&["image", "requirements", "min_platform"], "without the image's least platform"),
        (&["image", "requirements", "max_platform"], "without the image's newest platform"),
        (&["vm", "internal_metadata", "docker:volumesfrom"], "without volumes of other VMs"),
        (&["vm", "internal_metadata", "encrypted"], "without encryption"),
        (&["vm", "internal_metadata", "force_designation_failure"], "without forced failure"),
        (&["vm", "tags", "triton.placement.exclude_virtual_servers"], "on virtual servers, too"),
    ] {
        if get(path).is_some() {
            changes.push(patch(path, None, text.to_owned()));
        }
    }
    let brand = get(&["vm", "brand"]).and_then(Value::as_str);
    if brand == Some("bhyve") && get(&["vm", "vcpus"]).is_none() {
        changes.push(patch(&["vm", "vcpus"], Some(json!(1)), "with 1 vCPU".to_owned()));
    }
    if get(&["vm", "internal_metadata", "encrypted"]).is_none() {
        let mut metadata = get(&["vm", "internal_metadata"])
            .and_then(Value::as_object)
            .cloned()
            .unwrap_or_default();
        metadata.insert("encrypted".to_owned(), json!(true));
        let wish = Some(Value::Object(metadata));
        changes.push(patch(&["vm", "internal_metadata"], wish, "with encryption".to_owned()));
    }
    if get(&["vm", "locality", "strict"]).is_some() {
        let text = "with locality as a wish".to_owned();
        changes.push(patch(&["vm", "locality", "strict"], Some(json!(false)), text));
    }
    let wishes = get(&["vm", "affinity"]).and_then(Value::as_array);
    for (place, wish) in wishes.into_iter().flatten().enumerate() {
        if wish.get("isSoft") == Some(&json!(false)) {
            let text = |name: &str| wish.get(name).and_then(Value::as_str).unwrap_or_default();
            let what = format!("{}{}{}", text("key"), text("operator"), text("value"));
            let path = ["vm", "affinity", &place.to_string(), "isSoft"];
            changes.push(patch(&path, Some(json!(true)), format!("with {what} as a wish")));
        }
    }
    for figure in FIGURES {
        let from = get(&["vm", figure.name]).and_then(Value::as_u64).filter(|n| *n > 1);
        changes.extend(from.map(|from| Change::Less { figure, from, amount: from - 1 }));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_reach_members_and_items() {
        let mut body = json!({
            "nic_tags": ["a", "b"], "vm": {"traits": {"ssd": true}, "affinity": [{"isSoft": false}]},
        });
        let body = body.as_object_mut().expect("an object");
        let path = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        patch(body, &path(&["nic_tags", "a"]), None);
        patch(body, &path(&["vm", "traits", "ssd"]), None);
        patch(body, &path(&["vm", "affinity", "0", "isSoft"]), Some(&json!(true)));
        patch(body, &path(&["servers"]), None);
        let want = json!({"nic_tags": ["b"], "vm": {"traits": {}, "affinity": [{"isSoft": true}]}});
        assert_eq!(*body, *want.as_object().expect("an object"));
    }

    #[test]
    fn large_numbers_are_grouped() {
        let texts = [5, 999, 1000, 2048, 1_234_567].map(grouped);
        assert_eq!(texts, ["5", "999", "1,000", "2,048", "1,234,567"]);
    }
}
