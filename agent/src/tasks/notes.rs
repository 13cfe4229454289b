//! What the steps of one task tell each other. Journaled with each step, and gone with the end of
//! the task.

use muster_shared::wire::Code;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::record::{MAX_RESULT_BYTES, json_len};
use super::{TaskContext, TaskFailure};

impl TaskContext {
    /// Notes something for later steps, and for the undo, in place of earlier notes. Each kind has
    /// one type of notes. Members that an upgrade adds need defaults.
    ///
    /// # Errors
    /// The notes are larger than the journal takes.
    pub(super) fn note<N: Serialize>(&self, notes: &N) -> Result<(), TaskFailure> {
        let notes = serde_json::to_value(notes).expect("notes have only string keys");
        let bytes = json_len(&notes);
        if bytes > MAX_RESULT_BYTES {
            let text = format!(
                "what the task has to note is {bytes} bytes, over the limit of {MAX_RESULT_BYTES}"
            );
            return Err(TaskFailure::new(Code::InternalError, text));
        }
        *self.notes.lock() = notes;
        Ok(())
    }

    /// What an earlier step noted.
    ///
    /// # Errors
    /// None did, or the journal holds something else.
    pub(super) fn notes<N: DeserializeOwned>(&self) -> Result<N, TaskFailure> {
        let notes = self.notes.lock().clone();
        serde_json::from_value(notes).map_err(|error| {
            let text = "the task's notes are lost or damaged";
            let failure = TaskFailure::new(Code::InternalError, text);
            TaskFailure { cause: Some(error.to_string()), ..failure }
        })
    }
}
