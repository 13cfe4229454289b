//! `orphan_remove`: ends and removes what lies on the host under a VM's name without a record.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::stopping::{self, Stop};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::node::orphans;

const OPERATION: &str = "remove";

/// The kind; parameters `uuid`, and `confirm` with the same uuid: nothing brings it back.
#[derive(Debug)]
pub struct OrphanRemove;

impl Handler for OrphanRemove {
    fn kind(&self) -> Kind {
        Kind::mutate("orphan_remove", machine::MACHINE_TASKS, Duration::from_secs(600))
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("confirm".to_owned(), params["uuid"].clone());
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let confirmed = params.get("confirm").and_then(Value::as_str);
        if confirmed.and_then(|uuid| uuid.parse().ok()) != Some(vm) {
            let problem = format!("must be {vm}: what is removed can't be had back");
            return Err(TaskFailure::bad_param("confirm", problem));
        }
        Ok(Plan::of(vec![Lock::Vm(vm)], Remove { vm }, STEPS))
    }
}

const STEPS: &[Row<Remove>] = steps![
    ("check", 10, check),
    ("stop", 40, stop),
    ("storage", 80, storage),
    ("cleanup", 90, cleanup),
    ("copy", 100, copy),
];

#[derive(Debug)]
struct Remove {
    vm: VmUuid,
}

impl Remove {
    /// Asked before each step: what has a record is no orphan.
    fn still_lost(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if ctx.drivers.vms.knows(self.vm) {
            let text = format!("{OPERATION} error: VM {} has a record: destroy it", self.vm);
            return Err(refuse(Code::VmExists, text));
        }
        Ok(())
    }

    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.still_lost(ctx)?;
        orphans::get(&ctx.drivers, self.vm).await.map(drop).map_err(failed(OPERATION))
    }

    async fn stop(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.still_lost(ctx)?;
        let stop = Stop { force: true, until: Timestamp::MIN, at_most: Duration::ZERO };
        stopping::stop(ctx, OPERATION, self.vm, stop).await
    }

    async fn storage(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.still_lost(ctx)?;
        let storage = &ctx.drivers.storage;
        storage.destroy_disks(self.vm, None).await.map_err(failed(OPERATION))?;
        // What has ended is not mounted for anybody.
        storage.destroy_root(self.vm, None).await.map_err(failed(OPERATION))
    }

    async fn cleanup(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.still_lost(ctx)?;
        machine::clean_up(ctx, OPERATION, self.vm, true).await
    }

    /// Last: until then it tells whose the rest was.
    async fn copy(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        self.still_lost(ctx)?;
        let drivers = &ctx.drivers;
        drivers.storage.remove_copy(self.vm).await.map_err(failed(OPERATION))?;
        drivers.vms.observe_all(drivers.compute.as_ref()).await;
        ctx.finish_with(json!({ "uuid": self.vm }));
        Ok(())
    }
}
