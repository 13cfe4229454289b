use jiff::Timestamp;
use muster_shared::clock::TokioClock;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::drivers::compute::{
    ContainerRoot, GuestCommand, GuestConsole, GuestPort, GuestProcesses,
};
use crate::drivers::images::RuntimeConfig;
use crate::failure::TaskFailure;
use crate::host::FakeExec;
use crate::vms::sim::record;

/// A driver over scripted commands, in a folder of its own.
async fn driver(exec: &Arc<FakeExec>) -> (TempDir, Oci) {
    let folder = tempfile::tempdir().unwrap();
    let run_dir = folder.path().join("run");
    std::fs::create_dir(&run_dir).unwrap();
    let config = OciConfig {
        runtime: String::new(),
        monitor: PathBuf::from("/nonexistent/muster-agent"),
        data_dir: folder.path().to_owned(),
        run_dir,
        prefix: "muster".to_owned(),
        server_uuid: uuid::Uuid::from_u128(1).into(),
        cluster: Cluster::unknown(),
        cgroup_parent: String::new(),
        user_ids: None,
    };
    let clock = Arc::new(TokioClock::new(Timestamp::UNIX_EPOCH));
    let driver = Oci::open(config, exec.clone(), clock).await.unwrap();
    (folder, driver)
}

fn vm() -> VmRecord {
    let mut vm = record(0xabc);
    vm.properties.insert("brand".to_owned(), json!("lx"));
    vm
}

fn code(error: DriverError) -> Code {
    TaskFailure::from(error).code
}

#[tokio::test]
async fn without_a_runtime_starts_are_refused_with_the_reason() {
    let exec = Arc::new(FakeExec::default());
    exec.fails(&["runc"], 1, "no cgroups here");
    exec.fails(&["crun"], 1, "nor for me");
    let (_folder, driver) = driver(&exec).await;
    assert_eq!(driver.brands(), ["docker", "joyent", "joyent-minimal", "lx"]);
    let abilities = driver.abilities();
    assert_eq!(abilities.containers, None);
    assert!(abilities.no_containers.unwrap().contains("no cgroups here"));
    assert!(abilities.degraded.iter().any(|line| line.contains("nor for me")));
    let error = driver.start(&vm(), &Resources::default()).await.unwrap_err();
    assert!(error.to_string().contains("no cgroups here"), "{error}");
    assert_eq!(code(error), Code::ContainerNotSupported);
    assert!(!driver.observe(vm().uuid).await.unwrap().is_running());
    // One that is put right is found by the next start.
    exec.prints(&["crun"], "");
    let error = driver.start(&vm(), &Resources::default()).await.unwrap_err();
    assert_eq!(code(error), Code::DatasetNotFound);
    assert_eq!(driver.abilities().containers.as_deref(), Some("crun"));
}

#[tokio::test]
async fn a_host_without_runtimes_is_not_degraded() {
    let exec = Arc::new(FakeExec::default());
    let (_folder, driver) = driver(&exec).await;
    let abilities = driver.abilities();
    assert_eq!(abilities.no_containers.as_deref(), Some("neither runc nor crun is installed"));
    assert_eq!(abilities.degraded, Vec::<String>::new());
}

#[tokio::test]
async fn what_does_not_run_is_told_and_cleaned_up_as_often_as_it_likes() {
    let exec = Arc::new(FakeExec::default());
    exec.prints(&["runc"], "");
    let (_folder, driver) = driver(&exec).await;
    let vm = vm();
    assert!(!driver.holds(vm.uuid));
    driver.cleanup(vm.uuid, true).await.unwrap();
    driver.prepare(&vm).await.unwrap();
    driver.prepare(&vm).await.unwrap();
    assert!(driver.holds(vm.uuid));
    driver.limit(&vm).await.unwrap();
    for signal in
        [GuestSignal::PowerDown, GuestSignal::Kill, GuestSignal::Pause, GuestSignal::Reset]
    {
        assert_eq!(code(driver.signal(vm.uuid, signal).await.unwrap_err()), Code::VmNotRunning);
    }
    let opened = driver.open(vm.uuid, GuestPort::Console).await;
    assert_eq!(code(opened.err().unwrap()), Code::VmNotRunning);
    let ran = driver.exec(vm.uuid, &GuestCommand::default()).await;
    assert_eq!(code(ran.err().unwrap()), Code::VmNotRunning);
    assert!(driver.wait_stopped(vm.uuid, Duration::ZERO).await.unwrap());
    assert!(driver.console_log(vm.uuid, None).await.unwrap().bytes.is_empty());
    driver.cleanup(vm.uuid, false).await.unwrap();
    assert!(driver.holds(vm.uuid));
    driver.cleanup(vm.uuid, true).await.unwrap();
    assert!(!driver.holds(vm.uuid));
    assert!(driver.running().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_start_that_fails_leaves_no_process_and_says_what_the_runtime_said() {
    let exec = Arc::new(FakeExec::default());
    exec.prints(&["runc"], "");
    let (folder, driver) = driver(&exec).await;
    let root = folder.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let with = Resources {
        root: Some(ContainerRoot { path: root, runtime: RuntimeConfig::default(), ids: None }),
        ..Resources::default()
    };
    // The scripted monitor has ended at once.
    let error = driver.start(&vm(), &with).await.unwrap_err().to_string();
    assert!(error.contains("said nothing"), "{error}");
    let monitor = exec.calls().into_iter().find(|argv| argv[1] == MONITOR_COMMAND).unwrap();
    let run = folder.path().join("run/ct").join(vm().uuid.to_string());
    assert_eq!(monitor[2], run.display().to_string());
    let config = std::fs::read_to_string(run.join("config.json")).unwrap();
    assert!(config.contains("/sbin/init") && config.contains("resolv.conf"), "{config}");
    assert!(!driver.observe(vm().uuid).await.unwrap().is_running());
    let unknown =
        RuntimeConfig { user: Some("nobody-here".to_owned()), ..RuntimeConfig::default() };
    let root = with.root.map(|root| ContainerRoot { runtime: unknown, ..root });
    let error = driver.start(&vm(), &Resources { root, ..Resources::default() }).await.unwrap_err();
    assert_eq!(code(error), Code::InvalidParameters);
}
