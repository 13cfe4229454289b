//! `POST /allocate`: what is asked, the commit (reservations and the decision's record), and the
//! answer with its reasons. How a decision is made is in [`super::flow`].

use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::allocation::AskedBy;
use muster_shared::ids::VmUuid;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};
use uuid::Uuid;

use super::ask::Ask;
use super::chosen::ChosenServer;
use super::flow::{Decision, Flow, Question, Wanted};
use super::{Placement, invalid, machine, parse};
use crate::alloc::{self, Detail, Explanation, FieldError, LeastChanges, Outcome, num};
use crate::app::decisions::{DecisionRecord, bad_policy};
use crate::app::error::AppError;
use crate::app::packages::for_allocator;
use crate::store::{StoreError, Write};

/// Members of a request that say how to answer it, not what is asked.
const ASKED: [&str; 8] =
    ["steps", "explain", "reserve", "seed", "count", "keep", "least_changes", "create"];

/// One VM's decision.
#[derive(Debug)]
struct Chosen {
    vm: VmUuid,
    outcome: Outcome,
    record: DecisionRecord,
}

/// The answer.
#[derive(Debug)]
pub struct Decided {
    placements: Vec<Chosen>,
    /// The first VM's server.
    server: Option<ChosenServer>,
    steps: Detail,
    explanation: Option<Explanation>,
    least: LeastChanges,
    several: bool,
    /// There is a record of it.
    kept: bool,
}

impl Decided {
    /// The decision that the answer shows: the first, or the one that failed.
    fn shown(&self) -> &Chosen {
        let failed = self.placements.iter().find(|placement| placement.outcome.server.is_none());
        failed.unwrap_or(&self.placements[0])
    }

    /// Why there is no server, as the error that CNAPI knows; `None` on success.
    #[must_use]
    pub fn failure(&self) -> Option<AppError> {
        let outcome = &self.shown().outcome;
        outcome.server.is_none().then(|| AppError::NoServer {
            reason: outcome.failure(),
            volumes: outcome.failed_for_volumes(),
            beside: Object::new(),
        })
    }
}

impl Serialize for Decided {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.members(&mut map)?;
        map.end()
    }
}

impl Decided {
    /// Whether the answer is short, however large the fleet.
    #[must_use]
    pub fn is_small(&self) -> bool {
        self.steps != Detail::Full
    }

    /// The explanation that was asked for, which is large and not among the members.
    pub fn take_explanation(&mut self) -> Option<Explanation> {
        self.explanation.take()
    }

    /// Writes the members of the answer, which on failure stand beside an error's code and
    /// message.
    ///
    /// # Errors
    /// The serializer's.
    pub fn members<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        let shown = self.shown();
        if let Some(server) = &self.server {
            map.serialize_entry("server", server)?;
        }
        map.serialize_entry("steps", &shown.outcome.steps(self.steps))?;
        if self.server.is_some() {
            map.serialize_entry("imgapiPeers", &[(); 0])?;
        }
        if self.kept {
            map.serialize_entry("id", &shown.record.decision.id)?;
        }
        map.serialize_entry("seed", &shown.outcome.seed)?;
        if self.several && self.server.is_some() {
            let one = |placement: &Chosen| {
                let server = placement.outcome.server.as_ref();
                let mut one = json!({
                    "vm_uuid": placement.vm,
                    "server_uuid": server.map(|server| &server.server_uuid),
                    "score": server.map(|server| num::json(server.score)),
                    "seed": placement.outcome.seed,
                });
                if self.kept {
                    one["id"] = json!(placement.record.decision.id);
                }
                one
            };
            let all: Vec<Value> = self.placements.iter().map(one).collect();
            map.serialize_entry("allocations", &all)?;
        }
        if self.server.is_none() && !self.least.suggestions.is_empty() {
            map.serialize_entry("least_changes", &self.least.suggestions)?;
        }
        if self.least.cut {
            map.serialize_entry("least_changes_cut", &true)?;
        }
        Ok(())
    }
}

impl Placement {
    /// Finds a server for each VM; all get one or none does.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::Busy`], [`AppError::Store`], [`AppError::Blob`]. That no
    /// server fits is no error, see [`Decided::failure`].
    pub async fn allocate(self: &Arc<Self>, body: &Object) -> Result<Decided, AppError> {
        let mut body = body.clone();
        let package = self.packages.complete_question(&mut body).await?;
        let package = package.as_ref().map(for_allocator);
        let mut flow = Flow::new(self, self.question(&body, package.as_ref())?);
        loop {
            let mut decision = flow.decide().await?;
            let decided = self.answer(&flow.question, &mut decision).await?;
            match self.commit(decided, &flow.question, decision).await {
                Ok(decided) => return Ok(decided),
                Err(error) => flow.again(error).await?,
            }
        }
    }

