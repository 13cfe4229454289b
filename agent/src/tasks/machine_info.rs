//! `machine_info`: what the hypervisor says about a running VM.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::Value;

use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::compute;

/// The kind; parameters `uuid`, `types`.
#[derive(Debug)]
pub struct MachineInfo;

impl Handler for MachineInfo {
    fn kind(&self) -> Kind {
        Kind::query("machine_info", machine::MACHINE_QUERY, Duration::from_secs(30))
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let step = Info { vm: machine::vm(params)?, types: types(params)? };
        Ok(Plan::of(Vec::new(), step, STEPS))
    }
}

/// A list, or words separated by commas; all types when there is none.
fn types(params: &Params) -> Result<Vec<String>, TaskFailure> {
    let words: Option<Vec<String>> = match params.get("types") {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::String(text)) => {
            Some(text.split(',').filter(|word| !word.is_empty()).map(str::to_owned).collect())
        }
        Some(Value::Array(words)) => {
            words.iter().map(|word| word.as_str().map(str::to_owned)).collect()
        }
        Some(_) => None,
    };
    let mut words = words.ok_or_else(|| TaskFailure::bad_param("types", "must be a list"))?;
    compute::check_info_types(&words)?;
    if words.is_empty() {
        words.push("all".to_owned());
    }
    Ok(words)
}

const STEPS: &[Row<Info>] = steps![("info", 100, info)];

#[derive(Debug)]
struct Info {
    vm: VmUuid,
    types: Vec<String>,
}

impl Info {
    async fn info(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::record(ctx, "vmadm.info", self.vm)?;
        if !machine::runs(ctx, self.vm).await? {
            let state = machine::state(ctx, self.vm);
            let text = format!(
                "vmadm.info error: Unable to get info for vm from state \"{state}\", must be \
                 \"running\" or \"stopping\"."
            );
            return Err(refuse(Code::VmNotRunning, text));
        }
        let info = ctx.drivers.compute.info(self.vm, &self.types).await;
        ctx.finish_with(info.map_err(failed("vmadm.info"))?);
        Ok(())
    }
}
