//! What a write of boot parameters asks for, how it changes a record, and how a record is shown.
//! Pure. The default record and a server's record hold the same members under the same names.
//!
//! Source of the rules: sdc-cnapi lib/endpoints/bootparams.js as described by the CNAPI contract.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use muster_shared::api::Object;
use muster_shared::api::boot::{BootModule, BootModules, BootParams, BootRecord};
use muster_shared::lenient::truthy;
use serde_json::{Value, json};

use crate::app::BootSettings;
use crate::app::error::AppError;

/// Largest decoded boot module, bytes.
pub(super) const MAX_MODULE_BYTES: usize = 4096;
/// Most bytes of kernel arguments and kernel flags together, as JSON; far above what a boot
/// loader takes, and it leaves room for the other members of a record.
pub(super) const MAX_PARAMS_BYTES: usize = 64 * 1024;

/// What happens with members that a write does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They are reset (`PUT`).
    Replace,
    /// They stay (`POST`); a `null` deletes.
    Merge,
}

/// A write of boot parameters; `None`: not given.
#[derive(Clone, Debug, Default)]
pub struct BootChange {
    /// Platform of the next boot; its existence is checked elsewhere.
    pub platform: Option<String>,
    /// Arguments of the kernel.
    pub kernel_args: Option<Object>,
    /// Switches of the kernel.
    pub kernel_flags: Option<Object>,
    /// Small files for the boot loader, as given.
    pub boot_modules: Option<Vec<Value>>,
    /// Console of the next boot; `Some(None)`: null.
    pub default_console: Option<Option<String>>,
    /// Serial device of the next boot; `Some(None)`: null.
    pub serial: Option<Option<String>>,
}

/// Whose record is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    /// The one that new servers inherit from.
    Default,
    /// A server's.
    Server,
}

/// The default record of a new installation.
pub(super) fn first_default(newest: Option<&str>) -> BootRecord {
    BootRecord {
        boot_params: Some(Object::new()),
        boot_platform: newest.map(str::to_owned),
        boot_modules: Some(BootModules::Inline(Vec::new())),
        kernel_flags: Some(Object::new()),
        default_console: Some("serial".to_owned()),
        serial: Some("ttyb".to_owned()),
    }
}

/// Applies a write. `modules` is what the record keeps of the write's modules; `newest` is the
/// platform of a server that a `PUT` names none for.
///
/// # Errors
/// [`AppError::Invalid`]: the record would become too large, or a name or value can't stand in a
/// kernel's command line.
pub(super) fn apply(
    record: &mut BootRecord,
    whose: Whose,
    mode: Mode,
    change: &BootChange,
    modules: Option<&BootModules>,
    newest: Option<&str>,
) -> Result<(), AppError> {
    check_line("kernel_args", change.kernel_args.as_ref())?;
    check_line("kernel_flags", change.kernel_flags.as_ref())?;
    let platform = match (&change.platform, mode, whose) {
        (Some(platform), _, _) => Some(platform.as_str()),
        (None, Mode::Replace, Whose::Server) => newest,
        (None, _, _) => None,
    };
    if let Some(platform) = platform {
        record.boot_platform = Some(platform.to_owned());
    } else if mode == Mode::Replace && whose == Whose::Default {
        record.boot_platform = None;
    }
    set_map(&mut record.boot_params, mode, change.kernel_args.as_ref());
    set_map(&mut record.kernel_flags, mode, change.kernel_flags.as_ref());
    match (modules, mode) {
        (Some(modules), _) => record.boot_modules = Some(modules.clone()),
        (None, Mode::Replace) => record.boot_modules = Some(BootModules::Inline(Vec::new())),
        (None, Mode::Merge) => {}
    }
    set_text(&mut record.default_console, whose, mode, change.default_console.as_ref());
    set_text(&mut record.serial, whose, mode, change.serial.as_ref());
    let size = |map: &Option<Object>| map.as_ref().map_or(0, |m| json!(m).to_string().len());
    if size(&record.boot_params) + size(&record.kernel_flags) > MAX_PARAMS_BYTES {
        let text = format!("with kernel_flags over the limit of {MAX_PARAMS_BYTES} bytes");
        return Err(AppError::invalid("kernel_args", text));
    }
    Ok(())
}

/// Whether each name is one word and no value ends its line: what follows would be a setting that
/// nobody asked for.
fn check_line(field: &str, given: Option<&Object>) -> Result<(), AppError> {
    let word = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && !b"=\"'\\/".contains(&b))
    };
    for (name, value) in given.into_iter().flatten() {
        if !word(name) {
            return Err(AppError::invalid(field, format!("{name:?} is not the name of a setting")));
        }
        if value.as_str().is_some_and(|text| text.chars().any(char::is_control)) {
            return Err(AppError::invalid(field, format!("{name} has control characters")));
        }
    }
    Ok(())
}

