//! `server_setup`: makes a node ready for VMs. What it reached is in the setup record, which is
//! written after each part, so that a setup that failed can be resumed.
//!
//! A pool is planned before anything of it is made ([`disk_layout`]), and the plan kept in that record:
//! what was begun is finished as it was planned. `dry_run` shows the plan and changes nothing.
//!
//! [`disk_layout`]: crate::disk_layout

use std::collections::BTreeSet;
use std::time::Duration;

use muster_shared::clock::iso;
use muster_shared::lenient;
use muster_shared::units::MIB;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::server_update_nics::ServerUpdateNics;
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::disk_layout::plan::PoolPlan;
use crate::disk_layout::{Layout, Wishes};
use crate::drivers::host::HostAction;
use crate::drivers::node::Document;
use crate::report::setup::Setup;

/// The queue of what makes or unmakes a node.
pub(super) const SETUP_TASKS: Queue =
    Queue { name: "setup_tasks", max_concurrent: 1, max_wait: Duration::from_secs(60) };
/// Longest kept output of that script, bytes.
const MAX_OUTPUT_BYTES: usize = 4 * 1024;
/// Most disks that a server may have.
const MAX_DISKS: usize = 10_000;
/// A pool has at least so many times the memory's size.
const MIN_DISK_TO_RAM: u64 = 2;

/// The kind; parameters `hostname`, `nics` (as of `server_update_nics`), `postsetup_script`,
/// `disk_*`, `wipe_disks`, `min_disk_to_ram`, `dry_run`, `reboot`, `force_resume`.
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
        if wanted.dry_run {
            return Ok(Plan::of(Vec::new(), wanted, SHOW));
        }
        let (pool, hostname) = (wanted.pool.is_some(), wanted.hostname.is_some());
        let (reboot, script) = (wanted.reboot, wanted.script.is_some());
        let nics = wanted.nics.is_some();
        let plan = Plan::of(vec![Lock::ServerExclusive], wanted, STEPS);
        let plan = plan.only_if(pool, "layout").only_if(pool, "zpool_created");
        let plan = plan.only_if(hostname, "hostname_set");
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

const SHOW: &[Row<Wanted>] = steps![("show", 100, show)];

const STEPS: &[Row<Wanted>] = steps![
    ("preflight", 10, preflight),
    ("layout", 20, lay_out),
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
    pool: Option<PoolWishes>,
    /// Parameters of the task that says which NIC carries which networks.
    nics: Option<Params>,
    reboot: bool,
    resume: bool,
    /// Shows what would become of the disks.
    dry_run: bool,
}

/// The pool that is asked for.
#[derive(Clone, Debug, Default)]
struct PoolWishes {
    layout: Wishes,
    /// Disks that need not be empty.
    wipe: BTreeSet<String>,
    min_disk_to_ram: u64,
}

impl PoolWishes {
    /// `None`: nobody asks for one.
    fn parse(params: &Params) -> Result<Option<Self>, TaskFailure> {
        let of = |name: &str| params.get(name).filter(|value| !value.is_null());
        let number = |name: &str| match of(name) {
            None => Ok(None),
            Some(value) => match lenient::number(value).and_then(|it| usize::try_from(it).ok()) {
                Some(number) if number <= MAX_DISKS => Ok(Some(number)),
                _ => Err(TaskFailure::bad_param(name, "must be a number of disks")),
            },
        };
        let layout = of("disk_layout").map(|value| {
            let layout = value.as_str().and_then(|text| text.parse::<Layout>().ok());
            layout.ok_or_else(|| TaskFailure::bad_param("disk_layout", "is not a known layout"))
        });
        let layout = layout.transpose()?;
        if flag(params, "encryption_enabled", false)? {
            let text = "encryption_enabled: this agent has no keeper of keys for a pool";
            return Err(TaskFailure::new(Code::NotSupported, text));
        }
        let options = ["disk_layout", "disk_spares", "disk_width", "disk_exclude", "wipe_disks"];
        if !flag(params, "dry_run", false)? && options.into_iter().all(|name| of(name).is_none()) {
            return Ok(None);
        }
        let min_disk_to_ram = match of("min_disk_to_ram") {
            None => MIN_DISK_TO_RAM,
            Some(value) => lenient::number(value)
                .ok_or_else(|| TaskFailure::bad_param("min_disk_to_ram", "must be a number"))?,
        };
        let layout = Wishes {
            layout,
            spares: number("disk_spares")?,
            width: number("disk_width")?.filter(|width| *width > 0),
            cache: flag(params, "disk_cache", true)?,
            exclude: names(params, "disk_exclude")?.into_iter().collect(),
        };
        let wipe = names(params, "wipe_disks")?;
        Ok(Some(Self { layout, wipe, min_disk_to_ram }))
    }
}

