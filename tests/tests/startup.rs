//! Command lines and configuration: what starts, what is refused, and how it says so.

use muster_tests::daemon::{Coordinator, Daemon, temp_dir};

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

#[test]
fn real_host_actions_need_the_marker() {
    let (code, log) = agent(&[
        "--coordinator",
        "ws://127.0.0.1:1",
        "--listen",
        "127.0.0.1:0",
        "--set",
        "host.actions=real",
    ]);
    assert_eq!(code, Some(64), "{log}");
    assert!(log.contains("/etc/muster/host-actions"), "{log}");
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
