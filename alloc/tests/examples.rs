//! The recorded cases of the reference: server, score, steps, what remains and every reason.

use muster_alloc::offline::Offline;
use serde_json::Value;

const EXAMPLES: &str = include_str!("../../tests/data/designation-examples.jsonl");

fn lines() -> Vec<Value> {
    EXAMPLES.lines().map(|line| serde_json::from_str(line).expect("the file is JSON")).collect()
}

/// Step by step, so that a failure names the step.
fn check_steps(id: &str, got: &Value, want: &Value, servers: &[Value]) {
    let (got, want) = (got.as_array().expect("steps"), want.as_array().expect("steps"));
    for (got, want) in got.iter().zip(want) {
        assert_eq!(got["step"], want["step"], "case {id}");
        let step = &want["step"];
        let random = want.get("random").is_some();
        if let Some(remaining) = want["remaining"].as_array() {
            let uuid = |place: &Value| {
                servers[usize::try_from(place.as_u64().expect("a place")).expect("small")].clone()
            };
            let mut want: Vec<Value> = remaining.iter().map(uuid).collect();
            let mut got = got["remaining"].as_array().expect("a list").clone();
            if random {
                want.sort_by_key(ToString::to_string);
                got.sort_by_key(ToString::to_string);
            }
            assert_eq!(got, want, "case {id}: what remains after {step}");
        }
        if random {
            continue;
        }
        // As text, because the order of reasons counts, too.
        let text = |step: &Value| step.get("reasons").map(ToString::to_string);
        assert_eq!(text(got), text(want), "case {id}: reasons of {step}");
    }
    assert_eq!(got.len(), want.len(), "case {id}: number of steps");
}

#[test]
fn all_cases_are_decided_as_recorded() {
    let mut offline = Offline::default();
    let mut servers = std::collections::BTreeMap::new();
    let (mut cases, mut random) = (0, 0);
    for (line, value) in EXAMPLES.lines().zip(lines()) {
        if value["type"] == "dc" {
            let uuids: Vec<Value> = value["servers"]
                .as_array()
                .expect("a list")
                .iter()
                .map(|s| s["uuid"].clone())
                .collect();
            servers.insert(value["id"].to_string(), uuids);
        }
        let Some(case) = offline.line(line).expect("the line is usable") else { continue };
        let answer = case.decide().render(None);
        cases += 1;
        let id = value["id"].as_str().expect("an id");
        let expect = &value["expect"];
        if expect.is_null() {
            assert_eq!(answer["error"], value["expect_http"]["body"], "case {id}");
        } else if value["kind"] == "capacity" {
            assert_eq!(answer["capacities"], expect["capacities"], "case {id}");
            for (uuid, error) in answer["errors"].as_object().expect("errors") {
                // The reference removes these without a reason; the text is our own.
                let own = error == "Server is not set up";
                let want = expect["reasons"].get(uuid);
                assert_eq!(want, Some(error).filter(|_| !own), "case {id}");
            }
        } else {
            check_steps(id, &answer["steps"], &expect["steps"], &servers[&value["dc"].to_string()]);
            if value.get("random").is_some() {
                random += 1;
                let acceptable = value["expect_http"]["acceptable"].as_array();
                if let Some(acceptable) = acceptable {
                    assert!(acceptable.contains(&answer["server"]), "case {id}");
                }
            } else {
                assert_eq!(answer["server"], expect["server"], "case {id}");
                // Cases of the older generation have no score on record.
                if let Some(score) = expect.get("score") {
                    assert_eq!(answer["score"].as_f64(), score.as_f64(), "case {id}");
                }
            }
        }
    }
    assert_eq!((cases, random), (40, 3));
}
