//! Takes over the configuration of an installation of the reference: SAPI metadata of its service
//! `cnapi` becomes the sections of ours, and a page says where every key went.

use std::fmt::Write as _;

use muster_shared::api::Object;
use muster_shared::error_chain::Chain;
use serde_json::Value;

use super::{ChangeDefaults, Dapi, HostOs};
use crate::alloc::default_expression;

/// What can't be taken over.
#[derive(Debug, thiserror::Error)]
pub enum SapiError {
    /// Neither a service with `metadata` nor metadata.
    #[error("the document is neither a SAPI service nor its metadata")]
    Shape,
    /// A value can't be used.
    #[error("{key}: {message}")]
    Value {
        /// The SAPI key, or the key of ours that it became.
        key: String,
        /// What is wrong.
        message: String,
    },
}

/// SAPI keys that change a default of the allocator.
const DEFAULTS: &[(&str, &str)] = &[
    ("ALLOC_SERVER_SPREAD", "server_spread"),
    ("ALLOC_FILTER_HEADNODE", "filter_headnode"),
    ("ALLOC_FILTER_MIN_RESOURCES", "filter_min_resources"),
    ("ALLOC_FILTER_LARGE_SERVERS", "filter_large_servers"),
    ("ALLOC_FILTER_CAPNESS", "filter_capness"),
    ("ALLOC_FILTER_VM_COUNT", "filter_vm_limit"),
    ("ALLOC_FILTER_OWNER_SERVER", "filter_owner_server"),
    ("ALLOC_FILTER_DOCKER_MIN_PLATFORM", "filter_docker_min_platform"),
    ("ALLOC_FILTER_FLEXIBLE_DISK_MIN_PLATFORM", "filter_flexible_disk_min_platform"),
    ("ALLOC_MINIMUM_FREE_DISK", "minimum_free_disk"),
    ("ALLOC_DISABLE_OVERRIDE_OVERPROVISIONING", "disable_override_overprovisioning"),
    ("ALLOC_OVERRIDE_OVERPROVISION_CPU", "overprovision_ratio_cpu"),
    ("ALLOC_OVERRIDE_OVERPROVISION_RAM", "overprovision_ratio_ram"),
    ("ALLOC_OVERRIDE_OVERPROVISION_DISK", "overprovision_ratio_disk"),
    ("ALLOC_WEIGHT_CURRENT_PLATFORM", "weight_current_platform"),
    ("ALLOC_WEIGHT_NEXT_REBOOT", "weight_next_reboot"),
    ("ALLOC_WEIGHT_NUM_OWNER_ZONES", "weight_num_owner_zones"),
    ("ALLOC_WEIGHT_UNIFORM_RANDOM", "weight_uniform_random"),
    ("ALLOC_WEIGHT_UNRESERVED_DISK", "weight_unreserved_disk"),
    ("ALLOC_WEIGHT_UNRESERVED_RAM", "weight_unreserved_ram"),
];

const MIN_DISK: &str = "ALLOC_FILTER_MIN_DISK";
const SMT: &str = "SMT_ENABLED_DEFAULT";
const EXECUTE: &str = "FEATURE_USE_CNAGENT_COMMAND_EXECUTE";

/// Variables of the reference's `config.json`, and what takes their place here.
const VARIABLES: &[(&str, &str)] = &[
    ("logLevel", "`log.filter`"),
    ("datacenter_name", "`datacenter`"),
    ("adminUuid", "none: nothing here belongs to an account"),
    ("amqp", "none: agents connect by themselves; `boot.amqp_host` is for nodes with old agents"),
    ("amqp.host", "`boot.amqp_host`"),
    ("moray.host", "none: records are kept in `data_dir`"),
    ("moray.port", "none: records are kept in `data_dir`"),
    ("api.port", "`listen`"),
    ("wfapi.workflows", "none: jobs run in the coordinator"),
    ("wfapi.url", "none: jobs run in the coordinator"),
    ("napi.url", "none"),
    ("assets.url", "none"),
    ("cnapi.url", "`agents.advertised_urls`"),
    ("imgapi.url", "`imgapi.url`"),
    ("dapi.changeDefaults", "the table `dapi.changeDefaults`"),
    ("dapi.changeDefaults.server_spread", SAME),
    ("dapi.changeDefaults.filter_docker_min_platform", SAME),
    ("dapi.changeDefaults.filter_flexible_disk_min_platform", SAME),
    ("dapi.changeDefaults.filter_headnode", SAME),
    ("dapi.changeDefaults.filter_min_resources", SAME),
    ("dapi.changeDefaults.filter_large_servers", SAME),
    ("dapi.changeDefaults.overprovision_ratio_cpu", SAME),
    ("dapi.changeDefaults.overprovision_ratio_ram", SAME),
    ("dapi.changeDefaults.overprovision_ratio_disk", SAME),
    ("dapi.changeDefaults.disable_override_overprovisioning", SAME),
    ("dapi.changeDefaults.weight_current_platform", SAME),
    ("dapi.changeDefaults.weight_next_reboot", SAME),
    ("dapi.changeDefaults.weight_num_owner_zones", SAME),
    ("dapi.changeDefaults.weight_uniform_random", SAME),
    ("dapi.changeDefaults.weight_unreserved_disk", SAME),
    ("dapi.changeDefaults.weight_unreserved_ram", SAME),
    ("dapi.allocationDescription", SAME),
];

