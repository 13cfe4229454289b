//! The monitor of one container: a process beside the agent, which may end at any time. It makes the
//! container, keeps what that prints, lets one client at a time look at its console, and notes how it
//! ended.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use muster_shared::clock::{Clock as _, SystemClock};

use super::console_server::{Io, Server};
use super::folder::{ContainerFolder, Exited, Orders, Ready};
use super::users::give;
use crate::host::{Cgroups, Exit, ProcessId, TerminalSocket, Wired, reaper};

/// Longest run of a command of the runtime.
const RUNTIME_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest wait for the last words of a container that has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Why a container ended whose memory was used up.
pub(super) const OUT_OF_MEMORY: &str = "out-of-memory";

/// Makes the container whose files are in this folder and returns when it has ended.
///
/// # Errors
/// It could not be made; nothing of it is left then.
pub async fn monitor(run: &Path) -> io::Result<()> {
    let folder = ContainerFolder::of_monitor(run);
    let orders = folder.orders()?.ok_or(io::ErrorKind::NotFound)?;
    reaper::adopt_orphans()?;
    let monitor = Monitor { folder, orders };
    let watched = monitor.run().await;
    // Its control groups go only now: the last figures were read.
    let deleted = monitor.runtime(&["delete", "--force", &monitor.orders.id]).await;
    watched.and(deleted)
}

struct Monitor {
    folder: ContainerFolder,
    orders: Orders,
}

impl Monitor {
    async fn run(&self) -> io::Result<()> {
        let server = Server::bind(&self.folder.console(), &self.orders.console_log)?;
        let (io, init) = self.create().await?;
        let cgroups = Cgroups::of(init.pid)?.unwrap_or_default();
        self.runtime(&["start", &self.orders.id]).await?;
        let boot_id = self.orders.boot_id.clone();
        self.folder.set_ready(&Ready { boot_id, init, cgroups: cgroups.clone() })?;
        // Its console may end before it does.
        let serving = tokio::spawn(server.serve(io));
        let exit = reaper::reap(init).await?;
        let kills = cgroups.oom_kills();
        // Nobody has the other end any more; all that is in the pipe is still to come.
        drop(tokio::time::timeout(LAST_WORDS, serving).await);
        self.folder.set_exited(&self.exited(exit, kills))
    }

    fn exited(&self, exit: Exit, oom_kills: Option<u64>) -> Exited {
        const KILLED: i32 = 137;
        let reason = match (exit.code, exit.signal) {
            // Whoever waits in it for its own child passes the child's end on.
            (code, signal)
                if (code == Some(KILLED) || signal == Some(9))
                    && oom_kills.is_some_and(|kills| kills > 0) =>
            {
                OUT_OF_MEMORY.to_owned()
            }
            (Some(_), _) => "exited".to_owned(),
            (None, Some(9)) => "killed".to_owned(),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let now = SystemClock::new().wall().as_millisecond();
        Exited {
            boot_id: self.orders.boot_id.clone(),
            exit_status: Some(exit.number()),
            exited_at_ms: u64::try_from(now).unwrap_or(0),
            reason: Some(reason),
        }
    }

    /// Makes it, up to its first program, which waits for its start.
    async fn create(&self) -> io::Result<(Io, ProcessId)> {
        let bundle = self.folder.run().display().to_string();
        let pid_file = self.folder.pid_file().display().to_string();
        let mut words = vec!["create", "--bundle", &bundle, "--pid-file", &pid_file];
        let (mut io, ends) = if self.orders.terminal { Io::terminal()? } else { Io::pipes()? };
        let socket = self.folder.run().join("tty.sock");
        let path = socket.display().to_string();
        if self.orders.terminal {
            words.extend(["--console-socket", &path]);
        }
        words.push(&self.orders.id);
        let listener = match self.orders.terminal {
            true => Some(TerminalSocket::bind(&socket)?),
            false => None,
        };
        give(&ends, self.orders.ids)?;
        self.wired(&words, ends).await?;
        if let Some(listener) = listener {
            let received = tokio::time::timeout(RUNTIME_TIMEOUT, listener.receive()).await;
            let received = received.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            io = Io::Terminal(received?);
        }
        let pid = std::fs::read_to_string(self.folder.pid_file())?;
        let pid = pid.trim().parse().map_err(io::Error::other)?;
        let init = ProcessId::of(pid)?.ok_or_else(|| io::Error::other("it ended at once"))?;
        Ok((io, init))
    }

    async fn wired(&self, words: &[&str], [stdin, stdout, stderr]: [OwnedFd; 3]) -> io::Result<()> {
        let mut argv = self.orders.runtime.clone();
        argv.extend(["--log".to_owned(), self.folder.runtime_log().display().to_string()]);
        argv.extend(words.iter().map(|&word| word.to_owned()));
        let wired = Wired { argv, stdin, stdout, stderr, terminal: false };
        let mut child = wired.start().map_err(io::Error::other)?;
        let exit = tokio::time::timeout(RUNTIME_TIMEOUT, child.wait()).await;
        let exit = exit.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if exit.success() {
            return Ok(());
        }
        let word = words.first().copied().unwrap_or_default();
        let said = std::fs::read_to_string(self.folder.runtime_log()).unwrap_or_default();
        Err(io::Error::other(format!("{word}: {exit}: {}", last_line(&said))))
    }

    /// A command that reads and prints nothing.
    async fn runtime(&self, words: &[&str]) -> io::Result<()> {
        let null =
            || std::fs::File::options().read(true).write(true).open("/dev/null").map(OwnedFd::from);
        self.wired(words, [null()?, null()?, null()?]).await
    }
}

/// What the runtime said last, as text or in its JSON.
fn last_line(log: &str) -> String {
    let line = log.lines().last().unwrap_or("it said nothing");
    let message = line.split_once("msg=").map_or(line, |(_, message)| message);
    message.trim().trim_matches('"').to_owned()
}
