//! The job record and its state machine: which step is next, what an outcome leads to, and how a
//! job is shown. Pure.

use jiff::Timestamp;
use muster_shared::api::job::{
    Execution, Job, JobParams, Step, StepResult, StepState, StepVerdict,
};
use muster_shared::clock::iso;
use muster_shared::ids::{ServerUuid, TaskId, TicketUuid};
use muster_shared::secrets::masked_members;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::store::LeaseId;

/// Longest text of an error that is kept, bytes.
const MAX_ERROR_BYTES: usize = 4 * 1024;

/// One step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Its name in the kind's list of steps.
    pub name: String,
    /// Where it is.
    pub state: StepState,
    /// Tries begun.
    #[serde(default)]
    pub attempt: u32,
    /// When the first try began, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<String>,
    /// When it was done, skipped or given up, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// Why the last try failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The agent task that it made, and in which try.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<(TaskId, u32)>,
}

/// The coordinator that runs a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its name among its peers.
    pub instance: String,
    /// The lease it had when it claimed the job; tells two lives of one instance apart.
    pub lease: LeaseId,
}

/// Which step of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// One of the job's steps.
    Chain(usize),
    /// One of those that clean up after a failure.
    OnError(usize),
}

/// The record `job/<uuid>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The job; sorts by the time it was made.
    pub uuid: Uuid,
    /// The kind's name with its version, e.g. `server-reboot-1.2.0`.
    pub name: String,
    /// Where it is.
    pub execution: Execution,
    /// The server it is about.
    pub server_uuid: ServerUuid,
    /// What it was made with.
    pub params: JobParams,
    /// The request that made it.
    pub req_id: String,
    /// When it was made, ISO 8601.
    pub created_at: String,
    /// When its first step began, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// When it ended, ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<String>,
    /// How long it has been run, ms; time in which no coordinator ran it does not count.
    #[serde(default)]
    pub elapsed_ms: u64,
    /// Its steps.
    pub chain: Vec<StepRecord>,
    /// The steps after a failure.
    pub on_error: Vec<StepRecord>,
    /// Who runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<Claim>,
    /// The ticket under which it was started; its tasks are refused once that is not active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ticket_uuid: Option<TicketUuid>,
}

impl JobRecord {
    /// The next step; `None`: there is none, [`JobRecord::settle`] it.
    #[must_use]
    pub fn next(&self) -> Option<Place> {
        if self.execution.has_ended() {
            return None;
        }
        let open =
            |step: &StepRecord| matches!(step.state, StepState::Pending | StepState::Running);
        if self.chain.iter().any(|step| step.state == StepState::Failed) {
            return self.on_error.iter().position(open).map(Place::OnError);
        }
        self.chain.iter().position(open).map(Place::Chain)
    }

    /// A step.
    #[must_use]
    pub fn step(&self, place: Place) -> &StepRecord {
        match place {
            Place::Chain(n) => &self.chain[n],
            Place::OnError(n) => &self.on_error[n],
        }
    }

    /// A step, to be changed.
    pub fn step_mut(&mut self, place: Place) -> &mut StepRecord {
        match place {
            Place::Chain(n) => &mut self.chain[n],
            Place::OnError(n) => &mut self.on_error[n],
        }
    }

    /// A try of a step begins. One that was under way when its coordinator died goes on.
    pub fn begin(&mut self, place: Place, now: Timestamp) {
        self.execution = Execution::Running;
        self.started.get_or_insert_with(|| iso(now));
        let step = self.step_mut(place);
        if step.state == StepState::Pending {
            step.state = StepState::Running;
            step.attempt += 1;
            step.started_at.get_or_insert_with(|| iso(now));
        }
    }

    /// A step is not needed.
    pub fn skip(&mut self, place: Place, now: Timestamp) {
        let step = self.step_mut(place);
        step.state = StepState::Skipped;
        step.finished_at = Some(iso(now));
    }

