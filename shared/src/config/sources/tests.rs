//! Where values come from, and what is said of bad ones.

use std::collections::BTreeMap;
use std::io::Write as _;

use serde::Deserialize;

use super::super::{Check, ListenAddress, example_file, reference, show};
use super::*;

/// The test daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
struct Daemon {
    /// Address of the API | or a socket.
    #[schema(value_type = String)]
    listen: ListenAddress,
    /// Name shown to people.
    instance: Option<String>,
    /// How virtual machines run.
    accel: Accel,
    /// Peers.
    roster: Roster,
    /// Queues by task kind.
    queues: BTreeMap<String, Queue>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Accel {
    Auto,
    Kvm,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
struct Roster {
    /// Silence after which a
    /// connection is suspect, ms.
    suspect_ms: u64,
    /// Silence after which it is lost, ms.
    lost_ms: u64,
    /// Whom to dial.
    urls: Vec<String>,
    /// Off for tests.
    enabled: bool,
    /// From where.
    #[schema(value_type = Vec<String>)]
    from: Vec<std::net::IpAddr>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
struct Queue {
    /// Tasks at a time.
    max_concurrent: u32,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8480".parse().unwrap(),
            instance: None,
            accel: Accel::Auto,
            roster: Roster::default(),
            queues: BTreeMap::new(),
        }
    }
}

impl Default for Roster {
    fn default() -> Self {
        Self {
            suspect_ms: 1_000,
            lost_ms: 2_000,
            urls: Vec::new(),
            enabled: true,
            from: Vec::new(),
        }
    }
}

impl Check for Daemon {
    fn check(&self, problems: &mut Problems) {
        problems.within("roster", |problems| {
            let Roster { suspect_ms, lost_ms, .. } = self.roster;
            problems.require(suspect_ms < lost_ms, "suspect_ms", "below `roster.lost_ms`");
            super::super::check_urls(problems, "urls", &self.roster.urls, ["ws", "wss"]);
        });
    }

    fn aliases() -> &'static [(&'static str, &'static str)] {
        &[("lost_ms", "roster.lost_ms")]
    }
}

fn sources(toml: &str) -> (Sources, tempfile::NamedTempFile) {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(toml.as_bytes()).unwrap();
    (Sources::new("MUSTER_TEST__").file(Some(file.path())), file)
}

fn variable(name: &str, value: &str) -> (String, String) {
    (format!("MUSTER_TEST__{name}"), value.to_owned())
}

#[track_caller]
fn refused(sources: Sources, wanted: &[&str]) {
    let error = sources.load::<Daemon>().unwrap_err();
    let text = error.to_string();
    for part in wanted {
        assert!(text.contains(part), "no {part:?} in: {text}");
    }
    assert_eq!(error.problems.len(), wanted.len(), "{text}");
}

#[test]
fn nothing_given_is_the_default() {
    let config: Daemon = Sources::new("MUSTER_TEST__").load().unwrap();
    assert_eq!(config, Daemon::default());
}

#[test]
fn later_sources_win() {
    let toml =
        "instance = 'a'\n[roster]\nsuspect_ms = 10\nlost_ms = 20\n[queues.nop]\nmax_concurrent = 4";
    let (sources, _file) = sources(toml);
    let config: Daemon = sources
        .environment([variable("ROSTER__LOST_MS", "30"), ("OTHER".into(), "1".into())])
        .set(["roster.lost_ms=40", "roster.urls=ws://a, ws://b", "accel=kvm", "instance=7"])
        .flag("listen", "--listen", Some("unix:/run/x.sock"))
        .flag("roster.lost_ms", "--lost-ms", Some(50_u64))
        .flag("instance", "--instance", None::<String>)
        .load()
        .unwrap();
    assert_eq!(config.roster.suspect_ms, 10);
    assert_eq!(config.roster.lost_ms, 50);
    assert_eq!(config.roster.urls, ["ws://a", "ws://b"]);
    assert_eq!(config.instance.as_deref(), Some("7"));
    assert_eq!(config.accel, Accel::Kvm);
    assert_eq!(config.listen.to_string(), "unix:/run/x.sock");
    assert_eq!(config.queues["nop"].max_concurrent, 4);
}

