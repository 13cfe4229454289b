//! `server_update_nics`: which NIC of the node carries which networks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_shared::wire::Code;
use serde_json::{Map, Value, json};

use super::machine::refuse;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::settings::NicTag;

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

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let wanted = wanted(params)?;
        Ok(Plan::of(Vec::new(), Update { wanted }, STEPS))
    }
}

/// Tags by the address that is to carry them.
type Wanted = BTreeMap<String, Vec<String>>;

fn wanted(params: &Params) -> Result<Wanted, TaskFailure> {
    let bad = |problem: &str| TaskFailure::bad_param("nics", problem);
    let nics = params.get("nics").and_then(Value::as_array);
    let nics = nics.filter(|nics| nics.len() <= MAX_ENTRIES);
    let nics = nics.ok_or_else(|| bad("must be a list of NICs"))?;
    let mut wanted = Wanted::new();
    let mut seen = BTreeSet::new();
    for nic in nics {
        let mac = nic.get("mac").and_then(Value::as_str).ok_or_else(|| bad("each needs a mac"))?;
        let tags = match nic.get("nic_tags_provided") {
            None | Some(Value::Null) => {
                tracing::warn!(mac, "a NIC without tags is left alone");
                continue;
            }
            Some(tags) => tags_of(tags).ok_or_else(|| bad("nic_tags_provided must be names"))?,
        };
        for tag in &tags {
            if !seen.insert(tag.clone()) {
                return Err(bad(&format!("tag {tag:?} is on two NICs")));
            }
        }
        wanted.insert(mac.to_ascii_lowercase(), tags);
    }
    Ok(wanted)
}

fn tags_of(tags: &Value) -> Option<Vec<String>> {
    let usable = |tag: &&str| {
        (1..=MAX_TAG_CHARS).contains(&tag.len())
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let tags = tags.as_array().filter(|tags| tags.len() <= MAX_ENTRIES)?;
    tags.iter().map(|tag| tag.as_str().filter(usable).map(str::to_owned)).collect()
}

/// The whole new table: a tag that is named goes to its NIC, one that was there and is not named
/// any more goes.
fn table(old: &[NicTag], wanted: &Wanted) -> Vec<NicTag> {
    let mut new: Vec<NicTag> = Vec::new();
    let home = |tag: &str| wanted.iter().find(|(_, tags)| tags.iter().any(|name| name == tag));
    for tag in old {
        match home(&tag.name) {
            Some((mac, _)) => new.push(NicTag { mac: mac.clone(), ..tag.clone() }),
            None if wanted.contains_key(&tag.mac.to_ascii_lowercase()) => {}
            None => new.push(tag.clone()),
        }
    }
    for (mac, tags) in wanted {
        for name in tags {
            if !new.iter().any(|tag| tag.name == *name) {
                let (name, mac) = (name.clone(), mac.clone());
                new.push(NicTag { name, mac, mtu: None, uuid: None });
            }
        }
    }
    new
}

const STEPS: &[Row<Update>] = steps![("update", 100, update)];

#[derive(Debug)]
struct Update {
    wanted: Wanted,
}

impl Update {
    fn check_macs(&self, sysinfo: &Map<String, Value>) -> Result<(), TaskFailure> {
        let nics = sysinfo.get("Network Interfaces").and_then(Value::as_object);
        let known: BTreeSet<String> = nics
            .into_iter()
            .flat_map(|nics| nics.values())
            .filter_map(|nic| nic.get("MAC Address")?.as_str().map(str::to_ascii_lowercase))
            .collect();
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
}

impl Update {
    async fn update(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        let document = drivers.report.sysinfo_within(Duration::from_secs(60)).await;
        self.check_macs(&document.sysinfo)?;
        ctx.progress(20);
        let old = drivers.settings.nic_tags().await?;
        let new = table(&old, &self.wanted);
        Self::check_use(ctx, &old, &new)?;
        if new != old {
            drivers.settings.set_nic_tags(&new).await?;
        }
        let document = drivers.report.sysinfo_within(Duration::ZERO).await;
        ctx.finish_with(json!({ "sysinfo": document.sysinfo }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(name: &str, mac: &str) -> NicTag {
        NicTag { name: name.to_owned(), mac: mac.to_owned(), mtu: None, uuid: None }
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

    #[test]
    fn what_cannot_be_is_refused() {
        for nics in [
            json!({}),
            json!([{}]),
            json!([{ "mac": "a", "nic_tags_provided": ["a b"] }]),
            json!([{ "mac": "a", "nic_tags_provided": "admin" }]),
            json!([
                { "mac": "a", "nic_tags_provided": ["t"] },
                { "mac": "b", "nic_tags_provided": ["t"] },
            ]),
        ] {
            let params = Params::from_iter([("nics".to_owned(), nics)]);
            assert_eq!(wanted(&params).unwrap_err().code, "InvalidParameters");
        }
    }
}