fn set_map(member: &mut Option<Object>, mode: Mode, given: Option<&Object>) {
    let mut merged = match (mode, given) {
        (Mode::Merge, None) => return,
        (Mode::Merge, Some(_)) => member.take().unwrap_or_default(),
        (Mode::Replace, _) => Object::new(),
    };
    for (key, value) in given.into_iter().flatten() {
        if mode == Mode::Merge && value.is_null() {
            merged.remove(key);
        } else {
            merged.set(key, value.clone());
        }
    }
    *member = Some(merged);
}

fn set_text(member: &mut Option<String>, whose: Whose, mode: Mode, given: Option<&Option<String>>) {
    *member = match (given, mode, whose) {
        (Some(Some(text)), _, _) => Some(text.clone()),
        (Some(None), Mode::Merge, Whose::Server) => Some(String::new()),
        (None, Mode::Merge, _) => return,
        (Some(None), _, _) | (None, Mode::Replace, _) => None,
    };
}

/// The answer to `GET /boot/…`; `modules` as they are, wherever they are kept, and the name of
/// the server whose record it is.
pub(super) fn reply(
    record: &BootRecord,
    hostname: Option<&str>,
    modules: Option<Vec<BootModule>>,
    settings: &BootSettings,
) -> BootParams {
    let mut args = Object::new();
    if let Some(hostname) = hostname {
        args.set("hostname", json!(hostname));
    }
    if let Some(rabbitmq) = &settings.rabbitmq {
        args.set("rabbitmq", json!(rabbitmq));
    }
    for (name, value) in record.boot_params.iter().flatten() {
        args.set(name, value.clone());
    }
    let modules = match hostname {
        Some(_) => Some(modules.unwrap_or_default()),
        None => {
            args.set_default("smt_enabled", settings.smt_enabled);
            modules
        }
    };
    BootParams {
        platform: record.boot_platform.clone(),
        kernel_args: args,
        kernel_flags: record.kernel_flags.clone().unwrap_or_default(),
        boot_modules: modules,
        default_console: record.default_console.clone(),
        serial: record.serial.clone(),
    }
}

/// Lays over a new server's record what it inherits from the default record.
pub(super) fn inherit(record: &mut BootRecord, default: &BootRecord, settings: &BootSettings) {
    let reply = reply(default, None, None, settings);
    record.boot_params = Some(reply.kernel_args);
    record.kernel_flags = Some(reply.kernel_flags);
    record.boot_platform = reply.platform.or(record.boot_platform.take());
    record.default_console = reply.default_console.or(record.default_console.take());
    record.serial = reply.serial.or(record.serial.take());
}

/// Checks modules and completes their `type`.
///
/// # Errors
/// [`AppError::InvalidArgument`] with what is wrong with each bad one.
pub(super) fn check_modules(given: &[Value]) -> Result<Vec<BootModule>, AppError> {
    let mut modules = Vec::with_capacity(given.len());
    let mut problems = Vec::new();
    for module in given {
        match check_module(module) {
            Ok(module) => modules.push(module),
            Err(problem) => problems.push(problem),
        }
    }
    if problems.is_empty() {
        return Ok(modules);
    }
    let text = format!("Values provided for boot_modules contain errors: {}", problems.join(",\n"));
    Err(AppError::InvalidArgument(text))
}

