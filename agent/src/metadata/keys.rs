//! What a guest gets by which key, and what it may change. Pure.

use std::net::IpAddr;

use muster_shared::vm::{Kind, MAX_VM_BYTES, json_bytes, property};
use serde_json::{Map, Value, json};

use super::protocol::{Answer, Command};
use crate::vm_record::VmRecord;

/// Begins the keys that tell of the VM itself.
const OWN: &str = "sdc:";
/// Ends the keys of passwords, which are internal.
const PASSWORD: &str = "_pw";

/// The internal key of the script that the operator has the guest run when it starts.
pub const OPERATOR_SCRIPT: &str = "operator-script";

/// A metadata property of the VM.
const CUSTOMER: &str = "customer_metadata";
const INTERNAL: &str = "internal_metadata";

/// What a guest sees of its VM.
#[derive(Clone, Debug)]
pub struct View<'a> {
    /// The VM, as the guest is told of it.
    pub vm: &'a VmRecord,
    /// Name of the datacentre, when configured.
    pub datacenter: Option<&'a str>,
    /// The server.
    pub server: Option<String>,
}

/// Where the value of a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Own,
    Internal,
    Customer,
}

impl Place {
    fn of(vm: &VmRecord, key: &str) -> Self {
        if key.starts_with(OWN) {
            Self::Own
        } else if key.ends_with(PASSWORD) || is_namespaced(vm, key) {
            Self::Internal
        } else {
            Self::Customer
        }
    }
}

/// Whether a key is in one of the namespaces of `internal_metadata`.
fn is_namespaced(vm: &VmRecord, key: &str) -> bool {
    let mut spaces = vm.list("internal_metadata_namespaces").iter().filter_map(Value::as_str);
    spaces.any(|space| key.strip_prefix(space).is_some_and(|rest| rest.starts_with(':')))
}

impl View<'_> {
    /// Answers what changes nothing.
    #[must_use]
    pub fn answer(&self, command: &Command) -> Option<Answer> {
        match command {
            Command::Get(key) => Some(match self.value(key) {
                Some(value) => Answer::Success(Some(value)),
                None => Answer::NotFound,
            }),
            Command::Keys => Some(Answer::Success(Some(self.keys().join("\n")))),
            Command::Put(..) | Command::Delete(_) => None,
        }
    }

    fn value(&self, key: &str) -> Option<String> {
        let member = |object: &str| self.vm.properties.get(object)?.get(key).map(shown);
        match Place::of(self.vm, key) {
            Place::Own => self.own(key.strip_prefix(OWN)?),
            Place::Internal => member(INTERNAL),
            Place::Customer => member(CUSTOMER),
        }
    }

    fn keys(&self) -> Vec<&str> {
        let names = |object: &str| {
            let members = self.vm.properties.get(object).and_then(Value::as_object);
            members.into_iter().flatten().map(|(name, _)| name.as_str())
        };
        let internal = names(INTERNAL).filter(|key| is_namespaced(self.vm, key));
        names(CUSTOMER).chain(internal).collect()
    }

    fn own(&self, name: &str) -> Option<String> {
        let text = |name: &str| self.vm.text(name).map(str::to_owned);
        let list = |name: &str| Some(Value::from(self.vm.list(name)).to_string());
        match name {
            "uuid" => Some(self.vm.uuid.to_string()),
            "alias" | "hostname" | "owner_uuid" => text(name),
            "nics" | "resolvers" => list(name),
            "routes" => Some(routes(self.vm).to_string()),
            "server_uuid" => self.server.clone(),
            "datacenter_name" => self.datacenter.map(str::to_owned),
            // What the operator has it run, under the name that guests of SmartOS ask for.
            OPERATOR_SCRIPT => self.vm.properties.get(INTERNAL)?.get(name).map(shown),
            _ => None,
        }
    }
}

/// The routes of the record, in the form that guests of SmartOS read.
fn routes(vm: &VmRecord) -> Value {
    let routes = vm.properties.get("routes").and_then(Value::as_object).into_iter().flatten();
    let route = |(to, gateway): (&String, &Value)| {
        let gateway = gateway.as_str()?;
        // Anything else is the interface itself, behind which the destination is.
        let link_local = gateway.parse::<IpAddr>().is_err();
        Some(json!({ "linklocal": link_local, "dst": to, "gateway": gateway }))
    };
    routes.filter_map(route).collect()
}

/// A text as it is, anything else as JSON.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Carries out a guest's change of its metadata.
pub fn change(vm: &mut VmRecord, command: &Command) -> Answer {
    let (key, value) = match command {
        Command::Put(key, value) => (key, Some(value)),
        Command::Delete(key) => (key, None),
        Command::Get(_) | Command::Keys => return Answer::Failure("it changes nothing".to_owned()),
    };
    match Place::of(vm, key) {
        Place::Own => return Answer::Failure(format!("{key} is told by the agent")),
        Place::Internal => return Answer::Failure(format!("{key} is not the guest's to change")),
        Place::Customer => {}
    }
    let before = vm.properties.get(CUSTOMER).and_then(Value::as_object);
    let mut after: Map<String, Value> = before.cloned().unwrap_or_default();
    let Some(value) = value else {
        return match after.shift_remove(key) {
            None => Answer::NotFound,
            Some(_) => set(vm, after),
        };
    };
    after.insert(key.clone(), json!(value));
    let most = match property(CUSTOMER).map(|known| known.kind) {
        Some(Kind::FlatObject(most)) => most,
        _ => 0,
    };
    let grows = json_bytes(&after).saturating_sub(before.map_or(0, json_bytes));
    let fits = json_bytes(&vm.properties).saturating_add(grows) <= MAX_VM_BYTES;
    if grows > 0 && (json_bytes(&after) > most || !fits) {
        return Answer::Failure(format!("the metadata of a VM has at most {most} bytes"));
    }
    set(vm, after)
}

