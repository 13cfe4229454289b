//! Command lines and configuration: what starts, what is refused, and how it says so.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, Daemon, WITHOUT_RIGHT, temp_dir};
use muster_tests::own_network;
use muster_tests::sim_agent::SimAgent;
use serde_json::json;

fn coordinator(args: &[&str]) -> (Option<i32>, String) {
    let dir = temp_dir();
    let data = dir.path().join("data").display().to_string();
    let mut all = vec!["--data-dir".to_owned(), data];
    all.extend(args.iter().map(|a| (*a).to_owned()));
    Daemon::run_to_exit("muster-coordinator", &all, &dir.path().join("log"))
}

fn agent(args: &[&str]) -> (Option<i32>, String) {
    let dir = temp_dir();
    let data = dir.path().join("data").display().to_string();
    let mut all = vec!["--data-dir".to_owned(), data];
    all.extend(args.iter().map(|a| (*a).to_owned()));
    Daemon::run_to_exit("muster-agent", &all, &dir.path().join("log"))
}

#[test]
fn an_open_address_without_tls_is_refused() {
    let (code, log) = coordinator(&["--listen", "0.0.0.0:0"]);
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("security.allow_plaintext"), "the message names the fix: {log}");
}

#[test]
fn all_configuration_problems_are_reported_at_once() {
    let dir = temp_dir();
    let file = dir.path().join("coordinator.toml");
    std::fs::write(&file, "[roster]\nstartup_grace = 5\n[nonsense]\nx = 1\n").unwrap();
    let (code, log) = coordinator(&["--config", &file.display().to_string()]);
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("startup_grace_ms"), "the nearest known name: {log}");
    assert!(log.contains("nonsense"), "the second problem: {log}");
}

#[test]
fn unknown_settings_are_refused() {
    let (code, log) = coordinator(&["--listen", "127.0.0.1:0", "--set", "no.such=1"]);
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("no.such") || log.contains("`no`"), "{log}");
    let (code, log) = agent(&["--coordinator", "ws://127.0.0.1:1", "--set", "compute.acel=tcg"]);
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("accel"), "the nearest known name: {log}");
}

#[tokio::test]
async fn two_daemons_on_one_data_folder_are_refused() {
    let first = Coordinator::start();
    let data = first.data_dir().display().to_string();
    let dir = temp_dir();
    let args = ["--listen", "127.0.0.1:0", "--data-dir", &data].map(str::to_owned);
    let (code, log) = Daemon::run_to_exit("muster-coordinator", &args, &dir.path().join("log"));
    assert_ne!(code, Some(0));
    assert!(log.contains("lock") || log.contains("use"), "{log}");
    first.client().get("/ping").await.expect(200);
}

#[tokio::test]
async fn sigterm_ends_the_coordinator_cleanly() {
    let mut coordinator = Coordinator::start();
    assert_eq!(coordinator.daemon().terminate().await, Some(0));
}

#[test]
fn a_run_folder_that_others_can_write_is_refused() {
    let dir = temp_dir();
    let run = dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::set_permissions(&run, Permissions::from_mode(0o777)).unwrap();
    let run = run.display().to_string();
    let (code, log) = agent(&["--coordinator", "ws://127.0.0.1:1", "--run-dir", &run]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains(&run) && log.contains("chmod go-w"), "the fix is named: {log}");
}

#[tokio::test]
async fn an_agent_starts_without_a_damaged_journal_and_says_so() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    agent.kill9();
    std::fs::write(agent.data_dir().join("journal/db"), []).unwrap();
    agent.restart();
    agent.wait_status(&client, "running", Duration::from_secs(30)).await;
    let server = format!("/servers/{}", agent.server_uuid);
    let task = client.post(&format!("{server}/nop"), &json!({})).await.expect(200);
    let id = task["id"].as_str().unwrap();
    let ended = client.get(&format!("/tasks/{id}/wait?timeout=60")).await.expect(200);
    assert_eq!(ended["status"], "complete", "{ended}");
    let sysinfo = agent.client().get("/sysinfo").await.expect(200);
    assert!(sysinfo["Muster"]["degraded"].to_string().contains("journal"), "{sysinfo:#}");
    let names = std::fs::read_dir(agent.data_dir()).unwrap();
    let aside = names.filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_string_lossy().starts_with("journal.corrupt.")
    });
    assert_eq!(aside.count(), 1);
}