fn check_module(given: &Value) -> Result<BootModule, String> {
    let mut module = given.clone();
    // Before anything is said about the module, as in the reference: its texts show the type.
    if let Some(members) = module.as_object_mut()
        && !truthy(members.get("type"))
    {
        members.insert("type".to_owned(), json!("base64"));
    }
    let shown = |name: &str| match module.get(name) {
        None => "undefined".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    if module["type"] != "base64" {
        let (kind, path) = (shown("type"), shown("path"));
        return Err(format!("Unsupported type {kind} for module '{path}'"));
    }
    let text = |name: &str| module.get(name).and_then(Value::as_str).unwrap_or_default();
    let (path, content) = (text("path"), text("content"));
    if path.is_empty() || content.is_empty() {
        return Err(format!("Unexpected format for boot_module: {module}"));
    }
    if !is_plain_path(path) {
        return Err(format!(
            "Invalid path for boot_module: '{path}' (path cannot contain '.' or '..')"
        ));
    }
    let decoded = STANDARD.decode(content);
    // Of a text that can't be decoded only its length says how much it would be.
    let size = decoded.as_ref().map_or(content.len() / 4 * 3, Vec::len);
    if size > MAX_MODULE_BYTES {
        return Err(format!("Module '{path}' exceeds the maximum allowed size of 4KB"));
    }
    if decoded.is_err() {
        return Err(format!("Contents for module '{path}' must be base64 encoded"));
    }
    serde_json::from_value(module).map_err(|error| error.to_string())
}

/// Whether path normalisation leaves a path as it is; `..` in front is refused as well, because
/// it leads out of the folder that the modules are served from.
fn is_plain_path(path: &str) -> bool {
    let inner = path.strip_prefix('/').unwrap_or(path);
    let inner = inner.strip_suffix('/').unwrap_or(inner);
    inner.split('/').all(|part| !matches!(part, "" | "." | ".."))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn settings() -> BootSettings {
        BootSettings { smt_enabled: true, rabbitmq: Some("guest:guest:10.0.0.1:5672".to_owned()) }
    }

    fn record(value: Value) -> BootRecord {
        serde_json::from_value(value).unwrap()
    }

    fn args(value: &Value) -> BootChange {
        BootChange { kernel_args: Some(Object::of(value)), ..BootChange::default() }
    }

    #[test]
    fn put_replaces_and_post_merges() {
        let mut record = first_default(Some("20260101T000000Z"));
        let put = args(&json!({ "a": 1, "b": "x" }));
        apply(&mut record, Whose::Server, Mode::Replace, &put, None, Some("20260202T000000Z"))
            .unwrap();
        assert_eq!(record.boot_params, Some(Object::of(&json!({ "a": 1, "b": "x" }))));
        let newest = Some("20260202T000000Z");
        assert_eq!(record.boot_platform.as_deref(), newest, "the newest when none is given");
        assert_eq!(record.serial, None, "omitted is unset");
        let post = BootChange {
            serial: Some(None),
            default_console: Some(Some("vga".to_owned())),
            ..args(&json!({ "a": null, "c": false }))
        };
        apply(&mut record, Whose::Server, Mode::Merge, &post, None, None).unwrap();
        assert_eq!(record.boot_params, Some(Object::of(&json!({ "b": "x", "c": false }))));
        assert_eq!(record.serial.as_deref(), Some(""));
        assert_eq!(record.default_console.as_deref(), Some("vga"));
        assert_eq!(record.boot_platform.as_deref(), newest);
    }

    #[test]
    fn the_default_record_loses_what_is_nulled_or_left_out() {
        let mut record = first_default(Some("20260101T000000Z"));
        let post = BootChange { serial: Some(None), ..BootChange::default() };
        apply(&mut record, Whose::Default, Mode::Merge, &post, None, None).unwrap();
        assert_eq!(record.serial, None);
        assert_eq!(record.boot_modules, Some(BootModules::Inline(Vec::new())));
        let put = BootChange::default();
        apply(&mut record, Whose::Default, Mode::Replace, &put, None, Some("x")).unwrap();
        assert_eq!(record.boot_platform, None);
        let flags = BootChange {
            kernel_flags: Some(Object::of(&json!({ "-k": true }))),
            ..BootChange::default()
        };
        apply(&mut record, Whose::Default, Mode::Merge, &flags, None, None).unwrap();
        assert_eq!(record.kernel_flags, Some(Object::of(&json!({ "-k": true }))));
    }

    #[test]
    fn nothing_slips_into_another_line() {
        for bad in [
            json!({ "a": "b\nroot=/dev/evil" }),
            json!({ "../x": 1 }),
            json!({ "a b": 1 }),
            json!({ "": 1 }),
            json!({ "a=b": 1 }),
        ] {
            let mut record = first_default(None);
            let before = record.clone();
            let change = args(&bad);
            let refused = apply(&mut record, Whose::Default, Mode::Merge, &change, None, None);
            assert!(matches!(refused, Err(AppError::Invalid(_))), "{bad}");
            assert_eq!(record, before);
        }
    }

    #[test]
    fn a_record_that_would_grow_too_large_is_refused() {
        let mut record = first_default(None);
        let large = args(&json!({ "a": "x".repeat(MAX_PARAMS_BYTES / 2) }));
        apply(&mut record, Whose::Default, Mode::Merge, &large, None, None).unwrap();
        let more = args(&json!({ "b": "x".repeat(MAX_PARAMS_BYTES / 2) }));
        let refused = apply(&mut record, Whose::Default, Mode::Merge, &more, None, None);
        assert!(matches!(refused, Err(AppError::Invalid(_))));
    }

    #[test]
    fn replies_have_the_contract_s_members() {
        let record = record(json!({
            "boot_params": { "n": 1, "rabbitmq": "own" }, "boot_platform": "20260101T000000Z",
        }));
        let shown = reply(&record, Some("cn1"), None, &settings());
        assert_eq!(
            serde_json::to_string(&shown).unwrap(),
            r#"{"platform":"20260101T000000Z","kernel_args":{"hostname":"cn1","rabbitmq":"own","n":1},"kernel_flags":{},"boot_modules":[]}"#
        );
        let shown = reply(&BootRecord::default(), None, None, &settings());
        assert_eq!(
            serde_json::to_string(&shown).unwrap(),
            r#"{"kernel_args":{"rabbitmq":"guest:guest:10.0.0.1:5672","smt_enabled":true},"kernel_flags":{}}"#
        );
    }

    #[test]
    fn a_new_server_inherits_all_but_the_modules() {
        let default = record(json!({
            "boot_params": { "smt_enabled": false, "a": "b" }, "kernel_flags": { "-d": true },
            "boot_modules": [{ "path": "a", "content": "aGVsbG8=" }], "serial": "ttya",
            "boot_platform": "20260101T000000Z",
        }));
        let mut new = record(json!({ "default_console": "serial", "serial": "ttyb" }));
        inherit(&mut new, &default, &BootSettings { rabbitmq: None, ..settings() });
        assert_eq!(
            json!(new),
            json!({
                "default_console": "serial", "serial": "ttya",
                "boot_params": { "smt_enabled": false, "a": "b" },
                "boot_platform": "20260101T000000Z", "kernel_flags": { "-d": true },
            })
        );
    }

    #[track_caller]
    fn check_refused(module: &Value, problem: &str) {
        let refused = check_modules(std::slice::from_ref(module)).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("Values provided for boot_modules contain errors: {problem}"),
            "{module}"
        );
    }

    #[test]
    fn what_a_client_keeps_with_a_module_stays() {
        let given = json!({ "path": "a", "content": "aGVsbG8=", "type": "", "mode": 420 });
        let checked = check_modules(std::slice::from_ref(&given)).unwrap();
        assert_eq!(
            serde_json::to_string(&checked).unwrap(),
            r#"[{"path":"a","content":"aGVsbG8=","type":"base64","mode":420}]"#
        );
    }

    #[test]
    fn modules_are_checked_one_by_one() {
        let good = json!({ "path": "etc/a..b/...c", "content": "aGVsbG8=" });
        let checked = check_modules(std::slice::from_ref(&good)).unwrap();
        assert_eq!(json!(checked[0])["type"], "base64");
        check_refused(
            &json!({ "path": "a", "content": "aGVsbG8=", "type": "hex" }),
            "Unsupported type hex for module 'a'",
        );
        check_refused(
            &json!({ "path": "a" }),
            r#"Unexpected format for boot_module: {"path":"a","type":"base64"}"#,
        );
        check_refused(
            &json!({ "type": "", "path": "a" }),
            r#"Unexpected format for boot_module: {"type":"base64","path":"a"}"#,
        );
        check_refused(&json!(7), "Unsupported type undefined for module 'undefined'");
        check_refused(&json!({ "type": "hex" }), "Unsupported type hex for module 'undefined'");
        for path in ["./x", "a/../b", "a//b", "..", "../x", "a/."] {
            check_refused(
                &json!({ "path": path, "content": "aGVsbG8=" }),
                &format!(
                    "Invalid path for boot_module: '{path}' (path cannot contain '.' or '..')"
                ),
            );
        }
        check_refused(
            &json!({ "path": "a", "content": "not base64!" }),
            "Contents for module 'a' must be base64 encoded",
        );
        check_refused(
            &json!({ "path": "a", "content": STANDARD.encode(vec![0; MAX_MODULE_BYTES + 1]) }),
            "Module 'a' exceeds the maximum allowed size of 4KB",
        );
        let full = STANDARD.encode(vec![0; MAX_MODULE_BYTES]);
        check_modules(&[json!({ "path": "a", "content": full })]).unwrap();
        let bad = |path: &str| json!({ "path": path });
        let both = check_modules(&[bad("b"), good, bad("c")]).unwrap_err().to_string();
        assert_eq!(
            both,
            concat!(
                "Values provided for boot_modules contain errors: ",
                r#"Unexpected format for boot_module: {"path":"b","type":"base64"},"#,
                "\n",
                r#"Unexpected format for boot_module: {"path":"c","type":"base64"}"#
            )
        );
    }

    proptest! {
        /// Merging is what laying one object over another and dropping nulls is.
        #[test]
        fn merging_matches_a_naive_reading(
            first in prop::collection::btree_map("[a-d]", 0..3i32, 0..4),
            second in prop::collection::btree_map("[a-d]", prop::option::of(0..3i32), 0..4),
        ) {
            let mut record = first_default(None);
            apply(&mut record, Whose::Server, Mode::Replace, &args(&json!(first)), None, None)?;
            apply(&mut record, Whose::Server, Mode::Merge, &args(&json!(second)), None, None)?;
            let mut naive = first;
            for (key, value) in second {
                match value {
                    Some(value) => naive.insert(key, value),
                    None => naive.remove(&key),
                };
            }
            prop_assert_eq!(json!(record.boot_params), json!(naive));
        }
    }
}
