//! A whole machine with systemd as its PID 1: the guest of `scripts/build-system-guest.sh` under an
//! emulated CPU, for what needs a real init, cgroups, a reboot or power.
//!
//! Nothing of it is kept: the disk is written to a copy that goes with the process.

pub mod node;
mod payload;

use std::fs::File;
use std::io;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::unix::OwnedReadHalf;
use tokio::net::{TcpStream, UnixStream};

use crate::daemon::temp_dir;
use crate::wait::wait_for;

/// The folder that `scripts/build-system-guest.sh` prints.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn guest_folder() -> PathBuf {
    let folder = std::env::var_os(GUEST_VARIABLE);
    PathBuf::from(folder.unwrap_or_else(|| {
        panic!("{GUEST_VARIABLE} is not set: run these tests with `make test-system`")
    }))
}

/// Variable that names it.
const GUEST_VARIABLE: &str = "MUSTER_SYSTEM_GUEST";
/// Where the guest runs scripts.
const SCRIPT_PORT: u16 = 1022;
/// From power-on to the first script, on a busy machine.
const BOOT: Duration = Duration::from_secs(300);
/// Longest run of a script that is not expected to wait.
pub const SHORT: Duration = Duration::from_secs(60);
/// Beyond a script's own time: the connection, and the guest's slowness.
const GRACE: Duration = Duration::from_secs(20);
/// Memory, MiB: for agents, and guests in it.
const MEMORY_MIB: u32 = 3072;
/// Where its hypervisor listens, in its folder.
const QMP_SOCKET: &str = "qmp";
/// Disks that nobody uses.
const SPARE_DISKS: u64 = 4;
/// The size of each unless a test says otherwise, bytes.
const SPARE_BYTES: u64 = 256 * 1024 * 1024;
/// How a machine's time passes by what its processor did: a nanosecond with each instruction.
const COUNTED: [&str; 2] = ["-icount", "shift=0"];

/// What a script did.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Exit code.
    pub code: i32,
    /// Its output.
    pub stdout: String,
    /// Its complaints.
    pub stderr: String,
}

/// A running machine; its power is cut when it is dropped.
#[derive(Debug)]
pub struct System {
    dir: TempDir,
    qemu: Child,
    port: u16,
    cable: Option<Cable>,
}

/// The address of the interface that a [`Cable`] leads to.
pub const CABLE_MAC: &str = "02:00:00:00:00:a1";

/// What a machine has.
#[derive(Debug)]
struct Hardware {
    cable: Option<Cable>,
    /// Size of each spare disk, bytes.
    spare_bytes: u64,
    /// It has one processor, which takes a nanosecond for an instruction by the machine's own clock.
    is_counted: bool,
}

impl Default for Hardware {
    fn default() -> Self {
        Self { cable: None, spare_bytes: SPARE_BYTES, is_counted: false }
    }
}

/// From a second interface of a machine to the test: a datagram is a frame.
#[derive(Debug)]
struct Cable {
    far: UdpSocket,
    /// Where the machine takes them, on loopback.
    near: u16,
}

impl Cable {
    fn lay() -> io::Result<Self> {
        let near = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port();
        let far = UdpSocket::bind("127.0.0.1:0")?;
        far.connect(("127.0.0.1", near))?;
        Ok(Self { far, near })
    }

    fn arguments(&self) -> Vec<String> {
        let (near, far) = (self.near, self.far.local_addr().expect("its number").port());
        vec![
            "-netdev".to_owned(),
            format!("socket,id=cable,udp=127.0.0.1:{far},localaddr=127.0.0.1:{near}"),
            "-device".to_owned(),
            format!("virtio-net-pci,netdev=cable,romfile=,mac={CABLE_MAC}"),
        ]
    }
}

impl System {
    /// Whether somebody has built one.
    #[must_use]
    pub fn is_there() -> bool {
        std::env::var_os(GUEST_VARIABLE).is_some()
    }

    /// Starts one, and returns when it runs scripts.
    ///
    /// # Panics
    /// If there is no image, or it does not come up.
    pub async fn start() -> Self {
        Self::start_with(Hardware::default()).await
    }

