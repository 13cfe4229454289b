//! What an allocation decided and why: recorded as numbers, rendered on demand.

use std::fmt::Write as _;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::algorithms::{Algorithm, Kind};
use crate::config::Ratios;
use crate::num::{fix2, text};
use crate::request::json_text;
use crate::server::Unreserved;
use crate::snapshot::Snapshot;

/// Why one server was removed or scored.
#[derive(Clone, Debug)]
pub(crate) enum Reason {
    /// A fixed text.
    Text(&'static str),
    /// The step's n-th shared text.
    Shared(u32),
    /// A text of its own; for rare cases.
    Owned(Box<str>),
    /// Its status.
    Status,
    /// The first fault of its record.
    Fault,
    /// Its traits, where none were asked for.
    Traits,
    /// The number of its VMs.
    VmCount(u32),
    /// A VM that decided: capped or not.
    Capness(Uuid, bool),
    /// What is left, in a text around it.
    Spare(f64),
    /// A count, as a number.
    Count(u32),
    /// A change of the score, and the score then.
    Score { delta: f64, total: f64 },
    /// The same, with the owner's VMs there.
    Zones { delta: f64, total: f64, zones: u32 },
}

/// The `reasons` of a step.
#[derive(Clone, Debug, Default)]
pub(crate) enum Reasons {
    #[default]
    None,
    /// The algorithm did not apply.
    Skip(std::borrow::Cow<'static, str>),
    /// The VMs of every remaining server.
    Loaded,
    /// Server by server, and one for all under `*`.
    Each { each: Vec<(u32, Reason)>, shared: Vec<String>, all: Option<String> },
}

impl Reasons {
    pub(crate) fn skip(text: &'static str) -> Self {
        Self::Skip(text.into())
    }

    pub(crate) fn each(each: Vec<(u32, Reason)>) -> Self {
        Self::with_shared(each, Vec::new())
    }

    pub(crate) fn with_shared(each: Vec<(u32, Reason)>, shared: Vec<String>) -> Self {
        if each.is_empty() { Self::None } else { Self::Each { each, shared, all: None } }
    }

    pub(crate) fn all(text: String) -> Self {
        Self::Each { each: Vec::new(), shared: Vec::new(), all: Some(text) }
    }
}

/// How much of the steps to render.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// No steps at all.
    None,
    /// Per step, the number of servers left.
    Counts,
    /// Everything.
    #[default]
    Full,
}

/// One algorithm's run.
#[derive(Clone, Debug)]
pub struct Step {
    pub(crate) algorithm: Option<&'static Algorithm>,
    pub(crate) remaining: Arc<Vec<u32>>,
    pub(crate) reasons: Reasons,
}

const RECEIVED: &str = "Received by DAPI";

impl Step {
    /// The text that names the step.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.algorithm.map_or(RECEIVED, |algorithm| algorithm.title)
    }

    /// The algorithm's name in expressions; `None` for the first step.
    #[must_use]
    pub fn algorithm(&self) -> Option<&'static str> {
        self.algorithm.map(|algorithm| algorithm.name)
    }

    /// Whether the step judged each server by itself: a server it removed could as well not have
    /// been there.
    #[must_use]
    pub fn judges_singly(&self) -> bool {
        self.algorithm.is_some_and(|algorithm| algorithm.kind == Kind::Filter)
    }

    /// How many servers were left.
    #[must_use]
    pub fn remaining_count(&self) -> usize {
        self.remaining.len()
    }
}

/// The chosen server.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// Which.
    pub server_uuid: String,
    /// Its score.
    pub score: f64,
    /// What it had left before this VM, if the pipeline computed it.
    pub unreserved: Option<Unreserved>,
    /// The overprovisioning ratios in force for it.
    pub ratios: Ratios,
}

/// The result of an allocation.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The chosen server, if any was left.
    pub server: Option<Choice>,
    /// What was run, in order.
    pub steps: Vec<Step>,
    /// The seed that random algorithms used.
    pub seed: u64,
}

