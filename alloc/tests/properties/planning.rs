//! What planners ask: what if, how many more, what would have to change; and replays.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_alloc::{
    Changes, Choice, Config, Detail, Fitted, Fleet, Helpless, LeastChanges, Options, Outcome,
    Request, Restored, Suggestion, WhatIf, allocate, explain, fit, least_changes,
};
use muster_shared::ids::ServerUuid;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::model::*;

fn options(seed: u64) -> Options {
    Options { seed, ..Options::default() }
}

/// RFC 7396, word by word.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let target = target.as_object_mut().expect("it is one now");
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), value);
        }
    }
}

fn suggested(fleet: &Fleet, body: &Map<String, Value>, seed: u64) -> LeastChanges {
    let (config, options) = (&config(), &options(seed));
    least_changes(Helpless { fleet, body, config, options }, &|| false)
}

/// Follows a suggestion, on the fleet and in the body.
fn follow(
    fleet: &Fleet,
    body: &Map<String, Value>,
    what_if: Option<&Value>,
    request: Option<&Value>,
    config: &Config,
) -> Outcome {
    let mut body = Value::Object(body.clone());
    merge(&mut body, request.unwrap_or(&json!({})));
    let body = body.as_object().expect("an object");
    let what_if = WhatIf::parse(what_if.unwrap_or(&json!({}))).expect("a suggestion can be parsed");
    let policy = what_if.policy(config).expect("its policy is good");
    let mut fleet = fleet.clone();
    what_if.apply(&mut fleet);
    let request = Request::parse(body).expect("the changed request is good");
    allocate(&fleet.snapshot(), &request, policy.as_ref().unwrap_or(config), &options(3))
}

/// A body that asks for more than ordinary ones do.
fn demanding() -> impl Strategy<Value = Map<String, Value>> {
    let few = || prop::bool::weighted(0.2);
    let extras =
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>(), few(), few());
    (1..80u64, 0..3u8, extras, 0..40u8).prop_map(|(gib, owner_id, extras, vm)| {
        let mut body = Value::Object(body(gib * 1024, owner_id));
        let (traits, tag, encrypted, far, uncapped, volumes, forced) = extras;
        if traits {
            body["vm"]["traits"] = json!({"ssd": true});
        }
        if tag {
            body["nic_tags"] = json!(["admin", "storage"]);
        }
        if encrypted {
            body["vm"]["internal_metadata"] = json!({"encrypted": true});
        }
        if volumes {
            let from = json!([vm_uuid(vm)]).to_string();
            body["vm"]["internal_metadata"] = json!({"docker:volumesfrom": from});
            body["vm"]["docker"] = json!(true);
        }
        if far {
            body["vm"]["locality"] = json!({"strict": true, "far": [vm_uuid(vm).to_string()]});
        }
        if forced {
            body["vm"]["internal_metadata"]["force_designation_failure"] = json!(true);
        }
        if uncapped {
            body["vm"]["cpu_cap"] = Value::Null;
            body["package"]["cpu_cap"] = Value::Null;
        }
        body.as_object().expect("an object").clone()
    })
}

