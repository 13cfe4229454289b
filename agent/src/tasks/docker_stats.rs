//! `docker_stats`: figures of a container, for one client that connects to the port in the answer.

use std::time::Duration;

use muster_shared::ids::VmUuid;
use muster_shared::lenient;
use serde_json::{Value, json};

use super::docker_exec::{DOCKER_TASKS, must_run};
use super::machine;
use super::steps::{Row, steps};
use super::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};
use crate::sessions::stats;

const LIMIT: Duration = Duration::from_secs(60);
/// Time in which the client has to connect.
const CONNECT: Duration = Duration::from_secs(60);

/// The kind; parameters `uuid`, `payload.stream`.
#[derive(Debug)]
pub struct DockerStats;

impl Handler for DockerStats {
    // A session leaves nothing behind that a journal could bring back.
    fn kind(&self) -> Kind {
        Kind::query("docker_stats", DOCKER_TASKS, LIMIT)
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Containers)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        params.insert("payload".to_owned(), json!({ "stream": true }));
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let stream = match params.get("payload") {
            None | Some(Value::Null) => None,
            Some(Value::Object(payload)) => payload.get("stream").filter(|value| !value.is_null()),
            Some(_) => return Err(TaskFailure::bad_param("payload", "must be an object")),
        };
        let stream = match stream {
            None => true,
            Some(value) => lenient::flag(value)
                .ok_or_else(|| TaskFailure::bad_param("payload.stream", "must be true or false"))?,
        };
        Ok(Plan::of(Vec::new(), Stats { vm, stream }, STEPS))
    }
}

const STEPS: &[Row<Stats>] = steps![("open", 100, open)];

#[derive(Debug)]
struct Stats {
    vm: VmUuid,
    stream: bool,
}

impl Stats {
    async fn open(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        must_run(ctx, self.vm, "docker_stats: VM is not running, it has no figures").await?;
        // What this driver can't tell is said before a client comes.
        ctx.drivers.compute.counters(self.vm).await?;
        let (compute, clock) = (ctx.drivers.compute.clone(), ctx.drivers.clock.clone());
        let (vm, stream) = (self.vm, self.stream);
        let serve = move |peer| stats::serve(peer, compute, clock, vm, stream);
        ctx.finish_with(json!(ctx.drivers.sessions.open(CONNECT, serve).await?));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_parameters_are_refused_by_field() {
        DockerStats.plan(&machine::example()).unwrap();
        for (payload, field) in
            [(json!([]), "payload"), (json!({ "stream": "perhaps" }), "payload.stream")]
        {
            let mut params = DockerStats.example();
            params.insert("payload".to_owned(), payload);
            let failure = DockerStats.plan(&params).map(drop).unwrap_err();
            assert_eq!(failure.details.unwrap()["field"], field);
        }
    }
}
