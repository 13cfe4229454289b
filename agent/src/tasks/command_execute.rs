//! `command_execute`: runs a script on the node, where both host actions and this very thing are
//! allowed. Never twice: a script that an agent's end cut off is not started again.

use std::time::Duration;

use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::server_reboot::SERVER_TASKS;
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::drivers::host::HostAction;

/// Longest run of a script that names no limit.
const LIMIT: Duration = Duration::from_secs(3600);
/// For what is around the script itself.
const GRACE: Duration = Duration::from_secs(20);
/// Arguments, and variables of the environment.
const MAX_WORDS: usize = 1024;

/// The kind; parameters `script`, `args`, `env`, `timeout` (ms, 0: none).
#[derive(Debug)]
pub struct CommandExecute;

impl Handler for CommandExecute {
    fn kind(&self) -> Kind {
        Kind::mutate("command_execute", SERVER_TASKS, LIMIT.saturating_add(GRACE))
    }

    fn deadline(&self, params: &Params) -> Duration {
        match timeout_ms(params) {
            Ok(ms) if ms > 0 => Duration::from_millis(ms).saturating_add(GRACE),
            _ => self.kind().limit,
        }
    }

    fn example(&self) -> Params {
        Params::from_iter([("script".to_owned(), json!("#!/bin/sh\ntrue\n"))])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let script = match params.get("script") {
            Some(Value::String(script)) if !script.is_empty() => script.clone(),
            _ => return Err(TaskFailure::bad_param("script", "must be a text")),
        };
        let action = HostAction::Execute {
            script,
            args: args(params)?,
            env: env(params)?,
            timeout_ms: timeout_ms(params)?,
        };
        Ok(Plan::of(Vec::new(), Script { action }, STEPS))
    }
}

fn args(params: &Params) -> Result<Vec<String>, TaskFailure> {
    let words = match params.get("args") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(words)) if words.len() <= MAX_WORDS => words,
        Some(_) => return Err(TaskFailure::bad_param("args", "must be a list of words")),
    };
    words
        .iter()
        .map(|word| word_of(word).ok_or_else(|| TaskFailure::bad_param("args", "must be words")))
        .collect()
}

fn env(params: &Params) -> Result<Vec<(String, String)>, TaskFailure> {
    let members = match params.get("env") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(members)) if members.len() <= MAX_WORDS => members,
        Some(_) => return Err(TaskFailure::bad_param("env", "must be an object")),
    };
    let pair = |(name, value): (&String, &Value)| {
        let usable = !name.is_empty() && !name.contains(['=', '\0']);
        let value = word_of(value).filter(|_| usable);
        let value = value.ok_or_else(|| {
            TaskFailure::bad_param("env", format!("{name:?} is not a usable variable"))
        })?;
        Ok((name.clone(), value))
    };
    members.iter().map(pair).collect()
}

/// Numbers and flags are as good as their texts. No argument of a process can hold a NUL.
fn word_of(value: &Value) -> Option<String> {
    let word = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Bool(flag) => flag.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => return None,
    };
    (!word.contains('\0')).then_some(word)
}

fn timeout_ms(params: &Params) -> Result<u64, TaskFailure> {
    let problem = || TaskFailure::bad_param("timeout", "must be a number of milliseconds");
    match params.get("timeout") {
        None | Some(Value::Null) => Ok(0),
        Some(value) => lenient::number(value)
            .or_else(|| {
                let ms = value.as_f64().filter(|ms| *ms >= 0.0)?;
                u64::try_from(Duration::try_from_secs_f64(ms / 1000.0).ok()?.as_millis()).ok()
            })
            .ok_or_else(problem),
    }
}

// Two steps, so that the first moment of the script is in the journal.
const STEPS: &[Row<Script>] = steps![("claim", 0, claim), ("run", 100, run)];

#[derive(Debug)]
struct Script {
    action: HostAction,
}

impl Script {
    async fn claim(&self, _ctx: &TaskContext) -> Result<(), TaskFailure> {
        Ok(())
    }

    async fn run(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        if ctx.resumed {
            let text = "the agent went down while the script ran, or just before it";
            return Err(TaskFailure::new(Code::Interrupted, text));
        }
        let result = ctx.drivers.host.act(&self.action).await?;
        tracing::info!(exit = %result["exitCode"], signal = %result["signal"], "a script ended");
        ctx.finish_with(result);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn field(params: Value) -> String {
        let Value::Object(params) = params else { panic!("an object is needed") };
        let failure = CommandExecute.plan(&params).unwrap_err();
        failure.details.unwrap()["field"].as_str().unwrap().to_owned()
    }

    #[test]
    fn parameters_become_words() {
        let Value::Object(params) = json!({
            "script": "#!/bin/sh\n", "args": ["a", 1, true], "env": { "A": 2 }, "timeout": "1500",
        }) else {
            panic!("an object is needed")
        };
        assert_eq!(args(&params).unwrap(), ["a", "1", "true"]);
        assert_eq!(env(&params).unwrap(), [("A".to_owned(), "2".to_owned())]);
        assert_eq!(CommandExecute.deadline(&params), Duration::from_millis(21_500));
        assert_eq!(field(json!({ "script": 1 })), "script");
        assert_eq!(field(json!({ "script": "x", "args": [[]] })), "args");
        assert_eq!(field(json!({ "script": "x", "env": { "a=b": "c" } })), "env");
        assert_eq!(field(json!({ "script": "x", "env": { "a": "b\u{0}" } })), "env");
        assert_eq!(field(json!({ "script": "x", "timeout": -1 })), "timeout");
    }
}
