//! What clients say of a package, read and checked. Pure.

use muster_shared::api::package::Package;
use muster_shared::api::{FieldError, Object};
use muster_shared::config::nearest;
use muster_shared::ids::VmUuid;
use muster_shared::lenient::{self, is_uuid};
use muster_shared::vm::{MAX_TAGS_BYTES, PACKAGE, is_alias, json_bytes};
use serde_json::{Number, Value, json};
use uuid::Uuid;

use crate::alloc::check_package;
use crate::app::error::AppError;

/// Members that are no sizes.
const OTHERS: [&str; 12] = [
    "name",
    "uuid",
    "version",
    "description",
    "alloc_server_spread",
    "overprovision_cpu",
    "overprovision_memory",
    "overprovision_storage",
    "overprovision_network",
    "overprovision_io",
    "min_platform",
    "traits",
];
/// What a package can't be without, and what lasts.
const MEMORY: &str = "max_physical_memory";
const LASTS: [&str; 2] = ["name", "uuid"];
/// Longest version or description, characters.
const MAX_TEXT_CHARS: usize = 1024;
/// Largest ratio: whatever is promised so often is not counted.
const MAX_RATIO: f64 = 1000.0;

/// Whether a package can be called so. No uuid can be a name: it would stand for two packages.
pub(super) fn is_name(text: &str) -> bool {
    is_alias(text) && !is_uuid(text)
}

/// A new package.
pub(super) fn new(members: &Object, fresh: impl FnOnce() -> Uuid) -> Result<Package, AppError> {
    let mut read = read(members)?;
    read.retain(|_, value| !value.is_null());
    let missing = ["name", MEMORY].into_iter().filter(|name| !read.has(name));
    let missing: Vec<_> = missing.map(|name| FieldError::new(name, "value is missing")).collect();
    if !missing.is_empty() {
        return Err(AppError::Invalid(missing));
    }
    if !read.has("uuid") {
        read.set("uuid", json!(fresh()));
    }
    package(&read)
}

/// A package as a client changes it.
pub(super) fn changed(old: &Package, members: &Object) -> Result<Package, AppError> {
    if let Some(lasting) = LASTS.into_iter().find(|name| members.has(name)) {
        return Err(AppError::invalid(lasting, "lasts: make another package instead"));
    }
    let mut all = Object::of(old);
    for (name, value) in read(members)? {
        match value {
            Value::Null if name == MEMORY => {
                return Err(AppError::invalid(MEMORY, "can't be taken away"));
            }
            Value::Null => drop(all.remove(&name)),
            value => all.set(name, value),
        }
    }
    package(&all)
}

fn package(checked: &Object) -> Result<Package, AppError> {
    let key = || checked.text("name").unwrap_or_default().to_owned();
    checked.read().map_err(|source| AppError::Corrupt { key: key(), source })
}

/// The members as they are kept; null for what is not to be there.
fn read(members: &Object) -> Result<Object, AppError> {
    let mut errors = Vec::new();
    let mut read = Object::new();
    for (name, value) in members {
        if value.is_null() || *value == json!("") {
            if !is_known(name) {
                errors.push(FieldError::new(name, unknown(name)));
            }
            read.set(name, Value::Null);
            continue;
        }
        match member(name, value) {
            Ok(value) => read.set(name, value),
            Err(problem) => errors.push(FieldError::new(name, problem)),
        }
    }
    if errors.is_empty() { Ok(read) } else { Err(AppError::Invalid(errors)) }
}

fn member(name: &str, value: &Value) -> Result<Value, String> {
    if let Some(size) = PACKAGE.iter().find(|size| size.name == name) {
        let (least, most) = size.limits().unwrap_or_default();
        let wrong = || format!("must be a whole number from {least} to {most}: {}", size.doc);
        return size.read(value).ok_or_else(wrong);
    }
    let kept = |fits: bool, wanted: &str| {
        if fits { Ok(value.clone()) } else { Err(wanted.to_owned()) }
    };
    match name {
        "name" => kept(
            value.as_str().is_some_and(is_name),
            "must begin with a letter or digit and hold only those, '_', '.' and '-'; no uuid",
        ),
        "uuid" => {
            let uuid = value.as_str().and_then(|text| text.parse::<VmUuid>().ok());
            uuid.map(|uuid| json!(uuid)).ok_or_else(|| "value was not a UUID".to_owned())
        }
        "version" | "description" => kept(
            value.as_str().is_some_and(is_text),
            "must be text of one line, at most 1024 characters",
        ),
        "alloc_server_spread" => {
            let good = value.is_string() && check_package(&json!({ name: value })).is_ok();
            kept(good, "must be min-ram, max-ram, random or min-owner")
        }
        "min_platform" => {
            let good = value.is_object() && check_package(&json!({ name: value })).is_ok();
            kept(
                good && json_bytes(value) <= MAX_TAGS_BYTES,
                "must be an object of dates by version, as { \"7.0\": \"20180101T000000Z\" }",
            )
        }
        "traits" => kept(
            value.is_object() && json_bytes(value) <= MAX_TAGS_BYTES,
            "must be an object of at most 16 KiB",
        ),
        ratio if OTHERS.contains(&ratio) => {
            let wanted = || "must be a number above 0, at most 1000".to_owned();
            let number = lenient::float(value).filter(|ratio| *ratio > 0.0 && *ratio <= MAX_RATIO);
            let number = number.and_then(Number::from_f64).ok_or_else(wanted)?;
            Ok(if value.is_number() { value.clone() } else { Value::Number(number) })
        }
        _ => Err(unknown(name)),
    }
}

