//! What a request could ask for less strictly.

use serde_json::{Map, Value, json};

use crate::change::{Change, Figure};
use crate::num::some_truthy;

/// Figures of a request that may be smaller.
const FIGURES: [Figure; 4] = [
    Figure { name: "ram", unit: "MiB of memory" },
    Figure { name: "quota", unit: "GiB of disk" },
    Figure { name: "cpu_cap", unit: "percent of a core" },
    Figure { name: "vcpus", unit: "vCPUs" },
];

/// Wishes that can be left out as a whole.
const WISHES: [(&[&str], &str); 9] = [
    (&["nic_tag_requirements"], "without NIC tag requirements"),
    (&["servers"], "on any server"),
    (&["package", "min_platform"], "without the package's platform limit"),
    (&["image", "requirements", "min_platform"], "without the image's least platform"),
    (&["image", "requirements", "max_platform"], "without the image's newest platform"),
    (&["vm", "internal_metadata", "docker:volumesfrom"], "without volumes of other VMs"),
    (&["vm", "internal_metadata", "encrypted"], "without encryption"),
    (&["vm", "internal_metadata", "force_designation_failure"], "without forced failure"),
    (&["vm", "tags", "triton.placement.exclude_virtual_servers"], "on virtual servers, too"),
];

/// Everything in a body that could be asked for less strictly.
pub(crate) fn relaxations(body: &Map<String, Value>) -> Vec<Change> {
    let body = Body(body);
    let mut changes = body.fewer_traits_and_tags();
    let wishes = WISHES.iter().filter(|(path, _)| body.get(path).is_some());
    changes.extend(wishes.map(|(path, text)| patch(path, None, (*text).to_owned())));
    changes.extend(body.other_hypervisor_wishes());
    changes.extend(body.soft_wishes());
    for figure in FIGURES {
        let from = body.get(&["vm", figure.name]).and_then(Value::as_u64).filter(|n| *n > 1);
        changes.extend(from.map(|from| Change::Less { figure, from, amount: from - 1 }));
    }
    changes
}

fn patch(path: &[&str], value: Option<Value>, text: String) -> Change {
    Change::Patch { path: path.iter().map(|name| (*name).to_owned()).collect(), value, text }
}

#[derive(Clone, Copy)]
struct Body<'a>(&'a Map<String, Value>);

impl<'a> Body<'a> {
    /// What is at a path, if it says anything.
    fn get(self, path: &[&str]) -> Option<&'a Value> {
        let (first, rest) = path.split_first()?;
        let mut at = self.0.get(*first)?;
        for name in rest {
            at = at.get(name)?;
        }
        some_truthy(Some(at))
    }

    fn fewer_traits_and_tags(self) -> Vec<Change> {
        let mut changes = Vec::new();
        for place in ["vm", "package", "image"] {
            let traits = self.get(&[place, "traits"]).and_then(Value::as_object);
            for name in traits.into_iter().flat_map(Map::keys) {
                let text = format!("without trait {name}");
                changes.push(patch(&[place, "traits", name], None, text));
            }
        }
        let tags = self.get(&["nic_tags"]).and_then(Value::as_array);
        for tag in tags.into_iter().flatten().filter_map(Value::as_str) {
            changes.push(patch(&["nic_tags", tag], None, format!("without NIC tag {tag}")));
        }
        changes
    }

    /// What a request may have to say more than it does.
    fn other_hypervisor_wishes(self) -> Vec<Change> {
        let mut changes = Vec::new();
        let brand = self.get(&["vm", "brand"]).and_then(Value::as_str);
        if brand == Some("bhyve") && self.get(&["vm", "vcpus"]).is_none() {
            changes.push(patch(&["vm", "vcpus"], Some(json!(1)), "with 1 vCPU".to_owned()));
        }
        if self.get(&["vm", "internal_metadata", "encrypted"]).is_none() {
            let metadata = self.get(&["vm", "internal_metadata"]).and_then(Value::as_object);
            let mut metadata = metadata.cloned().unwrap_or_default();
            metadata.insert("encrypted".to_owned(), json!(true));
            let wish = Some(Value::Object(metadata));
            changes.push(patch(&["vm", "internal_metadata"], wish, "with encryption".to_owned()));
        }
        changes
    }

    /// Strict wishes about other VMs, as wishes that may fail.
    fn soft_wishes(self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.get(&["vm", "locality", "strict"]).is_some() {
            let text = "with locality as a wish".to_owned();
            changes.push(patch(&["vm", "locality", "strict"], Some(json!(false)), text));
        }
        let wishes = self.get(&["vm", "affinity"]).and_then(Value::as_array);
        for (place, wish) in wishes.into_iter().flatten().enumerate() {
            if wish.get("isSoft") == Some(&json!(false)) {
                let text = |name: &str| wish.get(name).and_then(Value::as_str).unwrap_or_default();
                let what = format!("{}{}{}", text("key"), text("operator"), text("value"));
                let path = ["vm", "affinity", &place.to_string(), "isSoft"];
                changes.push(patch(&path, Some(json!(true)), format!("with {what} as a wish")));
            }
        }
        changes
    }
}