    /// As [`Self::start`], with a second interface, whose cable leads to the test.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_with_cable() -> Self {
        let cable = Some(Cable::lay().expect("free ports"));
        Self::start_with(Hardware { cable, ..Hardware::default() }).await
    }

    /// As [`Self::start`], with spare disks of another size, bytes.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_with_disks(spare_bytes: u64) -> Self {
        Self::start_with(Hardware { spare_bytes, ..Hardware::default() }).await
    }

    /// As [`Self::start`], with a processor whose speed is known, however busy the real one is: its
    /// clock shows a nanosecond more with each instruction. What it waits for, disks and timers, takes
    /// as long as it does.
    ///
    /// # Panics
    /// As [`Self::start`].
    pub async fn start_counted() -> Self {
        Self::start_with(Hardware { is_counted: true, ..Hardware::default() }).await
    }

    async fn start_with(hardware: Hardware) -> Self {
        let Hardware { cable, spare_bytes, is_counted } = hardware;
        let guest = guest_folder();
        let dir = temp_dir();
        payload::write(&dir.path().join("payload.raw"));
        for number in 0..SPARE_DISKS {
            let disk = File::create(dir.path().join(format!("spare{number}.raw")));
            disk.and_then(|disk| disk.set_len(spare_bytes)).expect("a disk");
        }
        let port = free_port();
        // Processors that wait for one another would count what they wait.
        let mut arguments = arguments(&guest, dir.path(), port, if is_counted { 1 } else { 2 });
        arguments.extend(COUNTED.map(str::to_owned).into_iter().filter(|_| is_counted));
        arguments.extend(cable.iter().flat_map(Cable::arguments));
        let qemu = spawn(dir.path(), &arguments);
        let system = Self { dir, qemu, port, cable };
        system.wait("the system is up", BOOT, "true").await;
        system
    }

    /// Runs a script with bash, as root.
    ///
    /// # Errors
    /// The machine does not answer, or not within `limit` and some grace.
    pub async fn try_run(&self, script: &str, limit: Duration) -> io::Result<Ran> {
        let talk = async {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let head = format!("{} {}\n", limit.as_secs(), script.len());
            stream.write_all(head.as_bytes()).await?;
            stream.write_all(script.as_bytes()).await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            parse(&answer).ok_or(io::ErrorKind::UnexpectedEof.into())
        };
        match tokio::time::timeout(limit + GRACE, talk).await {
            Ok(ran) => ran,
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// The output of a script that has to succeed.
    ///
    /// # Panics
    /// If it does not.
    pub async fn run(&self, script: &str) -> String {
        let ran = self.try_run(script, SHORT).await;
        let ran = ran.unwrap_or_else(|error| panic!("{script}: {error}"));
        assert_eq!(ran.code, 0, "{script}: {ran:#?}");
        ran.stdout
    }

    /// Runs a script until it succeeds; returns its output then.
    ///
    /// # Panics
    /// If it does not within `deadline`.
    pub async fn wait(&self, what: &str, deadline: Duration, script: &str) -> String {
        wait_for(what, deadline, || async {
            match self.try_run(script, SHORT).await {
                Ok(ran) if ran.code == 0 => Ok(ran.stdout),
                other => Err(other.map_err(|error| error.to_string())),
            }
        })
        .await
    }

    /// Sends a frame over its cable.
    ///
    /// # Panics
    /// If it has none.
    pub fn send_frame(&self, frame: &[u8]) {
        let cable = self.cable.as_ref().expect("it was started with a cable");
        cable.far.send(frame).expect("the machine runs");
    }

    /// Pulls one of the spare disks out; returns when it is gone. The machine is asked to let go of it
    /// first, which takes some seconds of its own.
    ///
    /// # Panics
    /// If its hypervisor refuses.
    pub async fn pull_spare(&self, number: u64) {
        let talk = async {
            let stream = UnixStream::connect(self.dir.path().join(QMP_SOCKET)).await?;
            let (reader, mut writer) = stream.into_split();
            let mut lines = BufReader::new(reader).lines();
            let pull = json!({ "execute": "device_del", "arguments": { "id": format!("pulled{number}") } });
            for command in [json!({ "execute": "qmp_capabilities" }), pull] {
                writer.write_all(format!("{command}\n").as_bytes()).await?;
                // A greeting and events may come before the answer.
                loop {
                    let said = next_said(&mut lines).await?;
                    if let Some(error) = said.get("error") {
                        return Err(io::Error::other(error.to_string()));
                    }
                    if said.get("return").is_some() {
                        break;
                    }
                }
            }
            let gone = format!("pulled{number}");
            loop {
                let said = next_said(&mut lines).await?;
                if said["event"] == "DEVICE_DELETED" && said["data"]["device"] == *gone {
                    return Ok(());
                }
            }
        };
        let pulled: io::Result<()> =
            tokio::time::timeout(SHORT, talk).await.expect("its hypervisor answers");
        pulled.expect("the disk can be pulled out");
    }

    /// What it printed on its serial line.
    #[must_use]
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.dir.path().join("console")).unwrap_or_default())
            .into_owned()
    }
}

