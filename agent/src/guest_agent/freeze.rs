//! Making a guest's file systems stand still, and letting them go on.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use serde_json::{Value, json};

use super::{ANSWER, GuestAgents, Talk, TalkError, failed};
use crate::drivers::DriverError;

/// Longest time that a guest has to write out what is pending, and to stand still.
const FREEZE: Duration = Duration::from_secs(10);
/// Longest time that it has to go on.
const THAW: Duration = Duration::from_secs(30);

/// Makes the file systems of a guest stand still, unless they do already.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`. They may stand still all the same: [`thaw`] them.
pub async fn freeze(agents: &GuestAgents, vm: VmUuid) -> Result<(), DriverError> {
    let mut talk = agents.talk(vm).await?;
    let work = async {
        if is_frozen(&mut talk).await? {
            return Ok(());
        }
        talk.ask::<Value>("guest-fsfreeze-freeze", &json!({}), FREEZE).await.map(drop)
    };
    work.await.map_err(failed(vm))
}

/// Lets them go on. Returns whether they stood still.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`.
pub async fn thaw(agents: &GuestAgents, vm: VmUuid) -> Result<bool, DriverError> {
    let mut talk = agents.talk(vm).await?;
    let work = async {
        if !is_frozen(&mut talk).await? {
            return Ok(false);
        }
        talk.ask::<Value>("guest-fsfreeze-thaw", &json!({}), THAW).await.map(|_| true)
    };
    work.await.map_err(failed(vm))
}

/// Whether they stand still. A guest agent that knows no such thing has frozen nothing.
pub(super) async fn is_frozen(talk: &mut Talk) -> Result<bool, TalkError> {
    match talk.ask::<String>("guest-fsfreeze-status", &json!({}), ANSWER).await {
        Ok(status) => Ok(status == "frozen"),
        Err(TalkError::Refused { unknown: true, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
