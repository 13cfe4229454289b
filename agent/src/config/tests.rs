use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::*;
use muster_shared::config::Sources;

fn load(sets: &[&str]) -> Result<Config, String> {
    let sources = Sources::new(ENVIRONMENT_PREFIX).set(sets.iter().copied());
    sources.load().map_err(|error| error.to_string())
}

#[track_caller]
fn check_refused(set: &str, names: &str) {
    let error = load(&[set]).unwrap_err();
    assert!(error.contains(names), "{error}");
}

#[test]
fn defaults_are_usable_and_stay_on_this_machine() {
    let config = load(&[]).unwrap();
    assert_eq!(config.listen.to_string(), DEFAULT_LISTEN);
    assert_eq!(config.host.actions, HostActions::Refuse);
    assert_eq!(config.run_folder(), Path::new(DEFAULT_RUN_DIR));
}

#[test]
fn what_cannot_work_is_refused_by_name() {
    check_refused("listen=\"0.0.0.0:5309\"", "listen");
    check_refused("coordinator.urls=[\"http://x\"]", "coordinator.urls");
    check_refused("compute.acel=tcg", "accel");
    check_refused("instance=\"much too long\"", "instance");
    check_refused("coordinator.key=\"/k\"", "coordinator.key");
    check_refused(
        "run_dir=\"/a/folder/whose/path/is/longer/than/the/54/bytes/that/are/left\"",
        "run_dir",
    );
    check_refused("server_uuid=\"00000000-0000-0000-0000-000000000000\"", "server_uuid");
    check_refused("queues.nope.max_concurrent=1", "queues.nope: is not a queue; there are");
    check_refused("queues.nop.max_concurrent=0", "queues.nop.max_concurrent: must be at least 1");
    check_refused("pool=\"a/b\"", "pool: must be 1 to 64 of");
    check_refused("pools.fast.dir=fast", "pools.fast.dir: must be a path");
    check_refused("pools.zones.dir=/srv/zones", "pools.zones: is the name of the first pool");
    check_refused("pools.-x.dir=/srv/x", "pools.-x: must be 1 to 64 of");
    check_refused(
        "pools.fast.dir=/var/lib/muster-agent",
        "pools.fast.dir: is the folder of another pool",
    );
    check_refused("images.gc.high_percent=101", "images.gc.high_percent");
    check_refused("images.gc.low_percent=90", "images.gc.low_percent");
    check_refused("compat.cn_agent_version=2.x", "compat.cn_agent_version");
}

#[test]
fn pools_have_names_and_folders_of_their_own() {
    let config = load(&["pools.fast.dir=/srv/fast", "pools.slow.dir=/srv/slow"]).unwrap();
    assert_eq!(config.pools.keys().collect::<Vec<_>>(), ["fast", "slow"]);
    load(&["storage=zfs", "pools.fast.dir="]).unwrap();
    let error = load(&["storage=zfs", "pools.fast.dir=/srv/fast"]).unwrap_err();
    assert!(error.contains("pools.fast.dir: must not be set"), "{error}");
    let error = load(&["pools.a.dir=/srv/x", "pools.b.dir=/srv/x"]).unwrap_err();
    assert!(error.contains("pools.b.dir: is the folder of another pool"), "{error}");
}

#[test]
fn files_that_cannot_be_read_are_named_together() {
    let error = load(&["coordinator.ca=/nope/ca", "coordinator.token_file=/", "listen=x"]);
    let error = error.unwrap_err();
    for part in [
        "coordinator.ca: cannot read /nope/ca: No such file",
        "coordinator.token_file: cannot read /: it is a folder",
        "listen: ",
    ] {
        assert!(error.contains(part), "no {part:?} in {error}");
    }
}

#[test]
fn secrets_that_others_can_read_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "t").unwrap();
    let load = || load(&[&format!("coordinator.token_file={}", path.display())]);
    for (mode, fits) in [(0o600, true), (0o440, true), (0o644, false), (0o660, false)] {
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        let text = load().err().unwrap_or_default();
        assert_eq!(text.is_empty(), fits, "{mode:o}: {text}");
        assert!(fits || text.contains("chmod g-w,o-rwx"), "{text}");
    }
}

#[test]
fn other_names_mean_the_same_keys() {
    let config = load(&["allow_command_execute=true", "server_uuid_byte_order=smartos"]).unwrap();
    assert!(config.security.allow_command_execute);
    assert_eq!(config.uuid_byte_order, ByteOrder::Smartos);
}

#[test]
fn queues_get_the_limits_that_are_set() {
    let config = load(&["queues.nop.max_concurrent=3"]).unwrap();
    assert_eq!(config.queue_limits(), BTreeMap::from([("nop".to_owned(), 3)]));
}

#[test]
fn other_data_folders_have_short_run_folders_of_their_own() {
    let at = |dir: &str| Config { data_dir: dir.into(), ..Config::default() }.run_folder();
    assert_ne!(at("/a"), at("/b"));
    assert!(at(&"/long".repeat(100)).as_os_str().len() < 40);
    let here = std::env::current_dir().unwrap();
    assert_eq!(at("a"), at(here.join("a").to_str().unwrap()));
}

#[test]
fn a_relative_run_folder_is_absolute_for_guests() {
    let config = Config { run_dir: Some("r".into()), ..Config::default() };
    assert_eq!(config.run_folder(), std::env::current_dir().unwrap().join("r"));
}
