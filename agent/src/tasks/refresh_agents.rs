//! `refresh_agents`: looks anew which agents the node has, and tells the coordinators with sysinfo.

use std::time::Duration;

use super::agents_uninstall;
use super::steps::{Row, steps};
use super::unsupported::AGENTS_TASKS;
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};

/// The kind; without parameters.
#[derive(Debug)]
pub struct RefreshAgents;

impl Handler for RefreshAgents {
    fn kind(&self) -> Kind {
        Kind::mutate("refresh_agents", AGENTS_TASKS, Duration::from_secs(60))
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan::of(Vec::new(), Refresh, STEPS))
    }
}

const STEPS: &[Row<Refresh>] = steps![("refresh", 100, refresh)];

#[derive(Debug)]
struct Refresh;

impl Refresh {
    async fn refresh(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        agents_uninstall::refresh(ctx).await
    }
}
