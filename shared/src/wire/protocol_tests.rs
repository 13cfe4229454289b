//! The protocol as a whole: recorded transcripts, the described members, and any input.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::stream::Control;
use super::{
    Code, DecodeError, FromAgent, FromCoordinator, Intake, MAX_FRAME_BYTES, Message, Outcome,
    StreamKind, decode, encode,
};

const AGENT: &str = include_str!("../../../tests/data/protocol/v1-agent.jsonl");
const COORDINATOR: &str = include_str!("../../../tests/data/protocol/v1-coordinator.jsonl");
const PAGE: &str = include_str!("../../../docs/protocol.md");

/// Decodes every recorded frame, and finds what it said in what is written again. These files are
/// never edited, only added to: peers of that version are still out there.
#[track_caller]
fn replay<M: Message + PartialEq + std::fmt::Debug>(transcript: &str) {
    let mut seen = Vec::new();
    for line in transcript.lines() {
        let message: M = decode(line).unwrap_or_else(|error| panic!("{error:?}: {line}"));
        assert_eq!(decode::<M>(&encode(&message)).unwrap(), message, "{line}");
        let recorded: Value = serde_json::from_str(line).unwrap();
        let written: Value = serde_json::from_str(&encode(&message)).unwrap();
        assert_kept(&recorded, &written, line);
        seen.push(message.kind());
    }
    for kind in M::KINDS {
        assert!(seen.contains(kind), "no {kind} is recorded");
    }
}

#[track_caller]
fn assert_kept(recorded: &Value, written: &Value, line: &str) {
    match recorded {
        Value::Object(members) => {
            for (name, value) in members.iter().filter(|(name, _)| *name != "from_the_future") {
                assert!(written.get(name).is_some(), "{name} is lost: {line}");
                assert_kept(value, &written[name], line);
            }
        }
        value => assert_eq!(value, written, "{line}"),
    }
}

#[test]
fn recorded_agents_are_understood() {
    replay::<FromAgent>(AGENT);
}

#[test]
fn recorded_coordinators_are_understood() {
    replay::<FromCoordinator>(COORDINATOR);
}

