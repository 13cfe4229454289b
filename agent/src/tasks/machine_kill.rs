//! `machine_kill`: sends a VM a signal, in the meaning that signals have for hardware VMs.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::compute::GuestSignal;
use crate::vms::reconcile::BY_ITSELF;

const OPERATION: &str = "vmadm.kill";
/// Longest wait for a guest that was killed to be gone.
const DEATH: Duration = Duration::from_secs(2);

/// The kind; parameters `uuid`, `signal`, `idempotent`; `by_itself` of the agent's own, which resets
/// guests that have panicked.
#[derive(Debug)]
pub struct MachineKill;

impl Handler for MachineKill {
    fn kind(&self) -> Kind {
        Kind::mutate("machine_kill", machine::MACHINE_TASKS, Duration::from_secs(60))
    }

    fn preempts(&self, params: &Params) -> bool {
        matches!(signal(params), Ok(GuestSignal::Kill | GuestSignal::Quit))
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("signal".to_owned(), json!("SIGKILL"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let idempotent = machine::flag(params, "idempotent")?;
        let signal = signal(params)?;
        let by_itself = machine::flag(params, BY_ITSELF)?;
        Ok(Plan::of(vec![Lock::Vm(vm)], KillVm { vm, idempotent, signal, by_itself }, STEPS))
    }
}

/// A name with or without `SIG` in any case, or a number; `SIGTERM` when absent.
fn signal(params: &Params) -> Result<GuestSignal, TaskFailure> {
    let word = match params.get("signal") {
        None | Some(Value::Null) => "TERM".to_owned(),
        Some(Value::String(text)) => text.to_ascii_uppercase(),
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err(TaskFailure::bad_param("signal", "must be a name or a number")),
    };
    match word.strip_prefix("SIG").unwrap_or(&word) {
        "TERM" | "15" => Ok(GuestSignal::PowerDown),
        "KILL" | "9" => Ok(GuestSignal::Kill),
        "INT" | "2" => Ok(GuestSignal::Quit),
        "HUP" | "1" => Ok(GuestSignal::Reset),
        "STOP" | "19" => Ok(GuestSignal::Pause),
        "CONT" | "18" => Ok(GuestSignal::Resume),
        "USR1" | "10" => Ok(GuestSignal::Nmi),
        _ => {
            let text = format!(
                "signal: {word} means nothing to a hardware VM; TERM, KILL, INT, HUP, STOP, CONT \
                 and USR1 do"
            );
            Err(refuse(Code::InvalidSignal, text))
        }
    }
}

// The check is a step of its own: when the sending is repeated after a crash, the VM may be gone
// because of this very task.
const STEPS: &[Row<KillVm>] = steps![("check", 10, check), ("send", 100, send)];

#[derive(Debug)]
struct KillVm {
    vm: VmUuid,
    idempotent: bool,
    signal: GuestSignal,
    /// Nobody asked for it.
    by_itself: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Notes {
    /// Somebody else has helped the guest.
    is_needless: bool,
}

impl KillVm {
    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::usable(OPERATION, &machine::record(ctx, OPERATION, self.vm)?)?;
        // Whom it hurried may have done its work.
        let excused = self.idempotent || ctx.hurries;
        let runs = machine::runs(ctx, self.vm).await?;
        let is_needless = self.by_itself && !machine::has_panicked(ctx, self.vm);
        ctx.note(&Notes { is_needless })?;
        if !runs && !excused {
            let text =
                format!("{OPERATION} error: Cannot find running init PID for VM {}", self.vm);
            return Err(refuse(Code::NotRunning, text));
        }
        Ok(())
    }

    async fn send(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let ends = [GuestSignal::PowerDown, GuestSignal::Quit, GuestSignal::Kill];
        if ends.contains(&self.signal) {
            machine::keep_off(ctx, self.vm).await?;
        }
        if !ctx.notes::<Notes>()?.is_needless {
            machine::signal(ctx, self.vm, self.signal).await.map_err(failed(OPERATION))?;
            // Clients keep the VM that they are told of here: it has to be the dead one.
            if matches!(self.signal, GuestSignal::Kill | GuestSignal::Quit) {
                let compute = &ctx.drivers.compute;
                compute.wait_stopped(self.vm, DEATH).await.map_err(failed(OPERATION))?;
            }
        }
        machine::runs(ctx, self.vm).await?;
        ctx.finish_with(ctx.drivers.vms.result(self.vm));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_names_or_numbers() {
        let mut params = machine::example();
        let expected = [
            (json!("SIGTERM"), GuestSignal::PowerDown),
            (json!("kill"), GuestSignal::Kill),
            (json!(1), GuestSignal::Reset),
            (json!("19"), GuestSignal::Pause),
        ];
        for (word, signal) in expected {
            params.insert("signal".to_owned(), word);
            assert_eq!(super::signal(&params).unwrap(), signal);
        }
        params.insert("signal".to_owned(), json!("SIGFOO"));
        assert_eq!(super::signal(&params).unwrap_err().code, "InvalidSignal");
    }
}
