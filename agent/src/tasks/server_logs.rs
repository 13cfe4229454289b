//! `server_logs`: what this agent logged of late.

use std::time::Duration;

use muster_shared::wire::logs::{self, LogQuery};
use serde_json::json;

use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, Queue, TaskContext, TaskFailure};

/// Who follows the log only waits; those beyond wait for one of them to be told something.
const QUEUE: Queue =
    Queue { name: "log_queries", max_concurrent: 64, max_wait: Duration::from_secs(10) };
/// Time beyond the wait for a line.
const SLACK: Duration = Duration::from_secs(15);

/// The kind; its parameters are a [`LogQuery`].
#[derive(Debug)]
pub struct ServerLogs;

impl Handler for ServerLogs {
    fn kind(&self) -> Kind {
        Kind::query(logs::TASK, QUEUE, logs::MAX_WAIT + SLACK)
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let query = LogQuery::read(|name| params.get(name));
        let query = query.map_err(|bad| TaskFailure::bad_param(bad.field, bad.problem))?;
        Ok(Plan::of(Vec::new(), Read(query), STEPS))
    }
}

const STEPS: &[Row<Read>] = steps![("read", 100, read)];

#[derive(Debug)]
struct Read(LogQuery);

impl Read {
    async fn read(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let page = tokio::select! {
            biased;
            () = ctx.cancelled.cancelled() => return Ok(()),
            page = ctx.drivers.log.read(&self.0) => page,
        };
        ctx.finish_with(json!(page));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::api::log::LogPage;
    use serde::Deserialize as _;

    use super::*;
    use crate::tasks::machine_tests::{Host, run};

    #[tokio::test]
    async fn a_page_is_returned_and_a_bad_parameter_is_named() {
        let host = Host::new();
        let drivers = host.agent("boot-1").await;
        let params = Params::from_iter([("after".to_owned(), json!("0"))]);
        let page = run(&host.context(&drivers, &params), logs::TASK, false).await.unwrap();
        assert_eq!(LogPage::deserialize(page).unwrap().lines, []);
        let params = Params::from_iter([("wait".to_owned(), json!(31))]);
        let refused = ServerLogs.plan(&params).unwrap_err();
        assert_eq!(refused.details.unwrap()["field"], "wait");
    }
}
