//! Waiting for a new VM's guest to say that it is set up: `muster:wait_guest` in the VM's
//! `internal_metadata`.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Map, Value};

use super::limits::cancelled;
use super::machine::{self, refuse};
use super::{TaskContext, TaskFailure};
use crate::vms::VmRecord;

/// Asks for the wait.
const ASKS: &str = "muster:wait_guest";
/// The metadata key by which a guest says how far it is.
const STATE: &str = "provision_state";
/// It is set up.
const DONE: &str = "done";
/// It could not set itself up.
const FAILED: &str = "failed";
/// Longest wait.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);
/// Between questions to the guest agent.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Whether a VM with these properties is made only once its guest says so.
///
/// # Errors
/// The wish is no switch; or the guest's answer is there before the guest.
pub(super) fn is_wanted(properties: &Map<String, Value>) -> Result<bool, TaskFailure> {
    let member = |object: &str, name: &str| properties.get(object)?.get(name);
    let Some(wish) = member("internal_metadata", ASKS) else { return Ok(false) };
    let wanted = lenient::flag(wish).ok_or_else(|| {
        TaskFailure::bad_param(&format!("internal_metadata.{ASKS}"), "must be true or false")
    })?;
    if wanted && member("customer_metadata", STATE).is_some() {
        let problem = format!("is the guest's to say, and {ASKS} waits for it");
        return Err(TaskFailure::bad_param(&format!("customer_metadata.{STATE}"), problem));
    }
    Ok(wanted)
}

/// Returns once the guest says that it is set up: its guest agent answers, or its metadata says so.
///
/// # Errors
/// The guest says that it failed, ends, or says nothing until then.
pub(super) async fn wait(
    ctx: &TaskContext,
    operation: &'static str,
    vm: VmUuid,
    until: Timestamp,
) -> Result<(), TaskFailure> {
    let mut changes = ctx.drivers.vms.subscribe();
    loop {
        changes.mark_unchanged();
        let record = machine::record(ctx, operation, vm)?;
        if said(operation, &record)? {
            return Ok(());
        }
        if !machine::runs(ctx, vm).await? {
            let text = format!("{operation} error: VM {vm} ended before its guest was set up");
            return Err(refuse(Code::VmNotRunning, text));
        }
        let why = match ctx.drivers.guest_agents.ping(vm).await {
            Ok(()) => return Ok(()),
            Err(error) => error.to_string(),
        };
        if ctx.drivers.clock.wall() >= until {
            let text = format!(
                "{operation} error: the guest of VM {vm} did not say within {} s that it is set up: \
                 neither by its metadata ({STATE}={DONE}) nor by a guest agent ({why})",
                PATIENCE.as_secs()
            );
            return Err(refuse(Code::Timeout, text));
        }
        tokio::select! {
            () = ctx.cancelled.cancelled() => return Err(cancelled()),
            () = tokio::time::sleep(ASK_AGAIN) => {}
            // The record of this or another VM.
            Ok(()) = changes.changed() => {}
        }
    }
}

/// Whether the guest's metadata says that it is set up.
fn said(operation: &'static str, record: &VmRecord) -> Result<bool, TaskFailure> {
    match record.customer_metadata(STATE).and_then(Value::as_str) {
        Some(DONE) => Ok(true),
        Some(FAILED) => {
            let vm = record.uuid;
            let text = format!(
                "{operation} error: the guest of VM {vm} says that it could not set itself up \
                 ({STATE}={FAILED})"
            );
            Err(refuse(Code::GuestRefused, text))
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::machine_tests::{Host, create_params, run, uuid};
    use super::*;
    use crate::node::Drivers;

    fn waits() -> super::super::Params {
        create_params(json!({ "internal_metadata": { ASKS: "true" } }))
    }

    /// Creates a VM whose guest does something once it runs; the code of the failure.
    async fn create(
        host: &Host,
        drivers: &Arc<Drivers>,
        inside: impl AsyncFnOnce(),
    ) -> Option<String> {
        let context = host.context(drivers, &waits());
        let creating = run(&context, "machine_create", false);
        let guest = async {
            while !host.guests.running().contains_key(&uuid()) {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            inside().await;
        };
        let (created, ()) = tokio::join!(creating, guest);
        created.err().map(|failure| failure.code.to_string())
    }

    async fn says(drivers: &Drivers, word: &str) {
        let say = |vm: &mut VmRecord| {
            vm.properties.insert("customer_metadata".to_owned(), json!({ STATE: word }));
        };
        drivers.vms.update(uuid(), say).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_create_ends_when_the_guest_says_so() {
        let host = Host::new();
        let drivers = host.agent("boot-1").await;
        let begun = drivers.clock.monotonic();
        let late = Duration::from_secs(100);
        let done = create(&host, &drivers, async || {
            tokio::time::sleep(late).await;
            assert!(drivers.vms.get(uuid()).unwrap().provisioning);
            says(&drivers, DONE).await;
        });
        assert_eq!(done.await, None);
        let passed = drivers.clock.monotonic() - begun;
        assert!(passed >= late && passed < PATIENCE, "{passed:?}");
        assert!(!drivers.vms.get(uuid()).unwrap().provisioning);

        let host = Host::new();
        let drivers = host.agent("boot-1").await;
        let done = create(&host, &drivers, async || host.guests.install_agent(uuid()));
        assert_eq!(done.await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_fails_ends_or_says_nothing_ends_the_create() {
        let host = Host::new();
        let drivers = host.agent("boot-1").await;
        let failed = create(&host, &drivers, async || says(&drivers, FAILED).await).await;
        assert_eq!(failed.as_deref(), Some("GuestRefused"));

        let host = Host::new();
        let drivers = host.agent("boot-1").await;
        let ended = create(&host, &drivers, async || host.guests.exit(uuid(), 0)).await;
        assert_eq!(ended.as_deref(), Some("VmNotRunning"));

        let host = Host::new();
        let drivers = host.agent("boot-1").await;
        let begun = drivers.clock.monotonic();
        let silent = create(&host, &drivers, async || {}).await;
        assert_eq!(silent.as_deref(), Some("Timeout"));
        let passed = drivers.clock.monotonic() - begun;
        assert!(passed >= PATIENCE && passed < PATIENCE * 2, "{passed:?}");
    }

    #[test]
    fn the_wish_is_a_switch_and_the_answer_the_guests() {
        let wanted = |internal: Value, customer: Value| {
            let all = json!({ "internal_metadata": internal, "customer_metadata": customer });
            is_wanted(all.as_object().unwrap())
                .map_err(|failure| failure.details.unwrap()["field"].clone())
        };
        assert_eq!(wanted(json!({}), json!({ STATE: DONE })), Ok(false));
        assert_eq!(wanted(json!({ ASKS: "false" }), json!({})), Ok(false));
        assert_eq!(wanted(json!({ ASKS: true }), json!({})), Ok(true));
        wanted(json!({ ASKS: "soon" }), json!({})).unwrap_err();
        wanted(json!({ ASKS: "true" }), json!({ STATE: DONE })).unwrap_err();
    }
}
