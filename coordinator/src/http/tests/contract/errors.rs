//! Statuses of agents' failures, versions of records, and inputs that crash
//! the reference.

use serde_json::{Value, json};

use super::agent::NO_SYSINFO;
use super::cluster::Cluster;
use super::row::Sent;

/// A method, a path, a body, and the status and code that follow.
type Case<'a> = (&'static str, &'a str, Value, u16, &'static str);

async fn check(cluster: &Cluster, cases: &[Case<'_>]) {
    for (method, path, body, status, code) in cases {
        let answer = cluster.send(&Sent::new(method, *path).json(body)).await;
        let found = answer.value()["code"].as_str().unwrap_or_default().to_owned();
        let case = format!("{method} {path} {body}: {}", answer.text());
        assert_eq!((answer.status, found.as_str()), (*status, *code), "{case}");
    }
}

#[tokio::test]
async fn an_agent_s_failure_has_the_status_of_its_code() {
    let cluster = Cluster::start().await;
    let reference = Cluster::with(|config| config.api.validation_status = 500).await;
    for (code, status) in [
        ("VmNotFound", 404),
        ("DatasetNotFound", 404),
        ("SnapshotNotFound", 404),
        ("VmNotRunning", 409),
        ("DatasetExists", 409),
        ("VmExists", 409),
        ("StaleTicket", 409),
        ("HostActionsDisabled", 403),
        ("NotAuthorized", 403),
        ("NotSupported", 501),
        ("QueueFull", 503),
        ("Draining", 503),
        ("JournalFull", 503),
        ("Broken", 500),
    ] {
        for (change, method) in [(false, "GET"), (true, "POST")] {
            let tail = if change { "snapshot" } else { "snapshots" };
            let path = format!("/servers/{{server_uuid}}/datasets/fail-{code}/{tail}");
            let body = json!({ "name": "x", "dataset": format!("fail-{code}") });
            if change {
                // A snapshot's own name is made of both.
                let path = "/servers/{server_uuid}/datasets";
                check(&cluster, &[("POST", path, body.clone(), status, code)]).await;
                check(&reference, &[("POST", path, body, 500, "InternalError")]).await;
            } else {
                check(&cluster, &[(method, &path, body.clone(), status, code)]).await;
                check(&reference, &[(method, &path, body, 500, "InternalError")]).await;
            }
        }
        let path = format!("/servers/{{server_uuid}}/datasets/fail-{code}/snapshots");
        let answer = cluster.send(&Sent::new("GET", path)).await;
        let text = format!("cannot list datasets:posting task to cn-agent: it failed with {code}");
        let text = text.replace("datasets", "snapshots");
        assert_eq!(answer.value()["message"], text);
    }
    cluster.stop().await;
    reference.stop().await;
}

#[tokio::test]
async fn inputs_that_crash_the_reference_are_answered() {
    let cluster = Cluster::start().await;
    let server = "/servers/{server_uuid}";
    let vms = "/servers/{server_uuid}/vms";
    let tickets = "/servers/{server_uuid}/tickets";
    let sysinfo = "/servers/{server_uuid}/sysinfo";
    let of = |uuid: &str| json!({ "sysinfo": { "UUID": uuid } });
    let argument = "InvalidArgument";
    check(
        &cluster,
        &[
            ("GET", "/tickets/nonsense", json!({}), 404, "ResourceNotFound"),
            ("GET", "/tasks/%ff", json!({}), 404, "ResourceNotFound"),
            ("GET", "/servers/%ff", json!({}), 409, "InvalidArgument"),
            (
                "PUT",
                "/servers/{server_uuid}/setup",
                json!({ "hostname": " a" }),
                409,
                "InvalidParameters",
            ),
            ("DELETE", "/tickets/nonsense", json!({}), 404, "ResourceNotFound"),
            ("GET", "/tickets/nonsense/wait", json!({}), 404, "ResourceNotFound"),
            ("PUT", "/tickets/nonsense/release", json!({}), 404, "ResourceNotFound"),
            ("POST", tickets, json!({}), 409, "InvalidParameters"),
            (
                "POST",
                tickets,
                json!({ "scope": 1, "id": [], "expires_at": null }),
                409,
                "InvalidParameters",
            ),
            ("POST", sysinfo, of("{missing}"), 409, argument),
            ("POST", sysinfo, of("nonsense"), 409, argument),
            ("POST", "/servers/default", json!({ "comments": "x" }), 409, argument),
            ("POST", server, json!({ "next_reboot": "garbage" }), 409, argument),
            ("POST", server, json!({ "overprovision_ratios": { "ram": "2" } }), 409, argument),
            ("POST", vms, json!({ "uuid": "{ghost}" }), 409, "InvalidParameters"),
            (
                "POST",
                vms,
                json!({ "uuid": "{ghost}", "image": { "files": [{}] } }),
                409,
                "InvalidParameters",
            ),
            (
                "POST",
                vms,
                json!({ "uuid": "{ghost}", "image_uuid": "{missing}", "image": { "files": [] } }),
                409,
                "InvalidParameters",
            ),
            (
                "POST",
                vms,
                json!({ "uuid": "{ghost}", "brand": "kvm", "disks": [{ "size": 1 }] }),
                409,
                "InvalidParameters",
            ),
            ("GET", "/servers?limit=5&limit=6", json!({}), 409, "InvalidParameters"),
            ("POST", "/servers/nonsense/events/heartbeat", json!({}), 409, argument),
            ("POST", server, json!({ "etag_retries": "3" }), 204, ""),
            ("PUT", "/boot/default", json!({}), 204, ""),
            ("POST", "/boot/default", json!({ "kernel_flags": { "-k": true } }), 204, ""),
        ],
    )
    .await;
    let image = Sent {
        headers: vec!["x-request-id: not a uuid".to_owned()],
        ..Sent::new("GET", "/servers/{server_uuid}/images/{missing}")
    };
    assert_eq!(cluster.send(&image).await.status, 200);
    for body in ["[]", "\"x\""] {
        let mut sent = Sent::new("POST", server).json(&Value::Null);
        sent.body = body.as_bytes().to_vec();
        cluster.send(&sent).await.expect(400, "InvalidContent");
    }
    let sysinfo = Sent {
        headers: vec![format!("x-request-id: {NO_SYSINFO}")],
        ..Sent::new("POST", "/servers/{server_uuid}/sysinfo-refresh")
    };
    let refused = cluster.send(&sysinfo).await;
    refused.expect(500, "InternalError");
    assert_eq!(refused.value()["message"], "Unable to gather latest sysinfo");
    let default = cluster.send(&Sent::new("GET", "/boot/default")).await;
    let record = cluster.send(&Sent::new("GET", "/servers/default")).await;
    assert_eq!(default.headers["etag"], record.headers["etag"], "one record");
    let flags = default.value();
    assert_eq!(flags["kernel_flags"], json!({ "-k": true }));
    assert!(
        cluster.received.lock().iter().all(|(_, task)| task != "server_overprovision_ratio"),
        "nothing was dispatched"
    );
    cluster.stop().await;
}

#[tokio::test]
async fn a_wait_for_a_ticket_ends() {
    let mut cluster = Cluster::start().await;
    let body = json!({ "scope": "vm", "id": "x", "expires_at": "2099-01-01T00:00:00.000Z" });
    for name in ["first", "second"] {
        let sent = Sent::new("POST", "/servers/default/tickets").json(&body).keep("uuid", name);
        let answer = cluster.send(&sent).await;
        cluster.remember(&sent, &answer);
    }
    let wait = |path: &str| Sent::new("GET", path);
    // With a limit, and with what is no limit for one that is active.
    let late = cluster.send(&wait("/tickets/{second}/wait?timeout=0.05")).await;
    late.expect(409, "TicketNotActive");
    assert_eq!(cluster.send(&wait("/tickets/{first}/wait?timeout=soon")).await.status, 204);
    let release = Sent::new("PUT", "/tickets/{first}/release");
    assert_eq!(cluster.send(&release).await.status, 204);
    assert_eq!(cluster.send(&wait("/tickets/{first}/wait")).await.status, 204, "it is finished");
    assert_eq!(cluster.send(&wait("/tickets/{second}/wait")).await.status, 204, "its turn came");
    cluster.stop().await;
}

#[tokio::test]
async fn of_two_writers_of_one_version_one_gets_412() {
    let cluster = Cluster::start().await;
    let path = "/servers/{server_uuid}";
    let version = cluster.send(&Sent::new("GET", path)).await.headers["etag"].clone();
    let change = |comments: &str, version: &str| {
        let mut sent = Sent::new("POST", path).json(&json!({ "comments": comments }));
        sent.headers.push(format!("if-match: {version}"));
        sent
    };
    let (first, second) = (change("a", &version), change("b", &version));
    let (a, b) = tokio::join!(cluster.send(&first), cluster.send(&second));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [204, 412]);
    let record = cluster.send(&Sent::new("GET", path)).await;
    assert_ne!(record.headers["etag"], version);
    let kept = if a.status == 204 { "a" } else { "b" };
    assert_eq!(record.value()["comments"], kept);
    cluster.send(&change("c", &version)).await.expect(412, "PreconditionFailed");
    assert_eq!(cluster.send(&change("c", "*")).await.status, 204);
    let now = cluster.send(&Sent::new("GET", path)).await.headers["etag"].clone();
    let either = format!("\"0.0\", {now}");
    assert_eq!(cluster.send(&change("d", &either)).await.status, 204);
    cluster.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_a_record_is_413() {
    let cluster = Cluster::start().await;
    let before = cluster.records().await;
    let many: Value = (0..10).map(|n| (n.to_string(), json!("x".repeat(60_000)))).collect();
    let server = cluster.name("server_uuid").to_owned();
    let mut sysinfo = json!({ "UUID": server });
    sysinfo["more"] = many.clone();
    let path = "/servers/{server_uuid}";
    check(
        &cluster,
        &[
            ("POST", path, json!({ "traits": many }), 413, "RequestEntityTooLarge"),
            (
                "POST",
                "/servers/{server_uuid}/sysinfo",
                json!({ "sysinfo": sysinfo }),
                413,
                "RequestEntityTooLarge",
            ),
        ],
    )
    .await;
    // Eight megabytes of boot modules are read, and refused for what they are.
    let module = json!({ "path": "x", "content": "A".repeat(60_000) });
    let modules = json!({ "boot_modules": vec![module; 100] });
    check(&cluster, &[("PUT", "/boot/default", modules.clone(), 409, "InvalidArgument")]).await;
    check(&cluster, &[("POST", path, modules, 413, "RequestEntityTooLarge")]).await;
    assert_eq!(cluster.records().await, before);
    cluster.stop().await;
}