fn set(vm: &mut VmRecord, metadata: Map<String, Value>) -> Answer {
    vm.properties.insert(CUSTOMER.to_owned(), Value::Object(metadata));
    Answer::Success(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vms::sim::record;

    fn vm(properties: Value) -> VmRecord {
        let Value::Object(properties) = properties else { panic!("an object is needed") };
        VmRecord { properties, ..record(9) }
    }

    fn get(vm: &VmRecord, key: &str) -> Answer {
        let view = View { vm, datacenter: Some("dc1"), server: None };
        view.answer(&Command::Get(key.to_owned())).unwrap()
    }

    fn value(text: &str) -> Answer {
        Answer::Success(Some(text.to_owned()))
    }

    #[test]
    fn a_key_says_where_its_value_is() {
        let vm = vm(json!({
            "alias": "web", "resolvers": ["9.9.9.9"], "nics": [{ "mac": "02:00:00:00:00:01" }],
            "routes": { "10.1.0.0/16": "10.0.0.1", "10.2.0.0/16": "nics[0]" },
            "customer_metadata": { "color": "blue", "count": 3, "root_pw": "no", "op:x": "no" },
            "internal_metadata": {
                "root_pw": "secret", "op:x": "y", "muster:hostfwd": "z", "operator-script": "#!/bin/sh",
            },
            "internal_metadata_namespaces": ["op"],
        }));
        for (key, wanted) in [
            ("color", "blue"),
            ("count", "3"),
            ("root_pw", "secret"),
            ("op:x", "y"),
            ("sdc:alias", "web"),
            ("sdc:datacenter_name", "dc1"),
            ("sdc:operator-script", "#!/bin/sh"),
            ("sdc:resolvers", r#"["9.9.9.9"]"#),
            ("sdc:nics", r#"[{"mac":"02:00:00:00:00:01"}]"#),
        ] {
            assert_eq!(get(&vm, key), value(wanted), "{key}");
        }
        assert_eq!(get(&vm, "sdc:uuid"), value(&vm.uuid.to_string()));
        for absent in ["muster:hostfwd", "operator-script", "sdc:server_uuid", "sdc:x", "nothing"] {
            assert_eq!(get(&vm, absent), Answer::NotFound, "{absent}");
        }
        let Answer::Success(Some(routes)) = get(&vm, "sdc:routes") else { panic!("routes") };
        let routes: Value = serde_json::from_str(&routes).unwrap();
        assert_eq!(
            routes[0],
            json!({"linklocal": false, "dst": "10.1.0.0/16", "gateway": "10.0.0.1"})
        );
        assert_eq!(routes[1]["linklocal"], true);
        let view = View { vm: &vm, datacenter: None, server: None };
        let keys = view.answer(&Command::Keys).unwrap();
        assert_eq!(keys, value("color\ncount\nroot_pw\nop:x\nop:x"));
    }

    #[test]
    fn a_guest_changes_its_own_metadata_alone() {
        let mut vm = vm(json!({
            "customer_metadata": { "color": "blue" }, "internal_metadata": { "root_pw": "secret" },
            "internal_metadata_namespaces": ["op"],
        }));
        let put = |vm: &mut VmRecord, key: &str, value: &str| {
            change(vm, &Command::Put(key.to_owned(), value.to_owned()))
        };
        assert_eq!(put(&mut vm, "color", "red"), Answer::Success(None));
        assert_eq!(put(&mut vm, "new", ""), Answer::Success(None));
        for key in ["sdc:uuid", "root_pw", "op:x"] {
            assert!(matches!(put(&mut vm, key, "x"), Answer::Failure(_)), "{key}");
            let removed = change(&mut vm, &Command::Delete(key.to_owned()));
            assert!(matches!(removed, Answer::Failure(_)), "{key}");
        }
        assert_eq!(change(&mut vm, &Command::Delete("color".to_owned())), Answer::Success(None));
        assert_eq!(change(&mut vm, &Command::Delete("color".to_owned())), Answer::NotFound);
        assert_eq!(vm.properties["customer_metadata"], json!({ "new": "" }));
        assert_eq!(vm.properties["internal_metadata"], json!({ "root_pw": "secret" }));
    }

    #[test]
    fn metadata_stays_within_its_limit() {
        let mut vm = vm(json!({}));
        let put = |vm: &mut VmRecord, key: &str, bytes: usize| {
            change(vm, &Command::Put(key.to_owned(), "x".repeat(bytes)))
        };
        assert_eq!(put(&mut vm, "a", 200 * 1024), Answer::Success(None));
        assert!(matches!(put(&mut vm, "b", 60 * 1024), Answer::Failure(_)));
        assert_eq!(put(&mut vm, "a", 100), Answer::Success(None));
        assert_eq!(put(&mut vm, "b", 60 * 1024), Answer::Success(None));
    }
}
