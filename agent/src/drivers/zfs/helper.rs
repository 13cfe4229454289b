//! Talking to `muster-zfs`, the program that links `libzfs_core`.
//!
//! A few processes, started when they are needed and kept: one that hangs with its pool holds up
//! nobody else. A host without the program, or with one that can't use ZFS, is known from the first
//! answer; then, and when a process can't be started later on, nothing is done here and the caller
//! takes the other way.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use muster_shared::error_chain::Chain;
pub(super) use muster_zfs_helper::Call;
use muster_zfs_helper::{Answer, MAX_LINE_BYTES, Outcome, Request};
use parking_lot::Mutex;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::Semaphore;

use super::error::{About, of_errno};
use super::programs::{CHANGE, LOOK, late};
use crate::drivers::DriverError;
use crate::host::{Piped, RunningChild, SharedExec};

/// Calls at the same time.
const PROCESSES: usize = 4;

/// The processes.
#[derive(Debug)]
pub(super) struct Helper {
    exec: SharedExec,
    path: PathBuf,
    idle: Mutex<Vec<Process>>,
    places: Semaphore,
    works: AtomicBool,
    next_id: AtomicU64,
}

/// One of them.
#[derive(Debug)]
struct Process {
    _child: RunningChild,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts the first one; `None` when it can't be used here.
    pub(super) async fn open(path: &Path, exec: SharedExec) -> Option<Self> {
        let helper = Self {
            exec,
            path: path.to_owned(),
            idle: Mutex::default(),
            places: Semaphore::new(PROCESSES),
            works: AtomicBool::new(true),
            next_id: AtomicU64::new(1),
        };
        let mut process = match helper.start().await {
            Ok(process) => process,
            Err(error) => {
                let program = path.display();
                tracing::info!(error = %Chain(&error), %program, "libzfs_core is not used");
                return None;
            }
        };
        let hello = Request { id: 0, call: Call::Hello };
        match tokio::time::timeout(LOOK, process.ask(&hello)).await {
            Ok(Ok(Answer { outcome: Outcome::Done, .. })) => {
                helper.idle.lock().push(process);
                Some(helper)
            }
            other => {
                tracing::info!(answer = ?other, "libzfs_core is not used");
                None
            }
        }
    }

    /// Whether calls are taken.
    pub(super) fn works(&self) -> bool {
        self.works.load(Ordering::Relaxed)
    }

    async fn start(&self) -> Result<Process, DriverError> {
        let shown = self.path.display().to_string();
        let piped = Piped { argv: vec![shown.clone()], stdin: true, scope: None };
        let started = self.exec.spawn_piped(&piped).await;
        let mut child = started.map_err(|error| DriverError::failed(shown.clone(), error))?;
        match (child.take_stdin(), child.take_stdout()) {
            (Some(stdin), Some(stdout)) => {
                Ok(Process { stdin, stdout: BufReader::new(stdout), _child: child })
            }
            _ => Err(DriverError::failed(shown, "it has no pipes")),
        }
    }

    /// One call, and the size that it tells, if it is about one; `None` when nothing was done and the
    /// caller has to do it another way.
    pub(super) async fn call(
        &self,
        call: Call,
        about: About,
    ) -> Option<Result<Option<u64>, DriverError>> {
        let name = call.name();
        let Ok(Ok(_place)) = tokio::time::timeout(CHANGE, self.places.acquire()).await else {
            return Some(Err(late(name)));
        };
        // Bound before the match, which would hold the lock to its end.
        let idle = self.idle.lock().pop();
        let mut process = match idle {
            Some(process) => process,
            None => match self.start().await {
                Ok(process) => process,
                Err(error) => {
                    self.give_up(&Chain(&error).to_string());
                    return None;
                }
            },
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // Only one that answered in time is asked again: who is dropped here is killed.
        let answer = match tokio::time::timeout(CHANGE, process.ask(&Request { id, call })).await {
            Ok(Ok(answer)) if answer.id == id => answer,
            Ok(Ok(answer)) => {
                let text = format!("muster-zfs answered {} in place of {id}", answer.id);
                return Some(Err(DriverError::failed(name, text)));
            }
            Ok(Err(error)) => {
                let action = format!("{name}: muster-zfs ended before it answered");
                return Some(Err(DriverError::failed(action, error)));
            }
            Err(_) => return Some(Err(late(name))),
        };
        self.idle.lock().push(process);
        match answer.outcome {
            Outcome::Done => {
                self.works.store(true, Ordering::Relaxed);
                Some(Ok(None))
            }
            Outcome::Size { bytes } => Some(Ok(Some(bytes))),
            Outcome::Failed { errno, of } => Some(Err(refusal(errno, &of, about))),
            Outcome::Unavailable { reason } | Outcome::Refused { reason } => {
                self.give_up(&reason);
                None
            }
        }
    }

    fn give_up(&self, reason: &str) {
        if self.works.swap(false, Ordering::Relaxed) {
            tracing::warn!(reason, "libzfs_core can't be used any more, zfs is");
        }
    }
}

impl Process {
    async fn ask(&mut self, request: &Request) -> std::io::Result<Answer> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stdin.write_all(&line).await?;
        self.stdin.flush().await?;
        let mut answer = Vec::new();
        let limit = u64::try_from(MAX_LINE_BYTES).unwrap_or(u64::MAX);
        if (&mut self.stdout).take(limit).read_until(b'\n', &mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&answer)?)
    }
}