impl Outcome {
    /// The steps as in the HTTP answer.
    #[must_use]
    pub fn steps_json(&self, detail: Detail) -> Value {
        let step = |step: &Step| {
            let mut out = Map::new();
            out.insert("step".to_owned(), step.title().into());
            if detail == Detail::Counts {
                out.insert("remaining".to_owned(), step.remaining.len().into());
                return Value::Object(out);
            }
            let remaining = step.remaining.iter().map(|slot| self.uuid(*slot).into()).collect();
            out.insert("remaining".to_owned(), Value::Array(remaining));
            let reasons = self.reasons(step);
            if !reasons.is_empty() {
                out.insert("reasons".to_owned(), Value::Object(reasons));
            }
            Value::Object(out)
        };
        match detail {
            Detail::None => json!([]),
            _ => self.steps.iter().map(step).collect(),
        }
    }

    /// Why there is no server, in the words of `NoAllocatableServersError`.
    #[must_use]
    pub fn failure(&self) -> String {
        let Some(step) = self.steps.last() else { return String::new() };
        if let Reasons::Each { all: Some(text), .. } = &step.reasons {
            return text.clone();
        }
        let title = step.title();
        let mut chars = title.chars();
        let lower: String =
            chars.next().into_iter().flat_map(char::to_lowercase).chain(chars).collect();
        if lower.starts_with("servers ") { format!("no {lower}") } else { lower }
    }

    /// Whether the last step was the one that wants the VMs of `docker:volumesfrom`, so that the
    /// answer is `VolumeServerNoResourcesError`.
    #[must_use]
    pub fn failed_for_volumes(&self) -> bool {
        self.server.is_none()
            && self.steps.last().and_then(Step::algorithm) == Some("hard-filter-volumes-from")
    }

    pub(crate) fn uuid(&self, slot: u32) -> &str {
        &self.snapshot.server(slot).uuid
    }

    /// The `reasons` of a step; empty if there are none.
    #[must_use]
    pub fn reasons(&self, step: &Step) -> Map<String, Value> {
        let mut out = Map::new();
        match &step.reasons {
            Reasons::None => {}
            Reasons::Skip(text) => drop(out.insert("skip".to_owned(), text.as_ref().into())),
            Reasons::Loaded => {
                for slot in step.remaining.iter() {
                    let server = self.snapshot.server(*slot);
                    let text = format!("{} VMs loaded", server.loaded().count());
                    out.insert(server.uuid.to_string(), text.into());
                }
            }
            Reasons::Each { each, shared, all } => {
                for (slot, reason) in each {
                    let text = self.reason(*slot, reason, shared);
                    out.insert(self.uuid(*slot).to_owned(), text);
                }
                if let Some(text) = all {
                    out.insert("*".to_owned(), text.as_str().into());
                }
            }
        }
        out
    }

    fn reason(&self, slot: u32, reason: &Reason, shared: &[String]) -> Value {
        let server = self.snapshot.server(slot);
        let common = |n: usize| shared.get(n).map_or("", String::as_str);
        let mut out = String::new();
        let written = match reason {
            Reason::Text(text) => return (*text).into(),
            Reason::Shared(n) => return common(*n as usize).into(),
            Reason::Owned(text) => return text.as_ref().into(),
            Reason::Count(n) => return (*n).into(),
            Reason::Status => {
                let status = server.status.as_deref().unwrap_or("undefined");
                write!(out, "Server has status: {status}")
            }
            Reason::Fault => out.write_str(server.fault().unwrap_or_default()),
            Reason::Traits => {
                let traits =
                    server.parsed.traits.as_ref().map_or("undefined".to_owned(), json_text);
                write!(out, "{} but server has {traits}", common(0))
            }
            Reason::VmCount(n) => write!(out, "Server has {n} VMs (limit is {})", common(0)),
            Reason::Capness(vm, true) => {
                write!(out, "VM {vm} has a cpu_cap, while the package does not")
            }
            Reason::Capness(vm, false) => {
                write!(out, "VM {vm} has no cpu_cap, while the package does")
            }
            Reason::Spare(x) => {
                let spare = if x.is_nan() { "undefined".to_owned() } else { text(*x) };
                write!(out, "{}{spare}{}", common(0), common(1))
            }
            Reason::Score { delta, total } => {
                write!(out, "increased score by {} to {}", fix2(*delta), fix2(*total))
            }
            Reason::Zones { delta, total, zones } => write!(
                out,
                "increased score by {} to {}; {zones} owner zones found",
                fix2(*delta),
                fix2(*total)
            ),
        };
        written.expect("writing to a String does not fail");
        Value::String(out)
    }
}
