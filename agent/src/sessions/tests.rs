//! Clients of sessions, with processes and files of this host in place of a container's.

use std::fs;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::entropy::SeededEntropy;
use muster_shared::wire::Code;
use rustix::fs::{Mode, OFlags, open};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::copy::{self, Direction};
use super::exec::{self, Attached};
use super::{MAX_SESSIONS, Opened, Sessions};
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestProcess, ProcessInput, ProcessOutput, TerminalSize};
use crate::host::{Exec as _, Exit, Piped, RunningChild, SystemExec};

const SOON: Duration = Duration::from_secs(20);

fn sessions() -> Sessions {
    Sessions::new(Ipv4Addr::LOCALHOST.into(), true, Arc::new(SeededEntropy::new(1)))
}

async fn connect(opened: &Opened) -> BufReader<TcpStream> {
    BufReader::new(TcpStream::connect((opened.host, opened.port)).await.unwrap())
}

/// A process of this host.
#[derive(Debug)]
struct Local(RunningChild);

#[async_trait]
impl GuestProcess for Local {
    fn take_stdin(&mut self) -> Option<ProcessInput> {
        Some(Box::new(self.0.take_stdin()?))
    }

    fn take_stdout(&mut self) -> Option<ProcessOutput> {
        Some(Box::new(self.0.take_stdout()?))
    }

    fn take_stderr(&mut self) -> Option<ProcessOutput> {
        Some(Box::new(self.0.take_stderr()?))
    }

    fn resize(&self, _size: TerminalSize) -> std::io::Result<()> {
        Ok(())
    }

    async fn wait(&mut self) -> std::io::Result<Exit> {
        self.0.wait().await
    }
}

async fn start(script: &str) -> Result<Box<dyn GuestProcess>, DriverError> {
    let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
    let child =
        SystemExec::new().spawn_piped(&Piped { argv, stdin: true, scope: None }).await.unwrap();
    Ok(Box::new(Local(child)))
}

/// A client of a script.
async fn script(sessions: &Sessions, text: &'static str) -> BufReader<TcpStream> {
    let attached = Attached { stdin: true, stdout: true, stderr: true, terminal: false };
    let serve = move |peer| async move { exec::serve(peer, start(text).await, attached).await };
    connect(&sessions.open(SOON, serve).await.unwrap()).await
}

async fn say(client: &mut BufReader<TcpStream>, what: Value) {
    client.write_all(format!("{what}\n").as_bytes()).await.unwrap();
}

/// All that the client gets until the end.
async fn heard(client: &mut BufReader<TcpStream>) -> Vec<Value> {
    let mut text = String::new();
    tokio::time::timeout(SOON, client.read_to_string(&mut text)).await.unwrap().unwrap();
    text.split("\r\n").filter(|line| !line.is_empty()).map(|line| line.parse().unwrap()).collect()
}

#[tokio::test]
async fn input_output_and_the_exit_code_come_through() {
    let sessions = sessions();
    let mut client = script(&sessions, "cat; echo oops >&2; exit 3").await;
    say(&mut client, json!({ "type": "stdin", "data": "gr\u{fc}n" })).await;
    say(&mut client, json!({ "type": "tty", "resize": { "h": 50, "w": 100 } })).await;
    say(&mut client, json!({ "type": "end" })).await;
    let heard = heard(&mut client).await;
    assert!(heard.contains(&json!({ "type": "stdout", "data": "gr\u{fc}n" })), "{heard:?}");
    assert!(heard.contains(&json!({ "type": "stderr", "data": "oops\n" })), "{heard:?}");
    let end = json!({ "type": "end", "data": { "code": 3, "signal": null } });
    assert_eq!(heard.last(), Some(&end));
}

