//! What a guest's hypervisor tells: one connection for as long as the process lives, on which its
//! events are followed and all commands are sent.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use muster_shared::clock::SharedClock;
use muster_shared::error_chain::Chain;
use nix::sys::inotify::AddWatchFlags;
use qapi::qmp::{Event, MemoryFailureAction};
use serde_json::Value;
use tokio::sync::watch;

use super::qmp::{self, Events, Qmp, QmpError};
use super::{balloon, drives, nics};
use crate::drivers::compute::Activity;
use crate::host::FolderWatch;

/// First pause between two attempts to connect; doubled up to [`MAX_PAUSE`].
const MIN_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// What is known through the control socket.
#[derive(Clone, Debug, Default)]
pub(super) struct Control {
    /// The connection, while there is one.
    pub(super) qmp: Option<Arc<Qmp>>,
    /// What the virtual CPUs do.
    pub(super) activity: Activity,
    /// Why they do not run, or why nothing is known.
    pub(super) reason: Option<Arc<str>>,
    /// When the guest restarted last, wall clock, ms.
    pub(super) rebooted_at_ms: Option<u64>,
    /// How often it did.
    pub(super) reboots: u32,
    /// How many network interfaces it has given up.
    pub(super) nics_removed: u64,
    /// How many disks it has given up.
    pub(super) disks_removed: u64,
    /// Memory that it has of what it was started with, as far as it gives any back.
    pub(super) memory_bytes: Option<u64>,
    /// Why the process is about to end.
    pub(super) shutdown: Option<String>,
}

/// Keeps `control` up to date until dropped. There is one of these for each guest, so that what takes
/// only a moment is on the heap for that moment.
pub(super) async fn follow(
    sockets: &[PathBuf; 2],
    clock: &SharedClock,
    control: &watch::Sender<Control>,
) -> Infallible {
    let mut pause = MIN_PAUSE;
    let mut arrival = None;
    loop {
        let error = match Box::pin(connect(sockets)).await {
            Ok((qmp, events)) => {
                (pause, arrival) = (MIN_PAUSE, None);
                let given_up = qmp.given_up();
                tokio::select! {
                    biased;
                    () = session(qmp, events, clock, control) => {
                        "the hypervisor closed its control socket".to_owned()
                    }
                    () = given_up.cancelled() => {
                        "the hypervisor left a question without answer".to_owned()
                    }
                }
            }
            Err(error) => Chain(&error).to_string(),
        };
        control.send_if_modified(|control| {
            let lost = control.qmp.take().is_some();
            control.memory_bytes = None;
            let reason = Some(Arc::from(format!("not controlled: {error}")));
            let news = control.reason != reason;
            control.reason = reason;
            lost || news
        });
        pause = match Box::pin(appeared(&sockets[0], &mut arrival, pause)).await {
            true => MIN_PAUSE,
            false => (pause * 2).min(MAX_PAUSE),
        };
    }
}

/// Waits for `pause`, or until a file is made beside this socket: `true`. A new process makes its
/// sockets when it is ready, and a start waits for them. `arrival` tells of files from the first call
/// on, also of those between two calls.
async fn appeared(socket: &Path, arrival: &mut Option<FolderWatch>, pause: Duration) -> bool {
    // It may have been made before the watch is.
    let is_late = arrival.is_none() && {
        let folder = socket.parent().unwrap_or(Path::new("/"));
        // Without a watch of the kernel's the pause is all there is.
        *arrival = FolderWatch::of(folder, AddWatchFlags::IN_CREATE).ok();
        socket.exists()
    };
    let news_came = async {
        match arrival.as_ref().filter(|_| !is_late) {
            Some(news) => news.changed().await.is_ok(),
            None => std::future::pending().await,
        }
    };
    tokio::time::timeout(pause, news_came).await.unwrap_or(false)
}

/// The first control socket, or the second when somebody holds the first.
async fn connect([first, second]: &[PathBuf; 2]) -> Result<(Qmp, Events), QmpError> {
    match Qmp::connect(first).await {
        Err(QmpError::Timeout { .. }) => Qmp::connect(second).await,
        other => other,
    }
}