/// Runs the coordinator's binary on a data folder to its end.
fn on_data(data: &Path, args: &[&str]) -> (Option<i32>, String) {
    let dir = temp_dir();
    let data = data.display().to_string();
    let all: Vec<String> =
        ["--data-dir", &data].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    Daemon::run_to_exit("muster-coordinator", &all, &dir.path().join("log"))
}

#[test]
fn a_damaged_store_is_left_alone() {
    let mut coordinator = Coordinator::start();
    coordinator.kill9();
    let data = coordinator.data_dir();
    let file = data.join("store/records.redb");
    let mut content = std::fs::read(&file).unwrap();
    content.truncate(9_000);
    std::fs::write(&file, &content).unwrap();
    for _ in 0..2 {
        let (code, log) = on_data(&data, &["--listen", "127.0.0.1:0"]);
        assert_eq!(code, Some(1), "{log}");
        let named = log.contains(&data.display().to_string());
        assert!(named && log.contains("backup"), "{log}");
        assert_eq!(std::fs::read(&file).unwrap(), content, "left as it was");
    }
    assert_eq!(on_data(&data, &["store", "verify"]).0, Some(3));
}

/// An empty store in its place would give out numbers a second time, and be in the way when it comes
/// back.
#[tokio::test]
async fn a_store_that_is_not_there_is_not_replaced_by_an_empty_one() {
    let mut coordinator = Coordinator::start();
    let ticket = json!({ "scope": "test", "id": "1", "expires_at": "3000" });
    let made = coordinator.client().post("/servers/default/tickets", &ticket).await.expect(202);
    coordinator.kill9();
    let data = coordinator.data_dir();
    let (store, aside) = (data.join("store"), data.join("aside"));
    std::fs::rename(&store, &aside).unwrap();
    for empty_folder in [false, true] {
        if empty_folder {
            // As of a file system that is not mounted.
            std::fs::create_dir(&store).unwrap();
        }
        let (code, log) = on_data(&data, &["--listen", "127.0.0.1:0"]);
        assert_eq!(code, Some(1), "{log}");
        assert!(log.contains(&format!("there is no store in {}", store.display())), "{log}");
        assert!(log.contains("bring the store's folder back") && log.contains("remove"), "{log}");
    }
    std::fs::remove_dir(&store).expect("nothing was made in it");
    std::fs::rename(&aside, &store).unwrap();
    coordinator.restart();
    let made = made["uuid"].as_str().unwrap();
    coordinator.client().get(&format!("/tickets/{made}")).await.expect(200);
}

#[tokio::test]
async fn what_can_be_read_of_a_damaged_store_is_saved_if_one_says_so() {
    const TICKETS: &str = "/servers/default/tickets";
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let ticket = json!({ "scope": "test", "id": "1", "expires_at": "3000" });
    let made = client.post(TICKETS, &ticket).await.expect(202)["uuid"].clone();
    coordinator.kill9();
    let data = coordinator.data_dir();
    let (store, restore) = (data.join("store").display().to_string(), ["store", "restore"]);
    assert_eq!(on_data(&data, &restore).0, Some(0), "it is sound");
    // Nobody knows any more what was acknowledged.
    let acknowledged = data.join("store/acknowledged");
    std::fs::write(&acknowledged, [7; 9_000]).unwrap();
    let (code, log) = on_data(&data, &["--listen", "127.0.0.1:0"]);
    assert!(code == Some(1) && log.contains("store restore"), "{log}");
    assert_eq!(on_data(&data, &restore).0, Some(3), "nothing is done unasked");
    let wrong = on_data(&data, &["store", "restore", "--accept-data-loss", "/tmp"]);
    assert_eq!(wrong.0, Some(64), "{}", wrong.1);
    assert_eq!(std::fs::read(&acknowledged).unwrap(), [7; 9_000], "left as it was");

    let (code, log) = on_data(&data, &["store", "restore", "--accept-data-loss", &store]);
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(on_data(&data, &["store", "verify"]).0, Some(0));
    coordinator.restart();
    let made = made.as_str().unwrap();
    client.get(&format!("/tickets/{made}")).await.expect(200);
    let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name());
    let aside = names.filter(|name| name.to_string_lossy().starts_with("store.damaged."));
    assert_eq!(aside.count(), 1, "the damaged one is kept");
}

