//! The default: no host action at all, and no scripts whatever else is allowed.

use std::sync::Arc;

use async_trait::async_trait;
use muster_shared::wire::Code;
use serde_json::Value;

use super::{Host, HostAction};
use crate::disk_layout::inventory::Found;
use crate::drivers::DriverError;

/// Refuses every action.
#[derive(Debug)]
pub struct RefuseHost;

#[async_trait]
impl Host for RefuseHost {
    async fn act(&self, action: &HostAction) -> Result<Value, DriverError> {
        Err(super::disabled(
            action,
            "host.actions is \"refuse\"; the packaged unit of the agent sets it to \"real\"",
        ))
    }

    async fn ready(&self, action: &HostAction) -> Result<(), DriverError> {
        self.act(action).await.map(drop)
    }

    async fn disks(&self) -> Result<Vec<Found>, DriverError> {
        let text = "refused to look for disks of a pool: host.actions is \"refuse\", so none could be made";
        Err(DriverError::refused(Code::HostActionsDisabled, text))
    }
}

/// Refuses scripts; passes on everything else.
#[derive(Debug)]
pub struct NoScripts(pub Arc<dyn Host>);

#[async_trait]
impl Host for NoScripts {
    async fn act(&self, action: &HostAction) -> Result<Value, DriverError> {
        if matches!(action, HostAction::Execute { .. }) {
            let text = "command execution is off: `security.allow_command_execute` is not set";
            return Err(DriverError::refused(Code::NotAuthorized, text));
        }
        self.0.act(action).await
    }

    async fn ready(&self, action: &HostAction) -> Result<(), DriverError> {
        if matches!(action, HostAction::Execute { .. }) {
            return self.act(action).await.map(drop);
        }
        self.0.ready(action).await
    }

    async fn disks(&self) -> Result<Vec<Found>, DriverError> {
        self.0.disks().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::host::sim::{HostLog, SimHost};

    #[tokio::test]
    async fn scripts_have_a_switch_of_their_own() {
        let log = HostLog::default();
        let inner = SimHost::new(log.clone(), crate::drivers::faults::Faults::none());
        let host = NoScripts(Arc::new(inner));
        let script = HostAction::Execute {
            script: String::new(),
            args: Vec::new(),
            env: Vec::new(),
            timeout_ms: 0,
        };
        let refused = host.act(&script).await;
        assert!(matches!(refused, Err(DriverError::Refused { code: Code::NotAuthorized, .. })));
        host.act(&HostAction::Reboot).await.unwrap();
        assert_eq!(log.actions(), [HostAction::Reboot]);
    }
}
