//! `server_update_nics`: which NIC of the node carries which networks.
//!
//! The bridges of the tags are changed first. The table of tags is what counts: until it is written
//! the change is on trial, and whatever ends the trial, also the end of this process, takes it back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::machine::refuse;
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, OnFailure, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::settings::NicTag;
use crate::node::bridges;

/// Longest name of a tag, as in the reference.
const MAX_TAG_CHARS: usize = 31;
/// NICs, and tags of one NIC.
const MAX_ENTRIES: usize = 256;

/// The kind; parameter `nics`: each with `mac` and `nic_tags_provided`. A NIC without the latter
/// is left alone.
#[derive(Debug)]
pub struct ServerUpdateNics;

impl Handler for ServerUpdateNics {
    fn kind(&self) -> Kind {
        Kind::mutate(
            "server_update_nics",
            Queue {
                name: "server_nic_tasks",
                max_concurrent: 1,
                max_wait: Duration::from_secs(120),
            },
            Duration::from_secs(120),
        )
    }

    fn example(&self) -> Params {
        // The address of the first simulated host.
        let nics = json!([{ "mac": "02:00:00:00:00:00", "nic_tags_provided": ["external"] }]);
        Params::from_iter([("nics".to_owned(), nics)])
    }

    fn on_failure(&self, _params: &Params) -> OnFailure {
        OnFailure::Undo
    }

    /// No VM comes to a network, or goes, while it changes.
    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let wanted = wanted(params)?;
        Ok(Plan::of(vec![Lock::ServerExclusive], Update { wanted }, STEPS))
    }
}

/// Tags by the address that is to carry them.
type Wanted = BTreeMap<String, Vec<String>>;

fn wanted(params: &Params) -> Result<Wanted, TaskFailure> {
    let bad = |field: &str, problem: &str| TaskFailure::bad_param(field, problem);
    let nics = params.get("nics").and_then(Value::as_array);
    let nics = nics.filter(|nics| nics.len() <= MAX_ENTRIES);
    let nics = nics.ok_or_else(|| bad("nics", "must be a list of at most 256 NICs"))?;
    let mut wanted = Wanted::new();
    let mut seen = BTreeSet::new();
    for (number, nic) in nics.iter().enumerate() {
        let field = |name: &str| format!("nics.{number}.{name}");
        let mac = nic.get("mac").and_then(Value::as_str);
        let mac = mac.ok_or_else(|| bad(&field("mac"), "must be the address of a NIC"))?;
        let tags = match nic.get("nic_tags_provided") {
            None | Some(Value::Null) => {
                tracing::warn!(mac, "a NIC without tags is left alone");
                continue;
            }
            Some(tags) => {
                tags_of(tags).map_err(|problem| bad(&field("nic_tags_provided"), &problem))?
            }
        };
        for tag in &tags {
            if !seen.insert(tag.clone()) {
                let problem = format!("tag {tag:?} is named twice");
                return Err(bad(&field("nic_tags_provided"), &problem));
            }
        }
        if wanted.insert(mac.to_ascii_lowercase(), tags).is_some() {
            return Err(bad(&field("mac"), &format!("NIC {mac} is named twice")));
        }
    }
    Ok(wanted)
}

