//! `orphan_adopt`: makes a VM of what lies on the host without a record, from the copy of one.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;

use super::container;
use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::node::{orphans, startup};
use crate::vms::VmRecord;
use crate::vms::restart::{Power, Restarts};

const OPERATION: &str = "adopt";

/// The kind; parameter `uuid`.
#[derive(Debug)]
pub struct OrphanAdopt;

impl Handler for OrphanAdopt {
    fn kind(&self) -> Kind {
        Kind::mutate("orphan_adopt", machine::MACHINE_TASKS, Duration::from_secs(60))
    }

    fn example(&self) -> Params {
        machine::example()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        Ok(Plan::of(vec![Lock::Vm(vm)], Adopt { vm }, STEPS))
    }
}

const STEPS: &[Row<Adopt>] = steps![("adopt", 100, adopt)];

#[derive(Debug)]
struct Adopt {
    vm: VmUuid,
}

impl Adopt {
    async fn adopt(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let vms = &ctx.drivers.vms;
        // A repeat after a crash finds what it has done.
        if vms.get(self.vm).is_none() {
            let orphan = orphans::get(&ctx.drivers, self.vm).await.map_err(failed(OPERATION))?;
            let Some(record) = orphan.record() else {
                let text = format!(
                    "{OPERATION} error: VM {} can't be adopted: {}",
                    self.vm,
                    orphan.reason()
                );
                return Err(refuse(Code::VmNotUsable, text));
            };
            if record.destroying {
                let text = format!(
                    "{OPERATION} error: VM {} was being destroyed: remove what is left of it",
                    self.vm
                );
                return Err(refuse(Code::VmNotUsable, text));
            }
            let record = idle(record.clone(), orphan.guest.is_some(), vms.boot_id());
            // Of another server, where they were nobody else's.
            let taken = record.user_ids.is_some_and(|ids| vms.gave_ids(ids));
            let spare = ctx.drivers.compute.abilities().user_ids;
            let spare = spare.filter(|_| taken && orphan.guest.is_none());
            let user_ids = record.user_ids.filter(|_| spare.is_none());
            let record = VmRecord { user_ids, ..record };
            vms.adopt(record).await.map_err(failed(OPERATION))?;
            container::give_ids(ctx, self.vm, spare, |_| {}).await?;
        }
        startup::note_volumes(&ctx.drivers, self.vm).await;
        machine::runs(ctx, self.vm).await?;
        ctx.finish_with(vms.result(self.vm));
        Ok(())
    }
}

/// The tasks that worked on it are lost; what they made stays, for a destroy to find. Whoever adopts
/// it also decides when it starts.
fn idle(record: VmRecord, runs: bool, boot_id: &str) -> VmRecord {
    VmRecord {
        power: if runs { record.power } else { Power::Unknown },
        restarts: Restarts::default(),
        start_when_rolled_back: false,
        failed: record.failed || record.provisioning,
        provisioning: false,
        stopping_until: None,
        boot_id: Some(boot_id.to_owned()),
        ..record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vms::sim::record;

    /// It may be one of another server, which starts it as well.
    #[test]
    fn an_adopted_vm_that_is_off_stays_off() {
        let copied = VmRecord {
            power: Power::On,
            start_when_rolled_back: true,
            boot_id: Some("elsewhere".to_owned()),
            ..record(1)
        };
        let adopted = idle(copied.clone(), false, "boot-1");
        assert_eq!((adopted.power, adopted.start_when_rolled_back), (Power::Unknown, false));
        assert_eq!(adopted.boot_id.as_deref(), Some("boot-1"));
        assert_eq!(idle(copied, true, "boot-1").power, Power::On);
    }
}
