//! Coordinators and agents as processes.

mod coordinator;

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::binary;
use crate::http::{Answer, Client};
use crate::wait::wait_for;

pub use self::coordinator::Coordinator;

/// Set in a daemon's environment: its data folder lies on a disk of so many MiB.
pub const DISK_LIMIT: &str = "TEST_DISK_LIMIT_MIB";

/// Set in a daemon's environment: it runs without this right, e.g. `net_raw`.
pub const WITHOUT_RIGHT: &str = "TEST_WITHOUT_RIGHT";

/// How long a daemon may take until its `ready` line.
const READY: Duration = Duration::from_secs(60);

/// A running daemon; killed when dropped.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Daemon {
    /// Starts a daemon and waits for its `ready ADDR:PORT` line.
    ///
    /// # Panics
    /// If it exits or stays silent; the message has the end of its log.
    #[must_use]
    pub fn start(program: &Path, args: &[String], env: &[(String, String)], log: &Path) -> Self {
        let mut child = spawn(program, args, env, log);
        let stdout = child.stdout.take().expect("stdout is piped");
        let (sender, receiver) = mpsc::sync_channel(1);
        read_first_line(stdout, sender);
        match receiver.recv_timeout(READY) {
            Ok(line) if line.starts_with("ready ") => {
                let address = line["ready ".len()..].trim().to_owned();
                Self { child, address, log: log.to_owned() }
            }
            other => {
                drop(child.kill());
                drop(child.wait());
                panic!("{} {args:?} is not ready: {other:?}\n{}", program.display(), tail(log))
            }
        }
    }

    /// Runs a daemon that is expected to exit by itself; returns its exit code and log.
    ///
    /// # Panics
    /// If it does not exit.
    #[must_use]
    pub fn run_to_exit(name: &str, args: &[String], log: &Path) -> (Option<i32>, String) {
        let mut child = spawn(&binary(name), args, &[], log);
        let status = child.wait().expect("the child can be waited for");
        (status.code(), tail(log))
    }

    /// `ADDR:PORT` of its ready line.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) {
        kill(self.nix_pid(), signal).expect("the daemon runs");
    }

    fn nix_pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("process ids fit an i32"))
    }

    /// Ends it without warning.
    ///
    /// # Panics
    /// If it can't be waited for.
    pub fn kill9(&mut self) {
        self.child.kill().expect("the daemon can be killed");
        self.child.wait().expect("the daemon can be waited for");
    }

    /// True once the process has ended by itself.
    ///
    /// # Panics
    /// If it can't be waited for.
    pub fn has_exited(&mut self) -> bool {
        self.child.try_wait().expect("the daemon can be waited for").is_some()
    }

    /// Asks it to end and waits for that; returns its exit code.
    ///
    /// # Panics
    /// If it does not end within 30 s.
    pub async fn terminate(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.wait_exit(Duration::from_secs(30)).await
    }

    /// Waits until it has ended; returns its exit code.
    ///
    /// # Panics
    /// If it does not end within `deadline`.
    pub async fn wait_exit(&mut self, deadline: Duration) -> Option<i32> {
        let child = &mut self.child;
        let mut ended = || child.try_wait().expect("the daemon can be waited for");
        wait_for("the daemon ends", deadline, move || {
            let status = ended();
            async move { status.ok_or("still running") }
        })
        .await
        .code()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("--- end of {}\n{}", self.log.display(), tail(&self.log));
        }
    }
}

