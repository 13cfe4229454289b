//! Members of files that operators write: a misspelt one must not be dropped without a word, as the
//! API, whose clients may be newer than it, has to.

use std::path::Path;

use muster_shared::config::nearest;
use muster_shared::vm::{CHANGES, CONTEXT, LASTING, Property};
use serde_json::{Map, Value};

use crate::CliError;

/// What a file may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    properties: &'static [&'static [Property]],
    others: &'static [&'static [&'static str]],
}

/// A change of a machine.
pub(crate) const CHANGE: Known =
    Known { properties: &[LASTING, CHANGES], others: &[CONTEXT, &["reboot"]] };

/// A policy that another one is compared with.
const POLICY: [&str; 2] = ["allocationDescription", "changeDefaults"];

/// What a policy may change; `docs/configuration.md` says what each is.
const DEFAULTS: [&str; 23] = [
    "disable_override_overprovisioning",
    "filter_capness",
    "filter_docker_min_platform",
    "filter_docker_nfs_volumes_automount_min_platform",
    "filter_flexible_disk_min_platform",
    "filter_headnode",
    "filter_large_servers",
    "filter_min_resources",
    "filter_non_docker_nfs_volumes_automount_min_platform",
    "filter_owner_server",
    "filter_vm_limit",
    "filter_volapi_nfs_v2_min_platform",
    "minimum_free_disk",
    "overprovision_ratio_cpu",
    "overprovision_ratio_disk",
    "overprovision_ratio_ram",
    "server_spread",
    "weight_current_platform",
    "weight_next_reboot",
    "weight_num_owner_zones",
    "weight_uniform_random",
    "weight_unreserved_disk",
    "weight_unreserved_ram",
];

/// Refuses what nobody knows in a policy.
pub(crate) fn check_policy(path: &Path, policy: &Map<String, Value>) -> Result<(), CliError> {
    refuse(path, policy, &POLICY)?;
    match policy.get("changeDefaults").and_then(Value::as_object) {
        Some(changes) => refuse(path, changes, &DEFAULTS),
        None => Ok(()),
    }
}

impl Known {
    fn names(self) -> impl Iterator<Item = &'static str> {
        let properties = self.properties.iter().flat_map(|table| table.iter().map(|it| it.name));
        properties.chain(self.others.iter().flat_map(|names| names.iter().copied()))
    }
}

/// Refuses what nobody knows, each with the name that may have been meant.
pub(crate) fn check(
    path: &Path,
    members: &Map<String, Value>,
    known: Known,
) -> Result<(), CliError> {
    refuse(path, members, &known.names().collect::<Vec<_>>())
}

fn refuse(path: &Path, members: &Map<String, Value>, known: &[&str]) -> Result<(), CliError> {
    let unknown: Vec<String> = members
        .keys()
        .filter(|name| !known.contains(&name.as_str()))
        .map(|name| match nearest(name, known.iter().copied()) {
            Some(meant) => format!("{name} (did you mean {meant}?)"),
            None => name.clone(),
        })
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let path = path.display();
    Err(CliError::Usage(format!("{path}: unknown members: {}", unknown.join(", "))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(members: &Value, known: Known) -> String {
        let checked = check(Path::new("vm.json"), members.as_object().unwrap(), known);
        checked.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_misspelt_member_is_refused_with_what_was_meant() {
        let text = refused(&json!({ "rams": 512, "alias": "x", "zzz": 1 }), CHANGE);
        assert!(text.contains("rams (did you mean ram?)") && text.contains("zzz"), "{text}");
        let text = refused(&json!({ "set_tag": {} }), CHANGE);
        assert!(text.contains("did you mean set_tags?"), "{text}");
    }

    #[test]
    fn a_policy_has_the_names_of_the_configuration() {
        let refused = |policy: Value| {
            let checked = check_policy(Path::new("p.json"), policy.as_object().unwrap());
            checked.map_or_else(|error| error.to_string(), |()| String::new())
        };
        let text = refused(json!({ "changeDefaults": { "weight_unreservd_ram": 1 } }));
        assert!(text.contains("did you mean weight_unreserved_ram?"), "{text}");
        let text = refused(json!({ "changeDefault": {} }));
        assert!(text.contains("did you mean changeDefaults?"), "{text}");
        let page = include_str!("../../docs/configuration.md");
        let named = page.split("`dapi.changeDefaults.").skip(1);
        let named: BTreeSet<&str> = named.filter_map(|rest| rest.split('`').next()).collect();
        assert_eq!(named, BTreeSet::from(DEFAULTS));
        let all: Map<String, Value> =
            DEFAULTS.iter().map(|name| ((*name).to_owned(), json!(1))).collect();
        assert_eq!(refused(json!({ "changeDefaults": all, "allocationDescription": [] })), "");
    }

    #[test]
    fn what_the_api_takes_passes() {
        let change = json!({ "ram": 1, "add_nics": [], "reboot": "never", "update_disks": [] });
        assert_eq!(refused(&change, CHANGE), "");
    }
}
