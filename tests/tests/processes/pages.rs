//! What README and docs say: links lead somewhere, commands are such that the programs take them,
//! and blocks marked `run` are run, against a real coordinator and a real guest.
//!
//! A block's fence says what it is: `sh run` is run here, `sh` needs root, systemd or another
//! machine and is only understood, `toml` and `json` are read.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use clap::Parser as _;
use muster_shared::config::Sources;
use muster_tests::daemon::{Agent, Coordinator, temp_dir};
use muster_tests::pages::{Block, Page};
use muster_tests::system::free_port;
use muster_tests::{binary, guest, repository};

/// Two daemons on two busy cores.
const SOON: Duration = Duration::from_secs(60);
/// Pages whose blocks are run, one after the other in one cluster: later ones look at what the
/// first made.
const RUN: [&str; 8] = [
    "docs/guests.md",
    "docs/vm-spec.md",
    "docs/networking.md",
    "README.md",
    "docs/operations.md",
    "docs/troubleshooting.md",
    "docs/monitoring.md",
    "docs/api.md",
];

#[test]
fn links_lead_somewhere() {
    let mut broken = Vec::new();
    let pages = Page::all();
    let anchors: BTreeMap<_, _> =
        pages.iter().map(|page| (page.path.clone(), page.anchors())).collect();
    for page in &pages {
        for link in page.links() {
            let (path, anchor) = page.target(&link);
            let found = match anchor {
                _ if !path.exists() => false,
                Some(anchor) => anchors.get(&path).is_some_and(|of| of.contains(&anchor)),
                None => true,
            };
            if !found {
                broken.push(format!("{}: {link}", page.name));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_page_is_linked_from_the_readme() {
    let readme = Page::read("README.md");
    let linked: BTreeSet<_> = readme.links().iter().map(|link| readme.target(link).0).collect();
    let lost: Vec<_> =
        Page::all().into_iter().skip(1).filter(|page| !linked.contains(&page.path)).collect();
    assert!(lost.is_empty(), "{:?}", lost.iter().map(|page| &page.name).collect::<Vec<_>>());
}

#[test]
fn every_block_says_what_it_is() {
    let known = ["sh", "text", "toml", "json", "yaml", "rust"];
    for page in Page::all() {
        for block in page.blocks() {
            let place = format!("{}:{}", page.name, block.line);
            assert!(known.contains(&block.language.as_str()), "{place}: {:?}", block.language);
            let run = block.marks.iter().any(|mark| mark == "run");
            assert_eq!(run, !block.marks.is_empty(), "{place}: {:?}", block.marks);
            assert!(!run || RUN.contains(&page.name.as_str()), "{place}: the page is not run");
        }
    }
    for name in RUN {
        let run = Page::read(name).blocks().into_iter().any(|block| !block.marks.is_empty());
        assert!(run, "{name} has nothing to run");
    }
}

#[test]
fn configurations_are_such_that_a_daemon_takes_them() {
    let dir = temp_dir();
    for page in Page::all() {
        for block in page.blocks() {
            let place = format!("{}:{}", page.name, block.line);
            if block.language == "json" {
                let read: Result<serde_json::Value, _> = serde_json::from_str(&block.text);
                assert!(read.is_ok(), "{place}: {read:?}");
            }
            if block.language != "toml" {
                continue;
            }
            let file = dir.path().join("block.toml");
            std::fs::write(&file, &block.text).expect("written");
            let sources = || Sources::new("MUSTER_PAGES__").file(Some(&file));
            let refused = [
                sources().load::<muster_coordinator::config::Config>().err(),
                sources().load::<muster_agent::config::Config>().err(),
            ];
            // Certificates and keys are on the reader's machines.
            let good = refused.iter().any(|refused| {
                let problems = refused.iter().flat_map(|error| &error.problems);
                problems.into_iter().all(|problem| problem.message.starts_with("cannot read "))
            });
            assert!(good, "{place}: neither daemon takes it: {refused:?}");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "blocks are for a shell")]
fn bash(args: &[&str], folder: &Path, env: &[(&str, String)]) -> Output {
    let mut command = Command::new("/bin/bash");
    command.args(args).current_dir(folder).stdin(Stdio::null());
    command.envs(env.iter().map(|(name, value)| (*name, value.as_str())));
    command.output().expect("bash is there")
}

/// The calls of Muster's programs in a block. The shell is restricted and finds nothing else to
/// run, so that nothing happens.
fn calls(block: &Block, folder: &Path, place: &str) -> Vec<Vec<String>> {
    let stubs = folder.join("stubs");
    // A file for each call: those of a pipe run at the same time.
    let record = folder.join("record");
    drop(std::fs::remove_dir_all(&record));
    std::fs::create_dir_all(&record).expect("a folder");
    std::fs::create_dir_all(&stubs).expect("a folder");
    for name in ["muster", "muster-agent", "muster-coordinator"] {
        let stub = stubs.join(name);
        let text = format!(
            "#!/bin/bash\nprintf '%s\\0' {name} \"$@\" $'\\n' >> {}/$$\n",
            record.display()
        );
        std::fs::write(&stub, text).expect("written");
        std::fs::set_permissions(&stub, std::fs::Permissions::from_mode(0o755)).expect("made so");
    }
    let file = folder.join("block.sh");
    // What is not there is left out.
    let script = format!("command_not_found_handle() {{ return 0; }}\n{}", block.text);
    std::fs::write(&file, script).expect("written");
    let file = file.display().to_string();
    let parsed = bash(&["-n", &file], folder, &[]);
    let problem = String::from_utf8_lossy(&parsed.stderr).into_owned();
    assert!(parsed.status.success(), "{place}: {problem}");
    let path = [("PATH", stubs.display().to_string())];
    drop(bash(&["--norc", "--restricted", &file], folder, &path));
    let files = std::fs::read_dir(&record).expect("the folder").map(|file| file.expect("a file"));
    let recorded: String =
        files.map(|file| std::fs::read_to_string(file.path()).expect("text")).collect();
    let calls = recorded.split("\0\n\0").filter(|call| !call.is_empty());
    calls.map(|call| call.split('\0').map(str::to_owned).collect()).collect()
}

/// What is wrong with a call, if something is.
fn refused(call: &[String]) -> Option<String> {
    if call[0] == "muster" {
        let error = muster_cli::Args::try_parse_from(call).err()?;
        return error.use_stderr().then(|| error.to_string());
    }
    // What comes before is read first; nothing is started.
    #[expect(clippy::disallowed_methods, reason = "a test calls the real binary")]
    let output = Command::new(binary(&call[0])).args(&call[1..]).arg("--help").output();
    let output = output.expect("the binary starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(text)
}

#[test]
fn commands_are_understood() {
    let dir = temp_dir();
    let mut seen = 0;
    for page in Page::all() {
        for block in page.blocks().into_iter().filter(|block| block.language == "sh") {
            let place = format!("{}:{}", page.name, block.line);
            for call in calls(&block, dir.path(), &place) {
                seen += 1;
                let problem = refused(&call);
                assert!(problem.is_none(), "{place}: {call:?}: {}", problem.unwrap_or_default());
            }
        }
    }
    assert!(seen > 45, "only {seen} calls were found");
    let wrong = |text: &str| {
        let text = text.to_owned();
        let block = Block { line: 1, language: "sh".to_owned(), marks: Vec::new(), text };
        let calls = calls(&block, dir.path(), "here");
        calls.iter().filter_map(|call| refused(call)).count()
    };
    assert_eq!(wrong("muster vm list\nmuster vm lst\n"), 1);
    assert_eq!(wrong("muster vm create --alais x | muster server list --state y\n"), 2);
    assert_eq!(wrong("for x in a b; do\n  muster-agent --cofnig \"$x\"\ndone\n"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_marked_so_run() {
    // Each VM asks for 10 GiB beside its disk, and this machine's may be small.
    let anywhere =
        "dapi.allocationDescription=[\"pipe\", \"hard-filter-setup\", \"hard-filter-running\"]";
    let coordinator = Coordinator::with_settings(&[anywhere]);
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_status(&client, "running", SOON).await;
    let dir = temp_dir();
    let folder = dir.path();
    // What the reader has.
    let image = guest::image_dir().join("muster-guest.qcow2");
    std::fs::copy(image, folder.join("debian-12.qcow2")).expect("the guest image is built");
    std::fs::create_dir(folder.join(".ssh")).expect("a folder");
    let key =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me\n";
    std::fs::write(folder.join(".ssh/id_ed25519.pub"), key).expect("written");
    // Ports of the pages may be somebody's here.
    let ports =
        ["2222", "2223", "2224", "2225", "8088"].map(|port| (port, free_port().to_string()));
    let programs = binary("muster").parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let env = [
        ("PATH", format!("{programs}:{path}")),
        ("MUSTER_URL", format!("http://{}", coordinator.address())),
        ("HOME", folder.display().to_string()),
    ];
    for name in RUN {
        let mut script = "set -euo pipefail\n".to_owned();
        for block in Page::read(name).blocks().iter().filter(|block| !block.marks.is_empty()) {
            script += &format!("echo '--- line {}'\n{}", block.line, block.text);
        }
        for (port, free) in &ports {
            script = script.replace(port, free);
        }
        let file = folder.join("page.sh");
        std::fs::write(&file, script).expect("written");
        let file = file.display().to_string();
        let output = bash(&["--norc", &file], folder, &env);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let problem = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{name}: {problem}\n{text}");
        // curl succeeds with whatever it is answered.
        assert!(!text.contains("\"code\":"), "{name}: something was refused: {text}");
    }
    let vms = client.get("/vms").await.expect(200);
    let aliases: BTreeSet<_> =
        vms.as_array().expect("a list").iter().map(|vm| vm["alias"].to_string()).collect();
    assert_eq!(aliases.len(), 7, "web1 to web3, db1 to db3 and api1: {vms:#}");
}

/// The picture in the README shows what is in the transcript beside it.
#[test]
fn the_recording_is_of_its_transcript() {
    let read = |name: &str| {
        std::fs::read_to_string(repository().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let (picture, transcript) = (read("docs/demo.svg"), read("docs/demo.txt"));
    let escaped = |line: &str| line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // Colours are no part of what is shown.
    let colour = regex::Regex::new("</?tspan[^>]*>").expect("a pattern");
    let picture = colour.replace_all(&picture, "").replace("&quot;", "\"").replace("&#x27;", "'");
    let lines: Vec<_> = transcript.lines().filter(|line| !line.trim().is_empty()).collect();
    assert!(lines.len() > 15, "{}", lines.len());
    for line in lines {
        assert!(picture.contains(&escaped(line.trim_end())), "not in the picture: {line}");
        // The commands are those of today.
        if let Some(command) = line.strip_prefix("$ muster ") {
            let words: Vec<String> = ["muster"]
                .into_iter()
                .chain(command.split_whitespace())
                .map(str::to_owned)
                .collect();
            assert_eq!(refused(&words), None, "{line}");
        }
    }
}
