//! `sleep`: waits. For tests of the reference.

use std::time::Duration;

use muster_shared::lenient;
use serde_json::Value;

use super::nop::{Idle, STEPS};
use super::{Handler, Kind, Params, Plan, Queue, TaskFailure};

/// Without a parameter.
const DEFAULT: Duration = Duration::from_secs(5);
/// Longest sleep that is accepted.
const MAX: Duration = Duration::from_secs(3600);
/// Time beyond the sleep.
const SLACK: Duration = Duration::from_secs(30);
const QUEUE: Queue =
    Queue { name: "test_sleep", max_concurrent: 16, max_wait: Duration::from_secs(60) };

/// The kind; parameter `timeout`, ms.
#[derive(Debug)]
pub struct Sleep;

impl Handler for Sleep {
    fn kind(&self) -> Kind {
        Kind::query("sleep", QUEUE, SLACK)
    }

    fn deadline(&self, params: &Params) -> Duration {
        self.kind().limit + timeout(params).unwrap_or_default()
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let idle = Idle { sleep: timeout(params)?, error: None };
        Ok(Plan::of(Vec::new(), idle, STEPS))
    }
}

fn timeout(params: &Params) -> Result<Duration, TaskFailure> {
    let value = match params.get("timeout") {
        None | Some(Value::Null) => return Ok(DEFAULT),
        Some(value) => value,
    };
    let timeout = lenient::number(value).map(Duration::from_millis);
    let problem = || TaskFailure::bad_param("timeout", "must be milliseconds, 3600000 at most");
    timeout.filter(|timeout| *timeout <= MAX).ok_or_else(problem)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(params: &Value, sleep_ms: Option<u64>) {
        let params = params.as_object().unwrap();
        assert_eq!(timeout(params).ok(), sleep_ms.map(Duration::from_millis), "{params:?}");
        assert_eq!(Sleep.plan(params).is_ok(), sleep_ms.is_some());
        assert!(Sleep.deadline(params) >= SLACK);
    }

    #[test]
    fn parameters_are_checked() {
        check(&json!({}), Some(5000));
        check(&json!({ "timeout": "20" }), Some(20));
        check(&json!({ "timeout": 3_600_000 }), Some(3_600_000));
        check(&json!({ "timeout": 3_600_001 }), None);
        check(&json!({ "timeout": -1 }), None);
        check(&json!({ "timeout": [] }), None);
    }
}
