//! `server_setup`: makes a node ready for VMs. What it reached is in the setup record, which is
//! written after each part, so that a setup that failed can be resumed.
//!
//! With disks kept in files there is no pool to make; asking for one fails with `NotSupported`
//! until there is a driver for it.

use std::time::Duration;

use muster_shared::clock::iso;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::server_update_nics::ServerUpdateNics;
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::host::HostAction;
use crate::drivers::node::Document;
use crate::report::setup::Setup;

/// The queue of what makes or unmakes a node.
pub(super) const SETUP_TASKS: Queue =
    Queue { name: "setup_tasks", max_concurrent: 1, max_wait: Duration::from_secs(60) };
/// Longest kept output of that script, bytes.
const MAX_OUTPUT_BYTES: usize = 4 * 1024;
const LAYOUTS: &[&str] = &["single", "mirror", "raidz1", "raidz2", "raidz3"];

/// The kind; parameters `hostname`, `nics` (as of `server_update_nics`), `postsetup_script`,
/// `disk_*`, `encryption_enabled`, `reboot`, `force_resume`.
#[derive(Debug)]
pub struct ServerSetup;

impl Handler for ServerSetup {
    fn kind(&self) -> Kind {
        Kind::mutate("server_setup", SETUP_TASKS, Duration::from_secs(7200))
    }

    fn example(&self) -> Params {
        let example = json!({
            "hostname": "cn1", "postsetup_script": "#!/bin/sh\n", "reboot": false,
            "disk_layout": "mirror", "nics": ServerUpdateNics.example()["nics"],
        });
        example.as_object().cloned().unwrap_or_default()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let wanted = Wanted::parse(params)?;
        let (pool, hostname) = (wanted.pool.is_some(), wanted.hostname.is_some());
        let (reboot, script) = (wanted.reboot, wanted.script.is_some());
        let nics = wanted.nics.is_some();
        let plan = Plan::of(vec![Lock::ServerExclusive], wanted, STEPS);
        let plan = plan.only_if(pool, "zpool_created").only_if(hostname, "hostname_set");
        let plan = plan.only_if(nics, "nics_updated");
        Ok(plan.only_if(reboot, "rebooted").only_if(script, "postsetup"))
    }
}

/// Checked before anything is done. No NIC is nothing to do.
fn nics(params: &Params) -> Result<Option<Params>, TaskFailure> {
    let Some(nics) = params.get("nics").filter(|nics| !nics.is_null() && **nics != json!([]))
    else {
        return Ok(None);
    };
    let nics = Params::from_iter([("nics".to_owned(), nics.clone())]);
    ServerUpdateNics.plan(&nics).map(|_| Some(nics))
}

const STEPS: &[Row<Wanted>] = steps![
    ("preflight", 10, preflight),
    ("zpool_created", 50, create_pool),
    ("hostname_set", 50, set_hostname),
    ("nics_updated", 60, update_nics),
    ("rebooted", 70, reboot),
    ("postsetup", 90, run_script),
    ("complete", 100, complete),
];

/// What the parameters ask for.
#[derive(Clone, Debug)]
struct Wanted {
    hostname: Option<String>,
    script: Option<String>,
    pool: Option<HostAction>,
    /// Parameters of the task that says which NIC carries which networks.
    nics: Option<Params>,
    reboot: bool,
    resume: bool,
}