const SAME: &str = "the same key";

/// The sections of our configuration that SAPI metadata says, as TOML. `document` is the metadata,
/// a service that has it, or a list of one service.
///
/// # Errors
/// [`SapiError`] names the first value that can't be used.
pub fn import(document: &Value) -> Result<String, SapiError> {
    let service = match document {
        Value::Array(services) => services.first().unwrap_or(document),
        other => other,
    };
    let metadata = service.get("metadata").unwrap_or(service);
    let metadata = Object::from(metadata.as_object().ok_or(SapiError::Shape)?.clone());
    let metadata = &metadata;
    let mut page =
        String::from("# Taken over from SAPI by `muster-coordinator config import-sapi`.\n");
    let mut table = |title: &str, lines: &[String]| {
        if !lines.is_empty() {
            write!(page, "\n[{title}]\n{}\n", lines.join("\n")).expect("a String takes it");
        }
    };
    if let Some(on) = switch(metadata, SMT)? {
        table("boot", &[format!("smt_enabled = {on}")]);
    }
    if let Some(on) = switch(metadata, EXECUTE)? {
        table("security", &[format!("allow_command_execute = {on}")]);
    }
    let (dapi, lines) = dapi(metadata)?;
    dapi.policy(HostOs::Any, &default_expression(false)).map_err(|error| SapiError::Value {
        key: error.default_at_fault().unwrap_or("dapi").to_owned(),
        message: Chain(&error).to_string(),
    })?;
    if dapi.allocation_description.is_some() {
        table("dapi", &[format!("allocationDescription = {}", toml(&default_expression(true)))]);
    }
    table("dapi.changeDefaults", &lines);
    for key in metadata.iter().map(|(key, _)| key).filter(|key| !is_known(key)) {
        if key.starts_with("ALLOC_") || key.starts_with("FEATURE_") {
            writeln!(page, "# not taken over: {key}").expect("a String takes it");
        }
    }
    Ok(page)
}

fn is_known(key: &str) -> bool {
    [MIN_DISK, SMT, EXECUTE].contains(&key) || DEFAULTS.iter().any(|(sapi, _)| *sapi == key)
}

/// The policy, and the lines that say its defaults.
fn dapi(metadata: &Object) -> Result<(Dapi, Vec<String>), SapiError> {
    let mut changes = Object::new();
    let mut lines = Vec::new();
    for (sapi, ours) in DEFAULTS {
        let Some(value) = metadata.get(sapi).filter(|value| is_set(value)) else { continue };
        lines.push(format!("{ours} = {}", toml(value)));
        changes.set(*ours, value.clone());
    }
    let changes: ChangeDefaults = changes
        .read()
        .map_err(|error| SapiError::Value { key: "dapi".to_owned(), message: error.to_string() })?;
    let min_disk = switch(metadata, MIN_DISK)?.unwrap_or(false);
    let allocation_description = min_disk.then(|| default_expression(true));
    Ok((Dapi { allocation_description, change_defaults: changes }, lines))
}

fn is_set(value: &Value) -> bool {
    !value.is_null() && value.as_str() != Some("")
}

