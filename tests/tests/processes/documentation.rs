//! Pages under `docs/` that are written from the code, and example files.
//!
//! `MUSTER_WRITE_DOCS=1` (as in `make docs`) writes the pages instead of comparing them.

use muster_shared::config::{Sources, reference};
use muster_shared::vm::{
    CHANGES, DISK, Effect, FACTS, INITIAL, LASTING, NETWORK_RECORD, NIC, Property, SpecFile,
};
use muster_tests::pages::Page;
use muster_tests::repository;
use serde_json::Value;

const INTRODUCTION: &str = "\
# Configuration

Written by `make docs` from the code. Every key of both daemons.

A later source wins: the default, the TOML file (`--config FILE`), environment variables,
`--set key=value`, the other flags. In a variable's name dots are two underscores and letters are
upper case; a list is `[\"a\", \"b\"]` or `a,b`. An unknown key, a wrong type or an impossible value
stops the daemon with exit status 64; all problems are named at once.
";

fn page() -> String {
    let coordinator = reference::<muster_coordinator::config::Config>(
        "`muster-coordinator`",
        muster_coordinator::config::ENVIRONMENT_PREFIX,
    );
    let agent = reference::<muster_agent::config::Config>(
        "`muster-agent`",
        muster_agent::config::ENVIRONMENT_PREFIX,
    );
    let sapi = muster_coordinator::config::sapi::reference();
    format!("{INTRODUCTION}\n{coordinator}\n{agent}\n{sapi}")
}

