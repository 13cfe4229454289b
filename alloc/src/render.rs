//! Turns what was recorded into the steps of the HTTP answer.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use serde::ser::{Serialize, SerializeMap as _, SerializeSeq as _, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::num::{push_fix2, text};
use crate::outcome::{Detail, Outcome, Step};
use crate::reason::{Reason, Reasons};
use crate::remaining::Remaining;
use crate::request::json_text;
use crate::server::flag;

/// The steps of an outcome, ready to be written as JSON without a copy of all uuids in between.
#[derive(Debug)]
pub struct Steps<'a> {
    outcome: &'a Outcome,
    detail: Detail,
    /// For each step that scored, the scores after it, by place in the list that it scored.
    totals: Vec<Vec<f64>>,
    names: Names,
    lists: Lists,
}

struct StepView<'a> {
    steps: &'a Steps<'a>,
    place: usize,
}

/// The servers that steps left, as JSON. Most steps leave what the one before them left, and writing
/// thousands of uuids is most of an answer's cost.
#[derive(Debug, Default)]
struct Lists {
    json: Vec<Box<RawValue>>,
    /// For each step, the place of its list.
    of_step: Vec<usize>,
}

impl Lists {
    fn of(outcome: &Outcome, names: &Names) -> Self {
        let mut lists = Self::default();
        let mut last: Option<&Arc<Remaining>> = None;
        for Step { remaining, .. } in &outcome.steps {
            let same =
                last.is_some_and(|last| Arc::ptr_eq(last, remaining) || last.is_same(remaining));
            if !same {
                lists.json.push(names.list(remaining));
            }
            lists.of_step.push(lists.json.len() - 1);
            last = Some(remaining);
        }
        lists
    }

    fn get(&self, step: usize) -> &RawValue {
        &self.json[self.of_step[step]]
    }
}

/// The servers' uuids side by side, by slot: steps repeat them many times, and each is far away in
/// memory.
#[derive(Clone, Debug, Default)]
struct Names {
    text: String,
    /// Where each begins; one more at the end.
    starts: Vec<usize>,
}

impl Names {
    fn of(outcome: &Outcome) -> Self {
        let snapshot = &outcome.snapshot;
        let mut names = Self::default();
        names.text.reserve(snapshot.len() * 36);
        names.starts.reserve(snapshot.capacity() + 1);
        for slot in snapshot.slots() {
            // Slots that are not in use have no name.
            names.starts.resize(slot as usize + 1, names.text.len());
            snapshot.server(slot).name.push_to(&mut names.text);
        }
        names.starts.push(names.text.len());
        names
    }

    fn get(&self, slot: u32) -> &str {
        let slot = slot as usize;
        &self.text[self.starts[slot]..self.starts[slot + 1]]
    }

    fn list(&self, servers: &Remaining) -> Box<RawValue> {
        let names: Vec<&str> = servers.iter().map(|slot| self.get(slot)).collect();
        serde_json::value::to_raw_value(&names).expect("texts are JSON")
    }
}

struct ReasonsView<'a> {
    outcome: &'a Outcome,
    names: &'a Names,
    step: &'a Step,
    totals: &'a [f64],
}

impl Outcome {
    /// The steps, to be serialized.
    #[must_use]
    pub fn steps(&self, detail: Detail) -> Steps<'_> {
        if detail != Detail::Full {
            let (totals, names, lists) = Default::default();
            return Steps { outcome: self, detail, totals, names, lists };
        }
        let names = Names::of(self);
        let lists = Lists::of(self, &names);
        Steps { outcome: self, detail, totals: self.totals(), names, lists }
    }

    /// The steps as a JSON value. At thousands of servers [`Outcome::steps`] is much cheaper.
    #[must_use]
    pub fn steps_json(&self, detail: Detail) -> Value {
        serde_json::to_value(self.steps(detail)).expect("steps have only text keys")
    }

    /// The `reasons` of the step at a place; empty if there are none.
    #[must_use]
    pub fn reasons(&self, place: usize) -> Map<String, Value> {
        let totals = self.totals();
        let (Some(step), Some(totals)) = (self.steps.get(place), totals.get(place)) else {
            return Map::new();
        };
        let names = &Names::of(self);
        match serde_json::to_value(ReasonsView { outcome: self, names, step, totals }) {
            Ok(Value::Object(reasons)) => reasons,
            _ => Map::new(),
        }
    }

    /// Why servers were removed, by server, those that were removed with a reason of their own.
    pub(crate) fn left_out(&self) -> Map<String, Value> {
        let mut texts = Map::new();
        for step in &self.steps {
            let Reasons::Each { each, shared, .. } = &step.reasons else { continue };
            for (slot, reason) in each {
                let name = self.snapshot.server(*slot).name.to_string();
                texts.insert(name, reason_text(self, *slot, reason, shared).into());
            }
        }
        texts
    }

    fn totals(&self) -> Vec<Vec<f64>> {
        let mut score = vec![0.0; self.snapshot.capacity()];
        let totals = |step: &Step| match &step.reasons {
            Reasons::Scored(scored) => {
                let add = |(slot, change): (&u32, f64)| {
                    score[*slot as usize] += change;
                    score[*slot as usize]
                };
                scored.list.iter().zip(scored.changes()).map(add).collect()
            }
            _ => Vec::new(),
        };
        self.steps.iter().map(totals).collect()
    }
}

