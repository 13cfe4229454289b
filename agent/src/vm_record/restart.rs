//! What a VM's record says about its process, and about what becomes of it when that ends.

pub use muster_shared::vm::restart::{BadPolicy, POLICY_FORM, POLICY_KEY, Policy};
use serde::{Deserialize, Serialize};

/// What the last task that started or stopped a VM wanted of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Power {
    /// Nobody has started it yet, or an agent did that did not write it down.
    #[default]
    Unknown,
    /// It is to run.
    On,
    /// It is to stay off.
    Off,
}

/// How often the agent has started or reset a VM by itself since it last ran for long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarts {
    /// How often.
    pub count: u32,
}
