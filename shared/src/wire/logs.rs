//! What is asked of a daemon's log: of an agent by a task that only reads, of either daemon by HTTP.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::api::log::Level;
use crate::ids::{TaskId, VmUuid};
use crate::lenient;

/// The kind of task that asks an agent. Its result is a [`crate::api::log::LogPage`].
pub const TASK: &str = "server_logs";
/// Most lines of an answer, and how many it has unless told.
pub const MAX_LINES: usize = 1000;
/// Longest wait for a line.
pub const MAX_WAIT: Duration = Duration::from_secs(30);

/// Which lines.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogQuery {
    /// The first lines after this one; without it the last ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The process that counted `after`; of another one, all lines are after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instance: Option<Uuid>,
    /// At most this many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// Only those that matter this much.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<Level>,
    /// Only about this task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskId>,
    /// Only about this VM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmUuid>,
    /// Only those of the last so many seconds, by the daemon's own clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age: Option<u64>,
    /// For how many seconds to wait when there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wait: Option<u64>,
}

/// A parameter can't be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct BadLogQuery {
    /// Which.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: &'static str,
}

impl LogQuery {
    /// Reads the parameters, numbers also as text.
    ///
    /// # Errors
    /// [`BadLogQuery`].
    pub fn read<'a>(member: impl Fn(&str) -> Option<&'a Value>) -> Result<Self, BadLogQuery> {
        fn of<'a, T>(
            member: &impl Fn(&str) -> Option<&'a Value>,
            field: &'static str,
            problem: &'static str,
            parse: impl Fn(&Value) -> Option<T>,
        ) -> Result<Option<T>, BadLogQuery> {
            let Some(value) = member(field).filter(|value| !value.is_null()) else {
                return Ok(None);
            };
            parse(value).map(Some).ok_or(BadLogQuery { field, problem })
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let lines = |value: &Value| {
            let count = usize::try_from(lenient::number(value)?).ok()?;
            (1..=MAX_LINES).contains(&count).then_some(count)
        };
        let wait = |value: &Value| lenient::number(value).filter(|s| *s <= MAX_WAIT.as_secs());
        let (number, from_zero) = ("must be a whole number", "must be a whole number from 0 to 30");
        Ok(Self {
            after: of(&member, "after", number, lenient::number)?,
            instance: of(&member, "instance", "must be a uuid", |v| text(v)?.parse().ok())?,
            limit: of(&member, "limit", "must be from 1 to 1000", lines)?,
            level: of(&member, "level", "must be error, warn, info, debug or trace", |v| {
                text(v)?.parse().ok()
            })?,
            task: of(&member, "task", "must be the id of a task", |v| text(v)?.parse().ok())?,
            vm: of(&member, "vm", "must be a uuid", |v| text(v)?.parse().ok())?,
            max_age: of(&member, "max_age", number, lenient::number)?,
            wait: of(&member, "wait", from_zero, wait)?,
        })
    }

    /// How long to wait for a line.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_secs(self.wait.unwrap_or(0)).min(MAX_WAIT)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(members: &Value) -> Result<LogQuery, BadLogQuery> {
        LogQuery::read(|name| members.get(name))
    }

    #[test]
    fn what_is_sent_is_what_is_read() {
        let query = LogQuery {
            after: Some(7),
            instance: Some(Uuid::nil()),
            limit: Some(10),
            level: Some(Level::Warn),
            task: Some("t-1".parse().unwrap()),
            vm: Some(VmUuid(Uuid::nil())),
            max_age: Some(600),
            wait: Some(30),
        };
        assert_eq!(read(&json!(query)), Ok(query));
        assert_eq!(read(&json!({ "unknown": 1, "after": null })), Ok(LogQuery::default()));
        assert_eq!(json!(LogQuery::default()), json!({}));
        assert_eq!(read(&json!({ "after": "12" })).unwrap().after, Some(12));
    }

    #[test]
    fn a_bad_parameter_is_named() {
        for (field, value) in [
            ("after", json!(-1)),
            ("instance", json!("x")),
            ("limit", json!(0)),
            ("limit", json!("1001")),
            ("level", json!("loud")),
            ("level", json!(3)),
            ("task", json!("a/b")),
            ("vm", json!("web1")),
            ("max_age", json!("soon")),
            ("wait", json!(31)),
        ] {
            assert_eq!(read(&json!({ field: value })).unwrap_err().field, field, "{value}");
        }
    }
}