impl Serialize for Steps<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let count = if self.detail == Detail::None { 0 } else { self.outcome.steps.len() };
        let mut seq = serializer.serialize_seq(Some(count))?;
        for place in 0..count {
            seq.serialize_element(&StepView { steps: self, place })?;
        }
        seq.end()
    }
}

impl Serialize for StepView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let outcome = self.steps.outcome;
        let step = &outcome.steps[self.place];
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("step", step.title())?;
        if self.steps.detail == Detail::Counts {
            map.serialize_entry("remaining", &step.remaining.len())?;
            return map.end();
        }
        map.serialize_entry("remaining", self.steps.lists.get(self.place))?;
        let totals = self.steps.totals[self.place].as_slice();
        let names = &self.steps.names;
        let reasons = ReasonsView { outcome, names, step, totals };
        if !reasons.is_empty() {
            map.serialize_entry("reasons", &reasons)?;
        }
        map.end()
    }
}

impl ReasonsView<'_> {
    fn is_empty(&self) -> bool {
        match &self.step.reasons {
            Reasons::None => true,
            Reasons::Skip(_) => false,
            Reasons::Loaded => self.step.remaining.is_empty(),
            Reasons::Scored(scored) => scored.list.is_empty(),
            Reasons::Each { each, all, .. } => each.is_empty() && all.is_none(),
        }
    }
}

impl Serialize for ReasonsView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { outcome, names, .. } = *self;
        let mut map = serializer.serialize_map(None)?;
        // One text after the other.
        let mut out = String::new();
        match &self.step.reasons {
            Reasons::None => {}
            Reasons::Skip(text) => map.serialize_entry("skip", text)?,
            Reasons::Loaded => {
                for slot in self.step.remaining.iter() {
                    out.clear();
                    push(&mut out, format_args!("{} VMs loaded", loaded(outcome, slot)));
                    map.serialize_entry(names.get(slot), &out)?;
                }
            }
            Reasons::Scored(scored) => {
                let changes = scored.changes();
                for place in scored.places().iter().map(|place| *place as usize) {
                    let slot = scored.list[place];
                    out.clear();
                    scored_text(
                        &mut out,
                        changes[place],
                        self.totals[place],
                        scored.zones_of(slot),
                    );
                    map.serialize_entry(names.get(slot), &out)?;
                }
            }
            Reasons::Each { each, shared, all, .. } => {
                for (slot, reason) in each {
                    let uuid = names.get(*slot);
                    match reason {
                        Reason::Count(n) => map.serialize_entry(uuid, n)?,
                        reason => {
                            map.serialize_entry(
                                uuid,
                                &reason_text(outcome, *slot, reason, shared),
                            )?;
                        }
                    }
                }
                if let Some(text) = all {
                    map.serialize_entry("*", text)?;
                }
            }
        }
        map.end()
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a String does not fail");
}

/// How many VMs of a server `load-server-vms` counts.
fn loaded(outcome: &Outcome, slot: u32) -> usize {
    let snapshot = &outcome.snapshot;
    if snapshot.has(slot, flag::PROMISED) {
        return snapshot.server(slot).loaded().count();
    }
    snapshot.fast_vm_count(slot) as usize
}

fn scored_text(out: &mut String, change: f64, total: f64, zones: Option<u32>) {
    out.push_str("increased score by ");
    push_fix2(out, change);
    out.push_str(" to ");
    push_fix2(out, total);
    if let Some(zones) = zones {
        push(out, format_args!("; {zones} owner zones found"));
    }
}

fn reason_text<'a>(
    outcome: &'a Outcome,
    slot: u32,
    reason: &'a Reason,
    shared: &'a [String],
) -> Cow<'a, str> {
    let server = outcome.snapshot.server(slot);
    let common = |n: usize| shared.get(n).map_or("", String::as_str);
    match reason {
        Reason::Text(text) => (*text).into(),
        Reason::Shared(n) => common(*n as usize).into(),
        Reason::Owned(text) => text.as_ref().into(),
        Reason::Count(n) => n.to_string().into(),
        Reason::Status => {
            format!("Server has status: {}", server.status.as_deref().unwrap_or("undefined")).into()
        }
        Reason::Fault => server.fault().unwrap_or_default().into(),
        Reason::Traits => {
            let traits = match (server.record.get("traits"), &server.parsed.traits) {
                // A list passes for an object, but is shown as it is.
                (Some(list @ Value::Array(_)), _) => list.to_string(),
                (_, Some(traits)) => json_text(traits),
                (_, None) => "undefined".to_owned(),
            };
            format!("{} but server has {traits}", common(0)).into()
        }
        Reason::VmCount(n) => format!("Server has {n} VMs (limit is {})", common(0)).into(),
        Reason::Capness(vm, true) => {
            format!("VM {vm} has a cpu_cap, while the package does not").into()
        }
        Reason::Capness(vm, false) => {
            format!("VM {vm} has no cpu_cap, while the package does").into()
        }
        Reason::Spare(x) => {
            let spare = if x.is_nan() { "undefined".to_owned() } else { text(*x) };
            format!("{}{spare}{}", common(0), common(1)).into()
        }
    }
}