/// Follows one connection to its end. Answers arrive on the same stream as events, so that has to
/// be read while a question is open.
async fn session(
    qmp: Qmp,
    mut events: Events,
    clock: &SharedClock,
    control: &watch::Sender<Control>,
) {
    let qmp = Arc::new(qmp);
    let mut cause = None;
    // Its events tell of the guest's memory from here on.
    let mut knows_memory = false;
    loop {
        // One question at a time; what happens meanwhile makes the next one.
        let mut again = false;
        let asks_memory = !knows_memory;
        let mut status = Box::pin(async {
            let memory_bytes = match asks_memory {
                true => Some(balloon::actual(&qmp).await?),
                false => None,
            };
            Ok::<_, QmpError>((qmp.execute::<qmp::QueryStatus>().await?, memory_bytes))
        });
        let answer = loop {
            tokio::select! {
                biased;
                event = events.next() => match heard(event, &mut cause, clock, control) {
                    Some(news) => again |= news,
                    None => return,
                },
                answer = &mut status => break answer,
            }
        };
        match answer {
            Ok((status, memory_bytes)) => {
                publish(&qmp, &status, cause.as_deref(), control);
                if let Some(memory_bytes) = memory_bytes {
                    knows_memory = true;
                    // An event that came after this answer knows better.
                    control.send_modify(|control| {
                        control.memory_bytes = control.memory_bytes.or(memory_bytes);
                    });
                }
            }
            Err(error) => {
                tracing::debug!(error = %Chain(&error), "the hypervisor tells no status");
                tokio::time::sleep(MAX_PAUSE).await;
                again = true;
            }
        }
        while !again {
            match heard(events.next().await, &mut cause, clock, control) {
                Some(news) => again = news,
                None => return,
            }
        }
    }
}

/// Takes over what arrived; `None` at the end of the connection, else whether the guest's status
/// may be another now.
fn heard(
    event: Option<std::io::Result<Event>>,
    cause: &mut Option<Arc<str>>,
    clock: &SharedClock,
    control: &watch::Sender<Control>,
) -> Option<bool> {
    match event? {
        Ok(event) => Some(note(event, cause, clock, control)),
        // An answer that nobody waits for any more, or an event of a later version.
        Err(error) => {
            tracing::debug!(%error, "a message of the hypervisor is lost");
            Some(false)
        }
    }
}

/// Takes over an event; true when the guest's status may be another now.
fn note(
    event: Event,
    cause: &mut Option<Arc<str>>,
    clock: &SharedClock,
    control: &watch::Sender<Control>,
) -> bool {
    match event {
        Event::BLOCK_IO_ERROR { data, .. } => {
            let disk = data.node_name.unwrap_or(data.device);
            *cause = Some(format!("{disk}: {:?}: {}", data.operation, data.reason).into());
            true
        }
        Event::GUEST_PANICKED { data, .. } => {
            *cause = Some(format!("the guest panicked ({:?})", data.action).into());
            true
        }
        Event::WATCHDOG { data, .. } => {
            let action = qapi::Enum::name(&data.action);
            *cause = Some(format!("the guest's watchdog fired ({action})").into());
            true
        }
        // What is handed to the guest, or not its concern, does not stop it.
        Event::MEMORY_FAILURE { data, .. } if data.action == MemoryFailureAction::fatal => {
            *cause = Some("memory of the host failed under the guest".into());
            true
        }
        Event::RESET { .. } => {
            let now = u64::try_from(clock.wall().as_millisecond()).ok();
            control.send_modify(|control| {
                control.rebooted_at_ms = now;
                control.reboots += 1;
            });
            true
        }
        Event::SHUTDOWN { data, .. } => {
            let reason = qapi::Enum::name(&data.reason).to_owned();
            control.send_modify(|control| control.shutdown = Some(reason));
            false
        }
        Event::RESUME { .. } => {
            // It was for the last time that the guest stood still.
            *cause = None;
            // A guest that boots keeps its hypervisor busy: the next answer may take a while.
            control.send_if_modified(|control| {
                let known = control.qmp.is_some();
                if known {
                    control.activity = Activity::Running;
                    control.reason = None;
                }
                known
            });
            true
        }
        Event::DEVICE_DELETED { data, .. } => {
            // Parts of devices are told as well, and have no name.
            let device = data.device.as_deref().unwrap_or_default();
            if nics::number_of(device).is_some() {
                tracing::info!(device, "a guest has given up a network interface");
                control.send_modify(|control| control.nics_removed += 1);
            }
            if drives::number_of(device).is_some() {
                tracing::info!(device, "a guest has given up a disk");
                control.send_modify(|control| control.disks_removed += 1);
            }
            false
        }
        Event::BALLOON_CHANGE { data, .. } => {
            let bytes = u64::try_from(data.actual).ok();
            control.send_modify(|control| control.memory_bytes = bytes);
            false
        }
        Event::STOP { .. } => true,
        _ => false,
    }
}

