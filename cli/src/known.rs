//! Members of files that operators write: a misspelt one must not be dropped without a word, as the
//! API, whose clients may be newer than it, has to.

use std::path::Path;

use muster_shared::config::nearest;
use muster_shared::vm::{CHANGES, CONTEXT, FACTS, INITIAL, LASTING, Property};
use serde_json::{Map, Value};

use crate::CliError;

/// What a file may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    properties: &'static [&'static [Property]],
    others: &'static [&'static [&'static str]],
}

/// A machine that is to be made.
pub(crate) const SPEC: Known = Known {
    properties: &[LASTING, INITIAL, FACTS],
    others: &[
        CONTEXT,
        &[
            "package",
            "package_uuid",
            "networks",
            "metadata",
            "disk",
            "memory",
            "locality",
            "affinity",
        ],
        &["docker", "ticket"],
    ],
};

/// A change of a machine.
pub(crate) const CHANGE: Known =
    Known { properties: &[LASTING, CHANGES], others: &[CONTEXT, &["reboot"]] };

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
    let unknown: Vec<String> = members
        .keys()
        .filter(|name| known.names().all(|known| known != name.as_str()))
        .map(|name| match nearest(name, known.names()) {
            Some(meant) => format!("{name} (did you mean {meant}?)"),
            None => name.clone(),
        })
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    let path = path.display();
    Err(CliError::Usage(format!("{path}: members that nobody knows: {}", unknown.join(", "))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn refused(members: &Value, known: Known) -> String {
        let checked = check(Path::new("vm.json"), members.as_object().unwrap(), known);
        checked.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_misspelt_member_is_refused_with_what_was_meant() {
        let text = refused(&json!({ "rams": 512, "alias": "x", "zzz": 1 }), SPEC);
        assert!(text.contains("rams (did you mean ram?)") && text.contains("zzz"), "{text}");
        let text = refused(&json!({ "set_tag": {} }), CHANGE);
        assert!(text.contains("did you mean set_tags?"), "{text}");
    }

    #[test]
    fn what_the_api_takes_passes() {
        let spec = json!({
            "ram": 1, "networks": [], "image_uuid": "", "disks": [], "package": {}, "uuid": "",
            "internal_metadata": {}, "server_uuid": "", "locality": {}, "boot": "order=cd",
        });
        assert_eq!(refused(&spec, SPEC), "");
        let change = json!({ "ram": 1, "add_nics": [], "reboot": "never", "update_disks": [] });
        assert_eq!(refused(&change, CHANGE), "");
    }
}
