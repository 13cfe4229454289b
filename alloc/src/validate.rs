//! Checks of inputs and the texts of their failures (sdc-designation `lib/validations.js`).

use serde_json::{Map, Value};

use crate::num::{self, display, some_truthy, truthy, type_name};

/// Most wishes in an affinity.
pub(crate) const MAX_WISHES: usize = 64;
/// Most of them that are patterns: each is compiled, for each VM that is placed.
pub(crate) const MAX_PATTERNS: usize = 16;
/// Longest key or value of a wish, bytes.
const MAX_WISH_BYTES: usize = 1024;
/// Most NIC tags, in all groups together.
const MAX_NIC_TAGS: usize = 1024;
/// Most VMs to be near to, and to be far from.
const MAX_LOCALITY: usize = 1024;

/// Lower-case `8-4-4-4-12`.
pub(crate) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_digit() || (b'a'..=b'f').contains(&b),
        })
}

/// A platform stamp: `20dd[01]d[0123]dT[012]d[012345]dddZ`.
pub(crate) fn is_stamp(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() == 16
        && bytes.iter().enumerate().all(|(i, b)| match i {
            0 => *b == b'2',
            1 => *b == b'0',
            4 => (b'0'..=b'1').contains(b),
            6 => (b'0'..=b'3').contains(b),
            8 => *b == b'T',
            9 => (b'0'..=b'2').contains(b),
            11 => (b'0'..=b'5').contains(b),
            15 => *b == b'Z',
            _ => b.is_ascii_digit(),
        })
}

fn is_sdc_version(text: &str) -> bool {
    matches!(text.as_bytes(), [a, b'.', b] if a.is_ascii_digit() && b.is_ascii_digit())
}

/// `Err(message)` unless the condition holds.
pub(crate) fn ensure(condition: bool, message: &str) -> Result<(), String> {
    if condition { Ok(()) } else { Err(message.to_owned()) }
}

/// The loose validator's text for a value of the wrong type.
pub(crate) fn wrong_type(path: &str, value: &Value, wanted: &str) -> String {
    // The reference lower-cases everything after the path.
    let found = display(Some(value)).to_lowercase();
    format!(
        "property \"{path}\": {found} - {} value found, but a {wanted} is required",
        type_name(value)
    )
}

/// Traits must be an object; an array passes as an object with its indices as keys.
pub(crate) fn traits(value: &Value) -> Result<Map<String, Value>, String> {
    match value {
        Value::Object(map) => Ok(map.clone()),
        Value::Array(items) => {
            Ok(items.iter().enumerate().map(|(i, v)| (i.to_string(), v.clone())).collect())
        }
        other => Err(wrong_type("", other, "object")),
    }
}

/// `min_platform` and `max_platform`; absent is fine.
pub(crate) fn platforms(
    value: Option<&Value>,
    name: &str,
) -> Result<Option<Map<String, Value>>, String> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let Value::Object(map) = value else { return Err(format!("\"{name}\" is not a hash")) };
    ensure(
        map.keys().all(|key| is_sdc_version(key)),
        &format!("\"{name}\" contains an invalid SDC version"),
    )?;
    ensure(
        map.values().all(|stamp| stamp.as_str().is_some_and(is_stamp)),
        &format!("\"{name}\" contains an invalid platform date"),
    )?;
    Ok(Some(map.clone()))
}

/// A number or nothing; `message` if something truthy is no number.
pub(crate) fn optional_number(value: Option<&Value>, message: &str) -> Result<Option<f64>, String> {
    match some_truthy(value) {
        None => Ok(None),
        Some(Value::Number(n)) => Ok(n.as_f64()),
        Some(_) => Err(message.to_owned()),
    }
}

/// The most that a request or package asks for of anything (MiB, percent of a core): sums of what
/// thousands of VMs have stay exact.
pub const MAX_AMOUNT: f64 = 1e12;

/// What is asked for can be had: nobody gives room back, or makes sums that are no numbers.
///
/// The reference takes any number.
pub(crate) fn amount(value: Option<f64>, name: &str) -> Result<(), String> {
    let is_one = value.is_none_or(|value| (0.0..=MAX_AMOUNT).contains(&value));
    ensure(is_one, &format!("{name} is not between 0 and {MAX_AMOUNT}"))
}

/// A convertible number or nothing.
pub(crate) fn optional_num(value: Option<&Value>, message: &str) -> Result<Option<f64>, String> {
    let Some(value) = some_truthy(value) else { return Ok(None) };
    let x = num::num(value);
    if x.is_nan() { Err(message.to_owned()) } else { Ok(Some(x)) }
}

