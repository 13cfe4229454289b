//! Waits for a task and shows how it gets on: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal as _;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use muster_shared::api::task::{EntryKind, Task, TaskEntry, TaskStarted, TaskStatus};
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::ids::TaskId;
use serde_json::Value;
use tokio::signal::unix::{SignalKind, signal};

use crate::answer::Answer;
use crate::cell::safe;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::table::shortened;
use crate::{CliError, plain};

/// Longest wait in one request: the rhythm in which progress is shown.
const ROUND_S: u64 = 1;
/// Columns of the title beside a bar.
const MAX_TITLE: usize = 32;
/// Pause after a lost connection; the coordinator may be restarting.
const RETRY: Duration = Duration::from_millis(500);

/// Whether and how long to wait for a task.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct WaitArgs {
    /// Returns once the work is accepted; see `muster task wait`.
    #[arg(long)]
    no_wait: bool,

    /// Maximum wait in seconds. The task continues after that.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, conflicts_with = "no_wait")]
    timeout: u64,
}

impl WaitArgs {
    /// Waits for a task, unless told not to. Returns its record, or `None` if
    /// nobody waited.
    pub(crate) async fn follow(
        self,
        client: &Client,
        title: &str,
        id: &TaskId,
    ) -> Result<Option<Answer<Task>>, CliError> {
        if self.no_wait {
            return Ok(None);
        }
        let limit = Duration::from_secs(self.timeout);
        finished(client, title, id.as_str(), limit).await.map(Some)
    }

    /// Waits for the task that an answer names, unless told not to, and says how it ended; `object`
    /// is that for programs.
    pub(crate) async fn follow_and_say(
        self,
        client: &Client,
        output: &Output,
        title: &str,
        started: &TaskStarted,
        object: &Value,
    ) -> Result<(), CliError> {
        let (sentence, object) = self.outcome(client, title, started, object).await?;
        output.done(&sentence, &object)
    }

    /// Waits likewise; how it ended for people, and for programs.
    pub(crate) async fn outcome(
        self,
        client: &Client,
        title: &str,
        started: &TaskStarted,
        object: &Value,
    ) -> Result<(String, Value), CliError> {
        let Some(task) = self.follow(client, title, &started.id).await? else {
            return Ok((format!("{title}: task {}", started.id), object.clone()));
        };
        let mut object = object.clone();
        let mut sentence = format!("{title}: done");
        let result = task.history.iter().find(|entry| entry.name == EntryKind::Finish);
        if let Some(result) = result {
            for (name, remark) in remarks(&result.event) {
                sentence.push_str(&format!("; {remark}"));
                object[name] = result.event[name].clone();
            }
        }
        Ok((sentence, object))
    }
}

/// What an operator has to know of a result beside that it is there: the member, and in words.
fn remarks(result: &Value) -> Vec<(&'static str, String)> {
    let mut remarks = Vec::new();
    if result["forced"] == true {
        let text = "the guest did not shut down in time and was powered off";
        remarks.push(("forced", text.to_owned()));
    }
    let pending = result["pending_reboot"].as_array().into_iter().flatten();
    let pending: Vec<&str> = pending.filter_map(Value::as_str).collect();
    if !pending.is_empty() {
        let text = format!("takes effect at the next start: {}", pending.join(", "));
        remarks.push(("pending_reboot", text));
    }
    remarks
}

/// Runs `work`; Ctrl-C ends the wait for it with `interrupted`, which says what goes on.
pub(crate) async fn unless_interrupted<T>(
    interrupted: impl FnOnce() -> CliError,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    // From here on, so that none is missed while the work begins.
    let mut pressed = signal(SignalKind::interrupt())
        .map_err(|source| CliError::Terminal { action: "wait for Ctrl-C", source })?;
    tokio::select! {
        biased;
        ended = work => ended,
        _ = pressed.recv() => Err(interrupted()),
    }
}

/// Waits until the task has ended; returns its record.
///
/// # Errors
/// [`CliError::TaskFailed`] if it ended in failure, [`CliError::Timeout`] if it did not end.
pub(crate) async fn finished(
    client: &Client,
    title: &str,
    id: &str,
    limit: Duration,
) -> Result<Answer<Task>, CliError> {
    let goes_on = || {
        let hint = format!(
            "wait for it with `muster task wait {id}`, stop it with `muster task cancel {id}`"
        );
        CliError::Interrupted { goes_on: format!("task {id} continues"), hint }
    };
    unless_interrupted(goes_on, watched(client, title, id, limit)).await
}

