//! What a client asks beside the allocation itself: how much to tell, whether to reserve, what to
//! imagine.

use muster_shared::api::Object;
use muster_shared::lenient;
use serde_json::Value;

use super::invalid;
use crate::alloc::{Detail, WhatIf};
use crate::app::error::AppError;

/// Most VMs placed at once; a reservation and a record of each go into one commit.
const MAX_COUNT: usize = 45;

/// Members of a request that are not the allocator's.
#[derive(Clone, Debug)]
pub struct Ask {
    /// How much of the steps to show.
    pub steps: Detail,
    /// What every algorithm made of every server.
    pub explain: bool,
    /// Keep room for the VM.
    pub reserve: bool,
    /// Decides shuffles.
    pub seed: Option<u64>,
    /// How many VMs.
    pub count: usize,
    /// Keep the snapshot as long as the decision; `false`: keep neither. Unasked, the decision is
    /// kept, and its snapshot for a while.
    pub keep: Option<bool>,
    /// Look for the least changes that would help.
    pub least_changes: bool,
    /// A fleet or policy to imagine.
    pub what_if: Option<WhatIf>,
    /// Decide as for a VM that this coordinator creates.
    pub create: bool,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            steps: Detail::Full,
            explain: false,
            reserve: true,
            seed: None,
            count: 1,
            keep: None,
            least_changes: true,
            what_if: None,
            create: false,
        }
    }
}

fn flag(body: &Object, name: &str, default: bool) -> Result<bool, AppError> {
    let Some(value) = body.get(name) else { return Ok(default) };
    lenient::flag(value).ok_or_else(|| AppError::invalid(name, "must be true or false"))
}

fn integer(body: &Object, name: &str) -> Result<Option<u64>, AppError> {
    let Some(value) = body.get(name) else { return Ok(None) };
    let number = lenient::number(value);
    number.map(Some).ok_or_else(|| AppError::invalid(name, "must be a whole number"))
}

/// Whether it is to be decided as for a VM that this coordinator creates.
pub(super) fn creates(body: &Object) -> Result<bool, AppError> {
    flag(body, "create", false)
}

impl Ask {
    /// Reads the members.
    ///
    /// # Errors
    /// [`AppError::Invalid`] names the first that can't be used.
    pub fn parse(body: &Object) -> Result<Self, AppError> {
        let steps = match body.get("steps").map(Value::as_str) {
            None | Some(Some("full")) => Detail::Full,
            Some(Some("counts")) => Detail::Counts,
            Some(Some("none")) => Detail::None,
            Some(_) => return Err(AppError::invalid("steps", "must be none, counts or full")),
        };
        let explain = match body.get("explain").map(Value::as_str) {
            None | Some(Some("none")) => false,
            Some(Some("full")) => true,
            Some(_) => return Err(AppError::invalid("explain", "must be none or full")),
        };
        let what_if = match body.get("what_if") {
            None | Some(Value::Null) => None,
            Some(value) => Some(WhatIf::parse(value).map_err(|error| invalid(vec![error]))?),
        };
        let count = integer(body, "count")?.unwrap_or(1);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(AppError::invalid("count", format!("must be from 1 to {MAX_COUNT}")));
        }
        Ok(Self {
            steps,
            explain,
            reserve: flag(body, "reserve", true)? && what_if.is_none(),
            seed: integer(body, "seed")?,
            count,
            keep: body.get("keep").map(|_| flag(body, "keep", false)).transpose()?,
            least_changes: flag(body, "least_changes", true)? && steps != Detail::None,
            what_if,
            create: creates(body)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bad_members_are_named() {
        for (body, field) in [
            (json!({"steps": "some"}), "steps"),
            (json!({"steps": 1}), "steps"),
            (json!({"explain": "x"}), "explain"),
            (json!({"reserve": "no"}), "reserve"),
            (json!({"seed": -1}), "seed"),
            (json!({"seed": "x"}), "seed"),
            (json!({"count": 0}), "count"),
            (json!({"count": 46}), "count"),
            (json!({"keep": 1}), "keep"),
            (json!({"create": "maybe"}), "create"),
            (json!({"what_if": []}), "what_if"),
            (json!({"what_if": {"add_vms": [{}]}}), "what_if.add_vms"),
        ] {
            let error = Ask::parse(&Object::of(&body)).unwrap_err();
            let AppError::Invalid(errors) = error else { panic!("{error}") };
            assert_eq!(errors[0].field, field, "{body}");
        }
        let ask = Ask::parse(&Object::of(&json!({"count": "3", "seed": "7"}))).unwrap();
        assert_eq!((ask.count, ask.seed, ask.reserve), (3, Some(7), true));
        let what_if = json!({"what_if": {"remove_servers": []}, "reserve": true});
        assert!(!Ask::parse(&Object::of(&what_if)).unwrap().reserve);
    }
}
