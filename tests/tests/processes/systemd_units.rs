//! The units under `systemd/`: valid, guarded, and without what would hurt guests.

use std::path::PathBuf;
use std::process::Command;

use muster_tests::repository;
use tempfile::TempDir;

const UNITS: [&str; 7] = [
    "muster-agent-early.service",
    "muster-agent.service",
    "muster-coordinator.service",
    "muster-guest-logs.service",
    "muster-guest-logs.timer",
    "muster-guests-shutdown.service",
    "muster-vms.slice",
];

fn unit(name: &str) -> String {
    std::fs::read_to_string(repository().join("systemd").join(name)).expect("the unit exists")
}

/// Directives of a unit, comments left out.
fn directives(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter(|line| !line.starts_with(['#', ';', '[']));
    lines.filter_map(|line| line.split_once('=')).collect()
}

/// Copies of the units whose programs exist on every machine.
fn checkable() -> (TempDir, Vec<PathBuf>) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let copy = |name: &str| {
        let programs = ["/usr/bin/muster-agent", "/usr/bin/muster-coordinator"];
        let text = programs.iter().fold(unit(name), |text, it| text.replace(it, "/bin/true"));
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("a copy");
        path
    };
    let paths = UNITS.map(copy).to_vec();
    (dir, paths)
}

#[track_caller]
fn analyze(args: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "a test calls the real tool")]
    let ran = Command::new("systemd-analyze").args(args).output();
    let output = ran.expect("systemd-analyze is there (scripts/setup.sh installs it)");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert!(output.status.success(), "systemd-analyze {args:?}: {text}");
    text
}

#[test]
fn units_are_valid() {
    let (_dir, paths) = checkable();
    for path in paths {
        let path = path.display().to_string();
        let text = analyze(&["verify", "--man=no", "--recursive-errors=no", &path]);
        let ours: Vec<_> = text.lines().filter(|line| line.contains("muster-")).collect();
        assert!(ours.is_empty(), "{ours:#?}");
    }
}

#[test]
fn exposure_stays_within_limits() {
    let (_dir, paths) = checkable();
    // In tenths. The agent's is what is left without mount namespaces.
    for (name, limit) in [("muster-coordinator.service", "20"), ("muster-agent.service", "96")] {
        let path = paths.iter().find(|path| path.ends_with(name)).expect("a copy of each");
        let path = path.display().to_string();
        analyze(&["security", "--offline=true", &format!("--threshold={limit}"), &path]);
    }
}

#[test]
fn agent_shares_the_mounts_of_its_host() {
    let text = unit("muster-agent.service");
    let namespace = [
        "PrivateTmp",
        "PrivateDevices",
        "PrivateMounts",
        "PrivateUsers",
        "ProtectSystem",
        "ProtectHome",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectHostname",
        "ProtectProc",
        "ProcSubset",
        "ReadWritePaths",
        "ReadOnlyPaths",
        "InaccessiblePaths",
        "ExecPaths",
        "NoExecPaths",
        "TemporaryFileSystem",
        "BindPaths",
        "BindReadOnlyPaths",
        "RootDirectory",
        "RootImage",
        "MountImages",
        "ExtensionImages",
        "ExtensionDirectories",
        "MountAPIVFS",
        "DynamicUser",
        "PrivateIPC",
        "PrivateNetwork",
        "LogNamespace",
        "LoadCredential",
        "SetCredential",
        "MountFlags",
    ];
    for (key, _) in directives(&text) {
        assert!(!namespace.contains(&key), "{key} makes a mount namespace");
    }
}

#[test]
fn coordinator_gets_its_key_from_systemd() {
    let text = unit("muster-coordinator.service");
    let found = directives(&text);
    assert!(found.contains(&("LoadCredential", "tls.key:/etc/muster/coordinator.key")));
    assert!(found.contains(&("SetCredential", "tls.key:none")), "a node without TLS has no key");
    let example = std::fs::read_to_string(repository().join("systemd/coordinator.toml"));
    let path = "/run/credentials/muster-coordinator.service/tls.key";
    assert!(example.expect("the example exists").contains(path));
}

/// A daemon that is started by hand finds what its unit wrote.
#[test]
fn units_use_the_daemons_own_folders() {
    for (name, folder) in [
        ("muster-coordinator.service", muster_coordinator::config::Config::default().data_dir),
        ("muster-agent.service", muster_agent::config::Config::default().data_dir),
    ] {
        let text = unit(name);
        let start = format!("--data-dir {}", folder.display());
        assert!(text.contains(&start), "{name} does not say {start}");
        let state = folder.strip_prefix("/var/lib").expect("below /var/lib").display().to_string();
        assert!(directives(&text).contains(&("StateDirectory", &state)), "{name}: {state}");
    }
    let run = muster_agent::config::Config::default().run_folder().display().to_string();
    assert!(unit("muster-agent.service").contains(&format!("--run-dir {run} ")));
}

#[test]
fn agent_leaves_guests_alone_and_comes_back() {
    let text = unit("muster-agent.service");
    let found = directives(&text);
    for wanted in [
        ("Type", "notify"),
        ("KillMode", "process"),
        ("Restart", "always"),
        ("RestartSec", "2"),
        ("WatchdogSec", "30"),
        ("OOMScoreAdjust", "-900"),
        ("RuntimeDirectoryPreserve", "yes"),
    ] {
        assert!(found.contains(&wanted), "{wanted:?} is missing");
    }
    assert!(text.contains("--set host.actions=real"));
}
