//! A change of a VM.

use serde_json::{Map, Value, json};

use super::spec::put;

/// When the guest is restarted for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reboot {
    /// Whenever that is what lets the change take effect, and for all network interfaces that come or
    /// go.
    Always,
    /// For network interfaces that come or go, and can't while the guest runs.
    #[default]
    IfNeeded,
    /// Never.
    Never,
}

impl Reboot {
    /// Its words, for the API.
    pub const WORDS: &[&str] = &["always", "if_needed", "never"];

    /// Reads the parameter `reboot`; absent or null is the default.
    ///
    /// # Errors
    /// What it must be.
    pub fn read(value: Option<&Value>) -> Result<Self, &'static str> {
        match value {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(Value::String(word)) if word == "always" => Ok(Self::Always),
            Some(Value::String(word)) if word == "if_needed" => Ok(Self::IfNeeded),
            Some(Value::String(word)) if word == "never" => Ok(Self::Never),
            Some(_) => Err("must be always, if_needed or never"),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNeeded => "if_needed",
            Self::Never => "never",
        }
    }
}

/// A change of a VM, as an update carries it: typed, as far as Muster itself writes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmChange {
    /// Its name.
    pub alias: Option<String>,
    /// Memory of the guest, MiB.
    pub ram: Option<u64>,
    /// Virtual CPUs.
    pub vcpus: Option<u64>,
    /// CPU limit, percent of one core; 0: no limit.
    pub cpu_cap: Option<u64>,
    /// Tags that are set.
    pub set_tags: Map<String, Value>,
    /// Tags that are removed.
    pub remove_tags: Vec<String>,
    /// Metadata that is set.
    pub set_customer_metadata: Map<String, Value>,
    /// Metadata that is removed.
    pub remove_customer_metadata: Vec<String>,
    /// When the guest is restarted for it.
    pub reboot: Option<Reboot>,
}

impl VmChange {
    /// Its members laid over others, which give way.
    #[must_use]
    pub fn over(self, mut members: Map<String, Value>) -> Map<String, Value> {
        let object = |set: Map<String, Value>| (!set.is_empty()).then_some(Value::Object(set));
        let list = |names: Vec<String>| (!names.is_empty()).then(|| json!(names));
        let typed = [
            ("alias", self.alias.map(Value::from)),
            ("ram", self.ram.map(Value::from)),
            ("vcpus", self.vcpus.map(Value::from)),
            ("cpu_cap", self.cpu_cap.map(Value::from)),
            ("set_tags", object(self.set_tags)),
            ("remove_tags", list(self.remove_tags)),
            ("set_customer_metadata", object(self.set_customer_metadata)),
            ("remove_customer_metadata", list(self.remove_customer_metadata)),
            ("reboot", self.reboot.map(|reboot| json!(reboot.as_str()))),
        ];
        put(&mut members, typed);
        members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_reboot_are_read() {
        for (word, reboot) in
            Reboot::WORDS.iter().zip([Reboot::Always, Reboot::IfNeeded, Reboot::Never])
        {
            assert_eq!(Reboot::read(Some(&json!(word))), Ok(reboot));
            assert_eq!(reboot.as_str(), *word);
        }
        assert_eq!(Reboot::read(None), Ok(Reboot::IfNeeded));
        assert!(Reboot::read(Some(&json!(true))).is_err());
    }

    #[test]
    fn only_what_is_given_replaces_what_was_there() {
        let members =
            Map::from_iter([("alias".to_owned(), json!("a")), ("x".to_owned(), json!(1))]);
        let change = VmChange { alias: Some("b".to_owned()), ..VmChange::default() };
        assert_eq!(Value::Object(change.over(members)), json!({ "alias": "b", "x": 1 }));
    }
}
