//! A decision as it is stored: what `GET /allocations/:id` shows, in fewer bytes. Each decision is
//! written before it is answered, so its size is part of what an answer takes.

use std::borrow::Cow;

use muster_shared::api::Object;
use muster_shared::api::allocation::{AskedBy, Decision, DecisionDetail, StepCount};
use muster_shared::clock::iso;
use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};
use uuid::Uuid;

use crate::alloc::{self, Config, HostOs, Order, Outcome, RECEIVED, ServerName, title_of};
use crate::app::context::Context;
use crate::app::server_view::number;

fn shuffled() -> bool {
    true
}

/// The record `allocation/<id>`. Members are as in [`DecisionDetail`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::app) struct DecisionRecord {
    #[serde(flatten)]
    pub(in crate::app) decision: Decision,
    /// `None`: it is in a blob.
    pub(super) request: Option<Object>,
    pub(super) config_hash: String,
    #[serde(default = "shuffled")]
    shuffled: bool,
    #[serde(default)]
    host_os_reference: bool,
    pub(super) seed: u64,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(in crate::app) recent: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) snapshot_id: Option<Uuid>,
    snapshot_revision: u64,
    pub(super) fingerprint: String,
    steps: Vec<Steps>,
    pub(super) best: Vec<(ServerName, Number)>,
}

/// Steps that follow each other. Most leave as many servers as the one before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Steps {
    /// Algorithms that left so many each; `None` is the first step. An algorithm's name says what
    /// it does.
    Alike { remaining: u64, algorithms: Vec<Option<Cow<'static, str>>> },
    /// As earlier versions wrote each step.
    One(StepCount),
}

impl Steps {
    fn of(steps: &[alloc::StepCount]) -> Vec<Self> {
        let alike = |steps: &[alloc::StepCount]| Self::Alike {
            remaining: u64::try_from(steps[0].remaining).unwrap_or(u64::MAX),
            algorithms: steps.iter().map(|step| step.algorithm.map(Cow::Borrowed)).collect(),
        };
        steps.chunk_by(|step, next| step.remaining == next.remaining).map(alike).collect()
    }

    fn shown(&self) -> Vec<StepCount> {
        let (remaining, algorithms) = match self {
            Self::Alike { remaining, algorithms } => (*remaining, algorithms),
            Self::One(step) => return vec![step.clone()],
        };
        let step = |algorithm: &Option<Cow<'static, str>>| {
            let title = algorithm.as_deref().map_or(RECEIVED, |name| {
                // An algorithm of another version has no other text.
                title_of(name).unwrap_or(name)
            });
            StepCount {
                step: title.to_owned(),
                algorithm: algorithm.as_deref().map(str::to_owned),
                remaining,
            }
        };
        algorithms.iter().map(step).collect()
    }
}

impl DecisionRecord {
    /// Takes down a decision.
    pub(in crate::app) fn new(
        ctx: &Context,
        kind: AskedBy,
        request: &Object,
        policy: &Config,
        outcome: &Outcome,
    ) -> Self {
        let best = |(server, score): &(ServerName, f64)| Some((server.clone(), number(*score)?));
        let digest = outcome.digest();
        let server = outcome.server.as_ref();
        let vm = request.get("vm").and_then(|vm| vm.get("vm_uuid")).and_then(Value::as_str);
        let decision = Decision {
            id: ctx.mint_id(),
            at: iso(ctx.wall()),
            kind,
            vm_uuid: vm.unwrap_or_default().to_owned(),
            server_uuid: server.map(|server| server.server_uuid.to_string()),
            score: server.and_then(|server| number(server.score)),
            failure: server.is_none().then(|| outcome.failure()),
            reserved: false,
            keep: false,
        };
        Self {
            decision,
            request: Some(request.clone()),
            config_hash: policy.hash().to_owned(),
            shuffled: ctx.config.allocation.order != Order::Uuid,
            host_os_reference: policy.host_os() == HostOs::Reference,
            seed: outcome.seed,
            recent: Value::Null,
            snapshot_id: None,
            snapshot_revision: outcome.snapshot().revision(),
            fingerprint: digest.fingerprint.clone(),
            steps: Steps::of(&digest.steps),
            best: digest.best.iter().filter_map(best).collect(),
        }
    }

    /// The order of servers in which it was decided.
    pub(super) fn order(&self) -> Order {
        if self.shuffled { Order::Shuffled } else { Order::Uuid }
    }

    pub(super) fn host_os(&self) -> HostOs {
        if self.host_os_reference { HostOs::Reference } else { HostOs::Any }
    }

    /// How many servers each algorithm left.
    pub(super) fn steps(&self) -> Vec<StepCount> {
        self.steps.iter().flat_map(Steps::shown).collect()
    }

    /// As it is shown.
    pub(super) fn into_detail(self) -> DecisionDetail {
        let steps = self.steps();
        let best = self.best.into_iter().map(|(server, score)| (server.to_string(), score));
        DecisionDetail {
            decision: self.decision,
            request: self.request,
            config_hash: self.config_hash,
            shuffled: self.shuffled,
            host_os_reference: self.host_os_reference,
            seed: self.seed,
            recent: self.recent,
            snapshot_id: self.snapshot_id,
            snapshot_revision: self.snapshot_revision,
            fingerprint: self.fingerprint,
            steps,
            best: best.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// What a stored list of steps shows.
    fn shown(stored: Value) -> Value {
        let stored: Vec<Steps> = serde_json::from_value(stored).unwrap();
        let shown: Vec<_> = stored.iter().flat_map(Steps::shown).collect();
        serde_json::to_value(shown).unwrap()
    }

    #[test]
    fn steps_are_shown_as_they_were_taken_down() {
        let setup = alloc::title_of("hard-filter-setup").unwrap();
        let step = |algorithm, title, remaining| alloc::StepCount { title, algorithm, remaining };
        let steps = [
            step(None, RECEIVED, 3),
            step(Some("hard-filter-setup"), setup, 3),
            step(Some("hard-filter-setup"), setup, 1),
        ];
        let stored = serde_json::to_value(Steps::of(&steps)).unwrap();
        let runs = json!([
            { "remaining": 3, "algorithms": [null, "hard-filter-setup"] },
            { "remaining": 1, "algorithms": ["hard-filter-setup"] },
        ]);
        assert_eq!(stored, runs);
        let want = json!([
            { "step": RECEIVED, "algorithm": null, "remaining": 3 },
            { "step": setup, "algorithm": "hard-filter-setup", "remaining": 3 },
            { "step": setup, "algorithm": "hard-filter-setup", "remaining": 1 },
        ]);
        assert_eq!(shown(stored), want);
    }

    #[test]
    fn steps_of_other_versions_are_shown() {
        let earlier =
            json!([{ "step": "In words", "algorithm": "hard-filter-setup", "remaining": 2 }]);
        assert_eq!(shown(earlier.clone()), earlier);
        let later = shown(json!([{ "remaining": 2, "algorithms": ["hard-filter-moon"] }]));
        let want = json!([
            { "step": "hard-filter-moon", "algorithm": "hard-filter-moon", "remaining": 2 },
        ]);
        assert_eq!(later, want);
    }
}