    /// A step is done.
    pub fn succeed(&mut self, place: Place, now: Timestamp) {
        let step = self.step_mut(place);
        step.state = StepState::Ok;
        step.error = None;
        step.finished_at = Some(iso(now));
    }

    /// A try of a step failed; it is tried again if it may be tried `tries` times and that was
    /// not the last. `true`: it failed for good.
    pub fn fail(&mut self, place: Place, now: Timestamp, error: &str, tries: u32) -> bool {
        let step = self.step_mut(place);
        step.error = Some(error[..error.floor_char_boundary(MAX_ERROR_BYTES)].to_owned());
        let over = step.attempt >= tries;
        if over {
            step.state = StepState::Failed;
            step.finished_at = Some(iso(now));
        } else {
            step.state = StepState::Pending;
        }
        over
    }

    /// No step is left: the job ends.
    pub fn settle(&mut self, now: Timestamp) {
        let failed = self.chain.iter().any(|step| step.state == StepState::Failed);
        self.execution = if failed { Execution::Failed } else { Execution::Succeeded };
        self.finished_at = Some(iso(now));
        self.claim = None;
    }

    /// The job as `GET /jobs/:job_uuid` shows it: secrets masked, and the state of each step.
    #[must_use]
    pub fn public(&self) -> Job {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds of hours")]
        let elapsed = self.elapsed_ms as f64 / 1000.0;
        Job {
            uuid: self.uuid,
            name: self.name.clone(),
            execution: self.execution,
            params: JobParams {
                others: masked_members(&self.params.others),
                ..self.params.clone()
            },
            target: self.server_uuid,
            created_at: self.created_at.clone(),
            started: self.started.clone(),
            elapsed,
            exec_after: self.created_at.clone(),
            chain_results: results(&self.chain),
            onerror_results: results(&self.on_error),
            finished_at: self.finished_at.clone(),
            ticket_uuid: self.ticket_uuid,
            steps: self.chain.iter().chain(&self.on_error).map(shown).collect(),
        }
    }
}

/// The workflow API's list of the steps that have ended.
fn results(steps: &[StepRecord]) -> Vec<StepResult> {
    let result = |step: &StepRecord| {
        let result = match step.state {
            StepState::Ok => StepVerdict::Ok,
            StepState::Failed => StepVerdict::Failed,
            StepState::Pending | StepState::Running | StepState::Skipped => return None,
        };
        Some(StepResult {
            name: step.name.clone(),
            result,
            error: step.error.clone().unwrap_or_default(),
            started_at: step.started_at.clone(),
            finished_at: step.finished_at.clone(),
        })
    };
    steps.iter().filter_map(result).collect()
}