#[tokio::test]
async fn a_signal_is_told_and_a_program_that_does_not_start() {
    let sessions = sessions();
    let heard_all = heard(&mut script(&sessions, "kill -KILL $$").await).await;
    assert_eq!(heard_all.last().unwrap()["data"], json!({ "code": null, "signal": "SIGKILL" }));
    let serve = |peer| async move {
        let refused = DriverError::refused(Code::InvalidParameters, "there is no user x");
        let attached = Attached { stdin: false, stdout: true, stderr: true, terminal: false };
        exec::serve(peer, Err(refused), attached).await;
    };
    let opened = sessions.open(SOON, serve).await.unwrap();
    let heard_all = heard(&mut connect(&opened).await).await;
    assert_eq!(heard_all[0]["data"], "there is no user x\n");
    assert_eq!(heard_all[1]["data"]["code"], 126);
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_program() {
    let sessions = sessions();
    let mut client = script(&sessions, "echo $$; exec sleep 1000").await;
    let mut line = String::new();
    client.read_line(&mut line).await.unwrap();
    let pid: Value = line.parse().unwrap();
    let pid: u32 = pid["data"].as_str().unwrap().trim().parse().unwrap();
    drop(client);
    let gone = async {
        while crate::host::procfs::stat(pid).unwrap().is_some_and(|stat| stat.state != 'Z') {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(SOON, gone).await.unwrap();
}

#[tokio::test]
async fn a_port_takes_one_client_and_closes_when_nobody_comes() {
    let sessions = sessions();
    let hold = |peer: super::Peer| async move {
        let _held = peer;
        std::future::pending::<()>().await;
    };
    let opened = sessions.open(SOON, hold).await.unwrap();
    assert_eq!(opened.token, None, "nobody else reaches it");
    let first = connect(&opened).await;
    let refused = async {
        // The listener is closed once the first is taken.
        while let Ok(mut second) = TcpStream::connect((opened.host, opened.port)).await {
            if second.read(&mut [0]).await.is_err() {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, refused).await.unwrap();
    let opened = sessions.open(Duration::from_millis(10), hold).await.unwrap();
    let closed = async {
        while sessions.places.available_permits() < MAX_SESSIONS - 1 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(SOON, closed).await.unwrap();
    TcpStream::connect((opened.host, opened.port)).await.unwrap_err();
    let mut first = first;
    drop(sessions);
    assert_eq!(first.read(&mut [0]).await.unwrap_or(0), 0, "it ends with the agent");
}

#[tokio::test]
async fn sessions_are_few() {
    let sessions = sessions();
    for _ in 0..MAX_SESSIONS {
        sessions.open(SOON, |_| async {}).await.unwrap();
    }
    let refused = sessions.open(SOON, |_| async {}).await.unwrap_err();
    assert!(matches!(refused, DriverError::Refused { code: Code::QueueFull, .. }), "{refused:?}");
}

#[tokio::test]
async fn where_others_reach_it_a_session_wants_its_token() {
    let mut sessions = sessions();
    sessions.wants_token = true;
    let greet = |mut peer: super::Peer| async move {
        let mut line = String::new();
        peer.reader.read_line(&mut line).await.unwrap();
        peer.writer.write_all(line.as_bytes()).await.unwrap();
    };
    for right in [true, false] {
        let opened = sessions.open(SOON, greet).await.unwrap();
        let token = opened.token.clone().unwrap();
        assert_eq!(token.len(), 32);
        let shown = if right { token } else { "0".repeat(32) };
        let mut client = connect(&opened).await;
        let lines = format!("{}\nhello\n", json!({ "token": shown }));
        client.write_all(lines.as_bytes()).await.unwrap();
        let mut text = String::new();
        // One that was turned away may be reset.
        drop(client.read_to_string(&mut text).await);
        assert_eq!(text, if right { "hello\n" } else { "" });
    }
}

fn root(path: &Path) -> OwnedFd {
    open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

/// A root folder with a secret beside it.
fn guest() -> (tempfile::TempDir, std::path::PathBuf) {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("secret"), "of the host").unwrap();
    let root = place.path().join("root");
    fs::create_dir_all(root.join("etc/app")).unwrap();
    fs::write(root.join("etc/app/conf"), "a=1").unwrap();
    std::os::unix::fs::symlink("/etc", root.join("link")).unwrap();
    std::os::unix::fs::symlink(place.path(), root.join("out")).unwrap();
    std::os::unix::fs::symlink("../../..", root.join("up")).unwrap();
    (place, root)
}

#[test]
fn what_is_at_a_path_is_told_within_the_root() {
    let (place, folder) = guest();
    let look = |path: &str| copy::look(root(&folder), path).map(|place| place.stat);
    let conf = look("/etc/app/conf").unwrap();
    assert_eq!((&*conf.name, conf.size, conf.mode), ("conf", 3, 0));
    assert_eq!(look("etc").unwrap().mode, 1 << 31);
    let link = look("/link").unwrap();
    assert_eq!((link.mode, &*link.link_target), (1 << 26, "/etc"));
    assert_eq!(look("/link/").unwrap().mode, 1 << 31);
    assert_eq!(look("/link/app/conf").unwrap().size, 3);
    assert_eq!(look("/").unwrap().name, "/");
    let code = |path: &str| match look(path) {
        Err(DriverError::Refused { code, .. }) => code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code("/etc/none"), Code::FileNotFound);
    assert_eq!(code("/etc/app/conf/x"), Code::FileNotFound);
    assert_eq!(code("/out/secret"), Code::FileNotFound);
    assert_eq!(code("/up/secret"), Code::FileNotFound);
    assert_eq!(code("/../secret"), Code::InvalidParameters);
    let file = copy::look(root(&folder), "/etc/app/conf").unwrap().must_be_folder();
    let refused = DriverError::refused(Code::PathNotDirectory, "\"conf\" is no directory");
    assert_eq!(file.unwrap_err().to_string(), refused.to_string());
    drop(place);
}

/// Opens a copy and gives its connection to `client`, on a thread that waits.
async fn copied<T: Send + 'static>(
    folder: &Path,
    path: &str,
    direction: Direction,
    client: impl FnOnce(std::net::TcpStream) -> T + Send + 'static,
) -> T {
    let sessions = sessions();
    let place = copy::look(root(folder), path).unwrap();
    let opened = sessions.open(SOON, move |peer| place.serve(peer, direction)).await.unwrap();
    let stream = TcpStream::connect((opened.host, opened.port)).await.unwrap().into_std().unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(SOON)).unwrap();
    #[expect(clippy::disallowed_methods, reason = "a client that waits")]
    let done = tokio::task::spawn_blocking(move || client(stream)).await;
    done.unwrap()
}

#[tokio::test]
async fn files_are_read_as_a_stream() {
    let (place, folder) = guest();
    let names = |path: &'static str| {
        copied(&folder, path, Direction::Read, |stream| {
            let mut archive = tar::Archive::new(stream);
            let entries = archive.entries().unwrap().map(|entry| {
                let mut entry = entry.unwrap();
                let name = entry.path().unwrap().display().to_string();
                let mut content = String::new();
                entry.read_to_string(&mut content).unwrap();
                (name, content)
            });
            entries.collect::<Vec<_>>()
        })
    };
    let pair = |name: &str, content: &str| (name.to_owned(), content.to_owned());
    let app = [pair("app/", ""), pair("app/conf", "a=1")];
    assert_eq!(names("/etc/app").await, app);
    assert_eq!(names("/etc/app/conf").await, [pair("conf", "a=1")]);
    assert_eq!(names("/link/app/.").await[1..], [pair("conf", "a=1")]);
    // Not what it leads to.
    assert_eq!(names("/out").await, [pair("out", "")]);
    drop(place);
}

/// Sends entries, each with a name, a kind and a content or target; waits until the other side closes.
fn send(mut stream: std::net::TcpStream, entries: &[(&str, tar::EntryType, &str)]) {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, kind, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(*kind);
        header.set_mode(0o640);
        header.set_uid(nix::unistd::getuid().as_raw().into());
        header.set_gid(nix::unistd::getgid().as_raw().into());
        let is_file = *kind == tar::EntryType::Regular;
        header.set_size(if is_file { u64::try_from(text.len()).unwrap() } else { 0 });
        let gnu = header.as_gnu_mut().unwrap();
        gnu.name[..name.len()].copy_from_slice(name.as_bytes());
        if !is_file {
            gnu.linkname[..text.len()].copy_from_slice(text.as_bytes());
        }
        header.set_cksum();
        tar.append(&header, if is_file { text.as_bytes() } else { b"" }).unwrap();
    }
    let bytes = tar.into_inner().unwrap();
    // The other side may refuse it before it has all.
    if std::io::Write::write_all(&mut stream, &bytes).is_ok() {
        drop(stream.shutdown(std::net::Shutdown::Write));
    }
    drop(stream.read(&mut [0]));
}

#[tokio::test]
async fn files_are_written_within_the_root() {
    use tar::EntryType::{Directory, Regular, Symlink};
    let (place, folder) = guest();
    let write = Direction::Write { no_overwrite_dir: false };
    copied(&folder, "/link/app", write, |stream| {
        let entries =
            [("new/", Directory, ""), ("new/file", Regular, "x"), ("conf", Regular, "a=2")];
        send(stream, &entries);
    })
    .await;
    assert_eq!(fs::read_to_string(folder.join("etc/app/new/file")).unwrap(), "x");
    assert_eq!(fs::read_to_string(folder.join("etc/app/conf")).unwrap(), "a=2");
    for attack in ["../../../secret", "/../secret", "a/../../../secret"] {
        copied(&folder, "/etc", write, move |stream| send(stream, &[(attack, Regular, "attack")]))
            .await;
    }
    copied(&folder, "/", write, |stream| {
        send(stream, &[("out2", Symlink, "../"), ("out2/secret", Regular, "in the root")]);
    })
    .await;
    assert_eq!(fs::read_to_string(place.path().join("secret")).unwrap(), "of the host");
    assert_eq!(fs::read_to_string(folder.join("secret")).unwrap(), "in the root");
    let keep = Direction::Write { no_overwrite_dir: true };
    copied(&folder, "/etc", keep, |stream| send(stream, &[("app", Regular, "no folder")])).await;
    assert!(folder.join("etc/app").is_dir());
}
