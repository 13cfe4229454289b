//! One property of a VM, a disk or a network interface: its type, its limits, and what becomes of
//! it.

use serde_json::{Value, json};

use super::{MAX_COUNT, MAX_DEVICES, MAX_MIB, MAX_WORDS, json_bytes};
use crate::ids::VmUuid;
use crate::lenient;

/// What a list holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// A disk of a hardware VM.
    Disk,
    /// A directory of the server in a container.
    Filesystem,
    /// A firewall rule.
    FirewallRule,
    /// A network interface.
    Nic,
    /// A device of the server.
    PciDevice,
}

impl Item {
    /// Its name in the OpenAPI document.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "Disk",
            Self::Filesystem => "Filesystem",
            Self::FirewallRule => "FirewallRule",
            Self::Nic => "Nic",
            Self::PciDevice => "PciDevice",
        }
    }
}

/// The type of a property, for all brands. Numbers and switches may also be given as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A UUID.
    Uuid,
    /// A text of at most so many characters.
    Text(usize),
    /// `true` or `false`.
    Flag,
    /// A size, MiB.
    Mib,
    /// A size, GiB.
    Gib,
    /// A whole number.
    Count,
    /// A whole number within these limits.
    Range(i64, u64),
    /// An object of texts, numbers and switches, of at most so many bytes as JSON.
    FlatObject(usize),
    /// Texts; may also be given as one with commas.
    Words,
    /// Objects, at most [`MAX_DEVICES`].
    List(Item),
    /// Anything.
    Any,
}

/// What narrows a property on hardware VMs further than its [`Kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Nothing.
    Any,
    /// At least one character.
    Filled,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// At least this number.
    AtLeast(u64),
    /// Labels of letters, digits and hyphens, separated by dots.
    HostName,
    /// At most so many bytes.
    Bytes(usize),
    /// What may be part of the hypervisor's command line.
    Option {
        /// Also a comma, where another option would begin.
        commas: bool,
    },
}

/// What an agent does with a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Takes effect as soon as it is recorded.
    Live,
    /// Takes effect when the guest starts next.
    AtStart,
    /// Is recorded and told, and nothing follows from it on the server, for this reason.
    Kept(&'static str),
    /// Comes with requests for somebody else, and is dropped without a word.
    Dropped,
    /// Is dropped, which its log says, for this reason.
    Ignored(&'static str),
    /// Is refused by name, for this reason, unless it asks for nothing, see [`asks_nothing`].
    Refused(&'static str),
}

/// A property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// Its name, vmadm's.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What becomes of it on hardware VMs.
    pub effect: Effect,
    /// What becomes of it on containers, if that is something else.
    pub on_containers: Option<Effect>,
    /// What narrows it there.
    pub form: Form,
    /// What it is, with its unit, for the API's documentation.
    pub doc: &'static str,
}

impl Property {
    /// One that its kind says all about.
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        effect: Effect,
        doc: &'static str,
    ) -> Self {
        Self { name, kind, effect, on_containers: None, form: Form::Any, doc }
    }

    pub(super) const fn on_containers(self, effect: Effect) -> Self {
        Self { on_containers: Some(effect), ..self }
    }

    /// What becomes of it, on a container or a hardware VM.
    #[must_use]
    pub fn effect_on(&self, is_container: bool) -> Effect {
        match self.on_containers {
            Some(effect) if is_container => effect,
            _ => self.effect,
        }
    }

    pub(super) const fn form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// A value as it is recorded for a hardware VM; `None` if it can't be.
    #[must_use]
    pub fn read(&self, value: &Value) -> Option<Value> {
        match self.kind {
            Kind::Uuid => {
                let uuid: VmUuid = value.as_str()?.parse().ok()?;
                Some(json!(uuid))
            }
            Kind::Text(most) => {
                let text = value.as_str()?;
                // Names and words, which are printed; no text of several lines is one of them.
                let fits = text.chars().count() <= most && !text.chars().any(char::is_control);
                (fits && self.form.allows(text)).then(|| value.clone())
            }
            Kind::Flag => lenient::flag(value).map(Value::from),
            Kind::Mib | Kind::Gib | Kind::Count | Kind::Range(0.., _) => self.whole(value),
            Kind::Range(least, most) => {
                let fits =
                    |number: &i64| *number >= least && i128::from(*number) <= i128::from(most);
                lenient::signed(value).filter(fits).map(Value::from)
            }
            Kind::FlatObject(most) => {
                (is_flat(value) && json_bytes(value) <= most).then(|| value.clone())
            }
            Kind::Words => {
                let words = lenient::words(value).filter(|words| words.len() <= MAX_WORDS);
                words.map(Value::from)
            }
            Kind::List(_) => {
                let items = value.as_array().filter(|items| items.len() <= MAX_DEVICES)?;
                items.iter().all(Value::is_object).then(|| value.clone())
            }
            Kind::Any => Some(value.clone()),
        }
    }

    /// Whether an update with 0 takes it away, as one with `null` or an empty text does.
    #[must_use]
    pub fn zero_clears(&self) -> bool {
        matches!(self.kind, Kind::Mib | Kind::Gib | Kind::Count) && self.form == Form::Any
    }

    /// The least and the largest of a whole number that is recorded; `None` for other kinds, and
    /// for numbers that may be negative.
    #[must_use]
    pub fn limits(&self) -> Option<(u64, u64)> {
        let (least, most) = match self.kind {
            Kind::Mib => (0, MAX_MIB),
            Kind::Gib => (0, MAX_MIB / 1024),
            Kind::Count => (0, MAX_COUNT),
            Kind::Range(least, most) => (u64::try_from(least).ok()?, most),
            _ => return None,
        };
        Some((if let Form::AtLeast(own) = self.form { own } else { least }, most))
    }

    fn whole(&self, value: &Value) -> Option<Value> {
        let (least, most) = self.limits()?;
        lenient::number(value).filter(|n| (least..=most).contains(n)).map(Value::from)
    }
}