#[test]
fn configuration_is_documented() {
    let path = repository().join("docs/configuration.md");
    if std::env::var_os("MUSTER_WRITE_DOCS").is_some() {
        std::fs::write(&path, page()).expect("the page is written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == page(), "docs/configuration.md is out of date: run `make docs`");
}

const VM_INTRODUCTION: &str = "\
# Properties of a VM

Written by `make docs` from the table that the API, its description and the agent share
(`shared/src/vm/tables.rs`). What becomes of each on a node of this version:

- *at once*, *at the next start*: when it takes effect;
- *kept*: it is recorded and shown, but has no effect, for the reason given;
- *dropped*: it is neither recorded nor shown;
- *refused*: `InvalidVmPayload` names it, unless its value means nothing (`false`, or empty).

Properties in no table are dropped; those of disks and network interfaces are refused, except for those
that come with the record of a network: ";

fn becomes(effect: Effect) -> String {
    match effect {
        Effect::Live => "at once".to_owned(),
        Effect::AtStart => "at the next start".to_owned(),
        Effect::Kept(why) => format!("kept: {why}"),
        Effect::Dropped => "dropped: meant for another service".to_owned(),
        Effect::Ignored(why) => format!("dropped: {why}"),
        Effect::Refused(why) => format!("refused: {why}"),
    }
}

fn vm_page() -> String {
    let dropped: Vec<String> = NETWORK_RECORD.iter().map(|name| format!("`{name}`")).collect();
    let mut page = format!("{VM_INTRODUCTION}{}.\n", dropped.join(", "));
    for (title, table) in [
        ("When it is made, and later", LASTING),
        ("Only when it is made", INITIAL),
        ("Changes", CHANGES),
        ("A disk", DISK),
        ("A network interface", NIC),
        ("Facts", FACTS),
    ] {
        page += &format!(
            "\n## {title}\n\n| Property | What it is | Becomes | On containers |\n| --- | --- | --- | --- |\n"
        );
        for property in table {
            let Property { name, doc, effect, .. } = property;
            // Nothing where it is the same.
            let on_containers = property.on_containers.map(becomes).unwrap_or_default();
            page += &format!("| `{name}` | {doc} | {} | {on_containers} |\n", becomes(*effect));
        }
    }
    page
}

#[test]
fn properties_of_vms_are_documented() {
    let path = repository().join("docs/vm-properties.md");
    if std::env::var_os("MUSTER_WRITE_DOCS").is_some() {
        std::fs::write(&path, vm_page()).expect("the page is written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == vm_page(), "docs/vm-properties.md is out of date: run `make docs`");
}

const SPEC_INTRODUCTION: &str = include_str!("../../data/vm-spec.md");

/// The page about files that describe machines: its text, and tables of the fields.
fn spec_page() -> String {
    let schema = SpecFile::json_schema();
    let mut page = format!("{}\n", SPEC_INTRODUCTION.trim_end());
    for (title, fields) in [
        ("Fields", &schema["properties"]),
        ("A disk", &schema["$defs"]["SpecDisk"]["properties"]),
        ("A network", &schema["$defs"]["SpecNetwork"]["properties"]),
    ] {
        page += &format!("\n## {title}\n\n| Field | Type | What it is |\n| --- | --- | --- |\n");
        for (name, field) in fields.as_object().expect("a table") {
            let doc = field["description"].as_str().unwrap_or_default();
            assert!(!doc.is_empty(), "{name}: {field}");
            page += &format!("| `{name}` | {} | {} |\n", spec_type(field), doc.replace('\n', " "));
        }
    }
    page
}

fn spec_type(field: &Value) -> &'static str {
    match field["type"].as_str() {
        Some("string") => "text",
        Some("integer") => "whole number",
        Some("boolean") => "`true` or `false`",
        Some("array") if field["items"]["$ref"].is_string() => "list of tables",
        Some("array") => "list of texts",
        Some("object") => "table",
        _ => "text",
    }
}

#[test]
fn files_that_describe_machines_are_documented() {
    let schema = format!("{:#}\n", SpecFile::json_schema());
    for (name, text) in [("docs/vm-spec.md", spec_page()), ("docs/vm.schema.json", schema)] {
        let path = repository().join(name);
        if std::env::var_os("MUSTER_WRITE_DOCS").is_some() {
            std::fs::write(&path, &text).expect("the page is written");
        }
        let written = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{name} is out of date: run `make docs`");
    }
}

/// The schema is one that editors take, and it says what the program does.
#[test]
fn the_schema_of_files_takes_what_the_program_takes() {
    let schema = SpecFile::json_schema();
    let schema = jsonschema::validator_for(&schema).expect("it is a schema");
    let page = Page::read("docs/vm-spec.md");
    let files: Vec<_> =
        page.blocks().into_iter().filter(|block| block.language == "yaml").collect();
    assert!(!files.is_empty());
    for block in files {
        let file: Value = serde_saphyr::from_str(&block.text).expect("YAML");
        let errors: Vec<String> = schema.iter_errors(&file).map(|it| it.to_string()).collect();
        assert!(errors.is_empty(), "line {}: {errors:?}", block.line);
        serde_json::from_value::<SpecFile>(file).expect("a file");
    }
    for bad in [serde_json::json!({ "nmae": "x" }), serde_json::json!({ "name": null })] {
        assert!(!schema.is_valid(&bad), "{bad}");
    }
}

/// Keys of the reference's configuration and of its SAPI metadata.
const REFERENCE_KEYS: &str = include_str!("../../data/reference-config-keys.txt");

#[test]
fn every_key_of_the_reference_has_a_row() {
    let path = repository().join("docs/configuration.md");
    let page = std::fs::read_to_string(path).expect("the page can be read");
    let has_row = |key: &&str| {
        let start = format!("| `{key}` | ");
        page.lines().any(|line| line.strip_prefix(&start).is_some_and(|rest| rest.len() > 2))
    };
    let missing: Vec<&str> = REFERENCE_KEYS.lines().filter(|key| !has_row(key)).collect();
    assert!(missing.is_empty(), "no row in docs/configuration.md for {missing:?}");
    assert_eq!(REFERENCE_KEYS.lines().count(), 51);
}

#[test]
fn every_key_has_a_meaning() {
    let page = page();
    let bare: Vec<_> =
        page.lines().filter(|line| line.starts_with("| `") && line.ends_with("|  |")).collect();
    assert!(bare.is_empty(), "keys without a doc comment: {bare:#?}");
}

#[test]
fn example_files_are_valid() {
    let dir = repository().join("systemd");
    let sources = |file: &str| Sources::new("MUSTER_EXAMPLE__").file(Some(&dir.join(file)));
    sources("agent.toml").load::<muster_agent::config::Config>().expect("agent.toml");
    sources("coordinator.toml")
        .load::<muster_coordinator::config::Config>()
        .expect("coordinator.toml");
}