/// Groups of NIC tags.
pub(crate) fn nic_tag_requirements(items: &[Value]) -> Result<Vec<Vec<String>>, String> {
    let group = |(i, group): (usize, &Value)| {
        // The reference asks for the type of such a member in another way.
        if group.is_null() {
            let text = "null - object value found, but a array is required";
            return Err(format!("property \"{i}\": {text}"));
        }
        let Value::Array(tags) = group else {
            return Err(wrong_type(&i.to_string(), group, "array"));
        };
        tags.iter()
            .enumerate()
            .map(|(j, tag)| match tag {
                Value::String(tag) if tag.is_empty() => {
                    Err(format!("property \"{i}[{j}]\": must be at least 1 characters long"))
                }
                Value::String(tag) => Ok(tag.clone()),
                other => Err(wrong_type(&format!("{i}[{j}]"), other, "string")),
            })
            .collect()
    };
    let tags = items.iter().map(|group| group.as_array().map_or(1, Vec::len));
    ensure_few_tags(tags.fold(items.len(), usize::saturating_add))?;
    items.iter().enumerate().map(group).collect()
}

/// `Err(message)` for more NIC tags than a VM may ask for.
pub(crate) fn ensure_few_tags(tags: usize) -> Result<(), String> {
    ensure(tags <= MAX_NIC_TAGS, &format!("more than {MAX_NIC_TAGS} NIC tags"))
}

/// One wish to be near or far from other VMs.
#[derive(Clone, Debug)]
pub(crate) struct Affinity {
    pub(crate) key: String,
    pub(crate) equal: bool,
    pub(crate) value: String,
    pub(crate) kind: AffinityKind,
    pub(crate) soft: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AffinityKind {
    Exact,
    Glob,
    Regex,
}

pub(crate) fn affinity(value: &Value) -> Result<Vec<Affinity>, String> {
    let Value::Array(items) = value else { return Err("\"affinity\" is not an array".to_owned()) };
    if items.len() > MAX_WISHES {
        return Err(format!("\"affinity\" has more than {MAX_WISHES} wishes"));
    }
    let wishes = items.iter().map(affinity_item).collect::<Result<Vec<_>, _>>()?;
    let patterns = wishes.iter().filter(|wish| wish.kind != AffinityKind::Exact).count();
    if patterns > MAX_PATTERNS {
        return Err(format!("\"affinity\" has more than {MAX_PATTERNS} patterns"));
    }
    Ok(wishes)
}

fn affinity_item(item: &Value) -> Result<Affinity, String> {
    let text = |name: &str| match item.get(name).and_then(Value::as_str) {
        Some(text) if text.len() > MAX_WISH_BYTES => {
            Err(format!("\"affinity.{name}\" has more than {MAX_WISH_BYTES} bytes"))
        }
        Some(text) => Ok(text.to_owned()),
        None => Err(format!("\"affinity.{name}\" is not a string")),
    };
    let (key, operator, value, kind) =
        (text("key")?, text("operator")?, text("value")?, text("valueType")?);
    let soft = item
        .get("isSoft")
        .and_then(Value::as_bool)
        .ok_or_else(|| "\"affinity.isSoft\" is not a boolean".to_owned())?;
    let equal = match operator.as_str() {
        "==" => true,
        "!=" => false,
        _ => return Err("\"affinity.operator\" has invalid operator".to_owned()),
    };
    let kind = match kind.as_str() {
        "exact" => AffinityKind::Exact,
        "glob" => AffinityKind::Glob,
        "re" => AffinityKind::Regex,
        _ => return Err("\"affinity.valueType\" has invalid value".to_owned()),
    };
    Ok(Affinity { key, equal, value, kind, soft })
}

/// Which VMs to be near to or far from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Locality {
    pub(crate) strict: bool,
    pub(crate) near: Vec<String>,
    pub(crate) far: Vec<String>,
}

pub(crate) fn locality(value: &Value) -> Result<Locality, String> {
    let Value::Object(map) = value else { return Err("\"locality\" is has wrong type".to_owned()) };
    let near = locality_list(map.get("near"), "near")?;
    let far = locality_list(map.get("far"), "far")?;
    let strict = match map.get("strict") {
        None => false,
        Some(Value::Bool(strict)) => *strict,
        Some(_) => return Err("\"locality.strict\" is given, but not boolean".to_owned()),
    };
    Ok(Locality { strict, near, far })
}