fn is_text(text: &str) -> bool {
    text.chars().count() <= MAX_TEXT_CHARS && !text.chars().any(char::is_control)
}

fn known() -> impl Iterator<Item = &'static str> {
    PACKAGE.iter().map(|size| size.name).chain(OTHERS)
}

fn is_known(name: &str) -> bool {
    known().any(|known| known == name)
}

fn unknown(name: &str) -> String {
    let meant = nearest(name, known()).map(|meant| format!("; did you mean {meant}?"));
    format!("is no member of a package{}", meant.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(members: &Value) -> Result<Package, AppError> {
        new(&Object::of(members), || Uuid::from_u128(7))
    }

    #[track_caller]
    fn check_bad(found: Result<Package, AppError>, field: &str, message: &str) {
        let Err(AppError::Invalid(errors)) = found else { panic!("{found:?}") };
        let fits = |error: &FieldError| error.field == field && error.message.contains(message);
        assert!(errors.iter().any(fits), "{errors:?}");
    }

    fn with(name: &str, value: Value) -> Result<Package, AppError> {
        let mut members = Object::of(&json!({ "name": "small", "max_physical_memory": 512 }));
        members.set(name, value);
        made(&members.into_value())
    }

    #[test]
    fn a_package_is_read_with_numbers_for_their_texts() {
        let members = json!({
            "name": "small", "max_physical_memory": "512", "quota": 10240, "vcpus": 2,
            "description": "", "cpu_cap": null, "overprovision_cpu": 4, "overprovision_io": "1.5",
            "traits": { "ssd": true }, "min_platform": { "7.0": "20180101T000000Z" },
            "alloc_server_spread": "max-ram",
        });
        let expected = json!({
            "name": "small", "uuid": Uuid::from_u128(7), "max_physical_memory": 512,
            "quota": 10240, "vcpus": 2, "overprovision_cpu": 4, "overprovision_io": 1.5,
            "traits": { "ssd": true }, "min_platform": { "7.0": "20180101T000000Z" },
            "alloc_server_spread": "max-ram",
        });
        assert_eq!(json!(made(&members).unwrap()), expected);
    }

    #[test]
    fn what_is_bad_is_named_with_what_is_wanted() {
        check_bad(made(&json!({})), "name", "missing");
        check_bad(made(&json!({ "name": "a" })), MEMORY, "missing");
        for (name, value, message) in [
            (MEMORY, json!(63), "from 64 to"),
            (MEMORY, json!("much"), "MiB"),
            ("vcpus", json!(0), "from 1 to 1024"),
            ("vcpus", json!(1025), "from 1 to 1024"),
            ("cpu_cap", json!(0), "from 1"),
            ("quota", json!(-1), "MiB"),
            ("max_lwps", json!(1.5), "whole number"),
            ("name", json!("a b"), "letter or digit"),
            ("name", json!(Uuid::nil()), "no uuid"),
            ("uuid", json!("x"), "UUID"),
            ("description", json!("a\nb"), "one line"),
            ("alloc_server_spread", json!("wide"), "min-ram"),
            ("overprovision_cpu", json!(0), "above 0"),
            ("overprovision_memory", json!("x"), "above 0"),
            ("overprovision_network", json!(1001), "at most 1000"),
            ("min_platform", json!({ "seven": "x" }), "dates by version"),
            ("min_platform", json!("{}"), "dates by version"),
            ("traits", json!([]), "object"),
            ("traits", json!({ "a": "x".repeat(MAX_TAGS_BYTES) }), "16 KiB"),
            ("vcpu", json!(1), "did you mean vcpus?"),
            ("vcpu", json!(null), "did you mean vcpus?"),
            ("ram", json!(512), "no member"),
        ] {
            check_bad(with(name, value), name, message);
        }
    }

    #[test]
    fn a_change_leaves_what_it_does_not_name() {
        let old = with("vcpus", json!(2)).unwrap();
        let change = |members: Value| changed(&old, &Object::of(&members));
        let new = change(json!({ "vcpus": null, "cpu_cap": 150 })).unwrap();
        assert_eq!((new.vcpus, new.cpu_cap, new.max_physical_memory), (None, Some(150), 512));
        assert_eq!((&new.name, new.uuid), (&old.name, old.uuid));
        check_bad(change(json!({ "name": "other" })), "name", "lasts");
        check_bad(change(json!({ "uuid": Uuid::nil() })), "uuid", "lasts");
        check_bad(change(json!({ "max_physical_memory": null })), MEMORY, "taken away");
        check_bad(change(json!({ "vcpus": 0 })), "vcpus", "from 1");
    }

    #[test]
    fn members_of_a_newer_version_stay() {
        let mut old = with("vcpus", json!(2)).unwrap();
        old.others.insert("colour".to_owned(), json!("blue"));
        let new = changed(&old, &Object::from_iter([("vcpus", 4)])).unwrap();
        assert_eq!((new.vcpus, &new.others["colour"]), (Some(4), &json!("blue")));
    }
}
