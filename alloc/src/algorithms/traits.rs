//! `hard-filter-traits`: servers with exactly the traits that are asked for.

use serde_json::{Map, Value};

use crate::algorithm::{Algorithm, Kind};
use crate::change::Change;
use crate::reason::{Reason, Reasons};
use crate::remedy::Refused;
use crate::request::{Request, json_text};
use crate::run::{Run, Verdict};
use crate::server::flag;

pub(super) static TRAITS: Algorithm = Algorithm {
    name: "hard-filter-traits",
    title: "Servers with correct traits",
    kind: Kind::Filter,
    run,
    compares: Some(compares),
    remedies,
    ..Algorithm::PLAIN
};

fn remedies(refused: &Refused<'_>) -> Vec<Change> {
    let wanted = Value::Object(wanted(refused.request));
    let text = format!("traits {wanted}");
    vec![refused.set("traits", wanted, &text)]
}

fn compares(run: &Run<'_>, slot: u32) -> Vec<(&'static str, Value)> {
    let has = run.snapshot.server(slot).parsed.traits.clone().unwrap_or_default();
    vec![("server", Value::Object(has)), ("wanted", Value::Object(wanted(run.request)))]
}

fn run(run: &mut Run<'_>) -> Reasons {
    let wanted = wanted(run.request);
    if wanted.is_empty() {
        let reasons = run.filter_flag(flag::TRAITS, false, || Verdict::Because(Reason::Traits));
        return reasons.sharing(vec!["Combined vm/pkg/img require no traits".to_owned()]);
    }
    let reasons = run.filter(|run, slot| {
        let none = Map::new();
        let has = if run.snapshot.has(slot, flag::TRAITS) {
            run.snapshot.server(slot).parsed.traits.as_ref().unwrap_or(&none)
        } else {
            &none
        };
        if has.len() != wanted.len() {
            return Verdict::Because(Reason::Traits);
        }
        let fault = |(key, want): (&String, &Value)| {
            let why = mismatch(want, has.get(key))?;
            Some(format!("{key} comparison failed: {why}"))
        };
        match wanted.iter().find_map(fault) {
            None => Verdict::Keep,
            Some(text) => Verdict::Because(Reason::Owned(text.into())),
        }
    });
    let text = format!("Combined vm/pkg/img traits require {}", json_text(&wanted));
    reasons.sharing(vec![text])
}

/// What VM or package ask for, overlaid by what the image does.
fn wanted(request: &Request) -> Map<String, Value> {
    let vm = request.vm.traits.as_ref();
    let base = vm.or(request.package.as_ref().and_then(|package| package.traits.as_ref()));
    let mut wanted: Map<String, Value> = base.cloned().unwrap_or_default();
    if let Some(image) = &request.image.traits {
        wanted.extend(image.iter().map(|(key, value)| (key.clone(), value.clone())));
    }
    wanted
}

fn mismatch(want: &Value, has: Option<&Value>) -> Option<&'static str> {
    let (fits, why) = match (want, has) {
        (_, None) => (false, "undefined property"),
        (Value::Bool(_), Some(has)) => (has == want, "boolean did not match"),
        (Value::String(_), Some(Value::String(_))) => (has == Some(want), "strings did not match"),
        (Value::String(_), Some(Value::Array(has))) => {
            (has.contains(want), "server trait array did not contain trait")
        }
        (Value::Array(want), Some(has @ Value::String(_))) => {
            (want.contains(has), "server trait was not in requested trait array")
        }
        (Value::Array(want), Some(Value::Array(has))) => (
            want.iter().any(|item| has.contains(item)),
            "server and requested trait arrays do not intersect",
        ),
        _ => (false, "unsupported combination of property types"),
    };
    (!fits).then_some(why)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pairs_compare_as_documented() {
        let check = |want: Value, has: Value, why: Option<&str>| {
            assert_eq!(mismatch(&want, Some(&has)), why, "{want} {has}");
        };
        check(json!(true), json!(true), None);
        check(json!(true), json!("true"), Some("boolean did not match"));
        check(json!("a"), json!("b"), Some("strings did not match"));
        check(json!("a"), json!(["b", "a"]), None);
        check(json!(["b", "a"]), json!("a"), None);
        check(json!(["b"]), json!("a"), Some("server trait was not in requested trait array"));
        check(json!(["a"]), json!(["c", "a"]), None);
        check(json!(5), json!(5), Some("unsupported combination of property types"));
        assert_eq!(mismatch(&json!("a"), None), Some("undefined property"));
    }
}