fn tags_of(tags: &Value) -> Result<Vec<String>, String> {
    let usable = |tag: &str| {
        (1..=MAX_TAG_CHARS).contains(&tag.len())
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let tags = tags.as_array().filter(|tags| tags.len() <= MAX_ENTRIES);
    let tags = tags.ok_or("must be a list of at most 256 names")?;
    let name = |tag: &Value| match tag.as_str().filter(|tag| usable(tag)) {
        Some(tag) => Ok(tag.to_owned()),
        None => Err(format!("{tag}: a name has 1 to 31 of a-z, A-Z, 0-9 and _")),
    };
    tags.iter().map(name).collect()
}

/// The tags that the node has: those of the table, and where the table knows none the admin tag on
/// the interface that it follows from.
fn current(mut tags: Vec<NicTag>, sysinfo: &Map<String, Value>) -> Vec<NicTag> {
    for (mac, names) in interfaces(sysinfo) {
        for name in names {
            if !tags.iter().any(|tag| tag.name == name) {
                tags.push(NicTag { name, mac: mac.clone(), ..NicTag::default() });
            }
        }
    }
    tags
}

/// The node's NICs, with their tags.
fn interfaces(sysinfo: &Map<String, Value>) -> Vec<(String, Vec<String>)> {
    let nics = sysinfo.get("Network Interfaces").and_then(Value::as_object);
    let nic = |nic: &Value| {
        let names = nic.get("NIC Names").and_then(Value::as_array).into_iter().flatten();
        let names = names.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        Some((nic.get("MAC Address")?.as_str()?.to_ascii_lowercase(), names))
    };
    nics.into_iter().flat_map(|nics| nics.values()).filter_map(nic).collect()
}

/// The whole new table: a tag that is named goes to its NIC, one that was there and is not named
/// any more goes.
fn table(old: &[NicTag], wanted: &Wanted) -> Vec<NicTag> {
    let mut new: Vec<NicTag> = Vec::new();
    let home = |tag: &str| wanted.iter().find(|(_, tags)| tags.iter().any(|name| name == tag));
    for tag in old {
        match home(&tag.name) {
            Some((mac, _)) => {
                let bridge = tag.bridge && tag.mac.eq_ignore_ascii_case(mac);
                new.push(NicTag { mac: mac.clone(), bridge, ..tag.clone() });
            }
            None if wanted.contains_key(&tag.mac.to_ascii_lowercase()) => {}
            None => new.push(tag.clone()),
        }
    }
    for (mac, tags) in wanted {
        for name in tags {
            if !new.iter().any(|tag| tag.name == *name) {
                new.push(NicTag { name: name.clone(), mac: mac.clone(), ..NicTag::default() });
            }
        }
    }
    new
}

const STEPS: &[Row<Update>] =
    steps![("change", 80, change, undo take_back), ("report", 100, report)];

#[derive(Debug)]
struct Update {
    wanted: Wanted,
}

impl Update {
    fn check_macs(&self, sysinfo: &Map<String, Value>) -> Result<(), TaskFailure> {
        let known: BTreeSet<String> = interfaces(sysinfo).into_iter().map(|(mac, _)| mac).collect();
        match self.wanted.keys().find(|mac| !known.contains(*mac)) {
            None => Ok(()),
            Some(mac) => Err(TaskFailure::bad_param("nics", format!("this node has no NIC {mac}"))),
        }
    }

    /// A tag that a VM's NIC uses stays.
    fn check_use(ctx: &TaskContext, old: &[NicTag], new: &[NicTag]) -> Result<(), TaskFailure> {
        let gone = old.iter().filter(|tag| !new.iter().any(|kept| kept.name == tag.name));
        for tag in gone {
            let uses = |nic: &Value| nic["nic_tag"] == tag.name.as_str();
            let entries = ctx.drivers.vms.entries();
            let user = entries.iter().find(|entry| entry.record.list("nics").iter().any(uses));
            if let Some(user) = user {
                let text = format!("NIC tag {} is used by VM {}", tag.name, user.record.uuid);
                return Err(refuse(Code::NicTagInUse, text));
            }
        }
        Ok(())
    }

    /// Tags that are new on their NIC get a bridge, unless the operator has made one.
    async fn with_bridges(
        ctx: &TaskContext,
        old: &[NicTag],
        mut new: Vec<NicTag>,
    ) -> Result<Vec<NicTag>, TaskFailure> {
        for tag in &mut new {
            let is_it =
                |had: &&NicTag| had.name == tag.name && had.mac.eq_ignore_ascii_case(&tag.mac);
            if !old.iter().any(|had| is_it(&had)) {
                tag.bridge = ctx.drivers.networks.lacks_bridge(&tag.name, &tag.mac).await?;
            }
        }
        Ok(new)
    }

    async fn change(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        let document = drivers.report.sysinfo_within(Duration::ZERO).await;
        self.check_macs(&document.sysinfo)?;
        ctx.progress(20);
        let stored = drivers.settings.nic_tags().await?;
        let old = current(stored, &document.sysinfo);
        let new = table(&old, &self.wanted);
        if new == old {
            return Ok(());
        }
        if ctx.resumed {
            let text = "the agent went down while the change was on trial: it is taken back";
            return Err(TaskFailure::new(Code::Interrupted, text));
        }
        Self::check_use(ctx, &old, &new)?;
        let new = Self::with_bridges(ctx, &old, new).await?;
        bridges::change(drivers, &old, &new).await
    }

    /// What counts is the table: it is the old one unless the change was made.
    async fn take_back(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        bridges::take_back(&ctx.drivers).await
    }

    async fn report(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let document = ctx.drivers.report.sysinfo_within(Duration::ZERO).await;
        ctx.finish_with(json!({ "sysinfo": document.sysinfo }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str, mac: &str) -> NicTag {
        NicTag { name: name.to_owned(), mac: mac.to_owned(), ..NicTag::default() }
    }

    #[test]
    fn tags_move_come_and_go() {
        let old = [tag("admin", "A"), tag("external", "a"), tag("storage", "c"), tag("x", "b")];
        let nics = json!([
            { "mac": "A", "nic_tags_provided": ["admin", "new"] },
            { "mac": "b", "nic_tags_provided": ["external"] },
            { "mac": "d" },
        ]);
        let params = Params::from_iter([("nics".to_owned(), nics)]);
        let new = table(&old, &wanted(&params).unwrap());
        let expected =
            [tag("admin", "a"), tag("external", "b"), tag("storage", "c"), tag("new", "a")];
        assert_eq!(new, expected);
        assert_eq!(table(&new, &wanted(&params).unwrap()), new);
    }

    /// What is not named stays, also where nobody has written it down.
    #[test]
    fn the_admin_tag_that_nobody_set_is_kept() {
        let sysinfo = json!({ "Network Interfaces": {
            "eth0": { "MAC Address": "02:00:00:00:00:0A", "NIC Names": ["admin"] },
            "eth1": { "MAC Address": "02:00:00:00:00:0b", "NIC Names": ["storage"] },
        } });
        let stored = vec![NicTag { bridge: true, ..tag("storage", "02:00:00:00:00:0b") }];
        let old = current(stored.clone(), sysinfo.as_object().unwrap());
        assert_eq!(old, [stored[0].clone(), tag("admin", "02:00:00:00:00:0a")]);
        let nics =
            json!([{ "mac": "02:00:00:00:00:0a", "nic_tags_provided": ["admin", "storage"] }]);
        let params = Params::from_iter([("nics".to_owned(), nics)]);
        // The bridge is another one then.
        let moved = tag("storage", "02:00:00:00:00:0a");
        assert_eq!(table(&old, &wanted(&params).unwrap()), [moved, old[1].clone()]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = json!({ "mac": "a", "nic_tags_provided": ["t"] });
        let long = "x".repeat(32);
        for (nics, field) in [
            (json!({}), "nics"),
            (json!(vec![good.clone(); 257]), "nics"),
            (json!([{}]), "nics.0.mac"),
            (json!([good, { "mac": 5 }]), "nics.1.mac"),
            (json!([good, { "mac": "A", "nic_tags_provided": [] }]), "nics.1.mac"),
            (json!([{ "mac": "a", "nic_tags_provided": ["a b"] }]), "nics.0.nic_tags_provided"),
            (json!([{ "mac": "a", "nic_tags_provided": [""] }]), "nics.0.nic_tags_provided"),
            (json!([{ "mac": "a", "nic_tags_provided": [long] }]), "nics.0.nic_tags_provided"),
            (json!([{ "mac": "a", "nic_tags_provided": [7] }]), "nics.0.nic_tags_provided"),
            (json!([{ "mac": "a", "nic_tags_provided": "t" }]), "nics.0.nic_tags_provided"),
            (json!([good, { "mac": "b", "nic_tags_provided": ["t"] }]), "nics.1.nic_tags_provided"),
        ] {
            let refused = wanted(&Params::from_iter([("nics".to_owned(), nics)])).unwrap_err();
            assert_eq!(refused.code, "InvalidParameters");
            assert_eq!(refused.details.as_ref().unwrap()["field"], field, "{refused:?}");
        }
    }
}