/// What was given out between the backup and the loss is older than what comes after the restore.
#[tokio::test]
async fn a_backup_is_put_back_under_a_new_epoch() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let ticket = json!({ "scope": "test", "id": "1", "expires_at": "3000" });
    client.post("/servers/default/tickets", &ticket).await.expect(202);
    let data = coordinator.data_dir();
    let (code, log) = on_data(&data, &["store", "new-epoch"]);
    assert_eq!(code, Some(1), "a running coordinator has the store: {log}");
    assert_eq!(coordinator.daemon().terminate().await, Some(0));
    let (code, log) = on_data(&data, &["store", "new-epoch"]);
    assert_eq!(code, Some(0), "{log}");
    assert_eq!(on_data(&data, &["store", "verify"]).0, Some(0));
    coordinator.restart();
    let tickets = client.get("/servers/default/tickets").await.expect(200);
    assert_eq!(tickets.as_array().map(Vec::len), Some(1), "nothing is lost: {tickets}");
    // An ETag is a revision: epoch, then counter.
    let made = client.post("/servers/default/tickets", &ticket).await.expect(202);
    let path = format!("/tickets/{}", made["uuid"].as_str().unwrap());
    let answer = client.get(&path).await;
    let etag = answer.headers.get("etag").and_then(|tag| tag.to_str().ok()).unwrap_or_default();
    assert!(etag.trim_matches('"').starts_with("2."), "{etag}");
}

