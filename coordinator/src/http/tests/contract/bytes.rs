//! Answers as the reference gives them, byte for byte, and bodies that it understands.

use async_compression::tokio::write::GzipEncoder;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::cluster::Cluster;
use super::row::Sent;

/// A method, a path, a body, and the status and the body that follow.
type Case<'a> = (&'static str, &'a str, Value, u16, String);

async fn check(cluster: &Cluster, cases: &[Case<'_>]) {
    for (method, path, body, status, expected) in cases {
        let mut sent = Sent::new(method, *path);
        if !body.is_null() {
            sent = sent.json(body);
        }
        let answer = cluster.send(&sent).await;
        let expected = cluster.filled(expected);
        let case = format!("{method} {path} {body}");
        assert_eq!((answer.status, answer.text()), (*status, expected), "{case}");
    }
}

/// The answer to parameters with these faults: field and text of each.
fn invalid(faults: &[(&str, &str)]) -> String {
    let each = faults.iter().map(|(field, message)| {
        format!(r#"{{"field":"{field}","code":"Invalid","message":"{message}"}}"#)
    });
    let all = each.collect::<Vec<_>>().join(",");
    format!(
        r#"{{"code":"InvalidParameters","message":"Request parameters failed validation","errors":[{all}]}}"#
    )
}

fn refused(code: &str, message: &str) -> String {
    format!(r#"{{"code":"{code}","message":"{message}"}}"#)
}

#[tokio::test]
async fn numbers_and_flags_of_lists() {
    let cluster = Cluster::start().await;
    let limit = invalid(&[("limit", "limit must be in the range 1-1000 (inclusive)")]);
    let setup = invalid(&[("setup", "Invalid value for param 'setup'")]);
    let os = invalid(&[("os", "Invalid value for param 'os'")]);
    let offset = invalid(&[
        ("offset", "value was not greater than or equal to zero"),
        ("offset", "Invalid value for param 'offset'"),
    ]);
    let beyond = "/servers?offset=18446744073709551616";
    check(
        &cluster,
        &[
            ("GET", "/servers?limit=0", Value::Null, 400, limit.clone()),
            ("GET", "/servers?limit=1001", Value::Null, 400, limit),
            ("GET", beyond, Value::Null, 200, "[]".to_owned()),
            ("GET", "/servers?setup=yes", Value::Null, 409, setup),
            ("GET", "/platforms?os=x", Value::Null, 409, os),
            ("GET", "/servers/{server_uuid}/tickets?offset=-1", Value::Null, 409, offset),
        ],
    )
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn every_fault_is_told_and_named() {
    let cluster = Cluster::start().await;
    let sleep = invalid(&[("sleep", "Invalid value for param 'sleep'")]);
    let image = invalid(&[("image_uuid", "Invalid value for param 'image_uuid'")]);
    let json = invalid(&[("json", "Invalid value for param 'json'")]);
    let boot = invalid(&[
        ("platform", "value was not a string"),
        ("serial", "value contains leading or trailing whitespace"),
        ("kernel_args", "value is not an object. (was: [object Array])"),
        ("kernel_flags", "value is not an object. (was: [object Null])"),
    ]);
    let setup = invalid(&[
        ("hostname", "value was not a string"),
        ("disk_spares", "value was not greater than or equal to zero"),
        ("disk_width", "value was not a number"),
    ]);
    let bad_boot = json!({
        "platform": 1, "serial": " a", "kernel_args": [], "kernel_flags": null,
    });
    let bad_setup = json!({ "hostname": 5, "disk_spares": -1, "disk_width": "x" });
    let server = "/servers/{server_uuid}";
    check(
        &cluster,
        &[
            ("POST", &format!("{server}/nop"), json!({ "sleep": "x" }), 409, sleep),
            (
                "POST",
                &format!("{server}/vms/{{uuid}}/reprovision"),
                json!({ "image_uuid": "x" }),
                409,
                image,
            ),
            ("POST", &format!("{server}/execute"), json!({ "script": "", "json": "x" }), 409, json),
            ("PUT", "/boot/{server_uuid}", bad_boot, 409, boot),
            ("PUT", &format!("{server}/setup"), bad_setup, 409, setup),
        ],
    )
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn an_absent_vm_is_not_found_in_the_same_words_everywhere() {
    let cluster = Cluster::start().await;
    for path in ["", "/info", "/vnc", "/proc"] {
        let path = format!("/servers/{{server_uuid}}/vms/{{ghost}}{path}");
        let text = refused("ResourceNotFound", "VM {ghost} not found");
        check(&cluster, &[("GET", &path, Value::Null, 404, text)]).await;
    }
    cluster.stop().await;
}

#[tokio::test]
async fn a_ticket_may_have_null_for_what_it_lacks() {
    let mut cluster = Cluster::start().await;
    let body = json!({
        "scope": "s", "id": "i", "expires_at": "2099-01-01T00:00:00.000Z", "action": null,
        "extra": null,
    });
    let sent = Sent::new("POST", "/servers/default/tickets").json(&body).keep("uuid", "made");
    let answer = cluster.send(&sent).await;
    assert_eq!(answer.status, 202, "{}", answer.text());
    cluster.remember(&sent, &answer);
    let ticket = cluster.send(&Sent::new("GET", "/tickets/{made}")).await.value();
    assert_eq!((ticket.get("action"), &ticket["extra"]), (None, &json!({})));
    cluster.stop().await;
}

#[tokio::test]
async fn boot_parameters_are_read_as_leniently_as_in_the_reference() {
    let cluster = Cluster::start().await;
    let (boot, done) = ("/boot/{server_uuid}", String::new);
    let module = json!({ "path": "a" });
    let bad_module = refused(
        "InvalidArgument",
        r#"Values provided for boot_modules contain errors: Unexpected format for boot_module: {\"path\":\"a\",\"type\":\"base64\"}"#,
    );
    let falsy = json!({ "platform": "", "boot_modules": null, "kernel_flags": null });
    check(
        &cluster,
        &[
            ("PUT", boot, json!({ "kernel_flags": { "-k": true }, "serial": "ttya" }), 204, done()),
            ("POST", boot, falsy.clone(), 204, done()),
            ("POST", "/boot/default", falsy, 204, done()),
            ("POST", boot, json!({ "boot_params": { "x": 1 }, "params": { "y": 2 } }), 204, done()),
            ("POST", boot, json!({ "kernel_args": {}, "params": { "z": 3 } }), 204, done()),
            ("POST", boot, json!({ "boot_modules": [module] }), 409, bad_module),
            (
                "GET",
                boot,
                Value::Null,
                200,
                concat!(
                    r#"{"platform":"20260101T000000Z","kernel_args":{"#,
                    r#""hostname":"cn-{server_uuid}","y":2},"kernel_flags":{"-k":true},"#,
                    r#""boot_modules":[],"serial":"ttya"}"#
                )
                .to_owned(),
            ),
            ("PUT", boot, json!({ "platform": "", "boot_params": { "b": 1 } }), 204, done()),
            (
                "GET",
                boot,
                Value::Null,
                200,
                concat!(
                    r#"{"platform":"20260101T000000Z","kernel_args":{"#,
                    r#""hostname":"cn-{server_uuid}","b":1},"kernel_flags":{},"boot_modules":[]}"#
                )
                .to_owned(),
            ),
        ],
    )
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn recovery_configurations_are_refused_in_the_reference_s_words() {
    let cluster = Cluster::start().await;
    let path = "/servers/{victim}/recovery-config";
    let precondition = |text: &str| refused("PreconditionFailed", text);
    let all = json!({ "action": "x", "recovery_uuid": "u", "pivtoken": "p" });
    let stage = json!({ "action": "stage", "recovery_uuid": "u", "pivtoken": "p" });
    let missing = r#"\"recovery_uuid\", \"pivtoken\" and \"action\" params must be provided"#;
    let action = r#"Invalid \"action\" param. It must be one of \"stage\" or \"activate\""#;
    let more = r#"\"template\" and \"token\" params must be provided for recovery configuration \"stage\""#;
    check(
        &cluster,
        &[
            ("POST", path, json!({ "action": "stage" }), 412, precondition(missing)),
            ("POST", path, all, 412, precondition(action)),
            ("POST", path, stage, 412, precondition(more)),
        ],
    )
    .await;
    cluster.stop().await;
}

#[tokio::test]
async fn what_is_wrong_with_a_snapshot_s_name_is_the_task_s_to_say() {
    let cluster = Cluster::start().await;
    let path = "/servers/{server_uuid}/vms/{uuid}/snapshots";
    for body in [json!({}), json!({ "snapshot_name": "a b" })] {
        let answer = cluster.send(&Sent::new("PUT", path).json(&body)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.value()["id"].is_string());
    }
    cluster.stop().await;
}

async fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzipEncoder::new(Vec::new());
    encoder.write_all(text).await.unwrap();
    encoder.shutdown().await.unwrap();
    encoder.into_inner()
}

#[tokio::test]
async fn bodies_come_packed_empty_or_with_halves_of_characters() {
    let cluster = Cluster::start().await;
    let path = "/servers/{server_uuid}";
    let send = |body: Vec<u8>, header: &str| {
        let mut sent = Sent::new("POST", path);
        sent.headers = vec!["content-type: application/json".to_owned(), header.to_owned()];
        sent.body = body;
        sent
    };
    let packed = "content-encoding: gzip";
    let shown = async |answer: super::Answer| {
        assert_eq!(answer.status, 204, "{}", answer.text());
        cluster.send(&Sent::new("GET", path)).await.value()["comments"].clone()
    };
    let body = gzip(br#"{"comments":"packed"}"#).await;
    assert_eq!(shown(cluster.send(&send(body, packed)).await).await, "packed");
    assert_eq!(shown(cluster.send(&send(b"null".to_vec(), "x-y: z")).await).await, "packed");
    let half = br#"{"comments":"half \ud83d"}"#.to_vec();
    assert_eq!(shown(cluster.send(&send(half, "x-y: z")).await).await, "half \u{fffd}");
    // A little that becomes a lot is refused before it is read.
    let bomb = gzip(&vec![b' '; 64 << 20]).await;
    cluster.send(&send(bomb, packed)).await.expect(413, "RequestEntityTooLarge");
    let broken = cluster.send(&send(b"{}".to_vec(), packed)).await;
    broken.expect(400, "InvalidContent");
    cluster.stop().await;
}

#[tokio::test]
async fn a_request_id_comes_back_as_it_came() {
    let cluster = Cluster::start().await;
    let long = "x".repeat(1024);
    for id in ["no uuid", "caf\u{e9} \u{2713}", &long] {
        let mut sent = Sent::new("POST", "/servers/{server_uuid}/nop").json(&json!({}));
        sent.headers.push(format!("x-request-id: {id}"));
        let answer = cluster.send(&sent).await;
        assert_eq!((answer.status, answer.headers["x-request-id"].as_str()), (200, id));
    }
    for id in ["x".repeat(1025), "a\tb".to_owned()] {
        let mut sent = Sent::new("GET", "/ping");
        sent.headers.push(format!("x-request-id: {id}"));
        assert_ne!(cluster.send(&sent).await.headers["x-request-id"], id);
    }
    cluster.stop().await;
}

#[tokio::test]
async fn runs_of_slashes_are_one() {
    let cluster = Cluster::start().await;
    for path in ["//ping", "/servers//{server_uuid}", "/servers/{server_uuid}///vms"] {
        assert_eq!(cluster.send(&Sent::new("GET", path)).await.status, 200, "{path}");
    }
    let expected = refused("ResourceNotFound", "/ping/ does not exist");
    check(&cluster, &[("GET", "/ping/", Value::Null, 404, expected)]).await;
    cluster.stop().await;
}

#[tokio::test]
async fn a_vm_that_moves_may_be_made_beside_itself() {
    let mut cluster = Cluster::start().await;
    let image = json!({ "files": [{ "compression": "none" }] });
    let body = json!({
        "uuid": cluster.name("uuid"), "brand": "kvm", "ram": 128, "image": image,
        "disks": [{ "image_uuid": cluster.name("missing") }],
    });
    let create = |body: &Value| Sent::new("POST", "/servers/{victim}/vms").json(body);
    cluster.send(&create(&body)).await.expect(409, "VmExists");
    let mut moving = body.clone();
    moving["migrating"] = json!(true);
    let answer = cluster.send(&create(&moving)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());

    let ticket = |id: &str| {
        let expires = "2099-01-01T00:00:00.000Z";
        let body = json!({ "scope": "vm", "id": id, "expires_at": expires });
        Sent::new("POST", "/servers/{victim}/tickets").json(&body).keep("uuid", "ticket")
    };
    for (id, status) in [("{missing}", 409), ("{uuid}", 200)] {
        let sent = ticket(id);
        let made = cluster.send(&sent).await;
        cluster.remember(&sent, &made);
        let mut under = create(&body);
        under.headers.push("x-muster-ticket: {ticket}".to_owned());
        let answer = cluster.send(&under).await;
        assert_eq!(answer.status, status, "{id}: {}", answer.text());
    }
    cluster.stop().await;
}
