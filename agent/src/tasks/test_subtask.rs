//! `test_subtask`: a `nop` that is a part of it. For tests of the reference.

use std::time::Duration;

use super::nop::Nop;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, Queue, TaskContext, TaskFailure};

const QUEUE: Queue =
    Queue { name: "test_subtask", max_concurrent: 16, max_wait: Duration::from_secs(60) };

/// The kind; parameters as of `nop`.
#[derive(Debug)]
pub struct TestSubtask;

impl Handler for TestSubtask {
    fn kind(&self) -> Kind {
        Kind::query("test_subtask", QUEUE, Duration::from_secs(60))
    }

    fn deadline(&self, params: &Params) -> Duration {
        self.kind().limit + Nop.deadline(params)
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        Nop.plan(params)?;
        Ok(Plan::of(Vec::new(), Whole, STEPS))
    }
}

const STEPS: &[Row<Whole>] = steps![("subtask", 100, run)];

#[derive(Debug)]
struct Whole;

impl Whole {
    async fn run(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let params = ctx.params.iter().filter(|(name, _)| ["sleep", "error"].contains(&&***name));
        let params = params.map(|(name, value)| (name.clone(), value.clone())).collect();
        ctx.subtasks.run("subtask", "nop", params).await.map(drop)
    }
}
