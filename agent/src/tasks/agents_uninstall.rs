//! `agents_uninstall`: removes other agents from the node. This version installs none, so one that is
//! here came by other means and has to go by those; one that is not here is a success.

use std::time::Duration;

use muster_shared::wire::Code;
use serde_json::Value;

use super::steps::{Row, steps};
use super::unsupported::AGENTS_TASKS;
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};

/// Names of this very agent.
const OWN: &[&str] = &["muster-agent", "cn-agent"];
/// Agents of one request.
const MAX_AGENTS: usize = 64;

/// The kind; parameter `agents`, a list of names.
#[derive(Debug)]
pub struct AgentsUninstall;

impl Handler for AgentsUninstall {
    fn kind(&self) -> Kind {
        Kind::mutate("agents_uninstall", AGENTS_TASKS, Duration::from_secs(600))
    }

    fn example(&self) -> Params {
        Params::from_iter([("agents".to_owned(), Value::from(vec!["another-agent"]))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let agents = params.get("agents").and_then(Value::as_array);
        let agents = agents.filter(|agents| agents.len() <= MAX_AGENTS);
        let problem = || TaskFailure::bad_param("agents", "must be a list of names");
        let mut names = Vec::new();
        for agent in agents.ok_or_else(problem)? {
            let name = agent.as_str().ok_or_else(problem)?;
            names.push(name.to_owned());
            if OWN.contains(&name) {
                let text = format!("AgentsUninstallTask error: {name} is this agent itself");
                return Err(TaskFailure::new(Code::InvalidArgument, text));
            }
        }
        Ok(Plan::of(Vec::new(), Check { names }, STEPS))
    }
}

const STEPS: &[Row<Check>] = steps![("refresh", 90, refresh), ("check", 100, check)];

#[derive(Debug)]
struct Check {
    names: Vec<String>,
}

impl Check {
    async fn refresh(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        refresh(ctx).await
    }

    /// Whether any of them is still here.
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let mut problems = Vec::new();
        for name in &self.names {
            if ctx.drivers.report.has_service(name).await {
                problems.push(format!("{name} was not installed by Muster: remove its package"));
            }
        }
        if problems.is_empty() {
            return Ok(());
        }
        let text = format!("AgentsUninstallTask error: {}", problems.join("; "));
        Err(TaskFailure::new(Code::NotSupported, text))
    }
}

/// Collects sysinfo, with the list of agents, anew.
pub(super) async fn refresh(ctx: &TaskContext) -> Result<(), TaskFailure> {
    ctx.drivers.report.sysinfo_within(Duration::ZERO).await;
    Ok(())
}
