//! `GET /tasks`: all tasks in the order in which they were made.

use std::collections::BTreeMap;

use muster_shared::api::task::{Task, TaskStarted, TaskStatus};
use muster_shared::ids::{ServerUuid, TaskId, VmUuid};
use muster_shared::secrets::masked;

use super::record::TaskRecord;
use super::{TASKS, Tasks};
use crate::app::error::AppError;
use crate::store::{Held, MAX_PAGE};

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

impl Tasks {
    /// Lists tasks, oldest first.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub async fn list(&self, filter: &TaskFilter) -> Result<TaskPage, AppError> {
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        if filter.status == Some(TaskStatus::Active) {
            return Ok(self.open_list(filter, limit));
        }
        let mut page = TaskPage::default();
        let mut after = filter.marker.as_ref().map(|id| TASKS.key(id));
        let mut scanned = 0;
        loop {
            let records = TASKS.page(&self.ctx, after.as_deref(), MAX_PAGE).await?;
            // What the page shows as open must not be unknown to memory.
            self.ctx.feed.reached(records.newest).await;
            for (_, Held { value: record, .. }) in &records.records {
                scanned += 1;
                if !filter.fits(record) {
                    continue;
                }
                let id = record.id.clone();
                let open = self.table.get(&id).map(|open| open.public());
                page.tasks.push(listed(open.unwrap_or_else(|| record.public())));
                if page.tasks.len() == limit {
                    page.next = Some(id);
                    return Ok(page);
                }
            }
            if scanned >= MAX_SCANNED {
                page.next = records.records.last().map(|(_, held)| held.value.id.clone());
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
    pub fn open_by_kind(&self, max: usize) -> BTreeMap<String, Vec<TaskStarted>> {
        let mut kinds: BTreeMap<String, Vec<TaskStarted>> = BTreeMap::new();
        for id in self.table.ids().into_iter().take(max) {
            if let Some(open) = self.table.get(&id) {
                kinds.entry(open.record.task.clone()).or_default().push(TaskStarted { id });
            }
        }
        kinds
    }

    fn open_list(&self, filter: &TaskFilter, limit: usize) -> TaskPage {
        let ids = match filter.server {
            Some(server) => self.table.of_server(server),
            None => self.table.ids(),
        };
        let mut page = TaskPage::default();
        for id in ids.into_iter().filter(|id| filter.marker.as_ref().is_none_or(|m| id > m)) {
            let Some(open) = self.table.get(&id).filter(|open| filter.fits(&open.record)) else {
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