#[track_caller]
fn described<M: Message>(section: &str, transcript: &str) {
    let from = PAGE.find(section).expect("the page has the section");
    let text = &PAGE[from..];
    let text = text[3..].find("\n## ").map_or(text, |end| &text[..end + 3]);
    let row = |kind: &str| {
        let start = format!("| `{kind}` | ");
        text.lines()
            .find(|line| line.starts_with(&start))
            .unwrap_or_else(|| panic!("no row {kind}"))
    };
    for kind in M::KINDS {
        row(kind);
    }
    for line in transcript.lines() {
        let message: M = decode(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let written: Value = serde_json::from_str(&encode(&message)).unwrap();
        let row = row(message.kind());
        let lane = format!("{:?}", message.lane()).to_lowercase();
        assert!(row.contains(&format!("| {lane} |")), "{row} has the wrong lane");
        for member in written.as_object().unwrap().keys().filter(|name| *name != "kind") {
            assert!(row.contains(&format!("`{member}`")), "{member} is not in: {row}");
        }
    }
    // And the other way: what the page names exists.
    for line in text.lines().filter(|line| line.starts_with("| `")) {
        let kind = line.split('`').nth(1).unwrap();
        assert!(M::KINDS.contains(&kind), "{kind} is described but no message");
    }
}

#[test]
fn every_kind_member_and_lane_is_described() {
    described::<FromAgent>("## From the agent", AGENT);
    described::<FromCoordinator>("## From the coordinator", COORDINATOR);
}

#[test]
fn members_of_reports_and_streams_are_described() {
    let status = AGENT.lines().find(|line| line.contains(r#""full":true"#)).unwrap();
    let status: Value = serde_json::from_str(status).unwrap();
    let report = status["report"].as_object().unwrap();
    let vm = report["vms"].as_object().unwrap().values().next().unwrap();
    let streams = [
        json!(Control::Window { bytes: 1 }),
        json!(Control::Close { code: "done".into(), message: String::new() }),
    ];
    let named = |object: &Map<String, Value>| {
        for name in object.keys().filter(|name| *name != "kind") {
            assert!(PAGE.contains(&format!("`{name}`")), "{name} is not described");
        }
    };
    named(report);
    named(vm.as_object().unwrap());
    named(vm["index"].as_object().unwrap());
    for control in &streams {
        named(control.as_object().unwrap());
        assert!(PAGE.contains(&format!("`{}`", control["kind"].as_str().unwrap())));
    }
}

/// A recorded frame with some members replaced by anything, or a message of random members.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        Just(json!("0b6b2a8e-6f0f-4d0e-9a51-1f2e3d4c5b6a")),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn mutated(transcript: &'static str) -> impl Strategy<Value = String> {
    let lines: Vec<&str> = transcript.lines().collect();
    (prop::sample::select(lines), any::<prop::sample::Index>(), any_json()).prop_map(
        |(line, at, value)| {
            let mut frame: Map<String, Value> = serde_json::from_str(line).unwrap();
            let names: Vec<_> = frame.keys().cloned().collect();
            frame.insert(at.get(&names).clone(), value);
            Value::Object(frame).to_string()
        },
    )
}

/// Anything decodes to a message that survives a round trip, or to an error that says why.
fn clean<M: Message + PartialEq + std::fmt::Debug>(text: &str) -> Result<(), TestCaseError> {
    match decode::<M>(text) {
        Ok(message) => {
            let again = decode::<M>(&encode(&message));
            prop_assert!(matches!(&again, Ok(same) if *same == message), "{message:?} {again:?}");
        }
        Err(error) => prop_assert!(!error.to_string().is_empty()),
    }
    Ok(())
}

proptest! {
    #[test]
    fn messages_survive_the_round_trip(frame in mutated(AGENT), other in mutated(COORDINATOR)) {
        clean::<FromAgent>(&frame)?;
        clean::<FromCoordinator>(&other)?;
    }

    #[test]
    fn any_bytes_are_a_message_or_a_clean_error(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        let text = String::from_utf8_lossy(&bytes);
        clean::<FromAgent>(&text)?;
        clean::<FromCoordinator>(&text)?;
    }

    #[test]
    fn any_json_is_a_message_or_a_clean_error(value in any_json()) {
        clean::<FromAgent>(&value.to_string())?;
        clean::<FromCoordinator>(&value.to_string())?;
    }

    #[test]
    fn unknown_kinds_are_named(kind in "[A-Z][a-z]{1,12}") {
        let text = json!({ "kind": kind, "id": 1 }).to_string();
        let error = decode::<FromAgent>(&text).unwrap_err();
        let is_named = matches!(error, DecodeError::UnknownKind { kind: named, .. } if named == kind);
        prop_assert!(is_named);
    }
}

#[test]
fn values_of_a_later_version_are_read_as_unknown_ones() {
    let first =
        |lines: &str| -> Value { serde_json::from_str(lines.lines().next().unwrap()).unwrap() };
    let mut hello = first(AGENT);
    hello["intake"] = json!("by_invitation");
    let Ok(FromAgent::Hello(hello)) = decode(&hello.to_string()) else { panic!("no hello") };
    assert_eq!(hello.intake, Intake::Other);
    for (status, name) in [(json!("partial"), "\"partial\""), (json!({ "a": 1 }), "{\"a\":1}")] {
        let text = json!({ "kind": "result", "id": "t", "status": status, "result": { "x": 1 },
            "error": { "message": "half", "code": "Half", "details": [1] } });
        let Ok(FromAgent::Result(result)) = decode(&text.to_string()) else { panic!("no result") };
        let error = result.error.unwrap();
        assert_eq!((result.status, error.code), (Outcome::Failure, Code::UnknownOutcome));
        assert!(
            error.message.contains(name) && error.message.ends_with("half"),
            "{}",
            error.message
        );
        assert_eq!((result.result, error.details), (json!({ "x": 1 }), Some(json!([1]))));
    }
    let text = json!({ "kind": "stream_open", "stream": "serial2", "stream_id": Uuid::nil(),
        "vm_uuid": Uuid::nil() });
    let open = decode(&text.to_string());
    assert!(
        matches!(open, Ok(FromCoordinator::StreamOpen(open)) if open.stream == StreamKind::Other)
    );
}

#[test]
fn answers_to_what_is_not_understood_name_what_it_was_about() {
    for (text, code, about) in [
        (json!({ "kind": "extend", "id": "t" }), Code::UnknownKind, Some("t")),
        (json!({ "kind": "extend", "id": 7, "token": "k" }), Code::UnknownKind, Some("k")),
        (json!({ "kind": "cancel", "id": "" }), Code::Malformed, Some("")),
        (json!({ "kind": "dispatch", "id": "t", "task": 7 }), Code::Malformed, Some("t")),
        (json!({ "kind": "stream_open", "stream_id": "s" }), Code::Malformed, Some("s")),
        (json!({ "kind": "extend", "id": "x".repeat(10_000) }), Code::UnknownKind, None),
        (json!({ "id": "t" }), Code::Malformed, None),
    ] {
        let error = decode::<FromCoordinator>(&text.to_string()).unwrap_err();
        assert_eq!((error.code(), error.about()), (code, about), "{text}");
        assert_eq!(error.is_message(), text.get("kind").is_some());
    }
}

#[test]
fn oversized_frames_are_refused_before_they_are_parsed() {
    let text = format!(r#"{{"kind":"heartbeat","pad":"{}"}}"#, "x".repeat(MAX_FRAME_BYTES));
    assert!(matches!(decode::<FromAgent>(&text), Err(DecodeError::TooLarge(_))));
}

#[test]
fn deep_nesting_is_an_error_and_no_overflow() {
    let text = format!(r#"{{"kind":"heartbeat","pad":{}}}"#, "[".repeat(100_000));
    assert!(matches!(decode::<FromAgent>(&text), Err(DecodeError::NotAMessage(_))));
}

#[test]
fn garbage_is_not_repeated() {
    let long = "x".repeat(100_000);
    for text in [
        format!("\"{long}\""),
        json!({ "kind": long, "id": long }).to_string(),
        json!({ "kind": "heartbeat", "seq": long, "ts": "" }).to_string(),
    ] {
        let refusal =
            crate::error_chain::Chain(&decode::<FromAgent>(&text).unwrap_err()).to_string();
        assert!(refusal.len() < 600, "{} bytes", refusal.len());
    }
}