fn switch(metadata: &Object, key: &str) -> Result<Option<bool>, SapiError> {
    match metadata.get(key).filter(|value| is_set(value)) {
        None => Ok(None),
        Some(Value::Bool(on)) => Ok(Some(*on)),
        Some(Value::String(text)) if text == "true" => Ok(Some(true)),
        Some(Value::String(text)) if text == "false" => Ok(Some(false)),
        Some(other) => {
            let message = format!("{other} is neither true nor false");
            Err(SapiError::Value { key: key.to_owned(), message })
        }
    }
}

/// A value as TOML writes it; null has no form there and does not occur.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(toml).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let member = |(name, value): (&String, &Value)| {
                format!("{} = {}", Value::from(name.as_str()), toml(value))
            };
            format!("{{ {} }}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
        simple => simple.to_string(),
    }
}

/// A section of the documentation: where every key of the reference went.
#[must_use]
pub fn reference() -> String {
    let mut page = String::from(
        "## Coming from the reference\n\n\
         `muster-coordinator config import-sapi FILE` turns the SAPI metadata of its service \
         `cnapi` into the\nsections below and prints them. An empty text means the default, as \
         there.\n\n| `config.json` | Here |\n| --- | --- |\n",
    );
    let mut row = |key: &str, ours: &str| {
        writeln!(page, "| `{key}` | {ours} |").expect("a String takes every write");
    };
    for (key, ours) in VARIABLES {
        row(key, ours);
    }
    row("SAPI metadata", "");
    for (key, ours) in DEFAULTS {
        row(key, &format!("`dapi.changeDefaults.{ours}`"));
    }
    row(MIN_DISK, "true: `hard-filter-min-disk` in `dapi.allocationDescription`");
    row(EXECUTE, "`security.allow_command_execute`; commands always run through the agent");
    row(SMT, "`boot.smt_enabled`");
    page.replace("| `SAPI metadata` |  |\n", "\n| SAPI metadata | Here |\n| --- | --- |\n")
}

#[cfg(test)]
mod tests {
    use muster_shared::config::Sources;
    use serde_json::json;

    use super::*;
    use crate::config::{Config, ENVIRONMENT_PREFIX};

    fn load(page: &str) -> Config {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("coordinator.toml");
        std::fs::write(&path, page).unwrap();
        Sources::new(ENVIRONMENT_PREFIX).file(Some(&path)).load().unwrap()
    }

    #[test]
    fn metadata_becomes_a_configuration_that_loads() {
        let metadata = json!({
            "ALLOC_FILTER_HEADNODE": false, "ALLOC_FILTER_MIN_DISK": true,
            "ALLOC_FILTER_VM_COUNT": 100, "ALLOC_WEIGHT_NEXT_REBOOT": -0.5,
            "ALLOC_OVERRIDE_OVERPROVISION_CPU": "8.0", "ALLOC_SERVER_SPREAD": "",
            "SMT_ENABLED_DEFAULT": false, "FEATURE_USE_CNAGENT_COMMAND_EXECUTE": true,
            "ALLOC_UNHEARD_OF": 1, "region": "x",
        });
        let services = json!([{ "name": "cnapi", "metadata": metadata }]);
        let page = import(&services).unwrap();
        assert_eq!(import(&metadata).unwrap(), page);
        assert!(page.contains("# not taken over: ALLOC_UNHEARD_OF"), "{page}");
        let config = load(&page);
        let set = config.dapi.change_defaults.set();
        let want = json!({
            "filter_headnode": false, "filter_vm_limit": 100, "overprovision_ratio_cpu": "8.0",
            "weight_next_reboot": -0.5,
        });
        assert_eq!(json!(set), want, "{page}");
        assert_eq!(config.dapi.allocation_description, Some(default_expression(true)));
        assert!(!config.boot.smt_enabled);
        assert!(config.security.allow_command_execute);
    }

    #[test]
    fn bad_values_are_named() {
        let check = |metadata: Value, part: &str| {
            let text = import(&metadata).unwrap_err().to_string();
            assert!(text.contains(part), "{text}");
        };
        check(json!({"ALLOC_FILTER_HEADNODE": "maybe"}), "filter_headnode");
        check(json!({"ALLOC_FILTER_MIN_DISK": 1}), "ALLOC_FILTER_MIN_DISK");
        check(json!({"ALLOC_WEIGHT_NEXT_REBOOT": "x"}), "weight_next_reboot");
        check(json!("text"), "neither");
    }
}
