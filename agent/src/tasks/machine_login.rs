//! `machine_login`: sets the password of a user in a VM's guest, or the keys with which that user logs
//! in, through its guest agent.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::{self, failed};
use super::steps::{Row, steps};
use super::{Handler, Kind, Params, Plan, TaskContext, TaskFailure};
use crate::guest_agent;

const OPERATION: &str = "guest login";
const LIMIT: Duration = Duration::from_secs(120);
/// Longest name, bytes.
const MAX_USER_BYTES: usize = 256;
/// Longest password, bytes.
const MAX_PASSWORD_BYTES: usize = 1024;
/// Most keys, and bytes of each.
const MAX_KEYS: usize = 64;
const MAX_KEY_BYTES: usize = 16 * 1024;

/// The kind; parameters `uuid`, `user`, `password`, `ssh_keys`, `replace_keys`.
#[derive(Debug)]
pub struct MachineLogin;

impl Handler for MachineLogin {
    // Not journaled: a password is not written to disk.
    fn kind(&self) -> Kind {
        Kind::query("machine_login", machine::MACHINE_QUERY, LIMIT)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("user".to_owned(), json!("root"));
        params.insert("password".to_owned(), json!("secret"));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let text = |name: &str, most: usize| match params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if is_line(text, most) => Ok(Some(text.clone())),
            Some(_) => {
                let problem = format!("must be one line of at most {most} bytes");
                Err(TaskFailure::bad_param(name, problem))
            }
        };
        let user = text("user", MAX_USER_BYTES)?
            .ok_or_else(|| TaskFailure::bad_param("user", "must be the name of a user"))?;
        let password = text("password", MAX_PASSWORD_BYTES)?;
        let keys = keys(params)?;
        if password.is_none() && keys.is_empty() {
            let text = "password or ssh_keys is needed";
            return Err(TaskFailure::new(Code::InvalidParameters, text)
                .with_details(json!({ "field": "password" })));
        }
        let replace = machine::flag(params, "replace_keys")?;
        let login = Login { vm: machine::vm(params)?, user, password, keys, replace };
        Ok(Plan::of(Vec::new(), login, STEPS))
    }
}

fn is_line(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn keys(params: &Params) -> Result<Vec<String>, TaskFailure> {
    let keys: Option<Vec<String>> = match params.get("ssh_keys") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(keys)) => {
            let key = |key: &Value| {
                key.as_str().filter(|key| is_line(key, MAX_KEY_BYTES)).map(str::to_owned)
            };
            keys.iter().map(key).collect()
        }
        Some(_) => None,
    };
    keys.filter(|keys| (1..=MAX_KEYS).contains(&keys.len())).ok_or_else(|| {
        let problem = format!("must be 1 to {MAX_KEYS} public keys, a line each");
        TaskFailure::bad_param("ssh_keys", problem)
    })
}

const STEPS: &[Row<Login>] = steps![("set", 100, set)];

struct Login {
    vm: VmUuid,
    user: String,
    password: Option<String>,
    keys: Vec<String>,
    replace: bool,
}

/// Without the password, which no log may have.
impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login")
            .field("vm", &self.vm)
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl Login {
    async fn set(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        machine::must_run(ctx, OPERATION, self.vm).await?;
        if let Some(password) = &self.password {
            let set =
                guest_agent::set_password(&ctx.drivers.guest_agents, self.vm, &self.user, password)
                    .await;
            set.map_err(failed(OPERATION))?;
        }
        if !self.keys.is_empty() {
            let (user, keys) = (&self.user, &self.keys);
            let added =
                guest_agent::add_keys(&ctx.drivers.guest_agents, self.vm, user, keys, self.replace)
                    .await;
            added.map_err(failed(OPERATION))?;
        }
        ctx.finish_with(json!({}));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_or_keys_are_needed() {
        let plan = |params: Value| {
            let mut all = machine::example();
            all.extend(params.as_object().unwrap().clone());
            let planned = MachineLogin.plan(&all).map(drop);
            planned.map_err(|failure| failure.details.unwrap()["field"].clone())
        };
        plan(json!({ "user": "root", "password": "x" })).unwrap();
        plan(json!({ "user": "root", "ssh_keys": ["ssh-ed25519 A"], "replace_keys": true }))
            .unwrap();
        for (bad, field) in [
            (json!({ "password": "x" }), "user"),
            (json!({ "user": "root" }), "password"),
            (json!({ "user": "root", "password": "" }), "password"),
            (json!({ "user": "ro\not", "password": "x" }), "user"),
            (json!({ "user": "root", "ssh_keys": [] }), "ssh_keys"),
            (json!({ "user": "root", "ssh_keys": ["a\nb"] }), "ssh_keys"),
        ] {
            assert_eq!(plan(bad), Err(json!(field)));
        }
    }
}