impl Wanted {
    fn parse(params: &Params) -> Result<Self, TaskFailure> {
        let text = |name: &str| match params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(TaskFailure::bad_param(name, "must be a string")),
        };
        let flag = |name: &str, default: bool| match params.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(_) => Err(TaskFailure::bad_param(name, "must be true or false")),
        };
        let layout = text("disk_layout")?;
        if layout.as_deref().is_some_and(|layout| !LAYOUTS.contains(&layout)) {
            return Err(TaskFailure::bad_param("disk_layout", "is not a known layout"));
        }
        let options: Params = ["disk_layout", "disk_spares", "disk_width", "disk_exclude"]
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), params.get(name)?.clone())))
            .filter(|(_, value)| !value.is_null())
            .collect();
        let encrypted = flag("encryption_enabled", false)?;
        let pool = (!options.is_empty() || encrypted)
            .then(|| HostAction::CreatePool { options: Value::Object(options), encrypted });
        Ok(Self {
            hostname: text("hostname")?.filter(|name| !name.is_empty()),
            script: text("postsetup_script")?.filter(|script| !script.is_empty()),
            pool,
            nics: nics(params)?,
            reboot: flag("reboot", true)?,
            resume: flag("force_resume", false)?,
        })
    }

    /// What will be asked of the host.
    fn actions(&self) -> Vec<HostAction> {
        let reboot = self.reboot.then_some(HostAction::Reboot);
        let parts = [self.pool.clone(), self.set_hostname_action(), reboot, self.script_action()];
        parts.into_iter().flatten().collect()
    }

    fn set_hostname_action(&self) -> Option<HostAction> {
        self.hostname.clone().map(HostAction::SetHostname)
    }

    fn script_action(&self) -> Option<HostAction> {
        self.script.clone().map(|script| HostAction::FinishSetup { script })
    }

    async fn preflight(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if record(ctx).await?.is_some_and(|setup| setup.complete) && !self.resume {
            return Err(TaskFailure::new(Code::AlreadySetup, "the server is set up already"));
        }
        // Before anything is done: a setup that can't be finished is not begun.
        for action in self.actions() {
            ctx.drivers.host.ready(&action).await?;
        }
        reached(ctx, "preflight").await
    }

    async fn create_pool(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        act(ctx, self.pool.as_ref()).await?;
        reached(ctx, "zpool_created").await
    }

    async fn set_hostname(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        act(ctx, self.set_hostname_action().as_ref()).await?;
        reached(ctx, "hostname_set").await
    }

    /// A task like any other, whose history tells what became of each NIC.
    async fn update_nics(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if let Some(nics) = self.nics.clone() {
            ctx.subtasks.run("nics", ServerUpdateNics.kind().name, nics).await?;
        }
        reached(ctx, "nics_updated").await
    }

    async fn reboot(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !ctx.rebooted {
            let goes_down = ctx.drivers.host.act(&HostAction::Reboot).await?;
            if goes_down == json!(true) {
                // The step ends in the next boot, where it is run again.
                std::future::pending::<()>().await;
            }
        }
        reached(ctx, "rebooted").await
    }

    /// At most once: the mark comes first, and a run that was cut off is not repeated.
    async fn run_script(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if has_reached(ctx, "postsetup").await? {
            ctx.result.lock()["postsetup_interrupted"] = json!(true);
            return Ok(());
        }
        reached(ctx, "postsetup").await?;
        let outcome = act(ctx, self.script_action().as_ref()).await?;
        if outcome["exitCode"] != 0 {
            let stderr = outcome["stderr"].as_str().unwrap_or_default();
            let shown = &stderr[..stderr.floor_char_boundary(MAX_OUTPUT_BYTES)];
            let mut result = ctx.result.lock();
            result["postsetup_failed"] = json!(true);
            result["postsetup_exit_code"] = outcome["exitCode"].clone();
            result["postsetup_stderr"] = json!(shown);
        }
        Ok(())
    }

    async fn complete(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        reached(ctx, "complete").await?;
        // From now on the node says that it is set up.
        ctx.drivers.report.sysinfo_within(Duration::ZERO).await;
        Ok(())
    }
}

/// Safe to repeat; nothing happens where nothing was asked for.
async fn act(ctx: &TaskContext, action: Option<&HostAction>) -> Result<Value, TaskFailure> {
    match action {
        Some(action) => Ok(ctx.drivers.host.act(action).await?),
        None => Ok(Value::Null),
    }
}

async fn record(ctx: &TaskContext) -> Result<Option<Setup>, TaskFailure> {
    let Some(stored) = ctx.drivers.node.read(Document::Setup).await? else { return Ok(None) };
    let parsed = serde_json::from_value(stored);
    parsed.map(Some).map_err(|error| {
        TaskFailure::new(Code::InternalError, format!("the setup record is damaged: {error}"))
    })
}

/// Notes a state; durable when it returns.
async fn reached(ctx: &TaskContext, state: &str) -> Result<(), TaskFailure> {
    let now = iso(ctx.drivers.clock.wall());
    let mut setup = record(ctx).await?.unwrap_or_else(|| Setup {
        node_type: "computenode".to_owned(),
        start_time: now.clone(),
        current_state: String::new(),
        seen_states: Vec::new(),
        complete: false,
        last_updated: String::new(),
    });
    if !setup.seen_states.iter().any(|seen| seen == state) {
        setup.seen_states.push(state.to_owned());
    }
    state.clone_into(&mut setup.current_state);
    setup.complete = state == "complete";
    setup.last_updated = now;
    let setup = json!(setup);
    ctx.drivers.node.write(Document::Setup, &setup).await?;
    ctx.result.lock()["setup_state"] = setup;
    Ok(())
}

/// Whether an earlier setup reached a state.
async fn has_reached(ctx: &TaskContext, state: &str) -> Result<bool, TaskFailure> {
    let setup = record(ctx).await?;
    Ok(setup.is_some_and(|setup| setup.seen_states.iter().any(|seen| seen == state)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(params: &Value) -> Result<Vec<&'static str>, Code> {
        let plan = ServerSetup.plan(params.as_object().unwrap());
        plan.map(|plan| plan.steps.iter().map(|step| step.name()).collect())
            .map_err(|failure| failure.code)
    }

    #[test]
    fn parts_that_are_not_wanted_are_left_out() {
        assert_eq!(plan(&json!({ "reboot": false })).unwrap(), ["preflight", "complete"]);
        assert_eq!(plan(&json!({})).unwrap(), ["preflight", "rebooted", "complete"]);
        let all = json!({
            "hostname": "a", "postsetup_script": "true", "encryption_enabled": "true",
            "disk_cache": false, "unknown": 1,
            "nics": [{ "mac": "02:00:00:00:00:00", "nic_tags_provided": ["external"] }],
        });
        let steps = [
            "preflight",
            "zpool_created",
            "hostname_set",
            "nics_updated",
            "rebooted",
            "postsetup",
            "complete",
        ];
        assert_eq!(plan(&all).unwrap(), steps);
        for bad in [
            json!({ "disk_layout": "raid5" }),
            json!({ "hostname": 1 }),
            json!({ "reboot": "maybe" }),
        ] {
            assert_eq!(plan(&bad).unwrap_err(), "InvalidParameters");
        }
    }
}
