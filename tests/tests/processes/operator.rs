//! Every command of the operator, in a terminal of 80 columns, against real daemons and a guest: no
//! line wraps, nothing controls the terminal, and the exit codes are the documented ones.
//!
//! What commands there are is asked of the command line itself: a new one without a case fails here.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use clap::{Command, CommandFactory as _};
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::guest;
use muster_tests::operator::{LIMIT, Operator};
use muster_tests::scripted_agent::ScriptedAgent;
use muster_tests::terminal::{Screen, Terminal};
use muster_tests::wait::wait_for;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

const LEAVE: &str = "\u{1d}";

/// The exit codes of the command's help.
const DONE: i32 = 0;
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const TASK_FAILED: i32 = 4;
const UNREACHABLE: i32 = 5;
const REFUSED: i32 = 6;
const LATE: i32 = 7;
const INTERRUPTED: i32 = 130;

/// The commands without subcommands, as they are typed.
fn commands(of: &Command, path: &str, all: &mut BTreeSet<String>) {
    let mut inner = of.get_subcommands().filter(|it| it.get_name() != "help").peekable();
    if inner.peek().is_none() {
        all.insert(path.to_owned());
    }
    for command in inner {
        let name = command.get_name();
        commands(command, format!("{path} {name}").trim(), all);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_fits_a_terminal_and_ends_as_documented() {
    let scripts = ["security.allow_command_execute=true"];
    let coordinator = Coordinator::with_settings(&scripts);
    let agent = Agent::with(&[&coordinator.agent_url()], &scripts, &[]);
    agent.wait_allocatable(&coordinator.client()).await;
    let mut operator = Operator::new(coordinator);
    let server = agent.server_uuid.clone();
    without_machines(&mut operator, &server);
    let created = images_and_a_machine(&mut operator);
    lists_and_descriptions(&mut operator, &server, &created);
    consoles(&mut operator);
    guests(&mut operator);
    displays(&mut operator).await;
    power_and_changes(&mut operator);
    tickets_and_jobs(&mut operator, &server).await;
    the_end_of_all(&mut operator, &server);
    let mut all = BTreeSet::new();
    commands(&muster_cli::Args::command(), "", &mut all);
    operator.assert_sound();
    let missing: Vec<_> = all.difference(&operator.tried).collect();
    assert!(missing.is_empty(), "commands without a case here: {missing:?}");
}

#[test]
fn every_help_fits_a_terminal() {
    // Nothing is asked of it.
    let mut operator = Operator::new(Coordinator::start());
    let mut all = BTreeSet::new();
    commands(&muster_cli::Args::command(), "", &mut all);
    for command in &all {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        operator.find(&words, DONE, "Usage: muster");
    }
    operator.see(&["--help"], DONE);
    operator.find(&["vm", "creat"], USAGE, "create");
    operator.assert_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_told_of_errors_in_json_and_who_calls_is_known() {
    let coordinator = Coordinator::start();
    let url = format!("http://{}", coordinator.address());
    let error = |url: &str, words: &[&str]| -> (Option<i32>, Value) {
        let output = cli::output_at(url, words, &[("MUSTER_OUTPUT", "json")]);
        let stderr = String::from_utf8(output.stderr).expect("UTF-8");
        let last = stderr.lines().next_back().unwrap_or_default();
        let error: Value = serde_json::from_str(last).unwrap_or_else(|_| panic!("{stderr}"));
        (output.status.code(), error["error"].clone())
    };
    let nobody = "00000000-0000-4000-8000-000000000001";
    for kind in ["task", "job", "ticket", "allocation", "vm", "server", "image", "package"] {
        let (code, missing) = error(&url, &[kind, "get", nobody]);
        let message = format!("there is no {kind} \"{nobody}\"; `muster {kind} list` lists them");
        assert_eq!((code, &missing["message"]), (Some(NOT_FOUND), &message.into()), "{missing}");
        assert_eq!(
            (&missing["kind"], &missing["exit_code"]),
            (&"not_found".into(), &NOT_FOUND.into())
        );
    }
    let (code, refused) = error(&url, &["package", "create", "huge", "--ram", "1"]);
    assert_eq!((code, &refused["code"]), (Some(REFUSED), &"InvalidParameters".into()), "{refused}");
    assert!(refused["errors"][0]["field"].is_string(), "{refused}");
    let agent = Agent::start(&coordinator.agent_url());
    let of_agent = agent.client().base().to_owned();
    let (code, other) = error(&of_agent, &["server", "list"]);
    assert_eq!((code, &other["status"]), (Some(FAILED), &404.into()), "{other}");
    let hint = other["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("the coordinator's address?"), "{other}");
    let metrics = coordinator.client().get("/metrics").await.text;
    assert!(metrics.contains("user_agent=\"muster/"), "{metrics}");
}

/// Nobody listens at one address; at the other, connections are accepted and that is all.
#[test]
fn who_does_not_answer_is_named_before_long() {
    let listener = || TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = |at: &TcpListener| format!("http://{}", at.local_addr().expect("its address"));
    let silent = listener();
    let nobody = url(&listener());
    for (url, cause) in [(nobody, "refused"), (url(&silent), "answered nothing within 10 s")] {
        let home = tempfile::tempdir().expect("a folder");
        // The answer to any request is waited for 60 s.
        let limit = Duration::from_secs(40);
        let (code, shown) = Terminal::at(&url, home.path(), &["server", "list"], limit).end();
        let Screen { text, flaws, .. } = Screen::of(&shown);
        assert_eq!((code, flaws.len()), (UNREACHABLE, 0), "{flaws:?} in {text}");
        let sentence = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(sentence.contains(cause) && sentence.contains(&url), "{text}");
        assert!(sentence.contains("is muster-coordinator running there?"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_presses_ctrl_c_is_told_what_continues_and_how_to_come_back() {
    let coordinator = Coordinator::start();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let mut operator = Operator::new(coordinator);
    let orphan = "00000000-0000-4000-8000-000000000001";
    let server = agent.server_uuid.clone();
    let adopt = ["server", "orphans", "adopt", &server, orphan];
    let terminal = operator.start(&adopt);
    let sent = agent.expect("dispatch", None, LIMIT).await.expect("it is sent");
    // The command waits for the task that the agent does not end.
    terminal.until(0, "adopt");
    terminal.interrupt();
    let shown = operator.end(terminal, &adopt, INTERRUPTED);
    let task = sent["id"].as_str().expect("an id");
    for text in [&format!("task {task} continues"), &format!("muster task wait {task}")] {
        assert!(shown.split_whitespace().collect::<Vec<_>>().join(" ").contains(text), "{shown}");
    }
    operator.assert_sound();
}

fn without_machines(operator: &mut Operator, server: &str) {
    operator.find(&["server", "list"], DONE, "running");
    operator.see(&["server", "list", "--columns", "name,stat"], USAGE);
    operator.find(&["server", "get", server], DONE, "unallocated");
    operator.see(&["server", "get", "nowhere"], NOT_FOUND);
    operator.see(&["server", "orphans", "list", server], DONE);
    let nobody = "00000000-0000-4000-8000-000000000001";
    let adopt = ["server", "orphans", "adopt", server, nobody];
    operator.see(&adopt, TASK_FAILED);
    let remove = ["server", "orphans", "remove", server, nobody, "--confirm", nobody];
    operator.see(&remove, TASK_FAILED);
    operator
        .see(&["server", "update", server, "--comments", "a note", "--trait", "ssd=true"], DONE);
    operator.find(&["server", "get", server], DONE, "a note");
    operator.see(&["server", "update", server, "--remove-trait", "ssd"], DONE);
    operator.find(&["server", "refresh", server], DONE, "done");
    let script = operator.home.path().join("check.sh").display().to_string();
    std::fs::write(&script, "uptime\n").expect("a script");
    // The agent's host is a simulated one, where scripts print nothing.
    operator.see(&["server", "execute", server, &script, "--fast"], DONE);
    operator.see(&["server", "execute", server, "/nonexistent"], USAGE);
    operator.find(&["coordinator", "get"], DONE, "the coordinator is ready");
    operator.find(&["coordinator", "loglevel", "debug"], DONE, "debug");
    operator.find(&["coordinator", "loglevel"], DONE, "debug");
    operator.see(&["coordinator", "loglevel", "loud"], USAGE);
    operator.see(&["server", "pause", server], DONE);
    operator.see(&["server", "resume", server], DONE);
    operator.see(&["vm", "list"], DONE);
    operator.see(&["image", "list"], DONE);
    operator.see(&["boot", "set", server, "--arg", "a=b"], DONE);
    operator.find(&["boot", "get", server], DONE, "Kernel arguments");
    operator.find(&["boot", "get", "default"], DONE, "new servers boot platform");
    operator.find(&["boot", "platforms"], DONE, "latest");
    // A shell takes it, and no terminal.
    let script = cli::text(&operator.coordinator, &["completion", "bash"]);
    assert!(script.contains("muster names"), "{script}");
    operator.tried.insert("completion".to_owned());
    let pages = operator.home.path().join("man1").display().to_string();
    operator.see(&["man", &pages], DONE);
    operator.see(&["context", "set", "lab", "--ca", "x.pem"], USAGE);
    operator.see(&["context", "set", "lab"], DONE);
    operator.see(&["context", "use", "lab"], DONE);
    operator.find(&["context", "list"], DONE, "lab");
    operator.see(&["context", "use", "prod"], NOT_FOUND);
    operator.see(&["context", "remove", "lab"], DONE);
}

/// The task that made the machine `web1`.
fn images_and_a_machine(operator: &mut Operator) -> String {
    let (file, manifest) = (guest::image_dir().join("muster-guest.qcow2.gz"), guest::image_dir());
    let manifest = manifest.join("manifest.json").display().to_string();
    let file = file.display().to_string();
    operator.see(&["image", "import", &file, "--manifest", &manifest], DONE);
    operator.see(&["image", "import", &file, "--manifest", &manifest], USAGE);
    operator.see(&["image", "list", "--all"], DONE);
    let copy = operator.home.path().join("copy.qcow2.gz").display().to_string();
    operator.find(&["image", "export", "muster-guest", &copy], DONE, "copy.qcow2.gz");
    let [original, copied] = [&file, &copy].map(|path| std::fs::read(path).expect("a file"));
    assert!(original == copied, "{} and {} bytes", original.len(), copied.len());
    operator.find(&["image", "export", "muster-guest", &copy], USAGE, "--force");
    operator.see(&["image", "get", "muster-guest"], DONE);
    an_import_that_is_interrupted(operator);
    operator.see(&["allocate", "--ram", "192"], DONE);
    operator.see(&["allocate", "--ram", "9999999"], REFUSED);
    operator.see(&["capacity", "--ram", "192", "--disk", "1"], DONE);
    packages(operator);
    let create = ["vm", "create", "--image", "muster-guest", "--package", "tiny", "--name", "web1"];
    operator.see(&[&create[..], &["--dry-run"]].concat(), DONE);
    operator.see(&[&create[..], &["--tag", "role=db"]].concat(), DONE);
    operator.find(&create, REFUSED, "has this name");
    let large = ["vm", "create", "--image", "muster-guest", "--ram", "9999999"];
    // An unoptimized coordinator on a busy machine may not find it in time, and says so.
    let mut answers = std::iter::repeat_with(|| operator.see(&large, REFUSED)).take(10);
    let whole = answers.find(|shown| !shown.contains("ended early"));
    let whole = whole.expect("a search that gets through");
    assert!(whole.contains("it would fit"), "{whole}");
    operator.find(&large, REFUSED, "MiB of memory wanted, ");
    let nowhere = ["vm", "create", "--image", "muster-guest", "--network", "nosuch"];
    operator.find(&nowhere, REFUSED, "nosuch;");
    operator.member(&["task", "list", "--kind", "machine_create"], "id")
}

fn an_import_that_is_interrupted(operator: &mut Operator) {
    let path = operator.home.path().join("big.raw");
    std::fs::File::create(&path).and_then(|file| file.set_len(128 << 20)).expect("a file");
    let path = path.display().to_string();
    let import = ["image", "import", &path, "--name", "big", "--version", "1"];
    let terminal = operator.start(&import);
    terminal.until(0, "upload");
    terminal.interrupt();
    let shown = operator.end(terminal, &import, INTERRUPTED);
    assert!(shown.contains("the image was not imported"), "{shown}");
    let left = operator.see(&["image", "list", "--all", "--columns", "name"], DONE);
    assert!(!left.contains("big"), "{left}");
}

fn packages(operator: &mut Operator) {
    let create = ["package", "create", "tiny", "--ram", "192", "--disk", "1"];
    operator.see(&create, DONE);
    operator.find(&create, REFUSED, "tiny exists");
    operator.find(&["package", "create", "huge", "--ram", "1"], REFUSED, "max_physical_memory");
    operator.see(&["package", "create", "other", "--ram", "192", "--trait", "ssd=true"], DONE);
    operator.find(&["package", "list"], DONE, "tiny");
    operator.find(&["package", "get", "tiny"], DONE, "192 MiB");
    operator.see(&["package", "get", "tin"], NOT_FOUND);
    operator.find(&["package", "update", "tiny", "--vcpus", "1"], DONE, "vcpus");
    operator.see(&["package", "update", "tiny"], USAGE);
    operator.find(&["names", "--", "vm", "create", "--package", "ti"], DONE, "tiny");
    operator.find(&["allocate", "--package", "tiny"], DONE, "chosen");
    operator.find(&["allocate", "--package", "other"], REFUSED, "ssd");
    operator.see(&["capacity", "--package", "tiny"], DONE);
    operator.answer(&["package", "delete", "other"], "n\r", FAILED);
    operator.answer(&["package", "delete", "other"], "y\r", DONE);
    operator.see(&["package", "delete", "other", "--if-exists"], DONE);
    operator.see(&["package", "delete", "other"], NOT_FOUND);
}

fn lists_and_descriptions(operator: &mut Operator, server: &str, created: &str) {
    operator.find(&["vm", "list", "--filter", "state=running"], DONE, "web1");
    operator.find(&["vm", "list", "--columns", "name,package"], DONE, "tiny");
    operator.see(&["vm", "list", "--state", "gone"], USAGE);
    operator.find(&["vm", "get", "web1"], DONE, "web1 is running on ");
    operator.see(&["vm", "top", "--once", "--interval", "500ms"], DONE);
    operator.see(&["top", "--once", "--interval", "500ms"], DONE);
    operator.see(&["vm", "info", "web1", "status"], DONE);
    operator.see(&["vm", "proc", "web1"], DONE);
    operator.find(&["names", "--", "vm", "get", "we"], DONE, "web1");
    operator.see(&["why", "web1"], DONE);
    operator.see(&["why", "nothing-of-this-name"], NOT_FOUND);
    operator.find(&["server", "images", "list", server], DONE, "muster-guest");
    operator.see(&["server", "images", "add", server, "muster-guest"], DONE);
    let image = operator.member(&["image", "list"], "uuid");
    operator.see(&["server", "images", "remove", server, &image], TASK_FAILED);
    operator.find(&["task", "list"], DONE, "web1");
    operator.see(&["task", "get", created], DONE);
    operator.see(&["task", "wait", created], DONE);
    operator.see(&["task", "wait", "--all"], DONE);
    operator.see(&["task", "cancel", created], REFUSED);
    operator.see(&["events", "--limit", "1", "--after", "1.1"], DONE);
    operator.find(&["logs", server, "--lines", "20"], DONE, "INFO");
    operator.find(&["logs", "--task", created, "-o", "wide"], DONE, created);
    operator.find(&["logs", "--vm", "web1", "--since", "1h"], DONE, "task begins");
    operator.see(&["logs", "--coordinator"], DONE);
    operator.see(&["logs"], USAGE);
    operator.see(&["allocation", "list"], DONE);
    let decision = operator.member(&["allocation", "list"], "id");
    operator.see(&["allocation", "get", &decision], DONE);
    operator.see(&["allocation", "replay", &decision], DONE);
}

fn consoles(operator: &mut Operator) {
    let until = ["vm", "console", "web1", "--until", "muster-guest up", "--timeout", "200"];
    // What the guest prints is the guest's.
    assert_eq!(operator.start(&until).end().0, DONE);
    let never = ["vm", "console", "web1", "--until", "no such line", "--timeout", "1"];
    assert_eq!(operator.start(&never).end().0, LATE);
    for keys in ["\r~.", LEAVE] {
        let mut terminal = operator.start(&["vm", "console", "web1"]);
        let at = terminal.until(0, "muster-guest up");
        terminal.press("\recho $((40 + 2))-here\r");
        let at = terminal.until(at, "42-here");
        // A shell that asks where the cursor is gets an answer, which is no typing.
        terminal.press("\r\u{1b}[12;40R");
        terminal.press(keys);
        terminal.until(at, "left");
        assert_eq!(terminal.end().0, DONE, "{keys:?} leaves");
    }
}

/// What the guest agent does, in a guest that is up.
fn guests(operator: &mut Operator) {
    operator.find(&["vm", "exec", "web1", "hostname"], DONE, "web1");
    operator.see(&["vm", "exec", "web1", "--", "sh", "-c", "exit 9"], 9);
    operator.find(&["vm", "exec", "web1", "no-such-program"], REFUSED, "no-such-program");
    let file = operator.home.path().join("motd").display().to_string();
    std::fs::write(&file, "ssh-ed25519 AAAA operator\n").expect("a file");
    operator.see(&["vm", "cp", &file, "web1:/tmp/motd"], DONE);
    operator.find(&["vm", "exec", "web1", "cat", "/tmp/motd"], DONE, "AAAA operator");
    operator.see(&["vm", "cp", "web1:/tmp/motd", &file], USAGE);
    operator.see(&["vm", "cp", "web1:/tmp/motd", &file, "--force"], DONE);
    operator.see(&["vm", "set-login", "web1", "--user", "root"], USAGE);
    let login = ["vm", "set-login", "web1", "--user", "nobody-here", "--ssh-key", &file];
    operator.see(&login, REFUSED);
}

/// Of a machine that is stopped.
fn copies(operator: &mut Operator) {
    let file = operator.home.path().join("web1.muster").display().to_string();
    operator.find(&["vm", "export", "web1", &file], DONE, "web1.muster");
    operator.find(&["vm", "export", "web1", &file], USAGE, "--force");
    operator.see(&["vm", "export", "web1"], USAGE);
    operator.find(&["vm", "import", &file], REFUSED, "exists");
    operator.see(&["vm", "import", "/nonexistent"], USAGE);
    operator.see(&["vm", "import", &file, "--new-uuid", "--name", "web2"], DONE);
    operator.see(&["vm", "delete", "web2", "--yes"], DONE);
    let image = ["image", "create", "web1", "--name", "app", "--version", "1"];
    operator.see(&image, DONE);
    operator.see(&["image", "delete", "app", "--yes"], DONE);
}

async fn displays(operator: &mut Operator) {
    let picture = operator.home.path().join("web1.png").display().to_string();
    operator.see(&["vm", "screenshot", "web1", "--file", &picture], DONE);
    let terminal = operator.start(&["vm", "vnc", "web1", "--once"]);
    let at = terminal.until(0, "is at ");
    let end = terminal.until(at, ";");
    let address = terminal.text(at, end - 1);
    let mut viewer = tokio::net::TcpStream::connect(&address).await.expect("it listens");
    let mut greeting = [0; 4];
    viewer.read_exact(&mut greeting).await.expect("a greeting");
    assert_eq!(&greeting, b"RFB ");
    drop(viewer);
    operator.end(terminal, &["vm", "vnc"], DONE);
}

fn power_and_changes(operator: &mut Operator) {
    let update = ["vm", "update", "web1", "--ram", "256", "--tag", "a=b"];
    operator.find(&update, DONE, "next start: ram");
    operator.find(&["vm", "get", "web1"], DONE, "(now 192 MiB)");
    operator.find(&["vm", "list", "--columns", "name,at-start"], DONE, "new ram");
    operator.find(&["why", "web1"], DONE, "and has a new ram from its next start on");
    operator.see(&["vm", "update", "web1"], USAGE);
    // An editor takes it, and no terminal.
    let schema = cli::text(&operator.coordinator, &["vm", "schema"]);
    assert!(schema.contains("cloud_config"), "{schema}");
    operator.tried.insert("vm schema".to_owned());
    operator.find(&["vm", "export-spec", "web1"], DONE, "image: muster-guest@");
    let editor = operator.home.path().join("editor");
    std::fs::write(&editor, "#!/bin/sh\nsed -i 's/a: b/a: c/' \"$1\"\n").expect("an editor");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&editor, mode).expect("it can be run");
    operator.answer(&["vm", "edit", "web1"], "n\r", FAILED);
    let shown = operator.answer(&["vm", "edit", "web1"], "y\r", DONE);
    assert!(shown.contains("+  a: c"), "{shown}");
    edited_by_two(operator);
    operator.see(&["vm", "update", "web1", "--ram", "9999999"], REFUSED);
    operator.see(&["vm", "snapshot", "create", "web1", "before"], DONE);
    operator.find(&["vm", "snapshot", "create", "web1", "bad name"], USAGE, "A-Z");
    operator.find(&["vm", "snapshot", "list", "web1"], DONE, "before");
    operator.see(&["vm", "stop", "--tag", "role=db", "--force", "--dry-run"], DONE);
    operator.answer(&["vm", "stop", "--all", "--force"], "n\r", FAILED);
    operator.see(&["vm", "stop", "web1", "--force"], DONE);
    operator.see(&["vm", "stop", "web1"], DONE);
    operator.see(&["vm", "snapshot", "rollback", "web1", "before"], DONE);
    copies(operator);
    operator.see(&["vm", "snapshot", "delete", "web1", "before"], DONE);
    operator.see(&["vm", "reprovision", "web1", "--image", "muster-guest"], DONE);
    operator.see(&["vm", "start", "web1"], DONE);
    operator.see(&["vm", "reboot", "web1", "--force"], DONE);
    let shown = operator.see(&["vm", "get", "web1"], DONE);
    assert!(shown.contains("256 MiB") && !shown.contains("next start"), "{shown}");
    operator.see(&["vm", "kill", "web1", "--signal", "NOPE"], TASK_FAILED);
    operator.see(&["vm", "kill", "web1"], DONE);
    operator.find(&["vm", "list", "--filter", "state=stopped"], DONE, "web1");
}

/// What somebody else changed while the editor was open is not overwritten.
fn edited_by_two(operator: &mut Operator) {
    operator.see(&["vm", "update", "web1", "--tag", "a=b"], DONE);
    let mut terminal = operator.start(&["vm", "edit", "web1"]);
    terminal.until(0, "[y/N] ");
    operator.see(&["vm", "update", "web1", "--tag", "a=d"], DONE);
    terminal.press("y\r");
    let shown = operator.end(terminal, &["vm", "edit"], FAILED);
    assert!(shown.contains("was changed meanwhile"), "{shown}");
    operator.find(&["vm", "export-spec", "web1"], DONE, "a: d");
}

async fn tickets_and_jobs(operator: &mut Operator, server: &str) {
    operator.see(&["ticket", "create", "--scope", "vm", "--id", "web1"], DONE);
    operator.see(&["ticket", "create", "--scope", "", "--id", "web1"], USAGE);
    let ticket = operator.member(&["ticket", "list"], "uuid");
    operator.find(&["ticket", "list"], DONE, "web1");
    operator.find(&["ticket", "get", &ticket[24..]], DONE, "the ticket for vm web1 is active");
    operator.see(&["ticket", "wait", &ticket], DONE);
    operator.see(&["ticket", "release", &ticket], DONE);
    operator.see(&["ticket", "delete", &ticket], DONE);
    operator.see(&["ticket", "get", &ticket], NOT_FOUND);
    operator.find(&["server", "setup", server], DONE, "nothing to do");
    // The agent simulates its host.
    operator.see(&["server", "reboot", server], DONE);
    let client = operator.coordinator.client();
    let path = format!("/servers/{server}");
    wait_for("the server is heard", LIMIT, || async {
        let answer = client.get(&path).await;
        if answer.json["status"] == "running" { Ok(()) } else { Err(answer.text) }
    })
    .await;
    operator.see(&["server", "resume", server], DONE);
    operator.see(&["server", "nics", server, "delete", "00:00:00:00:00:01=none"], DONE);
    operator.see(&["job", "list"], DONE);
    let jobs = cli::json(&operator.coordinator, &["job", "list"]);
    let reboot = jobs.as_array().into_iter().flatten();
    let reboot = reboot.filter(|job| job["execution"] == "succeeded").map(|job| &job["uuid"]);
    let reboot = reboot.filter_map(Value::as_str).next().expect("a job that succeeded").to_owned();
    operator.see(&["job", "get", &reboot], DONE);
    operator.see(&["job", "wait", &reboot], DONE);
    operator.see(&["job", "get", "00000000-0000-4000-8000-000000000001"], NOT_FOUND);
}

fn the_end_of_all(operator: &mut Operator, server: &str) {
    let reset = ["server", "factory-reset", server];
    operator.answer(&reset, "n\r", FAILED);
    let kept = operator.answer(&["vm", "delete", "web1"], "n\r", FAILED);
    assert!(kept.contains("web1 ("), "{kept}");
    operator.answer(&["vm", "delete", "web1"], "y\r", DONE);
    operator.see(&["vm", "delete", "web1", "--if-exists", "--yes"], DONE);
    operator.see(&["vm", "delete", "web1", "--yes"], NOT_FOUND);
    operator.answer(&["image", "delete", "muster-guest"], "y\r", DONE);
    operator.see(&["image", "delete", "muster-guest", "--if-exists"], DONE);
    operator.find(&["server", "delete", server, "--yes"], USAGE, "--force");
}
