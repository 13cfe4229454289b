//! What steps of one task tell each other: members of the task's result, which is journaled with
//! each step, until the last step puts the real result in their place.

use serde_json::{Value, json};

use super::TaskContext;

impl TaskContext {
    /// Notes something for later steps.
    pub(super) fn note(&self, name: &str, value: Value) {
        let mut result = self.result.lock();
        if !result.is_object() {
            *result = json!({});
        }
        result[name] = value;
    }

    /// What an earlier step noted; `null` when none did.
    pub(super) fn noted(&self, name: &str) -> Value {
        self.result.lock().get(name).cloned().unwrap_or_default()
    }
}
