//! Looking after the guests whose guest agent listens: what they say of themselves is noted, and no
//! file system stands still that nobody wants to.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use muster_shared::error_chain::Chain;
use muster_shared::ids::VmUuid;
use muster_shared::wire::status::GuestInfo;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{ANSWER, GuestAgents, Talk, TalkError, facts, failed, freeze};
use crate::drivers::DriverError;
use crate::drivers::compute::AgentChannel;
use crate::vms::VmTable;

/// How often.
const PERIOD: Duration = Duration::from_secs(15);
/// Guests that are asked at the same time.
const AT_ONCE: usize = 4;

/// Looks at the guests of a table.
pub struct Looks {
    /// Whom to ask.
    pub agents: Arc<GuestAgents>,
    /// Where it is noted.
    pub vms: Arc<VmTable>,
    /// Whether a task is at work on a VM.
    pub is_busy: Box<dyn Fn(VmUuid) -> bool + Send + Sync>,
}

impl std::fmt::Debug for Looks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Looks").finish_non_exhaustive()
    }
}

impl Looks {
    /// Looks at every guest that runs, now and again, until cancelled.
    pub async fn run(self, stop: CancellationToken) {
        let mut looks = tokio::time::interval(PERIOD);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while stop.run_until_cancelled(looks.tick()).await.is_some() {
            stop.run_until_cancelled(self.look_at_all()).await;
        }
    }

    /// Looks at every guest that runs.
    pub async fn look_at_all(&self) {
        let running = self.vms.which(|entry| entry.observed.is_running());
        stream::iter(running).for_each_concurrent(AT_ONCE, |vm| self.look_at(vm)).await;
    }

    async fn look_at(&self, vm: VmUuid) {
        let info = self.look(vm).await.unwrap_or_else(|error| {
            let error = Chain(&error);
            tracing::debug!(vm_uuid = %vm, %error, "a guest agent does not tell");
            None
        });
        self.vms.note_guest(vm, info);
    }

    async fn look(&self, vm: VmUuid) -> Result<Option<GuestInfo>, DriverError> {
        if self.agents.compute.agent_channel(vm).await? != AgentChannel::Open {
            return Ok(None);
        }
        let mut talk = self.agents.talk(vm).await?;
        // Only then whether a task is at work, so that one which has begun meanwhile is not disturbed.
        if freeze::is_frozen(&mut talk).await.map_err(failed(vm))? {
            if (self.is_busy)(vm) {
                return Ok(self.vms.guest(vm));
            }
            let_go(&mut talk, vm).await.map_err(failed(vm))?;
        }
        facts::gather(&mut talk).await.map(Some).map_err(failed(vm))
    }
}

async fn let_go(talk: &mut Talk, vm: VmUuid) -> Result<(), TalkError> {
    tracing::warn!(vm_uuid = %vm, "the guest's file systems stand still for no task: they go on");
    talk.ask::<Value>("guest-fsfreeze-thaw", &json!({}), ANSWER).await.map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::tasks::machine_tests::{Host, one_vm, uuid};

    #[tokio::test(start_paused = true)]
    async fn what_stands_still_for_no_task_goes_on_and_what_a_guest_says_is_noted() {
        let host = Host::new();
        let drivers = one_vm(&host).await;
        let busy = Arc::new(AtomicBool::new(true));
        let is_busy = Arc::clone(&busy);
        let looks = Looks {
            agents: Arc::clone(&drivers.guest_agents),
            vms: Arc::clone(&drivers.vms),
            is_busy: Box::new(move |_| is_busy.load(Ordering::Relaxed)),
        };
        looks.look_at_all().await;
        assert_eq!(drivers.vms.guest(uuid()), None);
        host.guests.install_agent(uuid());
        host.guests.freeze(uuid());
        looks.look_at_all().await;
        assert!(host.guests.is_frozen(uuid()), "a task is at work");
        busy.store(false, Ordering::Relaxed);
        looks.look_at_all().await;
        assert!(!host.guests.is_frozen(uuid()));
        let told = drivers.vms.guest(uuid()).unwrap();
        assert_eq!(told.hostname.as_deref(), Some("simulated"));
        assert_eq!(drivers.vms.object(uuid(), true).unwrap()["guest"]["hostname"], "simulated");
        host.guests.exit(uuid(), 0);
        drivers.vms.observe_all(drivers.compute.as_ref()).await;
        assert_eq!(drivers.vms.guest(uuid()), None);
    }
}