fn publish(qmp: &Arc<Qmp>, status: &Value, cause: Option<&str>, control: &watch::Sender<Control>) {
    let word = status["status"].as_str().unwrap_or_default();
    let activity = match word {
        "running" => Activity::Running,
        "prelaunch" | "inmigrate" => Activity::Prelaunch,
        "io-error" => Activity::IoError,
        "guest-panicked" => Activity::Panicked,
        "internal-error" => Activity::Broken,
        _ => Activity::Paused,
    };
    let reason = match activity {
        Activity::Running | Activity::Prelaunch => None,
        // As it was asked to when the guest's watchdog fires: the event has said more.
        Activity::Paused if word == "watchdog" => Some(cause.unwrap_or(word).to_owned()),
        Activity::Paused => Some(format!("the hypervisor says {word:?}")),
        Activity::Broken => Some(cause.unwrap_or("the hypervisor failed: see its log").to_owned()),
        Activity::IoError | Activity::Panicked => Some(cause.unwrap_or(word).to_owned()),
    };
    control.send_modify(|control| {
        control.qmp = Some(Arc::clone(qmp));
        control.activity = activity;
        control.reason = reason.map(Arc::from);
    });
}

#[cfg(test)]
mod tests {
    use muster_shared::clock::SystemClock;
    use serde_json::json;
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::UnixListener;

    use super::*;

    /// What a hypervisor says once its CPUs, which stood still, were told to run.
    struct Script {
        events: Vec<&'static str>,
        /// Its status from then on; `None`: it answers nothing any more.
        status: Option<&'static str>,
    }

    async fn hypervisor(listener: UnixListener, script: Script) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.split();
        let mut lines = BufReader::new(reader).lines();
        let greeting = r#"{"QMP": {"version": {"qemu": {"micro": 0, "minor": 2, "major": 7},
            "package": ""}, "capabilities": []}}"#;
        writer.write_all(format!("{}\n", greeting.replace('\n', "")).as_bytes()).await.unwrap();
        let mut runs = false;
        while let Some(line) = lines.next_line().await.unwrap() {
            let status = if runs { script.status } else { Some("prelaunch") };
            let answer = match (line.contains("query-status"), status) {
                (true, None) => continue,
                (true, Some(status)) => json!({"status": status, "running": false}),
                (false, _) => json!({}),
            };
            if line.contains("cont") {
                runs = true;
                for event in &script.events {
                    let at = json!({"seconds": 1, "microseconds": 1});
                    let mut event: Value = serde_json::from_str(event).unwrap();
                    event["timestamp"] = at;
                    writer.write_all(format!("{event}\n").as_bytes()).await.unwrap();
                }
            }
            let answer = json!({"return": answer});
            writer.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
    }

    /// What is known of such a guest once it satisfies `done`.
    async fn known_of(script: Script, done: impl FnMut(&Control) -> bool) -> Control {
        let dir = tempfile::tempdir().unwrap();
        let sockets = [dir.path().join("first"), dir.path().join("second")];
        let listener = UnixListener::bind(&sockets[0]).unwrap();
        let hypervisor = tokio::spawn(hypervisor(listener, script));
        let (control, mut seen) = watch::channel(Control::default());
        let following = tokio::spawn(async move {
            let clock: SharedClock = Arc::new(SystemClock::new());
            follow(&sockets, &clock, &control).await
        });
        let known =
            |control: &Control| control.activity == Activity::Prelaunch && control.qmp.is_some();
        let qmp = seen.wait_for(known).await.unwrap().qmp.clone().unwrap();
        qmp.execute::<qmp::Cont>().await.unwrap();
        let known = tokio::time::timeout(Duration::from_secs(30), seen.wait_for(done)).await;
        let known = known.expect("the guest is told of in time").unwrap().clone();
        following.abort();
        hypervisor.abort();
        known
    }

    #[tokio::test]
    async fn a_guest_whose_hypervisor_says_that_it_goes_on_runs() {
        let script = Script { events: vec![r#"{"event": "RESUME"}"#], status: None };
        known_of(script, |control| control.activity == Activity::Running).await;
    }

    #[tokio::test]
    async fn why_a_guest_stands_still_is_what_its_hypervisor_said_last() {
        let stop = r#"{"event": "STOP"}"#;
        let watchdog = r#"{"event": "WATCHDOG", "data": {"action": "pause"}}"#;
        let script = Script { events: vec![watchdog, stop], status: Some("watchdog") };
        let paused = |control: &Control| control.activity == Activity::Paused;
        let control = known_of(script, paused).await;
        assert_eq!(control.reason.as_deref(), Some("the guest's watchdog fired (pause)"));
        let memory = r#"{"event": "MEMORY_FAILURE", "data": {"recipient": "hypervisor",
            "action": "fatal", "flags": {"action-required": false, "recursive": false}}}"#;
        let script = Script { events: vec![memory, stop], status: Some("internal-error") };
        let broken = |control: &Control| control.activity == Activity::Broken;
        let control = known_of(script, broken).await;
        assert_eq!(control.reason.as_deref(), Some("memory of the host failed under the guest"));
        let script = Script { events: vec![watchdog, stop], status: Some("paused") };
        let control = known_of(script, paused).await;
        assert_eq!(control.reason.as_deref(), Some("the hypervisor says \"paused\""));
    }
}
