//! `machine_screenshot`: what a VM's display shows.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};

const OPERATION: &str = "vmadm.sysrq";

/// The kind; parameters `uuid`, `format`.
#[derive(Debug)]
pub struct MachineScreenshot;

impl Handler for MachineScreenshot {
    fn kind(&self) -> Kind {
        Kind::query("machine_screenshot", machine::MACHINE_TASKS, Duration::from_secs(60))
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        match params.get("format") {
            None | Some(Value::Null) => {}
            Some(Value::String(format)) if format == "png" => {}
            Some(_) => {
                // A raw picture is larger than a result may be.
                return Err(TaskFailure::bad_param("format", "must be \"png\""));
            }
        }
        Ok(Plan::of(Vec::new(), Take { vm }, STEPS))
    }
}

const STEPS: &[Row<Take>] = steps![("take", 100, take)];

#[derive(Debug)]
struct Take {
    vm: VmUuid,
}

impl Take {
    async fn take(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::record(ctx, OPERATION, self.vm)?;
        if !machine::runs(ctx, self.vm).await? {
            let state = machine::state(ctx, self.vm);
            let text = format!("{OPERATION} error: VM {} is {state:?}, not running", self.vm);
            return Err(refuse(Code::VmNotRunning, text));
        }
        let picture = ctx.drivers.compute.screenshot(self.vm).await.map_err(failed(OPERATION))?;
        let (width, height) = (picture.width, picture.height);
        let bytes = picture.png.len();
        // Without the picture, which is the result: an event goes to everybody who listens.
        let event = json!({ "format": "png", "width": width, "height": height, "bytes": bytes });
        ctx.events.event("screenshot", event);
        let data = BASE64_STANDARD.encode(picture.png);
        let result = json!({ "format": "png", "width": width, "height": height, "data": data });
        ctx.finish_with(result);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine_tests::{Host, run};
    use super::*;
    use crate::drivers::compute::Resources;

    #[tokio::test(start_paused = true)]
    async fn a_driver_without_displays_says_so() {
        let host = Host::new();
        let drivers = host.agent("boot").await;
        let mut params = machine::example();
        let vm = machine::vm(&params).unwrap();
        let take = |params: &Params| host.context(&drivers, params);
        let missing = run(&take(&params), "machine_screenshot", false).await.unwrap_err();
        assert_eq!(missing.code, "VmNotFound");

        let record = crate::vms::VmRecord { uuid: vm, ..crate::vms::sim::record(1) };
        drivers.vms.create(record.clone()).await.unwrap();
        let stopped = run(&take(&params), "machine_screenshot", false).await.unwrap_err();
        assert_eq!(stopped.code, "VmNotRunning");
        drivers.compute.start(&record, &Resources::default()).await.unwrap();
        let blind = run(&take(&params), "machine_screenshot", false).await.unwrap_err();
        assert_eq!(blind.code, "NotSupported");

        params.insert("format".to_owned(), json!("ppm"));
        let raw = run(&take(&params), "machine_screenshot", false).await.unwrap_err();
        assert_eq!(raw.code, "InvalidParameters");
    }
}
