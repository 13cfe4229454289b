//! What a VM's record says about its process, and about what becomes of it when that ends.

use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a VM's policy is among its `internal_metadata`.
pub const POLICY_KEY: &str = "muster:restart_policy";
/// What becomes of a VM whose process ended without anybody asking for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// It stays as it is.
    #[default]
    Never,
    /// It is started again if it did not end by itself in order; so many times in a row at most.
    OnFailure(Option<NonZeroU32>),
    /// It is started again.
    Always,
}

/// What a policy must be, for people.
pub const POLICY_FORM: &str =
    "must be never, on-failure, on-failure:N (N starts in a row at most) or always";

/// The text is no policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{POLICY_FORM}")]
pub struct BadPolicy;

impl FromStr for Policy {
    type Err = BadPolicy;

    fn from_str(text: &str) -> Result<Self, BadPolicy> {
        match (text, text.strip_prefix("on-failure:")) {
            ("never", _) => Ok(Self::Never),
            ("on-failure", _) => Ok(Self::OnFailure(None)),
            ("always", _) => Ok(Self::Always),
            (_, Some(most)) => {
                most.parse().map(|most| Self::OnFailure(Some(most))).or(Err(BadPolicy))
            }
            _ => Err(BadPolicy),
        }
    }
}

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
