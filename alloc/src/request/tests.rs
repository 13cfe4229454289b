//! Which bodies are refused, and in which words.

use serde_json::json;

use super::*;

fn body() -> Value {
    json!({
        "vm": {"vm_uuid": "f9627169-cdc9-4970-aebe-35a164cbbe0e", "ram": 512,
               "owner_uuid": "dea0834e-4747-4f77-aed4-b2a2737b59a8", "brand": "joyent"},
        "image": {}, "package": {}, "nic_tags": ["admin"],
    })
}

#[track_caller]
fn check(change: impl Fn(&mut Value), field: &str, message: &str) {
    let mut body = body();
    change(&mut body);
    let errors = Request::parse(body.as_object().expect("an object")).expect_err("it is bad");
    let want = vec![FieldError::new(field, message)];
    assert_eq!(errors, want);
}

#[test]
fn a_good_body_parses() {
    let body = body();
    let request = Request::parse(body.as_object().expect("an object")).expect("it is good");
    assert_eq!(request.vm.nic_groups, Some(vec![vec!["admin".to_owned()]]));
    assert_eq!(request.package.map(|p| p.ratios.ram), Some(Some(1.0)));
}

#[test]
fn wrong_types_are_reported_together() {
    let body = json!({"servers": 1, "package": null, "image": "x", "nic_tags": {}});
    let errors = Request::parse(body.as_object().expect("an object")).expect_err("it is bad");
    let fields: Vec<_> = errors.iter().map(|e| e.field.as_str()).collect();
    assert_eq!(fields, ["servers", "package", "image", "vm", "nic_tags"]);
    assert_eq!(errors[1].message, "value is not an object. (was: [object Null])");
    assert_eq!(errors[3].message, "value is not an object. (was: [object Undefined])");
}

#[test]
fn nobody_asks_for_less_than_nothing_or_more_than_there_can_be() {
    let of_vm = ["ram", "quota", "cpu_cap", "vcpus"];
    let of_vm = of_vm.map(|name| ("vm", name, format!("VM \"{name}\"")));
    let of_package = ["max_physical_memory", "cpu_cap", "quota"];
    let of_package = of_package.map(|name| ("package", name, format!("\"package.{name}\"")));
    for (part, name, shown) in of_vm.into_iter().chain(of_package) {
        let message = format!("{shown} is not between 0 and 1000000000000");
        for size in [json!(-1), json!(-1.6e307), json!(1.1e12)] {
            check(|body| body[part][name] = size.clone(), part, &message);
        }
    }
    let message = "\"image.image_size\" is not between 0 and 1000000000000";
    check(|body| body["image"]["image_size"] = json!(-1), "image", message);
    let message = "\"image.files\" contains a negative size";
    check(|body| body["image"]["files"] = json!([{"size": -1}]), "image", message);
}

#[test]
fn faults_have_the_reference_texts() {
    check(|b| b["vm"]["owner_uuid"] = json!("X"), "vm", "VM \"owner_uuid\" is not a valid UUID");
    check(|b| b["vm"]["ram"] = json!("512"), "vm", "VM \"ram\" is not a number");
    check(|b| b["vm"]["quota"] = json!("5"), "vm", "VM \"quota\" is not a number");
    check(|b| b["vm"]["brand"] = json!(5), "vm", "VM \"brand\" is not a string");
    check(
        |b| b["vm"]["traits"] = json!("fast"),
        "vm",
        "VM property \"\": fast - string value found, but a object is required",
    );
    check(|b| b["vm"]["vm_uuid"] = json!(null), "vm", "\"vm.vm_uuid\" is an invalid UUID");
    check(
        |b| b["vm"]["internal_metadata"] = json!({"docker:volumesfrom": "{}"}),
        "vm",
        "\"vm.internal_metadata['docker:volumesfrom']\" does not contain an array",
    );
    check(
        |b| b["image"]["requirements"] = json!({"min_ram": 513}),
        "vm",
        "\"vm.ram\" is smaller than \"image.requirements.min_ram\"",
    );
    check(
        |b| b["image"]["requirements"] = json!({"min_platform": {"7": "x"}}),
        "image",
        "\"requirements.min_platform\" contains an invalid SDC version",
    );
    check(
        |b| b["package"]["overprovision_cpu"] = json!("x"),
        "package",
        "\"package.overprovision_cpu\" has invalid type",
    );
    check(
        |b| b["package"]["traits"] = json!("{"),
        "package",
        "\"package.traits\": \"package.traits\" has invalid type",
    );
    check(|b| b["servers"] = json!(["x"]), "servers", "invalid server UUID");
    check(|b| b["nic_tags"] = json!([5]), "nic_tags", "invalid nic_tag");
}

#[test]
fn members_of_a_package_that_are_false_in_javascript_are_as_if_they_were_absent() {
    let bare = {
        let body = body();
        Request::parse(body.as_object().expect("an object")).expect("it is good").package
    };
    for name in ["traits", "min_platform", "max_platform", "alloc_server_spread"] {
        for value in [json!(""), json!(false), json!(0), json!(null)] {
            let mut body = body();
            body["package"] = json!({ name: value });
            let request = Request::parse(body.as_object().expect("an object"));
            let package = request.expect("it is good").package;
            assert_eq!(format!("{package:?}"), format!("{bare:?}"), "{name}: {value}");
        }
    }
}
