//! The QEMU guest agent: a program in a guest that answers questions about it and does what it is
//! asked to inside. Guests need not have it, and are not believed.

mod exec;
mod facts;
mod files;
mod freeze;
mod look;
mod talk;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::entropy::SharedEntropy;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use parking_lot::Mutex;
use serde_json::{Value, json};

pub use self::exec::{Exec, MAX_OUTPUT_BYTES, run};
pub use self::files::{MAX_CHUNK_BYTES, read, write};
pub use self::freeze::{freeze, thaw};
pub use self::look::Looks;
pub use self::talk::{Talk, TalkError};
use crate::drivers::DriverError;
use crate::drivers::compute::{AgentChannel, Compute, GuestPort};

/// Time for what a guest agent answers at once.
const ANSWER: Duration = Duration::from_secs(10);
/// Longest wait for another conversation with the same guest agent.
const TURN: Duration = Duration::from_secs(30);

/// The guest agents of a node's VMs. Each hears one at a time.
#[derive(Debug)]
pub struct GuestAgents {
    compute: Arc<dyn Compute>,
    entropy: SharedEntropy,
    turns: Mutex<BTreeMap<VmUuid, Arc<tokio::sync::Mutex<()>>>>,
}

impl GuestAgents {
    /// Of the guests of this driver.
    #[must_use]
    pub fn new(compute: Arc<dyn Compute>, entropy: SharedEntropy) -> Self {
        Self { compute, entropy, turns: Mutex::default() }
    }

    fn turn_of(&self, vm: VmUuid) -> Arc<tokio::sync::Mutex<()>> {
        let mut turns = self.turns.lock();
        // Of those that nobody holds or waits for nothing need be known.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        Arc::clone(turns.entry(vm).or_default())
    }

    /// Begins to talk to a VM's guest agent.
    ///
    /// # Errors
    /// `VmNotRunning`; `GuestAgentMissing` that says what to do about it.
    pub async fn talk(&self, vm: VmUuid) -> Result<Talk, DriverError> {
        let missing = |text: String| Err(DriverError::refused(Code::GuestAgentMissing, text));
        match self.compute.agent_channel(vm).await? {
            AgentChannel::Open => {}
            AgentChannel::Closed => {
                return missing(format!(
                    "no guest agent runs in VM {vm}: install the package qemu-guest-agent in the \
                     guest and start its service"
                ));
            }
            AgentChannel::Absent => {
                return missing(format!(
                    "VM {vm} was started without a channel to a guest agent, by an earlier version: \
                     restart it"
                ));
            }
        }
        let turn = tokio::time::timeout(TURN, self.turn_of(vm).lock_owned()).await;
        let Ok(turn) = turn else {
            return missing(format!("the guest agent of VM {vm} is busy with something else"));
        };
        let io = self.compute.open(vm, GuestPort::GuestAgent).await?;
        Talk::begin(io, turn, self.entropy.u64()).await.map_err(failed(vm))
    }

    /// Whether the guest agent answers now.
    ///
    /// # Errors
    /// As [`Self::talk`].
    pub async fn ping(&self, vm: VmUuid) -> Result<(), DriverError> {
        self.talk(vm).await.map(drop)
    }
}

/// Sets the password of a user of the guest.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`.
pub async fn set_password(
    agents: &GuestAgents,
    vm: VmUuid,
    user: &str,
    password: &str,
) -> Result<(), DriverError> {
    use base64::Engine as _;
    let password = base64::prelude::BASE64_STANDARD.encode(password);
    let wanted = json!({ "username": user, "password": password, "crypted": false });
    let mut talk = agents.talk(vm).await?;
    done(vm, talk.ask("guest-set-user-password", &wanted, ANSWER).await)
}

/// Adds keys with which a user of the guest may log in; with `replace` no others stay.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`.
pub async fn add_keys(
    agents: &GuestAgents,
    vm: VmUuid,
    user: &str,
    keys: &[String],
    replace: bool,
) -> Result<(), DriverError> {
    let wanted = json!({ "username": user, "keys": keys, "reset": replace });
    let mut talk = agents.talk(vm).await?;
    done(vm, talk.ask("guest-ssh-add-authorized-keys", &wanted, ANSWER).await)
}

/// An answer that says nothing but that it is done.
fn done(vm: VmUuid, answer: Result<Value, TalkError>) -> Result<(), DriverError> {
    answer.map(drop).map_err(failed(vm))
}

/// What a guest agent did not do, as a failure of its VM.
fn failed(vm: VmUuid) -> impl Fn(TalkError) -> DriverError {
    move |error| {
        let code = match &error {
            TalkError::Refused { .. } => Code::GuestRefused,
            _ => Code::GuestAgentMissing,
        };
        let hint = match &error {
            TalkError::Refused { unknown: true, .. } => {
                ": it is too old, or this is switched off in its settings in the guest"
            }
            TalkError::Silent { .. } => ": the guest is busy or hangs, or the agent in it does",
            _ => "",
        };
        DriverError::refused_because(code, format!("VM {vm}: {error}{hint}"), error)
    }
}

/// A text of a guest's, without what terminals act on, of at most so many characters.
fn plain(text: &str, most: usize) -> String {
    text.chars().filter(|c| !c.is_control()).take(most).collect()
}