    fn question(&self, body: &Object, package: Option<&Object>) -> Result<Question, AppError> {
        let ask = Ask::parse(body)?;
        let created = if ask.create { Some(machine::as_create(body, package)?) } else { None };
        let body = created.as_ref().map_or(body, |(body, _)| body);
        let first = parse(body)?;
        let allocation = &self.ctx.config.allocation;
        let real = if ask.create { &allocation.placing } else { &allocation.policy };
        let policy = match ask.what_if.as_ref().map(|what_if| what_if.policy(real)) {
            Some(Ok(Some(policy))) => Arc::new(policy),
            Some(Err(error)) => return Err(bad_policy("what_if", &error)),
            Some(Ok(None)) | None => Arc::clone(real),
        };
        let mut kept = body.clone();
        for name in ASKED {
            kept.remove(name);
        }
        let names = vm_uuids(body, &ask, first.vm_uuid(), || self.ctx.parts.entropy.uuid())?;
        let mut vms = Vec::with_capacity(names.len());
        let mut first = Some(first);
        for vm in names {
            let mut body = kept.clone();
            body.remove("vm_uuids");
            body.slot("vm")["vm_uuid"] = json!(vm);
            // The first is parsed already, unless its uuid was written in another way.
            let parsed = first.take_if(|first| first.vm_uuid() == vm.to_string());
            let request = parsed.map_or_else(|| parse(&body), Ok)?;
            let created = created.as_ref().map(|(_, spec)| alloc::Extra::of_new_vm(spec));
            let extra = created.unwrap_or_else(|| request.promise());
            vms.push(Wanted { vm, body, request, extra: Arc::new(extra) });
        }
        Ok(Question { ask, policy, vms, making: false })
    }

    async fn answer(
        &self,
        question: &Arc<Question>,
        decision: &mut Decision,
    ) -> Result<Decided, AppError> {
        let Question { ask, policy, vms, .. } = &**question;
        let recent = &decision.recent;
        let outcomes = std::mem::take(&mut decision.outcomes);
        let mut placements = Vec::with_capacity(outcomes.len());
        for (outcome, wanted) in outcomes.into_iter().zip(vms) {
            let mut record =
                DecisionRecord::new(&self.ctx, AskedBy::Allocate, &wanted.body, policy, &outcome);
            record.recent = recent.clone();
            record.decision.keep = ask.keep == Some(true);
            record.decision.reserved = decision.promises.iter().any(|(it, ..)| it.vm == wanted.vm);
            placements.push(Chosen { vm: wanted.vm, outcome, record });
        }
        let mut decided = Decided {
            placements,
            server: None,
            steps: ask.steps,
            explanation: None,
            least: LeastChanges::default(),
            several: ask.count > 1,
            kept: ask.keep != Some(false),
        };
        let shown = decided.shown();
        let place = vms.iter().position(|wanted| wanted.vm == shown.vm);
        let place = place.expect("decisions are about these VMs");
        let options = || self.decisions.options(Some(shown.outcome.seed), recent);
        let mut explanation = None;
        if ask.explain {
            explanation = Some(self.explanation(&shown.outcome, question, place, options()).await?);
        }
        let mut least = None;
        if let Some(fleet) = decision.asked.take() {
            least = Some(self.least_changes(fleet, question, place, options()).await);
        }
        let server = match shown.outcome.server {
            Some(_) => Some(self.chosen_view(ask, &shown.outcome)?),
            None => None,
        };
        decided.explanation = explanation;
        decided.least = least.unwrap_or_default();
        decided.server = server;
        Ok(decided)
    }

    async fn commit(
        &self,
        mut decided: Decided,
        question: &Question,
        mut decision: Decision,
    ) -> Result<Decided, AppError> {
        let policy = &question.policy;
        let mut writes: Vec<Write> = Vec::new();
        for placement in decided.placements.iter_mut().filter(|_| decided.kept) {
            let Chosen { record, outcome, .. } = placement;
            writes.push(self.decisions.write(record, outcome, policy).await?);
        }
        for (promised, server, extra) in &decision.promises {
            writes.push(self.reservation_write(promised.vm, *server, extra.clone()));
        }
        writes.append(&mut decision.guard);
        if writes.is_empty() {
            return Ok(decided);
        }
        let committed = self.ctx.feed.commit(writes).await;
        let kept = || decided.placements.iter().filter(|_| decided.kept);
        if committed.as_ref().is_err_and(StoreError::is_conflict) {
            for Chosen { record, .. } in kept() {
                self.decisions.forget(record).await;
            }
        }
        committed?;
        for Chosen { record, outcome, .. } in kept() {
            self.decisions.made(record, outcome, policy);
        }
        Ok(decided)
    }
}

/// The VMs to place: the one that the request names, those of `vm_uuids`, and new ones.
fn vm_uuids(
    body: &Object,
    ask: &Ask,
    first: &str,
    mut fresh: impl FnMut() -> Uuid,
) -> Result<Vec<VmUuid>, AppError> {
    let wrong = || invalid(vec![FieldError::new("vm_uuids", "must be `count` different UUIDs")]);
    let mut vms: Vec<VmUuid> = vec![first.parse().map_err(|_| wrong())?];
    match body.get("vm_uuids") {
        None => vms.extend((1..ask.count).map(|_| VmUuid(fresh()))),
        Some(Value::Array(items)) if items.len() == ask.count => {
            let named: Option<Vec<VmUuid>> =
                items.iter().map(|item| item.as_str()?.parse().ok()).collect();
            vms = named.ok_or_else(wrong)?;
        }
        Some(_) => return Err(wrong()),
    }
    let different: std::collections::BTreeSet<_> = vms.iter().collect();
    if different.len() == vms.len() { Ok(vms) } else { Err(wrong()) }
}