async fn watched(
    client: &Client,
    title: &str,
    id: &str,
    limit: Duration,
) -> Result<Answer<Task>, CliError> {
    let clock = SystemClock::new();
    let mut view = View::new(title);
    loop {
        let query = [("timeout", ROUND_S.to_string())];
        match client.get::<Answer<Task>>(&format!("/tasks/{id}/wait"), &query).await {
            Ok(task) if task.status == TaskStatus::Active => view.show(&task),
            Ok(task) => {
                view.show(&task);
                view.end();
                return ended(id, task);
            }
            Err(lost @ CliError::Unreachable { .. }) => {
                view.say("the coordinator does not answer, retrying");
                if clock.monotonic() >= limit {
                    return Err(lost);
                }
                tokio::time::sleep(RETRY).await;
            }
            Err(other) => return Err(other),
        }
        if clock.monotonic() >= limit {
            view.end();
            let limit = limit.as_secs();
            let text = format!("task {id} is still active after {limit} s; `muster why task {id}`");
            return Err(CliError::Timeout(text));
        }
    }
}

fn ended(id: &str, task: Answer<Task>) -> Result<Answer<Task>, CliError> {
    if task.status == TaskStatus::Complete {
        return Ok(task);
    }
    let code = task.error.as_ref().map(|error| format!(" ({})", error.code)).unwrap_or_default();
    Err(CliError::TaskFailed { id: id.to_owned(), message: format!("{}{code}", reason(&task)) })
}

/// Why a task failed, as its record says.
pub(crate) fn reason(task: &Task) -> String {
    let errors = task.history.iter().filter(|entry| entry.name == EntryKind::Error);
    let reason = errors.filter_map(TaskEntry::reason).next_back();
    reason.map_or("no reason given", plain::failure).to_owned()
}

struct View {
    title: String,
    bar: Option<ProgressBar>,
    events_seen: usize,
    /// The last that began.
    step: Option<String>,
    last: String,
}

impl View {
    fn new(title: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(100);
            let style =
                ProgressStyle::with_template("{spinner} {prefix} {bar:16} {pos:>3}% {wide_msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.set_prefix(shortened(&safe(title), MAX_TITLE));
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Self { title: title.to_owned(), bar, events_seen: 0, step: None, last: String::new() }
    }

    fn show(&mut self, task: &Task) {
        if let (Some(bar), Some(percent)) = (&self.bar, task.progress) {
            bar.set_position(u64::from(percent).min(100));
        }
        let events = &task.events;
        // The list is bounded at the other end, so it may have become shorter.
        let new = events.get(self.events_seen.min(events.len())..).unwrap_or_default();
        let steps: Vec<_> =
            new.iter().filter_map(|event| event.name.strip_prefix("start:")).collect();
        self.events_seen = events.len();
        for step in steps {
            self.step = Some(step.to_owned());
            self.say(step);
        }
        // That its agent works on it, the step says better.
        let says_less = |cause: &str| self.step.is_some() && cause.ends_with("to finish it");
        if let Some(cause) = task.waiting_for.as_deref().filter(|cause| !says_less(cause)) {
            self.say(&format!("waiting for {cause}"));
        }
    }

    fn say(&mut self, text: &str) {
        if self.last == text {
            return;
        }
        text.clone_into(&mut self.last);
        match &self.bar {
            Some(bar) => bar.set_message(safe(text)),
            None => warn(&format!("{}: {text}", self.title)),
        }
    }

    fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    #[test]
    fn what_an_operator_has_to_know_is_told() {
        let sentence = |result: Value| {
            let remarks = super::remarks(&result).into_iter();
            remarks.map(|(_, remark)| remark).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(sentence(json!({ "vm": {}, "pending_reboot": [] })), "");
        let both = json!({ "forced": true, "pending_reboot": ["ram", "vcpus"] });
        let want = "the guest did not shut down in time and was powered off; \
                    takes effect at the next start: ram, vcpus";
        assert_eq!(sentence(both), want);
    }

    #[test]
    fn reasons_in_both_forms_and_none() {
        let reason = |history: Value| {
            let task = json!({
                "id": "t", "req_id": "r", "task": "nop", "status": "failure", "timestamp": "",
                "server_uuid": uuid::Uuid::nil(), "history": history,
            });
            super::reason(&serde_json::from_value(task).unwrap())
        };
        let entry = |event: Value| {
            let finish = json!({ "name": "finish", "timestamp": "", "event": {} });
            json!([{ "name": "error", "timestamp": "", "event": event }, finish])
        };
        assert_eq!(reason(entry(json!({ "error": { "message": "disk full" } }))), "disk full");
        assert_eq!(reason(entry(json!({ "error": "disk full" }))), "disk full");
        assert_eq!(reason(entry(json!({ "error": "vmadm.start error: it runs" }))), "it runs");
        assert_eq!(reason(json!([])), "no reason given");
    }
}
