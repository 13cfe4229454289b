//! What a kind does, as a table: one row for each step.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::{Lock, Plan, Step, TaskContext, TaskFailure};

/// What a step does for a job of type `J`, or how that is undone.
pub(super) type Work<J> =
    for<'a> fn(&'a J, &'a TaskContext) -> BoxFuture<'a, Result<(), TaskFailure>>;

/// One step; see [`Step`], whose members these are.
#[derive(Debug)]
pub(super) struct Row<J: 'static> {
    /// In the journal; never reused for another meaning.
    pub(super) name: &'static str,
    /// Of the whole task once this step is done, percent.
    pub(super) progress: u8,
    pub(super) apply: Work<J>,
    /// `None`: there is nothing to undo.
    pub(super) undo: Option<Work<J>>,
}

/// Writes a table of [`Row`]s: `("name", progress, method)` or
/// `("name", progress, method, undo method)`, of methods of the job.
macro_rules! steps {
    (@undo) => { None };
    (@undo $undo:ident) => { Some(|job, ctx| Box::pin(job.$undo(ctx))) };
    ($(($name:literal, $progress:literal, $apply:ident $(, undo $undo:ident)?)),* $(,)?) => {
        &[$($crate::tasks::steps::Row {
            name: $name,
            progress: $progress,
            apply: |job, ctx| Box::pin(job.$apply(ctx)),
            undo: $crate::tasks::steps::steps!(@undo $($undo)?),
        }),*]
    };
}
pub(super) use steps;

/// A row and the job it works for.
#[derive(Debug)]
struct RowStep<J: 'static> {
    job: Arc<J>,
    row: &'static Row<J>,
}

#[async_trait]
impl<J: fmt::Debug + Send + Sync> Step for RowStep<J> {
    fn name(&self) -> &'static str {
        self.row.name
    }

    async fn apply(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        (self.row.apply)(&self.job, ctx).await
    }

    async fn undo(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        match self.row.undo {
            Some(undo) => undo(&self.job, ctx).await,
            None => Ok(()),
        }
    }

    fn progress(&self) -> u8 {
        self.row.progress
    }
}

impl Plan {
    /// All steps of a table, for one job.
    pub(super) fn of<J>(locks: Vec<Lock>, job: J, table: &'static [Row<J>]) -> Self
    where
        J: fmt::Debug + Send + Sync,
    {
        let job = Arc::new(job);
        let step = |row| -> Box<dyn Step> { Box::new(RowStep { job: Arc::clone(&job), row }) };
        Self { locks, steps: table.iter().map(step).collect() }
    }

    /// Leaves a step out unless the parameters ask for it.
    pub(super) fn only_if(mut self, wanted: bool, name: &str) -> Self {
        debug_assert!(self.steps.iter().any(|step| step.name() == name), "no step {name:?}");
        self.steps.retain(|step| wanted || step.name() != name);
        self
    }
}
