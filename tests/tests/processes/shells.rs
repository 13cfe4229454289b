//! The programs that people use on both sides of the command: shells and editors on a console, which
//! ask the terminal and draw it, and the shell that completes the command's words.
//!
//! The guest of the other tests has neither bash nor vim. Here they run on a pseudo-terminal behind a
//! console of the test's own, which speaks as a coordinator does.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use muster_tests::binary;
use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::terminal::Terminal;
use muster_tests::wait::wait_for;
use nix::pty::{Winsize, openpty};
use parking_lot::Mutex;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::Message;

const VM: &str = "00000000-0000-4000-8000-000000000007";
const LIMIT: Duration = Duration::from_secs(60);
/// Leaves a console at any time.
const LEAVE: &str = "\u{1d}";

/// A program on a pseudo-terminal; ended when dropped.
struct Program {
    child: Child,
    screen: File,
}

impl Program {
    #[expect(clippy::disallowed_methods, reason = "what people use, started by a test")]
    fn start(words: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        // With the terminal as its own, as after a login.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "--wait"]).args(words).env("TERM", "xterm-256color");
        command.env("PS1", "ready> ");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it starts");
        Self { child, screen: File::from(pty.master) }
    }
}

impl Program {
    fn screen(&self) -> File {
        self.screen.try_clone().expect("a descriptor")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A coordinator with one machine, on whose console a program runs.
struct Console {
    url: String,
    program: Program,
    /// What the program was given.
    typed: Arc<Mutex<Vec<u8>>>,
}

impl Console {
    async fn start(words: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("its address"));
        let (program, typed) = (Program::start(words), Arc::default());
        let (keys, screen) = (program.screen(), follow(program.screen()));
        tokio::spawn(serve(listener, keys, screen, Arc::clone(&typed)));
        Self { url, program, typed }
    }

    fn attach(&self, home: &std::path::Path) -> Terminal {
        Terminal::at(&self.url, home, &["vm", "console", VM], LIMIT)
    }

    fn was_typed(&self) -> String {
        String::from_utf8_lossy(&self.typed.lock()).into_owned()
    }
}

/// All that a program has drawn. Ends with the program, whose terminal fails then.
#[expect(clippy::disallowed_methods, reason = "a terminal is read by blocking")]
fn follow(mut screen: File) -> watch::Receiver<Vec<u8>> {
    let (sender, receiver) = watch::channel(Vec::new());
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count) = screen.read(&mut buffer) {
            sender.send_modify(|all| all.extend_from_slice(&buffer[..count]));
        }
    });
    receiver
}

async fn serve(
    listener: TcpListener,
    keys: File,
    screen: watch::Receiver<Vec<u8>>,
    typed: Arc<Mutex<Vec<u8>>>,
) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let mut head = [0; 256];
        let count = stream.peek(&mut head).await.unwrap_or(0);
        if String::from_utf8_lossy(&head[..count]).contains("/console ") {
            let keys = keys.try_clone().expect("a descriptor");
            tokio::spawn(console(stream, keys, screen.clone(), Arc::clone(&typed)));
            continue;
        }
        let vm = json!({
            "uuid": VM, "alias": "web1", "state": "running", "server_uuid": VM,
            "server_status": "running",
        });
        let vm = vm.to_string();
        let length = vm.len();
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{vm}"
        );
        // Read before it is closed, or the answer would be lost with the connection.
        let mut request = vec![0; 4096];
        let read = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
        assert!(read.is_ok_and(|count| count > 0), "a request");
        stream.write_all(answer.as_bytes()).await.expect("the client reads");
    }
}

async fn console(
    stream: TcpStream,
    mut program: File,
    mut screen: watch::Receiver<Vec<u8>>,
    typed: Arc<Mutex<Vec<u8>>>,
) {
    let socket = tokio_tungstenite::accept_async(stream).await.expect("a websocket");
    let (mut frames, mut keys) = socket.split();
    // First what was drawn before, as of a guest.
    let mut seen = 0;
    screen.mark_changed();
    loop {
        tokio::select! {
            changed = screen.changed() => {
                let Ok(()) = changed else { return };
                let news = screen.borrow_and_update()[seen..].to_vec();
                seen += news.len();
                if frames.send(Message::Binary(news.into())).await.is_err() {
                    return;
                }
            }
            key = keys.next() => match key {
                Some(Ok(Message::Binary(bytes))) => {
                    typed.lock().extend_from_slice(&bytes);
                    program.write_all(&bytes).expect("the program's terminal takes keys");
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Text(_))) => {}
                _ => return,
            },
        }
    }
}

