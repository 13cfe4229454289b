//! Why a task failed, in the words of whoever could not do their part of it.

use std::fmt;

use muster_shared::wire::{Code, TaskError};
use serde_json::Value;

/// Why a task failed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct TaskFailure {
    /// For programs, e.g. [`Code::VmExists`].
    pub code: Code,
    /// For people, clients among them: says what was tried and on what, and no cause.
    pub message: String,
    /// More, e.g. the bad members.
    pub details: Option<Box<Value>>,
    /// Why the host failed, for this agent's log only.
    pub cause: Option<String>,
}

impl TaskFailure {
    /// A failure with a code and a message.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: None, cause: None }
    }

    /// A parameter that can't be used.
    pub fn bad_param(field: &str, problem: impl fmt::Display) -> Self {
        Self::new(Code::InvalidParameters, format!("{field}: {problem}"))
            .with_details(serde_json::json!({ "field": field }))
    }

    /// With details; [`Self::code`] is also put there as CNAPI's `restCode`.
    #[must_use]
    pub fn with_details(mut self, details: Value) -> Self {
        self.details = Some(Box::new(details));
        self
    }
}

impl From<TaskFailure> for TaskError {
    fn from(failure: TaskFailure) -> Self {
        Self {
            message: failure.message,
            code: failure.code,
            details: failure.details.map(|details| *details),
        }
    }
}
