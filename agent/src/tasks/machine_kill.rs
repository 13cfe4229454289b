//! `machine_kill`: sends a VM a signal: a container's first process gets it, and to hardware VMs some
//! of them mean something.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use nix::libc;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::machine::{self, failed, refuse};
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::compute::GuestSignal;
use crate::host::signal_number;
use crate::vms::VmRecord;
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
        matches!(signal(params), Ok(libc::SIGKILL | libc::SIGINT))
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

/// The number of a signal that is told by name, with or without `SIG` in any case, or by number;
/// `SIGTERM` when absent.
fn signal(params: &Params) -> Result<i32, TaskFailure> {
    let word = match params.get("signal") {
        None | Some(Value::Null) => "TERM".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) => number.to_string(),
        Some(_) => return Err(TaskFailure::bad_param("signal", "must be a name or a number")),
    };
    signal_number(&word)
        .ok_or_else(|| refuse(Code::InvalidSignal, format!("signal: there is no signal {word}")))
}

/// What a signal means to a hardware VM.
fn meaning(number: i32) -> Option<GuestSignal> {
    match number {
        libc::SIGTERM => Some(GuestSignal::PowerDown),
        libc::SIGKILL => Some(GuestSignal::Kill),
        libc::SIGINT => Some(GuestSignal::Quit),
        libc::SIGHUP => Some(GuestSignal::Reset),
        libc::SIGSTOP => Some(GuestSignal::Pause),
        libc::SIGCONT => Some(GuestSignal::Resume),
        libc::SIGUSR1 => Some(GuestSignal::Nmi),
        _ => None,
    }
}

/// What is done to a container: only what its first process can't be sent is more than that.
fn to_container(number: i32) -> GuestSignal {
    match number {
        libc::SIGKILL => GuestSignal::Kill,
        libc::SIGSTOP => GuestSignal::Pause,
        libc::SIGCONT => GuestSignal::Resume,
        number => GuestSignal::Number(number),
    }
}

// The check is a step of its own: when the sending is repeated after a crash, the VM may be gone
// because of this very task.
const STEPS: &[Row<KillVm>] = steps![("check", 10, check), ("send", 100, send)];

#[derive(Debug)]
struct KillVm {
    vm: VmUuid,
    idempotent: bool,
    signal: i32,
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
    fn means(&self, record: &VmRecord) -> Result<GuestSignal, TaskFailure> {
        if record.is_container() {
            return Ok(to_container(self.signal));
        }
        meaning(self.signal).ok_or_else(|| {
            let text = format!(
                "signal: {} means nothing to a hardware VM; TERM, KILL, INT, HUP, STOP, CONT and \
                 USR1 do",
                self.signal
            );
            refuse(Code::InvalidSignal, text)
        })
    }

    async fn check(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let record = machine::record(ctx, OPERATION, self.vm)?;
        machine::usable(OPERATION, &record)?;
        self.means(&record)?;
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
        let signal = self.means(&machine::record(ctx, OPERATION, self.vm)?)?;
        let ends = [GuestSignal::PowerDown, GuestSignal::Quit, GuestSignal::Kill];
        if ends.contains(&signal) || signal == GuestSignal::Number(libc::SIGTERM) {
            machine::keep_off(ctx, self.vm).await?;
        }
        if !ctx.notes::<Notes>()?.is_needless {
            machine::signal(ctx, self.vm, signal).await.map_err(failed(OPERATION))?;
            // Clients keep the VM that they are told of here: it has to be the dead one.
            if matches!(signal, GuestSignal::Kill | GuestSignal::Quit) {
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
            (json!("SIGTERM"), Some(GuestSignal::PowerDown)),
            (json!("kill"), Some(GuestSignal::Kill)),
            (json!(1), Some(GuestSignal::Reset)),
            (json!("19"), Some(GuestSignal::Pause)),
            (json!("SIGWINCH"), None),
        ];
        for (word, expected) in expected {
            params.insert("signal".to_owned(), word);
            let number = signal(&params).unwrap();
            assert_eq!(meaning(number), expected);
        }
        params.insert("signal".to_owned(), json!("SIGFOO"));
        assert_eq!(signal(&params).unwrap_err().code, "InvalidSignal");
        assert_eq!(to_container(9), GuestSignal::Kill);
        assert_eq!(to_container(15), GuestSignal::Number(15));
    }
}
