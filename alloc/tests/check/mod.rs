//! Compares answers to the recorded cases with what the reference answered: server, score, steps,
//! what remains and every reason.

use std::collections::BTreeMap;

use serde_json::Value;

/// The recorded lines.
pub(crate) const EXAMPLES: &str = include_str!("../../../tests/data/designation-examples.jsonl");

/// The recorded lines, parsed.
pub(crate) fn lines() -> Vec<Value> {
    EXAMPLES.lines().map(|line| serde_json::from_str(line).expect("the file is JSON")).collect()
}

/// Checks answers, in the order of the recorded cases.
#[derive(Default)]
pub(crate) struct Checker {
    servers: BTreeMap<String, Vec<Value>>,
    cases: usize,
    random: usize,
}

impl Checker {
    /// Takes in a recorded line; `answer` is asked for a case's answer.
    pub(crate) fn line(&mut self, line: &Value, answer: impl FnOnce() -> Value) {
        match line["type"].as_str() {
            Some("dc") => {
                let list = line["servers"].as_array().expect("a list");
                let uuids = list.iter().map(|s| s["uuid"].clone()).collect();
                self.servers.insert(line["id"].to_string(), uuids);
            }
            Some("case") => {
                self.cases += 1;
                self.case(line, &answer());
            }
            _ => {}
        }
    }

    /// All cases were there.
    pub(crate) fn finish(&self) {
        assert_eq!((self.cases, self.random), (40, 3));
    }

    fn case(&mut self, case: &Value, answer: &Value) {
        let id = case["id"].as_str().expect("an id");
        let expect = &case["expect"];
        assert_eq!(answer["id"], case["id"]);
        if expect.is_null() {
            assert_eq!(answer["error"], case["expect_http"]["body"], "case {id}");
        } else if case["kind"] == "capacity" {
            assert_eq!(answer["capacities"], expect["capacities"], "case {id}");
            for (uuid, error) in answer["errors"].as_object().expect("errors") {
                assert_eq!(expect["reasons"].get(uuid), Some(error), "case {id}");
            }
        } else {
            let servers = &self.servers[&case["dc"].to_string()];
            check_steps(id, &answer["steps"], &expect["steps"], servers);
            if case.get("random").is_some() {
                self.random += 1;
                let acceptable = case["expect_http"]["acceptable"].as_array();
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
