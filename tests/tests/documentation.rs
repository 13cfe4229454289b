//! Pages under `docs/` that are written from the code, and example files.
//!
//! `MUSTER_WRITE_DOCS=1` (as in `make docs`) writes the pages instead of comparing them.

use muster_shared::config::{Sources, reference};
use muster_tests::repository;

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

/// Keys of the reference's configuration and of its SAPI metadata.
const REFERENCE_KEYS: &str = include_str!("../data/reference-config-keys.txt");

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