/// Names of disks: a list, or a text in which commas stand between them.
fn names(params: &Params, name: &str) -> Result<BTreeSet<String>, TaskFailure> {
    let bad = || TaskFailure::bad_param(name, "must be names of disks, with commas between them");
    let words: Vec<&str> = match params.get(name) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(text)) => text.split(',').collect(),
        Some(Value::Array(list)) => {
            list.iter().map(|name| name.as_str().ok_or_else(bad)).collect::<Result<_, _>>()?
        }
        Some(_) => return Err(bad()),
    };
    let words = words.into_iter().map(str::trim).filter(|word| !word.is_empty());
    Ok(words.map(str::to_owned).collect())
}

fn flag(params: &Params, name: &str, default: bool) -> Result<bool, TaskFailure> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(Value::String(text)) if text == "true" => Ok(true),
        Some(Value::String(text)) if text == "false" => Ok(false),
        Some(_) => Err(TaskFailure::bad_param(name, "must be true or false")),
    }
}

impl Wanted {
    fn parse(params: &Params) -> Result<Self, TaskFailure> {
        let text = |name: &str| match params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(TaskFailure::bad_param(name, "must be a string")),
        };
        Ok(Self {
            hostname: text("hostname")?.filter(|name| !name.is_empty()),
            script: text("postsetup_script")?.filter(|script| !script.is_empty()),
            pool: PoolWishes::parse(params)?,
            nics: nics(params)?,
            reboot: flag(params, "reboot", true)?,
            resume: flag(params, "force_resume", false)?,
            dry_run: flag(params, "dry_run", false)?,
        })
    }

    /// What will be asked of the host.
    fn actions(&self) -> Vec<HostAction> {
        let reboot = self.reboot.then_some(HostAction::Reboot);
        let parts = [self.set_hostname_action(), reboot, self.script_action()];
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
        if let Some(wishes) = &self.pool {
            let plan = self.plan_pool(ctx, wishes).await?;
            ctx.drivers.host.ready(&pool_action(&plan, false, wishes)).await?;
        }
        reached(ctx, "preflight").await
    }

    /// What would be done; nothing is.
    async fn show(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let wishes = self.pool.clone().unwrap_or_default();
        let plan = self.plan_pool(ctx, &wishes).await?;
        let command = plan.command(false).join(" ");
        let wiped: Vec<&String> =
            plan.paths.keys().filter(|name| wishes.wipe.contains(*name)).collect();
        ctx.finish_with(json!({ "plan": plan, "command": command, "wiped": wiped }));
        Ok(())
    }

    /// The pool of what disks there are now; or that which was begun.
    async fn plan_pool(
        &self,
        ctx: &TaskContext,
        wishes: &PoolWishes,
    ) -> Result<PoolPlan, TaskFailure> {
        let drivers = &ctx.drivers;
        let begun = record(ctx).await?.filter(|setup| setup.pool_begun);
        if let Some(plan) = begun.and_then(|setup| setup.pool_plan) {
            return Ok(plan);
        }
        let report = drivers.report.sysinfo_within(Duration::MAX).await;
        let text =
            |name: &str| report.sysinfo.get(name).and_then(Value::as_str).unwrap_or_default();
        let unknown = |what: &str| {
            TaskFailure::new(Code::InternalError, format!("the server's {what} is not known"))
        };
        let server = text("UUID").parse().map_err(|_| unknown("uuid"))?;
        // None is what a report says that knows nothing.
        let memory_mib = text("MiB of Memory").parse().ok().filter(|mib: &u64| *mib > 0);
        let memory_mib = memory_mib.ok_or_else(|| unknown("amount of memory"))?;
        let random = u128::from(drivers.entropy.u64()) << 64 | u128::from(drivers.entropy.u64());
        let id = uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid();
        let pools = drivers.storage.pools();
        let pool = pools.first().map_or("zones", String::as_str);
        let found = drivers.host.disks().await?;
        let plan = PoolPlan::new(pool, (id, server), &found, &wishes.layout, &wishes.wipe);
        let plan =
            plan.map_err(|problem| TaskFailure::new(Code::InvalidParameters, problem.to_string()))?;
        plan.check_memory(memory_mib.saturating_mul(MIB), wishes.min_disk_to_ram)
            .map_err(|problem| TaskFailure::new(Code::InvalidParameters, problem))?;
        Ok(plan)
    }

    async fn lay_out(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if let Some(wishes) = &self.pool {
            let plan = self.plan_pool(ctx, wishes).await?;
            change(ctx, |setup| setup.pool_plan = Some(plan)).await?;
        }
        reached(ctx, "layout").await
    }

    async fn create_pool(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let planned = record(ctx).await?;
        if let (Some(wishes), Some(Setup { pool_plan: Some(plan), pool_begun, .. })) =
            (&self.pool, planned)
        {
            // First, so that whoever goes on knows whose the content of the disks is.
            change(ctx, |setup| setup.pool_begun = true).await?;
            ctx.drivers.host.act(&pool_action(&plan, pool_begun, wishes)).await?;
        }
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

fn pool_action(plan: &PoolPlan, again: bool, wishes: &PoolWishes) -> HostAction {
    HostAction::CreatePool { plan: Box::new(plan.clone()), again, wipe: wishes.wipe.clone() }
}

/// Safe to repeat; nothing happens where nothing was asked for.
async fn act(ctx: &TaskContext, action: Option<&HostAction>) -> Result<Value, TaskFailure> {
    match action {
        Some(action) => Ok(ctx.drivers.host.act(action).await?),
        None => Ok(Value::Null),
    }
}

pub(super) async fn record(ctx: &TaskContext) -> Result<Option<Setup>, TaskFailure> {
    let Some(stored) = ctx.drivers.node.read(Document::Setup).await? else { return Ok(None) };
    let parsed = serde_json::from_value(stored);
    parsed.map(Some).map_err(|error| {
        TaskFailure::new(Code::InternalError, format!("the setup record is damaged: {error}"))
    })
}

/// Notes a state; durable when it returns.
async fn reached(ctx: &TaskContext, state: &str) -> Result<(), TaskFailure> {
    change(ctx, |setup| {
        if !setup.seen_states.iter().any(|seen| seen == state) {
            setup.seen_states.push(state.to_owned());
        }
        state.clone_into(&mut setup.current_state);
        setup.complete = state == "complete";
    })
    .await
}

/// Changes the setup record; durable when it returns.
async fn change(
    ctx: &TaskContext,
    change: impl FnOnce(&mut Setup) + Send,
) -> Result<(), TaskFailure> {
    let now = iso(ctx.drivers.clock.wall());
    let mut setup = record(ctx).await?.unwrap_or_else(|| Setup::begun(&now));
    change(&mut setup);
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
            "hostname": "a", "postsetup_script": "true", "disk_spares": 1,
            "disk_cache": false, "unknown": 1,
            "nics": [{ "mac": "02:00:00:00:00:00", "nic_tags_provided": ["external"] }],
        });
        let steps = [
            "preflight",
            "layout",
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
            json!({ "disk_spares": -1 }),
            json!({ "disk_width": "x" }),
            json!({ "disk_exclude": 7 }),
            json!({ "wipe_disks": [7] }),
            json!({ "dry_run": 1 }),
        ] {
            assert_eq!(plan(&bad).unwrap_err(), "InvalidParameters", "{bad}");
        }
        assert_eq!(plan(&json!({ "encryption_enabled": true })).unwrap_err(), "NotSupported");
        assert_eq!(plan(&json!({ "dry_run": true })).unwrap(), ["show"]);
    }
}