/// All ways to make one figure in a value one smaller.
fn smaller(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(n) => n.as_u64().map(|n| json!(n - 1)).into_iter().collect(),
        Value::Object(members) => members
            .iter()
            .flat_map(|(name, inner)| {
                smaller(inner).into_iter().map(|inner| {
                    let mut members = members.clone();
                    members.insert(name.clone(), inner);
                    Value::Object(members)
                })
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// A suggestion without one of its parts, for each part that can be left out as a whole: a VM to
/// remove, a server to change, the policy, the request.
fn parts_left_out(
    what_if: Option<&Value>,
    request: Option<&Value>,
) -> Vec<(Option<Value>, Option<Value>)> {
    let mut all = Vec::new();
    if request.is_some() {
        all.push((what_if.cloned(), None));
    }
    for (name, part) in what_if.and_then(Value::as_object).into_iter().flatten() {
        let without = |part: Option<Value>| {
            let mut what_if = what_if.cloned().unwrap_or_default();
            let members = what_if.as_object_mut().expect("an object");
            match part {
                Some(part) => drop(members.insert(name.clone(), part)),
                None => drop(members.remove(name)),
            }
            (Some(what_if), request.cloned())
        };
        all.push(without(None));
        for place in 0..part.as_array().map_or(0, Vec::len) {
            let mut items = part.as_array().cloned().unwrap_or_default();
            items.remove(place);
            all.push(without(Some(Value::Array(items))));
        }
    }
    all
}

/// Each suggestion, applied literally, makes the request fit, and has no part that is not needed.
fn check(
    fleet: &Fleet,
    body: &Map<String, Value>,
    suggestions: &[Suggestion],
    config: &Config,
) -> Result<(), TestCaseError> {
    for suggestion in suggestions {
        let said = json!(suggestion);
        let (what_if, request) = (said.get("what_if"), said.get("request"));
        if let Some(what_if) = what_if {
            let read = WhatIf::parse(what_if).expect("a suggestion can be parsed");
            prop_assert_eq!(&json!(read), what_if);
        }
        let outcome = follow(fleet, body, what_if, request, config);
        prop_assert!(outcome.server.is_some(), "{suggestion:?}");
        for (what_if, request) in parts_left_out(what_if, request) {
            let fewer = follow(fleet, body, what_if.as_ref(), request.as_ref(), config);
            prop_assert!(fewer.server.is_none(), "{suggestion:?} has a needless part");
        }
        // A machine with one byte less would not do: but what counts is whole MiB.
        let one_server = what_if.and_then(|w| w["add_servers"].as_array()).map(|s| &s[..]);
        if let Some([server]) = one_server
            && request.is_none()
        {
            for less in smaller(server) {
                let mut less = less;
                if let Some(bytes) = less["memory_total_bytes"].as_u64() {
                    less["memory_total_bytes"] = json!(bytes.saturating_sub(2 << 20));
                }
                if less["sysinfo"].is_object() || less["disk_pool_size_bytes"].is_u64() {
                    continue;
                }
                let what_if = json!({"add_servers": [less]});
                let outcome = follow(fleet, body, Some(&what_if), None, config);
                prop_assert!(outcome.server.is_none(), "{suggestion:?} asks for too much");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_suggestion_works_and_none_is_needless(servers in servers(), body in demanding()) {
        let config = config();
        let fleet = build(&servers);
        let suggestions = suggested(&fleet, &body, 3).suggestions;
        let fits = follow(&fleet, &body, None, None, &config).server.is_some();
        prop_assert!(!fits || suggestions.is_empty());
        check(&fleet, &body, &suggestions, &config)?;
    }

    #[test]
    fn a_saved_snapshot_replays_bit_for_bit(
        servers in servers(), later in servers(), body in demanding(), seed in any::<u64>(),
        part in 1..5usize,
        reserved in prop::collection::vec((40..60u8, 0..12u8), 0..6), gone in 0..12u8,
    ) {
        let config = config();
        let mut fleet = build(&servers);
        let earlier = fleet.snapshot();
        for (vm, server) in reserved {
            fleet.reserve(vm_uuid(vm), &server_uuid(server), extra(vm, 2));
        }
        for server in &later {
            server.add_to(&mut fleet);
        }
        fleet.remove_server(&server_uuid(gone));
        let snapshot = fleet.snapshot();
        let request = Request::parse(&body).expect("good");
        let original = allocate(&snapshot, &request, &config, &options(seed));
        // First the fleet as it was, then only what is different now.
        let mut restored = Restored::default();
        for (now, before) in [(&earlier, None), (&snapshot, Some(&*earlier))] {
            let changes = now.changes_since(before);
            restored.remove(&changes.gone);
            for places in changes.changed.chunks(part) {
                let text = json!(now.save(places, &BTreeSet::new())).to_string();
                restored.lay(serde_json::from_str(&text).expect("it reads back"));
            }
        }
        prop_assert_eq!(snapshot.changes_since(Some(&snapshot)), Changes::default());
        let restored = restored.snapshot(&snapshot.homes(), &config);
        let again = allocate(&restored, &request, &config, &options(seed));
        prop_assert_eq!(
            original.steps_json(Detail::Full).to_string(),
            again.steps_json(Detail::Full).to_string()
        );
        prop_assert_eq!(&original.server, &again.server);
        prop_assert_eq!(original.fingerprint(), again.fingerprint());
        let other = Options { seed: seed ^ 1, ..options(0) };
        let other = allocate(&snapshot, &request, &config, &other);
        let same = other.steps_json(Detail::Full) == original.steps_json(Detail::Full);
        prop_assert_eq!(same, other.fingerprint() == original.fingerprint());
    }

    #[test]
    fn as_many_fit_as_can_be_placed(servers in servers(), gib in 1..12u64) {
        let config = config();
        let fleet = build(&servers);
        let request = request(gib * 1024, 0);
        for server in &servers {
            let uuid = server_uuid(server.id);
            let extra = request.promise();
            let fitted = Fitted { request: &request, extra: &extra };
            let promised = fit(&fleet.clone().snapshot(), &uuid, fitted, &config);
            let promised = promised.expect("the server is known");
            let mut body = body(gib * 1024, 0);
            body.insert("servers".to_owned(), json!([uuid]));
            let only = Request::parse(&body).expect("good");
            let (mut fleet, mut placed) = (fleet.clone(), 0);
            let ready = Options { only_ready: true, ..options(1) };
            while let Some(Choice { server_uuid, .. }) =
                allocate(&fleet.snapshot(), &only, &config, &ready).server
            {
                placed += 1;
                fleet.reserve(Uuid::from_u128(placed), &server_uuid, request.promise());
            }
            prop_assert_eq!(u128::from(promised.fits), placed);
            prop_assert_eq!(Some(promised.stranded), fleet.snapshot().unreserved(&uuid));
            prop_assert!(promised.limited_by.is_some() || promised.fits == 0);
        }
    }

    #[test]
    fn explanations_agree_with_steps(servers in servers(), body in demanding()) {
        let config = config();
        let request = Request::parse(&body).expect("good");
        let snapshot = build(&servers).snapshot();
        let (outcome, notes) = explain(&snapshot, &request, &config, &options(9));
        let plain = allocate(&snapshot, &request, &config, &options(9));
        prop_assert_eq!(outcome.fingerprint(), plain.fingerprint());
        let steps = outcome.steps_json(Detail::Full);
        for (uuid, notes) in json!(notes).as_object().expect("an object") {
            for note in notes.as_array().expect("a list") {
                let step = outcome
                    .steps
                    .iter()
                    .position(|step| step.algorithm().is_some_and(|name| note["algorithm"] == name));
                let step = &steps[step.expect("the step was run")];
                let left = step["remaining"].as_array().expect("a list").contains(&json!(uuid));
                // The two `or`s of the default policy end in `identity`, which has no verdicts.
                prop_assert_eq!(left, note["verdict"] != "removed", "{} {}", uuid, note);
            }
        }
    }
}

#[test]
fn what_if_changes_a_copy() {
    let server = ModelServer { id: 1, ram_gib: 4, flaw: 19, reboot: None, vms: Vec::new() };
    let fleet = build(&[server]);
    let body = body(8192, 0);
    let what_if =
        json!({"add_servers": [{"uuid": server_uuid(1), "memory_total_bytes": 16 * GIB}]});
    let config = config();
    assert!(follow(&fleet, &body, None, None, &config).server.is_none());
    assert!(follow(&fleet, &body, Some(&what_if), None, &config).server.is_some());
    assert!(follow(&fleet, &body, None, None, &config).server.is_none());
    let weights = json!({"changeDefaults": {"filter_min_resources": false}});
    assert!(follow(&fleet, &body, Some(&weights), None, &config).server.is_some());
    let without = json!({"remove_servers": [server_uuid(1)],
        "changeDefaults": {"filter_min_resources": false}});
    assert!(follow(&fleet, &body, Some(&without), None, &config).server.is_none());
    assert_eq!(Arc::strong_count(&fleet.clone().snapshot()), 2, "held by the fleet and here");
    let bad = WhatIf::parse(&json!({"remove_vms": ["x"]})).expect_err("it is bad");
    assert_eq!(bad.field, "what_if.remove_vms");
    let bad = WhatIf::parse(&json!({"remove_server": []})).expect_err("it is misspelt");
    assert_eq!(bad.field, "what_if.remove_server");
    assert_eq!(bad.message, "unknown member, did you mean remove_servers?");
}

#[test]
fn least_changes_name_server_and_figure() {
    let server = ModelServer { id: 1, ram_gib: 4, flaw: 19, reboot: None, vms: Vec::new() };
    let fleet = build(&[server]);
    // 3,481 of 4,096 MiB may be used.
    let found = suggested(&fleet, &body(5529, 0), 1);
    assert!(!found.cut);
    let found = found.suggestions;
    let texts: Vec<_> = found.iter().map(|suggestion| suggestion.text.clone()).collect();
    let more = format!("2,409 MiB more memory on server {}", server_uuid(1));
    assert!(texts.contains(&more), "{texts:?}");
    assert!(texts.contains(&"with 3,481 MiB of memory instead of 5,529".to_owned()), "{texts:?}");
}

#[test]
fn a_search_that_is_over_says_so() {
    let server = ModelServer { id: 1, ram_gib: 4, flaw: 19, reboot: None, vms: Vec::new() };
    let fleet = &build(&[server]);
    let (body, config, options) = (&body(5529, 0), &config(), &options(1));
    let left = std::cell::Cell::new(5);
    let is_over = || {
        left.set(left.get() - 1);
        left.get() <= 0
    };
    let found = least_changes(Helpless { fleet, body, config, options }, &is_over);
    assert!(found.cut && found.suggestions.is_empty());
}

#[test]
fn what_a_request_imagines_stays_in_a_suggestion() {
    let real = |id| ModelServer { id, ram_gib: 4, flaw: 19, reboot: None, vms: Vec::new() };
    let mut imagined = build(&[real(1), real(2)]);
    let what_if = json!({"remove_servers": [server_uuid(2)], "add_servers": [
        {"uuid": server_uuid(1), "memory_total_bytes": 5 * GIB},
    ]});
    let mut body = body(8192, 0);
    body.insert("what_if".to_owned(), what_if.clone());
    WhatIf::parse(&what_if).expect("good").apply(&mut imagined);
    let found = suggested(&imagined, &body, 1).suggestions;
    assert!(found.iter().any(|found| !found.what_if.is_nothing()), "{found:?}");
    for found in found {
        let said = json!(found);
        let mut whole = what_if.clone();
        merge(&mut whole, said.get("what_if").unwrap_or(&json!({})));
        let fleet = build(&[real(1), real(2)]);
        let outcome = follow(&fleet, &body, Some(&whole), said.get("request"), &config());
        assert!(outcome.server.is_some(), "{found:?}");
        assert_eq!(whole["remove_servers"], what_if["remove_servers"]);
    }
}

#[test]
fn few_requests_are_left_without_a_suggestion() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let wanted = std::env::var("MUSTER_SUGGESTIONS").ok().and_then(|text| text.parse().ok());
    let (mut failed, mut made, mut helpless) = (0, 0, Vec::new());
    while failed < wanted.unwrap_or(300) {
        let mut draw = |strategy: &dyn Fn() -> BoxedStrategy<(Vec<ModelServer>, _)>| {
            strategy().new_tree(&mut runner).expect("values can be drawn").current()
        };
        let (servers, body) = draw(&|| (servers(), demanding()).boxed());
        let fleet = build(&servers);
        if servers.is_empty() || follow(&fleet, &body, None, None, &config()).server.is_some() {
            continue;
        }
        failed += 1;
        let suggestions = suggested(&fleet, &body, 3).suggestions;
        check(&fleet, &body, &suggestions, &config()).expect("suggestions work");
        made += suggestions.len();
        if suggestions.is_empty() {
            helpless.push(format!("{:?} {}", servers, Value::Object(body)));
        }
    }
    println!("{failed} failing requests, {made} suggestions, {} without any", helpless.len());
    assert!(helpless.len() * 20 < failed, "{:#?}", &helpless[..3]);
}

#[test]
fn an_encrypted_pool_is_for_who_asks_for_one() {
    // A flaw: the pool is encrypted.
    let fleet =
        build(&[ModelServer { id: 1, ram_gib: 64, flaw: 6, reboot: None, vms: Vec::new() }]);
    let found = suggested(&fleet, &body(1024, 0), 1).suggestions;
    let texts: Vec<_> = found.iter().map(|suggestion| suggestion.text.as_str()).collect();
    assert!(texts.contains(&"with encryption"), "{texts:?}");
}

#[test]
fn the_search_for_changes_ends_on_a_large_fleet() {
    let server = |id| ModelServer { id, ram_gib: 4, flaw: 19, reboot: None, vms: Vec::new() };
    let mut fleet = build(&[]);
    for n in 0..6_000_u32 {
        let mut record = server(1).record();
        let uuid = ServerUuid(Uuid::from_u128(0x5000_0000 + u128::from(n)));
        record.insert("uuid".to_owned(), json!(uuid));
        fleet.upsert_server(Arc::new(record)).expect("the record has a uuid");
        server(1).report_as(&uuid.into(), "running", &mut fleet);
    }
    let mut large = Value::Object(body(8192, 0));
    for n in 0..10 {
        large["vm"]["traits"][format!("t{n}")] = json!(true);
    }
    large["nic_tags"] = (0..50).map(|n| format!("tag{n}")).collect();
    let found = suggested(&fleet, large.as_object().expect("an object"), 1);
    assert!(found.cut, "so many wishes are more than a hundred trials");
    for suggestion in &found.suggestions {
        let said = json!(suggestion);
        let (what_if, request) = (said.get("what_if"), said.get("request"));
        let large = large.as_object().expect("an object");
        assert!(follow(&fleet, large, what_if, request, &config()).server.is_some());
    }
}
