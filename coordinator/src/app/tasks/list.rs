//! `GET /tasks`: all tasks in the order in which they were made.

use std::collections::BTreeMap;

use muster_shared::api::task::{Task, TaskStarted, TaskStatus};
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::secrets::masked;

use super::record::TaskRecord;
use crate::app::error::AppError;
use crate::app::{App, keys};
use crate::store::{MAX_PAGE, Record};

/// Most tasks in one answer.
const MAX_LIMIT: usize = 1_000;
/// Most records that one request looks at.
const MAX_SCANNED: usize = 20_000;

/// Which tasks; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// With this status.
    pub status: Option<TaskStatus>,
    /// Of this kind.
    pub task: Option<String>,
    /// On this server.
    pub server: Option<ServerUuid>,
    /// About this VM.
    pub vm: Option<VmUuid>,
    /// At most this many (at most 1,000, which is also the default).
    pub limit: Option<usize>,
    /// After this task.
    pub marker: Option<TaskId>,
}

impl TaskFilter {
    fn fits(&self, record: &TaskRecord) -> bool {
        self.status.is_none_or(|status| record.status == status)
            && self.task.as_ref().is_none_or(|task| record.task == *task)
            && self.server.is_none_or(|server| record.server_uuid == server)
            && self.vm.is_none_or(|vm| record.vm_uuid == Some(vm))
    }
}

/// One page of tasks.
#[derive(Clone, Debug, Default)]
pub struct TaskPage {
    /// As CNAPI shows them, oldest first.
    pub tasks: Vec<Task>,
    /// Pass as `marker` for more; `None` at the end.
    pub next: Option<TaskId>,
}

impl App {
    /// Lists tasks, oldest first.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub async fn task_list(&self, filter: &TaskFilter) -> Result<TaskPage, AppError> {
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        if filter.status == Some(TaskStatus::Active) {
            return Ok(self.open_list(filter, limit));
        }
        let mut page = TaskPage::default();
        let mut after = filter.marker.as_ref().map(keys::task);
        let mut scanned = 0;
        loop {
            let records = self.parts.store.list(keys::TASKS, after.as_deref(), MAX_PAGE).await?;
            // What the page shows as open must not be unknown to memory.
            self.feed.reached(records.revision).await;
            for Record { key, value, .. } in &records.records {
                scanned += 1;
                let Some(record) = self.feed.damaged().decode::<TaskRecord>(key, value) else {
                    continue;
                };
                if !filter.fits(&record) {
                    continue;
                }
                let id = record.id.clone();
                let open = self.tasks.get(&id).map(|open| open.public());
                page.tasks.push(listed(open.unwrap_or_else(|| record.public())));
                if page.tasks.len() == limit {
                    page.next = Some(id);
                    return Ok(page);
                }
            }
            if scanned >= MAX_SCANNED {
                page.next = records.records.last().and_then(|record| keys::last(&record.key));
                return Ok(page);
            }
            match records.next {
                Some(next) => after = Some(next),
                None => return Ok(page),
            }
        }
    }

    /// Open tasks by kind, at most `max`.
    #[must_use]
    pub fn open_tasks_by_kind(&self, max: usize) -> BTreeMap<String, Vec<TaskStarted>> {
        let mut kinds: BTreeMap<String, Vec<TaskStarted>> = BTreeMap::new();
        for id in self.tasks.ids().into_iter().take(max) {
            if let Some(open) = self.tasks.get(&id) {
                kinds.entry(open.record.task.clone()).or_default().push(TaskStarted { id });
            }
        }
        kinds
    }

    fn open_list(&self, filter: &TaskFilter, limit: usize) -> TaskPage {
        let ids = match filter.server {
            Some(server) => self.tasks.of_server(server),
            None => self.tasks.ids(),
        };
        let mut page = TaskPage::default();
        for id in ids.into_iter().filter(|id| filter.marker.as_ref().is_none_or(|m| id > m)) {
            let Some(open) = self.tasks.get(&id).filter(|open| filter.fits(&open.record)) else {
                continue;
            };
            page.tasks.push(listed(open.public()));
            if page.tasks.len() == limit {
                page.next = Some(id);
                break;
            }
        }
        page
    }
}

/// A list is for people who look around: without the secrets that results may hold.
fn listed(mut task: Task) -> Task {
    let events = task.history.iter_mut().map(|entry| &mut entry.event);
    let details = task.error.iter_mut().filter_map(|error| error.details.as_mut());
    for value in events.chain(details).chain(&mut task.result) {
        *value = masked(value);
    }
    task
}
