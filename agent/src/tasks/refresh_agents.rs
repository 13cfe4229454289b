//! `refresh_agents`: looks anew which agents the node has, and tells the coordinators with sysinfo.

use std::time::Duration;

use async_trait::async_trait;

use super::agents_uninstall::Refresh;
use super::unsupported::AGENTS_TASKS;
use super::{Handler, Kind, Params, Plan, TaskFailure};

/// The kind; without parameters.
#[derive(Debug)]
pub struct RefreshAgents;

#[async_trait]
impl Handler for RefreshAgents {
    fn kind(&self) -> Kind {
        Kind::mutate("refresh_agents", AGENTS_TASKS, Duration::from_secs(60))
    }

    fn plan(&self, _params: &Params) -> Result<Plan, TaskFailure> {
        Ok(Plan { locks: Vec::new(), steps: vec![Box::new(Refresh { percent: 100 })] })
    }
}