#[test]
fn every_problem_is_reported_with_its_origin() {
    let (sources, _file) = sources(
        "lisen = '127.0.0.1:1'\naccel = 'hvf'\n[roster]\nsuspect_ms = 'x'\nenabled = 3\n\
         [queues.nop]\nmax_concurent = 1",
    );
    let sources = sources
        .environment([variable("ROSTER__LOST_MS", "-1"), variable("SUSPECT_MS", "1")])
        .set(["queues=1", "nonsense"])
        .flag("listen", "--listen", Some("localhost:1"));
    refused(
        sources,
        &[
            "lisen: unknown key, did you mean `listen`? (file ",
            "accel: expected `auto` or `kvm`, found \"hvf\" (file ",
            "roster.suspect_ms: expected a whole number, found \"x\" (file ",
            "roster.enabled: expected `true` or `false`, found 3 (file ",
            "queues.nop.max_concurent: unknown key, did you mean `queues.<name>.max_concurrent`?",
            "roster.lost_ms: expected a whole number of 0 or more, found -1",
            "suspect_ms: unknown key, did you mean `roster.suspect_ms`? (environment variable",
            "queues: expected a table, found",
            "expected `key=value` (--set nonsense)",
            "listen: \"localhost:1\" is not an address to listen on",
        ],
    );
}

#[test]
fn checks_name_the_source_of_the_value() {
    let sources = Sources::new("MUSTER_TEST__").set(["roster.suspect_ms=5000"]);
    refused(sources, &["roster.suspect_ms: below `roster.lost_ms` (--set roster.suspect_ms=5000)"]);
}

#[test]
fn every_item_of_a_list_is_looked_at() {
    let sources = Sources::new("MUSTER_TEST__")
        .set(["roster.urls=foo,ws://a,ws://:1", "roster.from=[\"x\", \"10.0.0.1\", \"y\"]"]);
    refused(
        sources,
        &[
            "roster.from.0: invalid IP address syntax (--set roster.from=",
            "roster.from.2: invalid IP address syntax (--set roster.from=",
            "roster.urls.0: \"foo\": is not a ws:// or wss:// URL (--set roster.urls=",
            "roster.urls.2: \"ws://:1\": empty host (--set roster.urls=",
        ],
    );
}

#[test]
fn a_variable_with_one_underscore_is_refused() {
    let variable = ("MUSTER_TEST_LISTEN".to_owned(), "127.0.0.1:1".to_owned());
    let sources = Sources::new("MUSTER_TEST__").environment([variable]);
    let text = "did you mean MUSTER_TEST__LISTEN? (environment variable MUSTER_TEST_LISTEN)";
    refused(sources, &[text]);
}

#[test]
fn other_names_of_keys_mean_the_keys() {
    let (file, _file) = sources("lost_ms = 7000\n[roster]\nsuspect_ms = 5");
    let config: Daemon = file.load().unwrap();
    assert_eq!((config.roster.lost_ms, config.roster.suspect_ms), (7000, 5));
    let (both, _file) = sources("lost_ms = 7000\n[roster]\nlost_ms = 8000");
    assert_eq!(both.load::<Daemon>().unwrap().roster.lost_ms, 8000);
    let given = Sources::new("MUSTER_TEST__").environment([variable("LOST_MS", "6000")]);
    assert_eq!(given.load::<Daemon>().unwrap().roster.lost_ms, 6000);
    let given = Sources::new("MUSTER_TEST__").set(["lost_ms=5000"]);
    assert_eq!(given.load::<Daemon>().unwrap().roster.lost_ms, 5000);
    refused(
        Sources::new("MUSTER_TEST__").set(["lost_ms=x"]),
        &["roster.lost_ms: expected a whole number, found \"x\""],
    );
}

#[test]
fn problems_of_a_file_name_their_lines() {
    let (sources, _file) = sources(
        "# comment\nlisen = 'x'\n\n[roster]\nsuspect_ms = 2000\nlost_ms = 1000\n\
         urls = [\n  'foo',\n]\nfrom = [1]\n",
    );
    let text = sources.load::<Daemon>().unwrap_err().to_string();
    for (problem, line) in [
        ("lisen: unknown key, did you mean `listen`?", 2),
        ("roster.suspect_ms: below `roster.lost_ms`", 5),
        ("roster.urls.0: \"foo\": is not a ws:// or wss:// URL", 7),
        ("roster.from.0: ", 10),
    ] {
        let found = text.lines().find(|found| found.contains(problem));
        let found = found.unwrap_or_else(|| panic!("no {problem:?} in {text}"));
        assert!(found.ends_with(&format!(" line {line})")), "{found}");
    }
    assert!(text.starts_with("configuration: 4 problems"), "{text}");
    let (large, _file) = self::sources("[queues.nop]\nmax_concurrent = 70_000_000_000\n");
    let wanted = "expected a whole number from 0 to 4294967295, found 70000000000 (file ";
    refused(large, &[&format!("queues.nop.max_concurrent: {wanted}")]);
}