/// The refusal that a number stands for, with the names that it is about.
fn refusal(errno: i32, of: &std::collections::BTreeMap<String, i32>, about: About) -> DriverError {
    let (code, text) = of_errno(errno, about);
    let names: Vec<_> = of.keys().take(4).map(String::as_str).collect();
    let text = match (names.is_empty(), text) {
        (true, "the call failed") => format!("{text} with error {errno}"),
        (true, text) => text.to_owned(),
        (false, text) => format!("{}: {text}", names.join(", ")),
    };
    DriverError::refused(code, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;

    use super::*;
    use crate::host::SystemExec;

    /// Answers each line by a script that is given the number of the line.
    async fn helper(script: &str) -> (tempfile::TempDir, Option<Helper>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("muster-zfs");
        std::fs::write(
            &path,
            format!("#!/bin/sh\nn=0\nwhile read -r line; do\n{script}\nn=$((n+1))\ndone\n"),
        )
        .unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let helper = Helper::open(&path, Arc::new(SystemExec::new())).await;
        (folder, helper)
    }

    fn destroy() -> Call {
        Call::Destroy { dataset: "z/a".to_owned() }
    }

    const DONE: &str = r#"echo "{\"id\":$n,\"outcome\":\"done\",\"calls\":$n}""#;

    #[tokio::test]
    async fn calls_are_answered_and_the_process_is_kept() {
        let script = format!(
            r#"if [ $n = 2 ]; then echo '{{"id":2,"outcome":"failed","errno":16,"of":{{"z/a@b":16}},"calls":2}}'; else {DONE}; fi"#
        );
        let (_folder, helper) = helper(&script).await;
        let helper = helper.unwrap();
        helper.call(destroy(), About::Removing).await.unwrap().unwrap();
        let held = helper.call(destroy(), About::Snapshots).await.unwrap().unwrap_err();
        assert_eq!(held.to_string(), "z/a@b: dataset is busy");
        helper.call(destroy(), About::Removing).await.unwrap().unwrap();
        assert_eq!(helper.idle.lock().len(), 1);
        assert!(helper.works());
    }

    #[tokio::test]
    async fn one_that_is_not_there_or_can_not_is_not_used() {
        let nowhere = Path::new("/nonexistent/muster-zfs");
        assert!(Helper::open(nowhere, Arc::new(SystemExec::new())).await.is_none());
        let unable = r#"echo '{"id":0,"outcome":"unavailable","reason":"no","calls":0}'"#;
        assert!(helper(unable).await.1.is_none());
        assert!(helper("exit 1").await.1.is_none());
    }

    #[tokio::test]
    async fn one_that_ends_in_the_middle_is_replaced_and_not_believed() {
        let script = format!("if [ $n = 1 ]; then exit 1; fi; {DONE}");
        let (folder, helper) = helper(&script).await;
        let helper = helper.unwrap();
        let cut = helper.call(destroy(), About::Removing).await.unwrap().unwrap_err();
        assert!(matches!(cut, DriverError::Failed { .. }), "{cut}");
        assert!(helper.idle.lock().is_empty());
        // The next one is started anew; it counts from 0 and so answers another question.
        helper.call(destroy(), About::Removing).await.unwrap().unwrap_err();
        // Once it can't be started any more, the caller is on its own.
        std::fs::remove_file(folder.path().join("muster-zfs")).unwrap();
        assert!(helper.call(destroy(), About::Removing).await.is_none());
        assert!(!helper.works());
    }
}