fn spawn(program: &Path, args: &[String], env: &[(String, String)], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("log file");
    // A disk of limited size exists only in the daemon's own mount namespace and goes with it.
    let limit = env.iter().find(|(key, _)| key == DISK_LIMIT).map(|(_, mib)| mib.as_str());
    let right = env.iter().find(|(key, _)| key == WITHOUT_RIGHT).map(|(_, right)| right.as_str());
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let mut command = match (limit, right) {
        (None, None) => Command::new(program),
        (None, Some(right)) => {
            let mut command = Command::new("setpriv");
            let without = |set: &str| format!("--{set}=-{right}");
            command.args(["bounding-set", "inh-caps"].map(without)).arg(program);
            command
        }
        (Some(mib), _) => {
            let data = args.iter().skip_while(|a| *a != "--data-dir").nth(1).expect("a data dir");
            let script = "mkdir -p $1 && mount -t tmpfs -o mode=700,size=$2m limited $1 && shift 2 && exec $@";
            let mut command = Command::new("unshare");
            command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
            command.args([data, mib]).arg(program);
            command
        }
    };
    command
        .args(args)
        .envs(env.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .expect("the binary starts")
}

fn read_first_line(stdout: impl std::io::Read + Send + 'static, to: mpsc::SyncSender<String>) {
    #[expect(clippy::disallowed_methods, reason = "a blocking pipe is read with a deadline")]
    std::thread::spawn(move || {
        let mut lines = BufReader::new(stdout).lines();
        while let Some(Ok(line)) = lines.next() {
            // Only the first line is waited for; later ones must not block the daemon.
            drop(to.try_send(line));
        }
    });
}

fn tail(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

/// Where the folders of the daemons lie: paths of sockets are short.
pub const TEMP_DIR: &str = "/tmp";

/// A short temporary folder: socket paths are limited to 107 bytes.
///
/// # Panics
/// If it can't be made.
#[must_use]
pub fn temp_dir() -> TempDir {
    tempfile::Builder::new().prefix("mt").tempdir_in(TEMP_DIR).expect("it is writable")
}

/// An agent with its data folder, which survives restarts. Guests are ended when it is dropped.
#[derive(Debug)]
pub struct Agent {
    dir: TempDir,
    /// The server it speaks for.
    pub server_uuid: String,
    coordinators: Vec<String>,
    settings: Vec<String>,
    env: Vec<(String, String)>,
    daemon: Option<Daemon>,
}

impl Agent {
    /// Starts one for a coordinator, with TCG and simulated host actions.
    #[must_use]
    pub fn start(coordinator_url: &str) -> Self {
        Self::with(&[coordinator_url], &[], &[])
    }

    /// Starts one with further settings and environment.
    #[must_use]
    pub fn with(coordinators: &[&str], settings: &[&str], env: &[(&str, &str)]) -> Self {
        let always = [
            "compute.accel=tcg",
            "host.actions=sim",
            // A filter would be one of this machine's network.
            "compute.user_network=restricted",
            // How full this machine's disk is must not matter.
            "images.gc.enabled=false",
        ];
        let dir = temp_dir();
        // As where nodes keep their folders: what is in it is closed by itself.
        let passable = std::os::unix::fs::PermissionsExt::from_mode(0o711);
        std::fs::set_permissions(dir.path(), passable).expect("it was just made");
        let mut agent = Self {
            dir,
            server_uuid: fresh_uuid(),
            coordinators: coordinators.iter().map(|c| (*c).to_owned()).collect(),
            settings: always.iter().chain(settings).map(|s| (*s).to_owned()).collect(),
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            daemon: None,
        };
        agent.restart();
        agent
    }

    fn args(&self) -> Vec<String> {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut args: Vec<String> = Vec::new();
        for url in &self.coordinators {
            args.extend(["--coordinator".to_owned(), url.clone()]);
        }
        args.extend(["--data-dir".to_owned(), path("data")]);
        args.extend(["--run-dir".to_owned(), path("run")]);
        args.extend(["--server-uuid".to_owned(), self.server_uuid.clone()]);
        args.extend(["--listen".to_owned(), "127.0.0.1:0".to_owned()]);
        for setting in &self.settings {
            args.extend(["--set".to_owned(), setting.clone()]);
        }
        args
    }

    /// Starts it again on the same data.
    pub fn restart(&mut self) {
        drop(self.daemon.take());
        let log = self.dir.path().join("agent.log");
        self.daemon = Some(Daemon::start(&binary("muster-agent"), &self.args(), &self.env, &log));
    }

    /// Starts it again with another environment.
    pub fn restart_with_env(&mut self, env: &[(&str, &str)]) {
        self.env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        self.restart();
    }

    /// Ends it without warning; guests go on.
    pub fn kill9(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill9();
        }
    }

    /// The process.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("the agent runs")
    }

    /// A client for its local HTTP.
    ///
    /// # Panics
    /// If it does not run.
    #[must_use]
    pub fn client(&self) -> Client {
        let daemon = self.daemon.as_ref().expect("the agent runs");
        Client::new(format!("http://{}", daemon.address()))
    }

    /// Has it run a task that no coordinator knows of; returns the result.
    ///
    /// # Panics
    /// If the task does not succeed.
    pub async fn run_task(&self, task: &str, params: &Value) -> Value {
        self.ask_task(task, params).await.expect(200)
    }

    /// Asks it for a task that no coordinator knows of.
    ///
    /// # Panics
    /// If there is no answer.
    pub async fn ask_task(&self, task: &str, params: &Value) -> Answer {
        let token = std::fs::read_to_string(self.data_dir().join("local.token")).expect("a token");
        let bearer = format!("Bearer {}", token.trim());
        let body = json!({ "task": task, "params": params });
        let header = ("authorization", bearer.as_str());
        let client = self.client();
        let answer = client.try_send_with(Method::POST, "/tasks", header, Some(&body)).await;
        answer.expect("an answer")
    }

    /// Its data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Its folder for sockets.
    #[must_use]
    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// Process ids of this agent's guests: every QEMU whose command line names its run folder.
    #[must_use]
    pub fn guest_pids(&self) -> Vec<u32> {
        guest_pids(&self.run_dir())
    }

    /// Waits until the coordinator shows this server as `status`.
    ///
    /// # Panics
    /// If it does not within `deadline`.
    pub async fn wait_status(&self, client: &Client, status: &str, deadline: Duration) -> Value {
        let path = format!("/servers/{}", self.server_uuid);
        wait_for(&format!("server turns {status}"), deadline, || async {
            let answer = client.get(&path).await;
            if answer.json["status"] == status { Ok(answer.json) } else { Err(answer.text) }
        })
        .await
    }

    /// Waits until the coordinator could place a VM here: running, set up, with figures.
    ///
    /// # Panics
    /// If that takes over a minute.
    pub async fn wait_allocatable(&self, client: &Client) -> Value {
        let path = format!("/servers/{}", self.server_uuid);
        wait_for("server can be allocated", Duration::from_secs(60), || async {
            let answer = client.get(&path).await;
            let ready =
                answer.json["status"] == "running" && answer.json["unreserved_ram"].is_i64();
            if ready { Ok(answer.json) } else { Err(answer.text) }
        })
        .await
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.daemon.take());
        for pid in self.guest_pids() {
            if let Ok(pid) = i32::try_from(pid) {
                kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
            }
        }
        crate::container::end_all(&self.data_dir(), &self.run_dir());
    }
}

fn guest_pids(run_dir: &Path) -> Vec<u32> {
    let needle = run_dir.display().to_string();
    let processes = std::fs::read_dir("/proc").expect("/proc is mounted");
    processes
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command);
            command.starts_with("qemu-system") && command.contains(&needle)
                || command.contains("/qemu-system") && command.contains(&needle)
        })
        .collect()
}

/// A random UUID as text.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "a test's server needs any fresh name")]
pub fn fresh_uuid() -> String {
    uuid::Uuid::new_v4().to_string()
}
