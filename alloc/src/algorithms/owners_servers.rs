//! `hard-filter-owners-servers`: servers that an operator set aside for some owners.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::num;
use crate::predicate::EvalError;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::run::{Run, Verdict};
use crate::settings::OwnerFilter;

pub(super) static OWNERS_SERVERS: Algorithm = Algorithm {
    name: "hard-filter-owners-servers",
    title: "Filter CNs based on owner filters",
    kind: Kind::Set,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(_: &Refused<'_>) -> Vec<Change> {
    vec![Change::Policy { key: "filter_owner_server", value: json!({}) }]
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let Some(filters) = &run.settings.owner_filters else { return Vec::new() };
    let verdict = |filter: &OwnerFilter| {
        // A predicate that can't be evaluated is neither.
        let truth = test(run, filter, slot).ok();
        (filter.owner.to_string(), json!({ "predicate": filter.text, "holds": truth }))
    };
    let verdicts: Map<String, Value> = filters.iter().map(verdict).collect();
    vec![("owner", json!(run.request.vm.owner_uuid)), ("filters", Value::Object(verdicts))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let Some(filters) = &run.settings.owner_filters else {
        return Reasons::skip("No filter_owner_server default to run");
    };
    let owner = &run.request.vm.owner_uuid;
    if let Some(filter) = filters.iter().find(|filter| filter.owner == *owner) {
        return own(run, filter);
    }
    let mut failed = None;
    let reasons = run.filter(|run, slot| {
        let mut matching = None;
        for (filter, number) in filters.iter().zip(0u32..) {
            match test(run, filter, slot) {
                Ok(true) => matching = Some(number),
                Ok(false) => {}
                Err(EvalError) => failed = failed.or(Some(filter)),
            }
        }
        matching.map_or(Verdict::Keep, |number| Verdict::Because(Reason::Shared(number)))
    });
    if let Some(filter) = failed {
        return run.clear(error(filter));
    }
    let text = |filter: &OwnerFilter| format!("Removed by filter for owner {}", filter.owner);
    reasons.sharing(filters.iter().map(text).collect())
}

fn own(run: &mut Run<'_>, filter: &OwnerFilter) -> Reasons {
    let mut failed = false;
    run.filter(|run, slot| match test(run, filter, slot) {
        Ok(keep) => Verdict::keep_if(keep),
        Err(EvalError) => {
            failed = true;
            Verdict::Drop
        }
    });
    if failed {
        return run.clear(error(filter));
    }
    Reasons::all(format!("Servers pass filter for owner {}: {}", filter.owner, filter.text))
}

fn error(filter: &OwnerFilter) -> String {
    format!("Error running filter for owner {}: {}", filter.owner, filter.text)
}

fn test(run: &Run<'_>, filter: &OwnerFilter, slot: u32) -> Result<bool, EvalError> {
    filter.predicate.test(&|name| member(run, slot, name))
}

/// A member of `server`: what earlier steps computed, what reports say, or else the record.
fn member(run: &Run<'_>, slot: u32, name: &str) -> Option<Cow<'static, Value>> {
    let server = run.snapshot.server(slot);
    let left = run.left(slot);
    let number = |x: f64| (!x.is_nan()).then(|| num::json(x));
    let value = match name {
        "unreserved_cpu" => number(left.cpu),
        "unreserved_ram" => number(left.ram),
        "unreserved_disk" => number(left.disk),
        "score" => number(run.scores().by_slot()[slot as usize]),
        "status" => server.status.as_deref().map(Value::from),
        _ => server.figures.by_name(name).map(num::json),
    };
    value.or_else(|| server.record.get(name).cloned()).map(Cow::Owned)
}
