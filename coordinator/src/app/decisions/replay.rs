//! Decides again what was decided before, under the same policy or another.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::error_chain::Chain;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::snapshots::Kept;
use super::{DecisionRecord, Decisions};
use crate::alloc::{Config, Detail, Options, Outcome, Request, allocate, known_members, num};
use crate::app::error::AppError;

impl Decisions {
    /// `POST /allocations/:id/replay`: the same request on the same snapshot, under the policy and in
    /// the order of then, whatever this coordinator's are now. `config` has
    /// `allocationDescription` and `changeDefaults`, each laid over the policy of the time.
    ///
    /// # Errors
    /// [`AppError::AllocationNotFound`], [`AppError::SnapshotNotKept`],
    /// [`AppError::Invalid`] for a policy that can't be used.
    pub async fn replay(
        &self,
        id: Uuid,
        config: Option<&Value>,
        detail: Detail,
    ) -> Result<Value, AppError> {
        let record = self.record_of(id).await?;
        let Kept { snapshot, policy } = self.snapshot_of(&record).await?;
        let other = config.map(|config| changed(&policy, config)).transpose()?;
        let policy = other.as_ref().unwrap_or(&policy);
        let request = record.request.clone().unwrap_or_default();
        let request = Request::parse(request.as_map()).map_err(AppError::Invalid)?;
        let options =
            Options { order: record.order(), ..self.options(Some(record.seed), &record.recent) };
        let again = allocate(&snapshot, &request, policy, &options);
        let fingerprint = again.fingerprint_like(&record.fingerprint);
        let server = again.server.as_ref();
        Ok(json!({
            "id": id,
            "identical": fingerprint == record.fingerprint,
            "server": server.map(|server| &server.server_uuid),
            "score": server.map(|server| num::json(server.score)),
            "failure": server.is_none().then(|| again.failure()),
            "seed": again.seed,
            "fingerprint": fingerprint,
            "original": {
                "server": record.decision.server_uuid, "score": record.decision.score,
                "failure": record.decision.failure, "fingerprint": record.fingerprint,
            },
            "difference": difference(&record, &again),
            "steps": again.steps_json(detail),
        }))
    }
}

fn changed(policy: &Arc<Config>, config: &Value) -> Result<Arc<Config>, AppError> {
    let object = config.as_object();
    let config = object.ok_or_else(|| AppError::invalid("config", "value is not an object"))?;
    let known = known_members("config", config, &["allocationDescription", "changeDefaults"]);
    known.map_err(|error| AppError::Invalid(vec![error]))?;
    let none = Map::new();
    let changes = match config.get("changeDefaults") {
        None => &none,
        Some(Value::Object(changes)) => changes,
        Some(_) => {
            return Err(AppError::invalid("config.changeDefaults", "value is not an object"));
        }
    };
    let changed = policy.changed(config.get("allocationDescription"), changes);
    changed.map(Arc::new).map_err(|error| bad_policy("config", &error))
}

/// Which steps left another number of servers, and which of the best servers came or went.
fn difference(record: &DecisionRecord, again: &Outcome) -> Value {
    let count = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let now: Vec<(&str, u64)> =
        again.steps.iter().map(|step| (step.title(), count(step.remaining_count()))).collect();
    let steps = record.steps();
    let was: Vec<(&str, u64)> =
        steps.iter().map(|step| (step.step.as_str(), step.remaining)).collect();
    let find = |list: &[(&str, u64)], title: &str| {
        list.iter().find(|(known, _)| *known == title).map(|(_, remaining)| *remaining)
    };
    let mut steps = Vec::new();
    let gone = was.iter().filter(|(title, _)| find(&now, title).is_none());
    for (title, _) in now.iter().chain(gone) {
        let (before, after) = (find(&was, title), find(&now, title));
        if before != after {
            steps.push(json!({ "step": title, "was": before, "is": after }));
        }
    }
    let best = again.best(record.best.len().max(1));
    let old: BTreeSet<_> = record.best.iter().map(|(server, _)| server.to_string()).collect();
    let new: BTreeSet<_> = best.iter().map(|(server, _)| server.to_string()).collect();
    json!({
        "steps": steps,
        "best_gone": old.difference(&new).collect::<Vec<_>>(),
        "best_new": new.difference(&old).collect::<Vec<_>>(),
    })
}

/// A faulty policy as a bad parameter.
pub(in crate::app) fn bad_policy(field: &str, error: &crate::alloc::ConfigError) -> AppError {
    AppError::invalid(field, Chain(error).to_string())
}