fn shown(step: &StepRecord) -> Step {
    Step {
        name: step.name.clone(),
        state: step.state,
        attempt: step.attempt,
        started_at: step.started_at.clone(),
        finished_at: step.finished_at.clone(),
        error: step.error.clone(),
        task: step.task.as_ref().map(|(id, _)| id.clone()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn job(chain: usize, on_error: usize) -> JobRecord {
        let steps = |count: usize, prefix: &str| {
            let step = |n| StepRecord { name: format!("{prefix}{n}"), ..StepRecord::default() };
            (0..count).map(step).collect()
        };
        JobRecord {
            uuid: Uuid::nil(),
            name: "test-1.0.0".to_owned(),
            execution: Execution::Queued,
            server_uuid: ServerUuid(Uuid::nil()),
            params: JobParams::default(),
            req_id: String::new(),
            created_at: "2026-01-01T00:00:00.000Z".to_owned(),
            started: None,
            finished_at: None,
            elapsed_ms: 1200,
            chain: steps(chain, "step"),
            on_error: steps(on_error, "undo"),
            claim: None,
            ticket_uuid: None,
        }
    }

    fn now() -> Timestamp {
        "2026-01-01T00:00:01Z".parse().unwrap()
    }

    #[test]
    fn steps_run_in_order_and_a_success_is_shown_as_the_workflow_api_does() {
        let mut job = job(2, 1);
        assert_eq!(job.next(), Some(Place::Chain(0)));
        job.begin(Place::Chain(0), now());
        job.succeed(Place::Chain(0), now());
        job.skip(Place::Chain(1), now());
        assert_eq!(job.next(), None);
        job.settle(now());
        let view = job.public();
        assert_eq!(
            serde_json::to_string(&view).unwrap(),
            r#"{"uuid":"00000000-0000-0000-0000-000000000000","name":"test-1.0.0","execution":"succeeded","params":{},"target":"00000000-0000-0000-0000-000000000000","created_at":"2026-01-01T00:00:00.000Z","started":"2026-01-01T00:00:01.000Z","elapsed":1.2,"exec_after":"2026-01-01T00:00:00.000Z","chain_results":[{"name":"step0","result":"OK","error":"","started_at":"2026-01-01T00:00:01.000Z","finished_at":"2026-01-01T00:00:01.000Z"}],"onerror_results":[],"finished_at":"2026-01-01T00:00:01.000Z","steps":[{"name":"step0","state":"ok","attempt":1,"started_at":"2026-01-01T00:00:01.000Z","finished_at":"2026-01-01T00:00:01.000Z","error":null,"task":null},{"name":"step1","state":"skipped","attempt":0,"started_at":null,"finished_at":"2026-01-01T00:00:01.000Z","error":null,"task":null},{"name":"undo0","state":"pending","attempt":0,"started_at":null,"finished_at":null,"error":null,"task":null}]}"#
        );
    }

    #[test]
    fn a_failure_for_good_leads_to_the_steps_that_clean_up() {
        let mut job = job(3, 1);
        job.begin(Place::Chain(0), now());
        assert!(!job.fail(Place::Chain(0), now(), "once", 2));
        assert_eq!(job.next(), Some(Place::Chain(0)));
        job.begin(Place::Chain(0), now());
        assert!(job.fail(Place::Chain(0), now(), "twice", 2));
        assert_eq!(job.next(), Some(Place::OnError(0)));
        job.begin(Place::OnError(0), now());
        job.succeed(Place::OnError(0), now());
        assert_eq!(job.next(), None);
        job.settle(now());
        assert_eq!(job.execution, Execution::Failed);
        let view = job.public();
        let last = view.chain_results.last().unwrap();
        assert_eq!(last.error, "twice", "what clients of the workflow API read");
    }

    proptest! {
        /// Whatever the outcomes, and wherever a coordinator dies, a job ends; no step is begun
        /// more often than it may be, none after a failure, none before the one before it.
        #[test]
        fn every_job_ends_and_keeps_its_order(
            chain in 0..6usize,
            on_error in 0..3usize,
            outcomes in prop::collection::vec(0..4u8, 0..40),
        ) {
            const TRIES: u32 = 2;
            let mut job = job(chain, on_error);
            let mut outcomes = outcomes.into_iter();
            let mut begun = 0;
            while let Some(place) = job.next() {
                begun += 1;
                prop_assert!(begun <= 200, "it goes on for ever");
                job.begin(place, now());
                prop_assert!(job.step(place).attempt <= TRIES);
                if let Place::Chain(n) = place {
                    let done = |s: &StepRecord| matches!(s.state, StepState::Ok | StepState::Skipped);
                    prop_assert!(job.chain[..n].iter().all(done));
                }
                match outcomes.next() {
                    // Its coordinator dies: the next one reads what is stored.
                    Some(0) => job = serde_json::from_slice(&serde_json::to_vec(&job)?)?,
                    Some(1) => drop(job.fail(place, now(), "no", TRIES)),
                    Some(2) => job.skip(place, now()),
                    _ => job.succeed(place, now()),
                }
            }
            job.settle(now());
            prop_assert!(job.execution.has_ended());
            let failed = job.chain.iter().any(|step| step.state == StepState::Failed);
            prop_assert_eq!(failed, job.execution == Execution::Failed);
            if !failed {
                prop_assert!(job.on_error.iter().all(|step| step.attempt == 0));
            }
        }
    }
}
