//! What becomes of a VM that ends without being told to.

use std::num::NonZeroU32;
use std::str::FromStr;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_words() {
        assert_eq!("on-failure:3".parse(), Ok(Policy::OnFailure(NonZeroU32::new(3))));
        assert_eq!("always".parse(), Ok(Policy::Always));
        for text in ["", "on-failure:0", "on-failure:", "on-failure:x", "Always", "sometimes"] {
            assert_eq!(text.parse::<Policy>(), Err(BadPolicy), "{text:?}");
        }
    }
}
