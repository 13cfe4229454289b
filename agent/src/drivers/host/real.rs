//! Real host actions. Only where a marker file allows them: the package (or a guest image made for
//! tests) installs it, so that no developer's machine is ever rebooted by a test.

use std::path::{Path, PathBuf};
#[cfg(test)]
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use muster_shared::wire::Code;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio_util::sync::CancellationToken;

use super::{Host, HostAction, NicBridge, Wiring, bridges, pool, reset};
use crate::disk_layout::inventory::Found;
use crate::drivers::{DriverError, files};
use crate::host::{Command, ExecError, Output, SharedExec};

/// The file without which nothing is done.
pub const MARKER: &str = "/etc/muster/host-actions";
/// Longest time a command of our own may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest run of the script that ends a setup.
const SETUP_SCRIPT_TIMEOUT: Duration = Duration::from_secs(1000);
/// Longest run of a script that names no limit: that of the task itself.
const SCRIPT_TIMEOUT: Duration = Duration::from_secs(3600);
/// Of each output stream of a script.
const SCRIPT_OUTPUT_BYTES: usize = 5 * 1024 * 1024;
/// Linux's limit for host names.
const MAX_HOSTNAME_BYTES: usize = 64;

/// Does what it is asked.
#[derive(Debug)]
pub struct RealHost {
    exec: SharedExec,
    marker: PathBuf,
    scripts: PathBuf,
    wiring: Wiring,
}

impl RealHost {
    /// Works if [`MARKER`] exists at the time of each action. Scripts are put into `run_dir`
    /// while they run.
    #[must_use]
    pub fn new(exec: SharedExec, run_dir: &Path, wiring: Wiring) -> Self {
        Self { exec, marker: PathBuf::from(MARKER), scripts: run_dir.join("exec"), wiring }
    }

    /// With another marker, for tests only: no configuration leads here.
    #[cfg(test)]
    fn with_marker(exec: SharedExec, run_dir: &Path, marker: PathBuf) -> Self {
        let wires = Arc::new(crate::drivers::network::links::sim::SimLinks::default());
        let wiring = Wiring { wires, server: uuid::Uuid::nil().into() };
        Self { marker, ..Self::new(exec, run_dir, wiring) }
    }

    async fn set_bridges(&self, wanted: &[NicBridge]) -> Result<Value, DriverError> {
        let Wiring { wires, server } = &self.wiring;
        if let Some(why) = wires.lacking() {
            return Err(DriverError::refused(Code::HostToolMissing, why));
        }
        bridges::converge(&**wires, *server, wanted).await.map(|amiss| json!(amiss))
    }

    async fn run(&self, argv: &[&str]) -> Result<Value, DriverError> {
        let failed = |e: ExecError| DriverError::failed(format!("run {}", argv.join(" ")), e);
        let command = Command::new(argv.iter().copied(), COMMAND_TIMEOUT);
        let ran = self.exec.run(&command, &CancellationToken::new()).await.map_err(failed)?;
        ran.checked(argv.first().copied().unwrap_or_default()).map_err(failed)?;
        Ok(Value::Null)
    }

    async fn execute(
        &self,
        script: &str,
        args: &[String],
        env: &[(String, String)],
        timeout: Duration,
    ) -> Result<Value, DriverError> {
        files::make_folder(&self.scripts).await?;
        let file = ScriptFile::write(&self.scripts, script).await?;
        let mut argv = vec![file.0.display().to_string()];
        argv.extend(args.iter().cloned());
        let mut command = Command::new(argv, timeout);
        command.env = Some(with_path(env));
        command.stdin = Bytes::new();
        command.output_cap_bytes = SCRIPT_OUTPUT_BYTES;
        let ran = self.exec.run(&command, &CancellationToken::new()).await;
        drop(file);
        match ran {
            Ok(output) => Ok(outcome(&output)),
            Err(error @ (ExecError::Timeout { .. } | ExecError::Start { .. })) => {
                let text = muster_shared::error_chain::Chain(&error).to_string();
                Ok(json!({
                    "err": text, "exitCode": null, "signal": null, "stdout": "", "stderr": "",
                }))
            }
            Err(error) => Err(DriverError::failed("run a script", error)),
        }
    }
}

