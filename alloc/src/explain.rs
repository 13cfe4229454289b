//! What every algorithm made of every server, with the figures it compared: the longest answer to
//! "why?".

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::algorithm::Algorithm;
use crate::findings::Findings;
use crate::num;
use crate::reason::Reasons;
use crate::recent::Recent;
use crate::remaining::Remaining;
use crate::request::Request;
use crate::run::Run;
use crate::server_name::ServerName;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Kept,
    Removed,
    Scored,
}

/// What one algorithm made of one server.
#[derive(Clone, Debug, Serialize)]
struct Note {
    algorithm: &'static str,
    verdict: Verdict,
    /// By how much the score changed.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    delta: Option<f64>,
    /// The score then.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "number")]
    score: Option<f64>,
    /// Why the algorithm did not apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<Cow<'static, str>>,
    /// The figures by which it judged.
    #[serde(skip_serializing_if = "Option::is_none")]
    compared: Option<Map<String, Value>>,
}

fn number<S: Serializer>(x: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    x.map(num::json).serialize(serializer)
}

/// One algorithm's work, as far as it takes to say what it made of each server.
#[derive(Clone, Debug)]
struct Moment {
    algorithm: &'static Algorithm,
    /// The servers that it was given, and those that it kept.
    given: Arc<Remaining>,
    kept: Arc<Remaining>,
    skipped: Option<Cow<'static, str>>,
    /// By slot, of a scorer: by how much the score changed.
    deltas: Option<Vec<Option<f64>>>,
    /// By slot: the score then.
    scores: Arc<Vec<f64>>,
    /// What it had found then; none of an algorithm that compares nothing.
    found: Option<Findings>,
}

/// What algorithms did, taken down while they run.
#[derive(Debug, Default)]
pub(crate) struct Notes(Vec<Moment>);

impl Notes {
    /// Takes down what an algorithm did with the servers it was given.
    pub(crate) fn note(
        &mut self,
        run: &Run<'_>,
        algorithm: &'static Algorithm,
        given: Arc<Remaining>,
        reasons: &Reasons,
    ) {
        let skipped = match reasons {
            Reasons::Skip(text) => Some(text.clone()),
            _ => None,
        };
        let deltas = match reasons {
            Reasons::Scored(scored) => {
                let mut deltas = vec![None; run.snapshot.capacity()];
                for (slot, delta) in scored.list.iter().zip(scored.changes()) {
                    deltas[*slot as usize] = Some(delta);
                }
                Some(deltas)
            }
            _ => None,
        };
        let last = self.0.last().map(|last| &last.scores).filter(|_| deltas.is_none());
        let scores = last.cloned().unwrap_or_else(|| Arc::new(run.scores().by_slot().to_vec()));
        let compares = algorithm.compares.is_some() && skipped.is_none();
        let kept = Arc::clone(run.remaining());
        let found = compares.then(|| run.found.clone());
        self.0.push(Moment { algorithm, given, kept, skipped, deltas, scores, found });
    }

    /// By server, in an order.
    pub(crate) fn explanation(
        self,
        snapshot: &Arc<Snapshot>,
        inputs: Inputs<'_>,
        order: &Arc<Vec<u32>>,
    ) -> Explanation {
        Explanation {
            snapshot: Arc::clone(snapshot),
            request: inputs.request.clone(),
            settings: inputs.settings.clone(),
            recent: inputs.recent.clone(),
            moments: self.0,
            order: Arc::clone(order),
        }
    }
}

/// What every algorithm made of every server: `{"<uuid>": [{"algorithm", "verdict":
/// "kept"|"removed"|"scored", "compared"?, "delta"?, "score"?, "skipped"?}]}`, in the order in
/// which servers were looked at. What it says of a server is put together when it is asked for:
/// of a large fleet, all of it is hundreds of MB.
#[derive(Clone, Debug)]
pub struct Explanation {
    snapshot: Arc<Snapshot>,
    request: Request,
    settings: Settings,
    recent: Recent,
    moments: Vec<Moment>,
    order: Arc<Vec<u32>>,
}

/// What a decision depended on beside the snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs<'a> {
    pub(crate) request: &'a Request,
    pub(crate) settings: &'a Settings,
    pub(crate) recent: &'a Recent,
}

impl Explanation {
    /// How many servers it is about.
    #[must_use]
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether no server was looked at.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// What it says of some servers, from a place in the order on: the members of its JSON.
    #[must_use]
    pub fn part(&self, from: usize, count: usize) -> impl Serialize + use<> {
        Part(self.notes(from, count))
    }

    fn notes(&self, from: usize, count: usize) -> Vec<(ServerName, Vec<Note>)> {
        let servers = self.order.iter().skip(from).take(count);
        let slots: Vec<u32> = servers.copied().collect();
        let mut notes: Vec<Vec<Note>> = vec![Vec::with_capacity(self.moments.len()); slots.len()];
        for moment in &self.moments {
            let run = moment.found.as_ref().map(|found| self.run(found, &moment.scores));
            for (slot, notes) in slots.iter().zip(&mut notes) {
                notes.extend(moment.note(run.as_ref(), *slot));
            }
        }
        let names = slots.into_iter().map(|slot| self.snapshot.server(slot).name.clone());
        names.zip(notes).collect()
    }

    /// The evaluation as it was then.
    fn run(&self, found: &Findings, scores: &[f64]) -> Run<'_> {
        let Self { snapshot, request, settings, recent, .. } = self;
        let mut run = Run::new(snapshot, request, settings, recent, 0);
        run.found = found.clone();
        run.set_scores(scores);
        run
    }
}

impl Moment {
    /// What it made of a server, if it was given it.
    fn note(&self, run: Option<&Run<'_>>, slot: u32) -> Option<Note> {
        let at = slot as usize;
        if !self.given.has(slot) {
            return None;
        }
        let delta = self.deltas.as_ref().and_then(|deltas| deltas[at]);
        let figures = |run| self.algorithm.compares.map(|compares| compares(run, slot));
        let compared = run.and_then(figures).map(|figures| {
            figures.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
        });
        Some(Note {
            algorithm: self.algorithm.name,
            verdict: match (self.kept.has(slot), delta) {
                (false, _) => Verdict::Removed,
                (true, None) => Verdict::Kept,
                (true, Some(_)) => Verdict::Scored,
            },
            delta,
            score: delta.map(|_| self.scores[at]),
            skipped: self.skipped.clone(),
            compared,
        })
    }
}

/// Some servers of an explanation.
struct Part(Vec<(ServerName, Vec<Note>)>);

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(server, notes)| (server, notes)))
    }
}

impl Serialize for Explanation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Part(self.notes(0, self.len())).serialize(serializer)
    }
}