#[test]
fn every_key_is_shown_with_its_source() {
    let (sources, _file) = sources("instance = 'a'\n[roster]\nsuspect_ms = 10\n[queues.nop]\n");
    let loaded = sources
        .environment([variable("ROSTER__LOST_MS", "30")])
        .set(["roster.urls=ws://a"])
        .flag("listen", "--listen", Some("unix:/run/x.sock"))
        .load_with_settings::<Daemon>()
        .unwrap();
    let page = show(&loaded.settings);
    let line = |key: &str| {
        let found = page.lines().find(|line| line.starts_with(&format!("{key} ")));
        found.unwrap_or_else(|| panic!("no {key} in {page}")).to_owned()
    };
    for (key, value, source) in [
        ("listen", "\"unix:/run/x.sock\"", "# flag --listen"),
        ("instance", "\"a\"", " line 1"),
        ("accel", "\"auto\"", "# default"),
        ("roster.suspect_ms", "10", " line 3"),
        ("roster.lost_ms", "30", "# environment variable MUSTER_TEST__ROSTER__LOST_MS"),
        ("roster.urls", "[\"ws://a\"]", "# --set roster.urls=ws://a"),
        ("queues.nop.max_concurrent", "0", "# default"),
    ] {
        let line = line(key);
        assert!(line.contains(&format!(" = {value} ")) && line.ends_with(source), "{line}");
    }
    // What is shown says the same again.
    let mut again = tempfile::NamedTempFile::new().unwrap();
    again.write_all(page.as_bytes()).unwrap();
    let same: Daemon = Sources::new("MUSTER_TEST__").file(Some(again.path())).load().unwrap();
    assert_eq!(same, loaded.config);
    let unset = Sources::new("MUSTER_TEST__").load_with_settings::<Daemon>().unwrap();
    assert!(show(&unset.settings).contains("# instance is not set"), "{:?}", unset.settings);
    assert!(unset.settings.iter().all(|setting| !setting.is_changed()));
}

/// The daemon of the test on secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
struct Keeper {
    /// A word.
    broker_password: String,
    /// Where a token is.
    token_file: String,
    /// Where images are.
    url: Option<String>,
}

impl Check for Keeper {
    fn check(&self, problems: &mut Problems) {
        problems.require(self.broker_password.len() < 9, "broker_password", "too long");
    }
}

#[test]
fn secrets_are_neither_shown_nor_told_in_problems() {
    let sources = || Sources::new("MUSTER_TEST__");
    let set = ["broker_password=hidden", "token_file=/a/b", "url=s3://me:hidden@host/x"];
    let settings = sources().set(set).load_with_settings::<Keeper>().unwrap().settings;
    let page = show(&settings) + &serde_json::json!(settings).to_string();
    assert!(page.contains("broker_password = \"***\""), "{page}");
    assert!(page.contains("token_file = \"/a/b\""), "{page}");
    assert!(page.contains("url = \"s3://me:***@host/x\""), "{page}");
    let values = page.matches("hidden").count();
    assert_eq!(values, 0, "{page}");
    let refused = sources().set(["broker_password=hidden-for-ever"]).load::<Keeper>();
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("too long") && !text.contains("hidden"), "{text}");
}

#[test]
fn unusable_files_are_named() {
    let missing = Sources::new("MUSTER_TEST__").file(Some(Path::new("/nonexistent.toml")));
    refused(missing, &["cannot be read: No such file or directory (file /nonexistent"]);
    let (broken, _file) = sources("instance = 'a'\n[roster\n");
    refused(broken, &["not TOML: line 2: "]);
}

#[test]
fn reference_has_every_key_with_type_default_and_meaning() {
    let page = reference::<Daemon>("Daemon", "MUSTER_TEST__");
    for row in [
        "| `listen` | text | `\"127.0.0.1:8480\"` | Address of the API \\| or a socket. |",
        "| `instance` | text | – | Name shown to people. |",
        "| `accel` | `auto` or `kvm` | `\"auto\"` | How virtual machines run. |",
        "| `roster.suspect_ms` | whole number | `1000` | Silence after which a connection is suspect, ms. |",
        "| `roster.urls` | list of text | `[]` | Whom to dial. |",
        "| `queues.<name>.max_concurrent` | whole number | – | Tasks at a time. |",
        "`roster.suspect_ms` is `MUSTER_TEST__ROSTER__SUSPECT_MS`",
    ] {
        assert!(page.contains(row), "no {row:?} in:\n{page}");
    }
}

#[test]
fn example_file_is_toml_that_changes_nothing() {
    let example = example_file::<Daemon>();
    let lines = example.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
    let keys: String = lines
        .filter(|line| line.contains(" = ") && !line.contains('<') && !line.starts_with(' '))
        .fold(String::new(), |all, line| all + line + "\n");
    let (sources, _file) = sources(&keys);
    assert_eq!(sources.load::<Daemon>().unwrap(), Daemon::default());
}