fn locality_list(value: Option<&Value>, name: &str) -> Result<Vec<String>, String> {
    match some_truthy(value) {
        None => Ok(Vec::new()),
        Some(Value::String(uuid)) => {
            ensure(is_uuid(uuid), &format!("\"locality.{name}\" is not a UUID"))?;
            Ok(vec![uuid.clone()])
        }
        Some(Value::Array(items)) if items.len() > MAX_LOCALITY => {
            Err(format!("\"locality.{name}\" has more than {MAX_LOCALITY} UUIDs"))
        }
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| match item {
                Value::String(uuid) if is_uuid(uuid) => Ok(uuid.clone()),
                _ => Err(format!("\"locality.{name}\" contains an malformed UUID")),
            })
            .collect(),
        Some(_) => Err(format!("\"locality.{name}\" is neither string nor array")),
    }
}

/// `docker:volumesfrom`: JSON text of an array.
pub(crate) fn volumes_from(metadata: &Map<String, Value>) -> Result<Vec<String>, String> {
    const NAME: &str = "\"vm.internal_metadata['docker:volumesfrom']\"";
    let parsed = match metadata.get("docker:volumesfrom") {
        value if !truthy(value) => return Ok(Vec::new()),
        Some(Value::String(text)) => serde_json::from_str(text).ok(),
        // JSON.parse of what is no text works on its text.
        value => serde_json::from_str(&display(value)).ok(),
    };
    match parsed {
        None => Err(format!("{NAME} is not valid JSON")),
        Some(Value::Array(items)) => Ok(items.iter().map(|item| display(Some(item))).collect()),
        Some(_) => Err(format!("{NAME} does not contain an array")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn uuids_and_stamps() {
        assert!(is_uuid("929bdb5b-4232-48b6-a4ec-d94cbc265ab2"));
        assert!(!is_uuid("929BDB5B-4232-48b6-a4ec-d94cbc265ab2"));
        assert!(is_stamp("20130101T235959Z"));
        assert!(!is_stamp("19991231T235959Z"));
        assert!(!is_stamp("20130101T236059Z"));
    }

    #[test]
    fn wrong_types_are_described() {
        assert_eq!(
            nic_tag_requirements(&[json!("external")]),
            Err("property \"0\": external - string value found, but a array is required".to_owned())
        );
        assert_eq!(
            nic_tag_requirements(&[json!(null)]),
            Err("property \"0\": null - object value found, but a array is required".to_owned())
        );
        assert_eq!(
            nic_tag_requirements(&[json!([]), json!([5])]),
            Err("property \"1[0]\": 5 - number value found, but a string is required".to_owned())
        );
        let groups = |groups: usize, tags: usize| vec![json!(vec!["a"; tags]); groups];
        assert!(nic_tag_requirements(&groups(100, 9)).is_ok());
        assert!(nic_tag_requirements(&groups(100, 10)).is_err());
        assert!(nic_tag_requirements(&groups(1025, 0)).is_err());
        assert_eq!(
            traits(&json!("Fast")).map(drop),
            Err("property \"\": fast - string value found, but a object is required".to_owned())
        );
    }

    #[test]
    fn affinity_and_locality_faults() {
        assert_eq!(
            affinity(&json!([null])).map(drop),
            Err("\"affinity.key\" is not a string".into())
        );
        let wish = |kind: &str, value: &str| json!({ "key": "k", "operator": "==", "value": value, "valueType": kind, "isSoft": true });
        let many =
            |kind, count| affinity(&Value::from(vec![wish(kind, "x"); count])).map(|w| w.len());
        assert_eq!(many("exact", 64), Ok(64));
        assert_eq!(many("exact", 65), Err("\"affinity\" has more than 64 wishes".into()));
        assert_eq!(many("re", 16), Ok(16));
        assert_eq!(many("glob", 17), Err("\"affinity\" has more than 16 patterns".into()));
        let long = wish("exact", &"x".repeat(1025));
        assert_eq!(
            affinity(&json!([long])).map(drop),
            Err("\"affinity.value\" has more than 1024 bytes".into())
        );
        assert_eq!(locality(&json!("x")), Err("\"locality\" is has wrong type".into()));
        assert_eq!(locality(&json!({"near": "x"})), Err("\"locality.near\" is not a UUID".into()));
        assert_eq!(
            locality(&json!({"far": ["x"]})),
            Err("\"locality.far\" contains an malformed UUID".into())
        );
        assert_eq!(
            locality(&json!({"strict": "yes"})),
            Err("\"locality.strict\" is given, but not boolean".into())
        );
    }
}