impl Drop for System {
    fn drop(&mut self) {
        drop(self.qemu.kill());
        drop(self.qemu.wait());
        if std::thread::panicking() {
            let console = self.console();
            let lines: Vec<_> = console.lines().collect();
            let end = lines[lines.len().saturating_sub(60)..].join("\n");
            let log = std::fs::read_to_string(self.dir.path().join("qemu.log"));
            eprintln!("--- QEMU\n{}\n--- end of its console\n{end}", log.unwrap_or_default());
        }
    }
}

/// `EXIT STDOUT_BYTES STDERR_BYTES`, a line feed, both.
fn parse(answer: &[u8]) -> Option<Ran> {
    let end = answer.iter().position(|byte| *byte == b'\n')?;
    let (head, body) = (std::str::from_utf8(&answer[..end]).ok()?, &answer[end + 1..]);
    let mut numbers = head.split(' ');
    let code = numbers.next()?.parse().ok()?;
    let mut length = || numbers.next()?.parse::<usize>().ok();
    let (out, err) = (length()?, length()?);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (body.get(..out)?, body.get(out..out + err)?);
    Some(Ran { code, stdout: text(stdout), stderr: text(stderr) })
}

/// A port of loopback nobody listens on; another program may take it before it is used, and what was
/// to listen there then says so.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("its number").port()
}

/// What the hypervisor says next: an answer or an event.
async fn next_said(lines: &mut Lines<BufReader<OwnedReadHalf>>) -> io::Result<Value> {
    let line = lines.next_line().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    serde_json::from_str(&line).map_err(io::Error::other)
}

fn spawn(dir: &Path, arguments: &[String]) -> Child {
    let log = File::create(dir.join("qemu.log")).expect("a log");
    #[expect(clippy::disallowed_methods, reason = "a test starts the machine it looks at")]
    // Who starts it may be killed without a chance to end it.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-x86_64"]);
    command.args(arguments).env("TMPDIR", dir);
    let null = Stdio::null();
    command.stdin(null).stdout(log.try_clone().expect("a log")).stderr(log);
    command.spawn().expect("QEMU starts (scripts/setup.sh installs it)")
}

fn arguments(guest: &Path, dir: &Path, port: u16, processors: u8) -> Vec<String> {
    let plain = "-nodefaults -no-user-config -display none -machine q35 -accel tcg -cpu max \
                 -device virtio-rng-pci -device virtio-net-pci,netdev=net,romfile=";
    let mut args: Vec<String> = plain.split(' ').map(str::to_owned).collect();
    let mut pair = |name: &str, value: String| args.extend([name.to_owned(), value]);
    let path = |path: PathBuf| path.display().to_string().replace(',', ",,");
    pair("-smp", processors.to_string());
    pair("-m", MEMORY_MIB.to_string());
    pair("-kernel", guest.join("vmlinuz").display().to_string());
    // Disk and file system are the only drivers built into the kernel, so it needs no initramfs. The
    // CPU has an emulated SVM, with which KVM would load at some point of the boot, and agents would
    // find it or not. On a busy machine the timer ticks too rarely for the kernel's test of it.
    let kernel = "root=/dev/nvme0n1 rw console=ttyS0 panic=-1 quiet module_blacklist=kvm_amd \
                  cloud-init=disabled no_timer_check";
    pair("-append", kernel.to_owned());
    pair("-qmp", format!("unix:{},server=on,wait=off", path(dir.join(QMP_SOCKET))));
    pair("-serial", format!("file:{}", path(dir.join("console"))));
    pair("-netdev", format!("user,id=net,hostfwd=tcp:127.0.0.1:{port}-:{SCRIPT_PORT}"));
    let root = path(guest.join("disk.raw"));
    pair("-drive", format!("if=none,id=root,format=raw,snapshot=on,file={root}"));
    pair("-device", "nvme,drive=root,serial=root".to_owned());
    let payload = path(dir.join("payload.raw"));
    pair("-drive", format!("if=none,id=payload,format=raw,readonly=on,file={payload}"));
    pair("-device", "virtio-blk-pci,drive=payload,serial=payload".to_owned());
    for number in 0..SPARE_DISKS {
        let spare = path(dir.join(format!("spare{number}.raw")));
        pair("-drive", format!("if=none,id=spare{number},format=raw,file={spare}"));
        // Behind a port of its own it can be pulled out.
        let chassis = number + 1;
        pair("-device", format!("pcie-root-port,id=bay{number},chassis={chassis},slot={chassis}"));
        let name = format!("drive=spare{number},serial=spare{number},id=pulled{number}");
        pair("-device", format!("virtio-blk-pci,bus=bay{number},{name}"));
    }
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let ran = parse(b"3 2 4\nokoops").unwrap();
        assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (3, "ok", "oops"));
        for cut in ["", "3 2 4", "3 2 4\nokoop", "3 2\nok", "x 0 0\n"] {
            assert!(parse(cut.as_bytes()).is_none(), "{cut}");
        }
    }
}