/// A script on disk; removed when dropped, also when the task is.
#[derive(Debug)]
struct ScriptFile(PathBuf);

impl ScriptFile {
    async fn write(folder: &Path, script: &str) -> Result<Self, DriverError> {
        // Scripts run one at a time per task; the number keeps two tasks apart.
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = folder.join(format!("{}-{number}", std::process::id()));
        files::remove(&path).await?;
        let write = async {
            let mut options = tokio::fs::OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(0o700).open(&path).await?;
            file.write_all(script.as_bytes()).await?;
            // Closed for writing before it is run, else the kernel says "text file busy".
            file.shutdown().await?;
            drop(file.into_std().await);
            Ok(())
        };
        let file = Self(path.clone());
        write.await.map_err(|e| files::failed("write", &path, e))?;
        Ok(file)
    }
}

impl Drop for ScriptFile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(%error, path = %self.0.display(), "a script was left behind");
        }
    }
}

/// An empty PATH is useless on Linux.
fn with_path(env: &[(String, String)]) -> Vec<(String, String)> {
    let mut env = env.to_vec();
    if !env.iter().any(|(name, _)| name == "PATH") {
        env.push(("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned()));
    }
    env
}

/// A bad exit is a success of the action: the caller looks at it.
fn outcome(output: &Output) -> Value {
    json!({
        "err": null,
        "exitCode": output.exit.code,
        "signal": output.exit.signal,
        "stdout": String::from_utf8_lossy(&output.stdout),
        "stderr": String::from_utf8_lossy(&output.stderr),
    })
}

fn check_hostname(name: &str) -> Result<(), DriverError> {
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    if name.len() <= MAX_HOSTNAME_BYTES && name.split('.').all(label) {
        return Ok(());
    }
    Err(DriverError::refused(Code::InvalidParameters, format!("hostname: {name:?} is not usable")))
}

#[async_trait]
impl Host for RealHost {
    async fn ready(&self, action: &HostAction) -> Result<(), DriverError> {
        if !tokio::fs::try_exists(&self.marker).await.unwrap_or(false) {
            let marker = self.marker.display();
            let why = format!(
                "host.actions is \"real\" but there is no {marker}, which only the package of \
                 the agent installs"
            );
            return Err(super::disabled(action, &why));
        }
        match action {
            HostAction::CreatePool { .. } => pool::ready(&self.exec).await,
            HostAction::FactoryReset(wanted) => reset::ready(&self.exec, wanted).await,
            _ => Ok(()),
        }
    }

    async fn disks(&self) -> Result<Vec<Found>, DriverError> {
        pool::disks(&self.exec).await
    }

    async fn act(&self, action: &HostAction) -> Result<Value, DriverError> {
        self.ready(action).await?;
        if let HostAction::SetBridges(wanted) = action {
            // Mostly they are so already; what is changed is logged there.
            return self.set_bridges(wanted).await;
        }
        tracing::warn!(action = action.name(), "host action");
        match action {
            // Returns at once, so that the task can still report its end.
            HostAction::Reboot => {
                self.run(&["systemctl", "--no-block", "reboot"]).await?;
                Ok(json!(true))
            }
            HostAction::PowerOff => self.run(&["systemctl", "--no-block", "poweroff"]).await,
            HostAction::SetHostname(name) => {
                check_hostname(name)?;
                self.run(&["hostnamectl", "set-hostname", name]).await
            }
            HostAction::FinishSetup { script } => {
                self.execute(script, &[], &[], SETUP_SCRIPT_TIMEOUT).await
            }
            HostAction::CreatePool { plan, again, wipe } => {
                pool::create(&self.exec, plan, *again, wipe).await.map(|()| Value::Null)
            }
            HostAction::FactoryReset(wanted) => {
                reset::mark(&self.exec, wanted).await.map(|()| Value::Null)
            }
            HostAction::BeginWipe(wanted) => reset::devices(&self.exec, wanted).await,
            HostAction::Wipe(begun) => {
                reset::destroy(&self.exec, begun).await.map(|()| Value::Null)
            }
            // Done above.
            HostAction::SetBridges(_) => Ok(Value::Null),
            HostAction::Execute { script, args, env, timeout_ms } => {
                let timeout = match timeout_ms {
                    0 => SCRIPT_TIMEOUT,
                    ms => Duration::from_millis(*ms),
                };
                self.execute(script, args, env, timeout).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{FakeExec, SystemExec};

    #[track_caller]
    fn check_disabled(refused: &DriverError) {
        let DriverError::Refused { code, message, .. } = refused else { panic!("{refused:?}") };
        assert_eq!(*code, "HostActionsDisabled");
        assert!(message.contains("host.actions"), "{message}");
    }

    fn all_actions() -> Vec<HostAction> {
        let execute = HostAction::Execute {
            script: "#!/bin/sh\ntrue\n".to_owned(),
            args: vec![],
            env: vec![],
            timeout_ms: 0,
        };
        let hostname = HostAction::SetHostname("x".to_owned());
        vec![HostAction::Reboot, HostAction::PowerOff, hostname, execute]
    }

    #[tokio::test]
    async fn nothing_is_done_without_the_marker() {
        let folder = tempfile::tempdir().unwrap();
        let exec = Arc::new(FakeExec::default());
        let marker = folder.path().join("missing");
        let host = RealHost::with_marker(Arc::clone(&exec) as _, folder.path(), marker);
        for action in all_actions() {
            check_disabled(&host.act(&action).await.unwrap_err());
            check_disabled(
                &crate::drivers::host::refuse::RefuseHost.act(&action).await.unwrap_err(),
            );
        }
        assert!(exec.calls().is_empty());
    }

    #[tokio::test]
    async fn the_marker_allows_commands() {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("marker");
        std::fs::write(&marker, "").unwrap();
        let exec = Arc::new(FakeExec::default());
        exec.prints(&["systemctl"], "");
        exec.prints(&["hostnamectl"], "");
        let host = RealHost::with_marker(Arc::clone(&exec) as _, folder.path(), marker.clone());
        assert_eq!(host.act(&HostAction::Reboot).await.unwrap(), json!(true));
        host.act(&HostAction::SetHostname("cn-1.example".to_owned())).await.unwrap();
        for bad in ["", "-x", "a b", "a..b", &"x".repeat(65), "--help"] {
            host.act(&HostAction::SetHostname(bad.to_owned())).await.unwrap_err();
        }
        let calls: Vec<String> = exec.calls().iter().map(|argv| argv.join(" ")).collect();
        assert_eq!(calls, ["systemctl --no-block reboot", "hostnamectl set-hostname cn-1.example"]);
        std::fs::remove_file(marker).unwrap();
        check_disabled(&host.act(&HostAction::Reboot).await.unwrap_err());
    }

    #[tokio::test]
    async fn a_script_gets_its_arguments_and_environment_and_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let marker = folder.path().join("marker");
        std::fs::write(&marker, "").unwrap();
        let host = RealHost::with_marker(Arc::new(SystemExec::new()), folder.path(), marker);
        let script = "#!/bin/sh\necho \"$1-$NAME\"; echo bad >&2; exit 7\n".to_owned();
        let action = HostAction::Execute {
            script,
            args: vec!["one".to_owned()],
            env: vec![("NAME".to_owned(), "two".to_owned())],
            timeout_ms: 20_000,
        };
        let outcome = host.act(&action).await.unwrap();
        let expected = json!({
            "err": null, "exitCode": 7, "signal": null, "stdout": "one-two\n", "stderr": "bad\n",
        });
        assert_eq!(outcome, expected);
        assert_eq!(files::list(&folder.path().join("exec")).await.unwrap(), Vec::<PathBuf>::new());
    }
}