/// Attaches, does what people do there, and leaves with `~.` at the start of a line.
#[track_caller]
fn leaves(console: &Console, before: impl FnOnce(&mut Terminal) -> usize, keys: &str) {
    let home = tempfile::tempdir().expect("a folder");
    let mut terminal = console.attach(home.path());
    let at = before(&mut terminal);
    terminal.press(keys);
    terminal.until(at, "left");
    assert_eq!(terminal.end().0, 0, "{keys:?} leaves");
    assert!(!console.was_typed().contains("~."), "{:?}", console.was_typed());
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_is_left() {
    let console = Console::start(&["bash", "--norc", "--noprofile", "-i"]).await;
    let run = |terminal: &mut Terminal| {
        terminal.press("echo $((40 + 2))-here\r");
        terminal.until(0, "42-here")
    };
    leaves(&console, run, "~.");
    // A prompt that asks where the cursor is gets an answer, which is no typing.
    let asked = |terminal: &mut Terminal| {
        terminal.press("printf '\\033[6n'; echo asked-$((1 + 1))\r");
        let at = terminal.until(0, "asked-2");
        terminal.press("\u{1b}[12;40R");
        at
    };
    leaves(&console, asked, "~.");
    let half_a_line = |terminal: &mut Terminal| {
        terminal.press("echo half");
        terminal.until(0, "echo half")
    };
    leaves(&console, half_a_line, LEAVE);
    drop(console.program);
}

#[tokio::test(flavor = "multi_thread")]
async fn vim_is_left() {
    let console = Console::start(&["vim", "-u", "NONE", "-N", "-i", "NONE"]).await;
    // What an xterm answers the questions that vim asks when it starts: where the cursor is, which
    // terminal it is, and which colour the background has.
    let answers = "\u{1b}[2;2R\u{1b}[>41;354;0c\u{1b}]11;rgb:1e1e/1e1e/1e1e\u{7}";
    let started = |terminal: &mut Terminal| {
        let at = terminal.until(0, "VIM - Vi IMproved");
        terminal.press(answers);
        at
    };
    leaves(&console, started, "~.");
    let wrote = |terminal: &mut Terminal| {
        terminal.press("ihello from vim\r");
        terminal.until(0, "hello from vim")
    };
    leaves(&console, wrote, "~.");
    let in_the_middle = |terminal: &mut Terminal| {
        terminal.press("half a line");
        terminal.until(0, "half a line")
    };
    leaves(&console, in_the_middle, LEAVE);
    drop(console.program);
}

/// What bash would offer in the place of the last word.
#[expect(clippy::disallowed_methods, reason = "the shell that people use")]
fn offered(coordinator: &Coordinator, line: &str) -> Vec<String> {
    let script = "source <(muster completion bash); COMP_WORDS=($LINE \"$LAST\"); \
                  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE=\"$LINE $LAST\"; \
                  _muster_names muster \"$LAST\" ''; printf '%s\\n' \"${COMPREPLY[@]}\"";
    let (line, last) = line.rsplit_once(' ').expect("several words");
    let mut command = Command::new("bash");
    command.args(["--norc", "-c", script]).envs(surroundings(coordinator));
    lines_of(command.env("LINE", line).env("LAST", last))
}

/// What a shell has to know: where the command is, and its coordinator.
fn surroundings(coordinator: &Coordinator) -> [(&'static str, String); 2] {
    let folder = binary("muster").parent().expect("a folder").display().to_string();
    let path = std::env::var("PATH").unwrap_or_default();
    let url = format!("http://{}", coordinator.address());
    [("PATH", format!("{folder}:{path}")), ("MUSTER_URL", url)]
}

/// The lines that a shell prints; it has nothing to complain of.
fn lines_of(command: &mut Command) -> Vec<String> {
    let output = command.output().expect("the shell runs");
    let problem = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && problem.is_empty(), "{command:?}: {problem}");
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn bash_completes_commands_options_and_names() {
    let coordinator = Coordinator::start();
    let agent = Agent::start(&coordinator.agent_url());
    let server = agent.wait_allocatable(&coordinator.client()).await;
    let hostname = server["hostname"].as_str().expect("a name").to_owned();
    assert_eq!(offered(&coordinator, "muster vm export-"), ["export-spec"]);
    let options = offered(&coordinator, "muster vm create --pub");
    assert_eq!(options, ["--publish"]);
    assert_eq!(offered(&coordinator, "muster server get "), [hostname.as_str()]);
    let begun = format!("muster vm list --server {}", &hostname[..1]);
    assert_eq!(offered(&coordinator, &begun), [hostname.as_str()]);
}

/// What fish would offer in the place of the last word.
#[expect(clippy::disallowed_methods, reason = "the shell that people use")]
fn offered_by_fish(coordinator: &Coordinator, line: &str) -> Vec<String> {
    let script = "muster completion fish | source; complete -C $LINE";
    let mut command = Command::new("fish");
    command.args(["--no-config", "-c", script]).envs(surroundings(coordinator));
    let offered = lines_of(command.env("LINE", line));
    // Behind a tab stands what it is.
    offered.iter().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

/// zsh at a terminal, whose Ctrl-T writes the line to a file and empties it: what a terminal shows
/// of a line that is being edited is hard to read.
struct Zsh {
    _program: Program,
    keys: File,
    line: tempfile::NamedTempFile,
}

impl Zsh {
    async fn start(coordinator: &Coordinator, completion: &str) -> Self {
        let line = tempfile::NamedTempFile::new().expect("a file");
        let [path, url] = surroundings(coordinator).map(|(name, value)| format!("{name}={value}"));
        let to = format!("LINE={}", line.path().display());
        let program = Program::start(&["env", &path, &url, &to, "zsh", "-f", "-i"]);
        let mut screen = follow(program.screen());
        let mut zsh = Self { keys: program.screen(), _program: program, line };
        let tells = "tells() { print -rn -- \"$BUFFER\" > $LINE; BUFFER= }; zle -N tells";
        zsh.press(&format!("{tells}; bindkey '^T' tells; {completion}; print -r -- set''up\r"));
        let is_set_up = |all: &Vec<u8>| String::from_utf8_lossy(all).contains("setup\r\n");
        let set_up = tokio::time::timeout(LIMIT, screen.wait_for(is_set_up)).await;
        assert!(set_up.is_ok_and(|screen| screen.is_ok()), "zsh does not start");
        zsh
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// What becomes of a line by a Tab.
    async fn completes(&mut self, line: &str, to: &str) {
        self.press(&format!("{line}\t\u{14}"));
        let path = self.line.path().to_owned();
        wait_for(line, LIMIT, || async {
            let now = std::fs::read_to_string(&path).expect("it can be read");
            if now == to { Ok(()) } else { Err(now) }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fish_and_zsh_complete_commands_options_and_names() {
    let coordinator = Coordinator::start();
    let agent = Agent::start(&coordinator.agent_url());
    let server = agent.wait_allocatable(&coordinator.client()).await;
    let hostname = server["hostname"].as_str().expect("a name").to_owned();
    assert_eq!(offered_by_fish(&coordinator, "muster vm export-"), ["export-spec"]);
    assert_eq!(offered_by_fish(&coordinator, "muster vm create --pub"), ["--publish"]);
    assert_eq!(offered_by_fish(&coordinator, "muster server get "), [hostname.as_str()]);
    let begun = format!("muster logs --follow {}", &hostname[..1]);
    assert_eq!(offered_by_fish(&coordinator, &begun), [hostname.as_str()]);

    let folder = tempfile::tempdir().expect("a folder");
    let script = cli::text(&coordinator, &["completion", "zsh"]);
    std::fs::write(folder.path().join("_muster"), script).expect("a script");
    let begin = "autoload -Uz compinit; compinit -u -D";
    let installed = format!("fpath=({} $fpath); {begin}", folder.path().display());
    let sourced = format!("{begin}; source <(muster completion zsh)");
    for completion in [installed, sourced] {
        let mut zsh = Zsh::start(&coordinator, &completion).await;
        // The first time, too.
        zsh.completes("muster server get ", &format!("muster server get {hostname} ")).await;
        zsh.completes("muster vm export-", "muster vm export-spec ").await;
        zsh.completes("muster vm create --pub", "muster vm create --publish=").await;
        let whole = format!("muster vm list --server {hostname} ");
        zsh.completes(&format!("muster vm list --server {}", &hostname[..1]), &whole).await;
    }
}
