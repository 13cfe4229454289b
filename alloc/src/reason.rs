//! What an algorithm did and why: recorded as numbers, rendered on demand.

use std::borrow::Cow;

use uuid::Uuid;

use crate::scored::Scored;

/// Why one server was removed or scored.
#[derive(Clone, Debug)]
pub(crate) enum Reason {
    /// A fixed text.
    Text(&'static str),
    /// The step's n-th shared text.
    Shared(u32),
    /// A text of its own; for rare cases.
    Owned(Box<str>),
    /// Its status.
    Status,
    /// The first fault of its record.
    Fault,
    /// Its traits, where none were asked for.
    Traits,
    /// The number of its VMs.
    VmCount(u32),
    /// A VM that decided: capped or not.
    Capness(Uuid, bool),
    /// What is left, in a text around it.
    Spare(f64),
    /// A count, as a number.
    Count(u32),
}

/// The `reasons` of a step.
#[derive(Clone, Debug, Default)]
pub(crate) enum Reasons {
    #[default]
    None,
    /// The algorithm did not apply.
    Skip(Cow<'static, str>),
    /// The VMs of every remaining server.
    Loaded,
    /// Changes of the scores.
    Scored(Scored),
    /// Server by server, and one for all under `*`.
    Each {
        each: Vec<(u32, Reason)>,
        shared: Vec<String>,
        all: Option<String>,
        /// Whether they are in their order, which [`in_order`](crate::outcome::in_order) gives those of
        /// servers that were removed: that of the list.
        in_order: bool,
    },
}

impl Reasons {
    pub(crate) fn skip(text: &'static str) -> Self {
        Self::Skip(text.into())
    }

    pub(crate) fn each(each: Vec<(u32, Reason)>) -> Self {
        Self::of(each, true)
    }

    /// Of servers that are removed, each once, in any order.
    pub(crate) fn removed(each: Vec<(u32, Reason)>) -> Self {
        Self::of(each, false)
    }

    fn of(each: Vec<(u32, Reason)>, in_order: bool) -> Self {
        if each.is_empty() {
            return Self::None;
        }
        Self::Each { each, shared: Vec::new(), all: None, in_order }
    }

    pub(crate) fn all(text: String) -> Self {
        Self::Each { each: Vec::new(), shared: Vec::new(), all: Some(text), in_order: true }
    }

    /// With the texts to which its [`Reason::Shared`] and figures refer.
    pub(crate) fn sharing(self, texts: Vec<String>) -> Self {
        match self {
            Self::Each { each, all, in_order, .. } => {
                Self::Each { each, shared: texts, all, in_order }
            }
            other => other,
        }
    }
}
