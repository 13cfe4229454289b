//! The default: no host action at all.

use async_trait::async_trait;
use serde_json::Value;

use super::{Host, HostAction};
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
}
