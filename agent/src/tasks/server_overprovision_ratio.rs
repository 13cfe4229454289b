//! `server_overprovision_ratio`: notes on the node how far it may be overcommitted. The
//! coordinator's record stays the one that counts.

use std::time::Duration;

use serde_json::{Value, json};

use super::server_reboot::SERVER_TASKS;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::settings::OVERPROVISION_RATIO;

/// Longest value, bytes.
const MAX_BYTES: usize = 1024;

/// The kind; parameter `value`, a number or a text such as `cpu=4&ram=1`.
#[derive(Debug)]
pub struct ServerOverprovisionRatio;

impl Handler for ServerOverprovisionRatio {
    fn kind(&self) -> Kind {
        Kind::mutate("server_overprovision_ratio", SERVER_TASKS, Duration::from_secs(30))
    }

    fn example(&self) -> Params {
        Params::from_iter([("value".to_owned(), json!("ram=2"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let value = match params.get("value") {
            Some(Value::String(text)) if !text.is_empty() => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => return Err(TaskFailure::bad_param("value", "no value given")),
        };
        // It becomes one line of a file.
        if value.len() > MAX_BYTES || value.chars().any(|c| c.is_control() || c == '\'') {
            return Err(TaskFailure::bad_param("value", "is not a ratio"));
        }
        Ok(Plan::of(Vec::new(), Set { value }, STEPS))
    }
}

const STEPS: &[Row<Set>] = steps![("set", 100, set)];

#[derive(Debug)]
struct Set {
    value: String,
}

impl Set {
    async fn set(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        ctx.drivers.settings.set_option(OVERPROVISION_RATIO, &self.value).await?;
        Ok(())
    }
}
