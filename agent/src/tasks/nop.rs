//! `nop`: does nothing, for a while if asked, and fails if asked. For tests and measurements.

use std::time::Duration;

use muster_shared::wire::Code;
use serde_json::Value;

use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, Queue, TaskContext, TaskFailure};

/// Longest sleep that is accepted.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
const QUEUE: Queue = Queue { name: "nop", max_concurrent: 16, max_wait: Duration::from_secs(60) };
/// Time beyond the sleep.
const SLACK: Duration = Duration::from_secs(30);

/// The kind; parameters `sleep` (seconds) and `error` (text to fail with).
#[derive(Debug)]
pub struct Nop;

impl Handler for Nop {
    fn kind(&self) -> Kind {
        Kind::query("nop", QUEUE, SLACK)
    }

    fn deadline(&self, params: &Params) -> Duration {
        self.kind().limit + sleep_of(params).unwrap_or_default()
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let error = match params.get("error") {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) => Some(text.clone()),
            Some(_) => return Err(TaskFailure::bad_param("error", "must be a string")),
        };
        let step = Idle { sleep: sleep_of(params)?, error };
        Ok(Plan::of(Vec::new(), step, STEPS))
    }
}

fn sleep_of(params: &Params) -> Result<Duration, TaskFailure> {
    let seconds = match params.get("sleep") {
        None | Some(Value::Null) => return Ok(Duration::ZERO),
        Some(Value::Number(n)) => n.as_f64(),
        Some(Value::String(s)) => s.parse().ok(),
        Some(_) => None,
    };
    let sleep = seconds.and_then(|s| Duration::try_from_secs_f64(s).ok());
    match sleep {
        Some(sleep) if sleep <= MAX_SLEEP => Ok(sleep),
        _ => Err(TaskFailure::bad_param("sleep", "must be a number of seconds up to 3600")),
    }
}

pub(super) const STEPS: &[Row<Idle>] = steps![("idle", 100, idle)];

/// Waits, and then fails if it is to.
#[derive(Debug)]
pub(super) struct Idle {
    pub(super) sleep: Duration,
    pub(super) error: Option<String>,
}

impl Idle {
    async fn idle(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if !self.sleep.is_zero() {
            tokio::select! {
                biased;
                () = ctx.cancelled.cancelled() => {}
                () = tokio::time::sleep(self.sleep) => {}
            }
        }
        match &self.error {
            Some(text) => Err(TaskFailure::new(Code::NopFailed, text.clone())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(params: &Value, fits: bool) {
        let params = params.as_object().unwrap();
        assert_eq!(Nop.plan(params).is_ok(), fits, "{params:?}");
        assert!(Nop.deadline(params) >= SLACK);
    }

    #[test]
    fn parameters_are_checked() {
        check(&json!({}), true);
        check(&json!({ "sleep": 1.5, "error": "x", "unknown": [] }), true);
        check(&json!({ "sleep": "2" }), true);
        check(&json!({ "sleep": -1 }), false);
        check(&json!({ "sleep": 1e300 }), false);
        check(&json!({ "sleep": true }), false);
        check(&json!({ "error": 1 }), false);
    }
}