/// What the daemon prints on stdout, and its exit code.
fn printed(name: &str, args: &[&str]) -> (Option<i32>, String) {
    #[expect(clippy::disallowed_methods, reason = "a test calls the real binary")]
    let mut command = std::process::Command::new(muster_tests::binary(name));
    let output = command.args(args).output().expect("the binary starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn configurations_are_checked_and_shown_without_a_start() {
    let dir = temp_dir();
    let file = dir.path().join("coordinator.toml");
    let text = "datacenter = \"dc1\"\n\n[boot]\namqp_password = \"hidden\"\n";
    std::fs::write(&file, text).unwrap();
    let config = file.display().to_string();
    let data = dir.path().join("data").display().to_string();
    let args = |words: &[&'static str]| -> Vec<String> {
        let flags = ["--config", &config, "--data-dir", &data].map(str::to_owned);
        words.iter().map(|word| (*word).to_owned()).chain(flags).collect()
    };
    let run = |name: &str, args: Vec<String>| {
        printed(name, &args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (code, text) = run("muster-coordinator", args(&["config", "check"]));
    assert_eq!((code, text.as_str()), (Some(0), "the configuration is valid\n"));
    let (code, text) = run("muster-coordinator", args(&["config", "show", "--changed"]));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains(&format!("# file {config} line 1\n")), "{text}");
    assert!(text.contains("boot.amqp_password = \"***\"") && !text.contains("hidden"), "{text}");
    assert!(text.contains(&format!("data_dir = \"{data}\"")), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
    let (code, text) = run("muster-coordinator", args(&["config", "show", "--json"]));
    assert_eq!(code, Some(0), "{text}");
    let settings: serde_json::Value = serde_json::from_str(&text).unwrap();
    let lost = settings.as_array().unwrap().iter().find(|it| it["key"] == "roster.lost_ms");
    assert_eq!(lost, Some(&json!({ "key": "roster.lost_ms", "value": 2000, "source": "default" })));
    assert!(!dir.path().join("data").exists(), "nothing was opened");

    std::fs::write(&file, "datacenter = \"dc1\"\n[roster]\nlost_ms = \"soon\"\n").unwrap();
    let (code, text) = run("muster-coordinator", args(&["config", "check"]));
    assert_eq!(code, Some(64), "{text}");
    let wanted = format!("lost_ms: expected a whole number, found \"soon\" (file {config} line 3)");
    assert!(text.contains(&wanted), "{text}");

    let (code, text) = printed("muster-agent", &["config", "check", "--data-dir", &data]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("warning: ") && text.contains("no coordinator is named"), "{text}");
    let url = "--set=coordinator.urls=http://10.0.0.2:8480";
    let (code, text) = printed("muster-agent", &["config", "check", url]);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("did you mean ws://10.0.0.2:8480?"), "{text}");
}

#[test]
fn a_key_that_does_not_fit_its_certificate_is_found_by_the_check() {
    let dir = temp_dir();
    let (certificate, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
    std::fs::write(&certificate, "").unwrap();
    std::fs::write(&key, "").unwrap();
    std::fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let certificate = format!("--set=tls.certificate={}", certificate.display());
    let key = format!("--set=tls.key={}", key.display());
    let (code, text) = printed("muster-coordinator", &["config", "check", &certificate, &key]);
    assert_eq!(code, Some(64), "{text}");
    assert!(text.contains("c.pem holds no certificate"), "{text}");
}

#[test]
fn a_data_folder_that_others_can_write_is_refused() {
    let dir = temp_dir();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::set_permissions(&data, Permissions::from_mode(0o770)).unwrap();
    let (code, log) = on_data(&data, &["--listen", "127.0.0.1:0"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("chmod go-w"), "the fix is named: {log}");
    let data = data.display().to_string();
    let args = ["--coordinator", "ws://127.0.0.1:1", "--data-dir", &data].map(str::to_owned);
    let (code, log) = Daemon::run_to_exit("muster-agent", &args, &dir.path().join("log"));
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("the data folder") && log.contains("chmod go-w"), "{log}");
}

#[tokio::test]
async fn a_store_is_verified_and_converted() {
    let mut coordinator = Coordinator::with_settings(&["store.engine=sled"]);
    let agent = SimAgent::connect(&coordinator).await;
    agent.wait_running(&coordinator.client()).await;
    let data = coordinator.data_dir();
    let (code, log) = on_data(&data, &["store", "verify"]);
    assert_eq!(code, Some(1), "a running coordinator has the store: {log}");
    coordinator.kill9();
    assert_eq!(on_data(&data, &["store", "verify"]).0, Some(0));
    // The default engine is another one.
    coordinator.configure(&[]);
    coordinator.restart();
    coordinator.client().get(&format!("/servers/{}", agent.server_uuid)).await.expect(200);
    let log = coordinator.log();
    assert!(log.contains("converted the store"), "{log}");
    let names = std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name());
    let aside = names.filter(|name| name.to_string_lossy().starts_with("store.sled."));
    assert_eq!(aside.count(), 1, "the old one is kept");
    coordinator.kill9();
    assert_eq!(on_data(&data, &["store", "verify"]).0, Some(0));
}

#[tokio::test]
async fn an_agent_that_may_not_listen_says_that_it_knows_no_neighbours() {
    if !own_network::enter() {
        return;
    }
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let degraded = async |agent: &Agent| {
        let server = agent.wait_allocatable(&client).await;
        server["sysinfo"]["Muster"]["degraded"].to_string()
    };
    let deaf = Agent::with(&[&coordinator.agent_url()], &[], &[(WITHOUT_RIGHT, "net_raw")]);
    let told = degraded(&deaf).await;
    for text in ["neighbours on the server's cables are not known", "CAP_NET_RAW"] {
        assert!(told.contains(text), "{text:?} in {told}");
    }
    let hears = Agent::start(&coordinator.agent_url());
    let told = degraded(&hears).await;
    assert!(!told.contains("CAP_NET_RAW"), "{told}");
}