impl Form {
    fn allows(self, text: &str) -> bool {
        match self {
            Self::Any | Self::AtLeast(_) => true,
            Self::Filled => !text.is_empty(),
            Self::OneOf(words) => words.contains(&text),
            Self::HostName => text.split('.').all(is_label),
            Self::Bytes(most) => text.len() <= most,
            Self::Option { commas } => {
                text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.=+".contains(&b) || commas && b == b',')
                // The hypervisor would print what there is, and end.
                && text != "help"
            }
        }
    }
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether a value is as good as none: clients send such for what they have no wish about.
#[must_use]
pub fn asks_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::Bool(true) | Value::Number(_) => false,
    }
}

/// Whether a value is an object of texts, numbers and switches.
#[must_use]
pub fn is_flat(value: &Value) -> bool {
    let scalar = |value: &Value| !value.is_array() && !value.is_object() && !value.is_null();
    value.as_object().is_some_and(|object| object.values().all(scalar))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(property: Property, value: &Value, expected: Option<&Value>) {
        assert_eq!(property.read(value).as_ref(), expected, "{value}");
    }

    const fn any(kind: Kind) -> Property {
        Property::new("p", kind, Effect::Live, "")
    }

    #[test]
    fn values_are_read_in_their_kinds_and_limits() {
        check(any(Kind::Mib), &json!("512"), Some(&json!(512)));
        check(any(Kind::Mib), &json!(MAX_MIB + 1), None);
        check(any(Kind::Gib), &json!(MAX_MIB), None);
        check(any(Kind::Count), &json!(-1), None);
        check(any(Kind::Mib).form(Form::AtLeast(64)), &json!(63), None);
        check(any(Kind::Range(-1, 65_535)), &json!(-1), Some(&json!(-1)));
        check(any(Kind::Range(-1, 65_535)), &json!("5900"), Some(&json!(5900)));
        check(any(Kind::Range(-1, 65_535)), &json!(-2), None);
        check(any(Kind::Range(-1, 65_535)), &json!(65_536), None);
        check(any(Kind::Range(0, 4095)), &json!(4096), None);
        check(any(Kind::Text(2)), &json!("äö"), Some(&json!("äö")));
        check(any(Kind::Text(2)), &json!("abc"), None);
        check(any(Kind::Text(9)), &json!("a\0"), None);
        check(any(Kind::Text(9)), &json!("a\u{1b}[2J"), None);
        check(any(Kind::Text(9)), &json!("a\nb"), None);
        check(any(Kind::Flag), &json!("true"), Some(&json!(true)));
        check(any(Kind::FlatObject(99)), &json!({ "a": [] }), None);
        // As JSON: {"a":"ä"}.
        check(any(Kind::FlatObject(10)), &json!({ "a": "ä" }), Some(&json!({ "a": "ä" })));
        check(any(Kind::FlatObject(9)), &json!({ "a": "ä" }), None);
        check(any(Kind::Words), &json!("a, b"), Some(&json!(["a", "b"])));
        check(any(Kind::Words), &json!(vec!["8.8.8.8"; MAX_WORDS + 1]), None);
        check(any(Kind::List(Item::Disk)), &json!([{}]), Some(&json!([{}])));
        check(any(Kind::List(Item::Disk)), &json!([1]), None);
        let upper = &json!("929BDB5B-4232-48B6-A4EC-D94CBC265AB2");
        check(any(Kind::Uuid), upper, Some(&json!("929bdb5b-4232-48b6-a4ec-d94cbc265ab2")));
    }

    #[test]
    fn forms_narrow_texts() {
        let text = |form| any(Kind::Text(253)).form(form);
        for (form, good, bad) in [
            (Form::Filled, "a", ""),
            (Form::OneOf(&["bios"]), "bios", "uefi"),
            (Form::HostName, "a.b-c.d1", "-a"),
            (Form::Bytes(2), "ab", "äö"),
            (Form::Option { commas: true }, "order=cd,once=n", "a b"),
            (Form::Option { commas: false }, "qemu64+x", "a,b"),
        ] {
            check(text(form), &json!(good), Some(&json!(good)));
            check(text(form), &json!(bad), None);
        }
    }

    #[test]
    fn zero_clears_what_may_be_nothing() {
        assert!(any(Kind::Gib).zero_clears());
        assert!(!any(Kind::Mib).form(Form::AtLeast(64)).zero_clears());
        assert!(!any(Kind::Range(-1, 9)).zero_clears());
    }
}
