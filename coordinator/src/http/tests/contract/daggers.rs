//! Answers that are 500 in the reference and refuse a request: 409 by default, the reference's 500 with
//! `api.validation_status = 500`; the rest of the answer is the same.

use serde_json::{Value, json};

use super::cluster::Cluster;
use super::row::Sent;

const PARAMETERS: &str = "InvalidParameters";
const ARGUMENT: &str = "InvalidArgument";

/// What is sent, the code by default, the reference's code, and a part of the message or of a
/// field's.
struct Dagger {
    sent: Sent,
    code: &'static str,
    reference: &'static str,
    tells: &'static str,
}

fn dagger(sent: Sent, code: &'static str, reference: &'static str, tells: &'static str) -> Dagger {
    Dagger { sent, code, reference, tells }
}

fn get(path: &str) -> Sent {
    Sent::new("GET", path)
}

fn post(path: &str, body: &Value) -> Sent {
    Sent::new("POST", path).json(body)
}

fn put(path: &str, body: &Value) -> Sent {
    Sent::new("PUT", path).json(body)
}

fn invalid(sent: Sent, tells: &'static str) -> Dagger {
    dagger(sent, PARAMETERS, PARAMETERS, tells)
}

fn servers() -> Vec<Dagger> {
    let server = "/servers/{server_uuid}";
    let of = |tail: &str| format!("{server}/{tail}");
    let unknown = json!({ "boot_platform": "20990101T000000Z" });
    let platform = json!({ "platform": "20990101T000000Z" });
    let internal = "InternalError";
    vec![
        invalid(get("/servers?limit=5&limit=6"), "Invalid value for param 'limit'"),
        invalid(get("/servers?setup=maybe"), "Invalid value for param 'setup'"),
        invalid(post(server, &json!({ "comments": 7 })), "value was not a string"),
        dagger(
            post(server, &unknown),
            ARGUMENT,
            internal,
            "failed to find given platform image, 20990101T000000Z",
        ),
        dagger(
            put("/boot/default", &platform),
            ARGUMENT,
            internal,
            "Platform '20990101T000000Z' does not exist",
        ),
        dagger(
            post("/boot/{server_uuid}", &platform),
            ARGUMENT,
            internal,
            "Platform '20990101T000000Z' does not exist",
        ),
        invalid(post("/boot/default", &json!({ "kernel_flags": "-k" })), "is not an object"),
        invalid(get("/platforms?os=maybe"), "Invalid value for param 'os'"),
        invalid(put(&of("setup"), &json!({ "disk_cache": "maybe" })), "'true' or 'false'"),
        invalid(
            put(&of("nics"), &json!({ "action": "burn", "nics": [] })),
            "action must be 'update', 'replace', or 'delete'",
        ),
        dagger(
            put("/servers/{victim}/nics", &json!({ "action": "update", "nics": [] })),
            ARGUMENT,
            internal,
            "Server is not setup",
        ),
        invalid(post(&of("ensure-image"), &json!({})), "value was not a string"),
        invalid(post(&of("execute"), &json!({})), "value was not a string"),
    ]
}

fn vms() -> Vec<Dagger> {
    let vm = |tail: &str| format!("/servers/{{server_uuid}}/vms/{{uuid}}/{tail}");
    let ram = json!({ "update": { "ram": 1 } });
    vec![
        dagger(
            post(&vm("start"), &ram),
            ARGUMENT,
            ARGUMENT,
            "Vm.start update param only allows set_internal_metadata, received: [ram]",
        ),
        dagger(
            post(&vm("reboot"), &ram),
            ARGUMENT,
            ARGUMENT,
            "Vm.reboot update param only allows set_internal_metadata, received: [ram]",
        ),
        invalid(
            post(
                "/servers/{server_uuid}/vms",
                &json!({ "uuid": "{ghost}", "image_uuid": "{missing}" }),
            ),
            "value is not an image with files",
        ),
        invalid(
            post(
                "/servers/{server_uuid}/vms",
                &json!({ "uuid": "{ghost}", "image": { "files": [{}] } }),
            ),
            "value was not a string",
        ),
        invalid(post(&vm("migrate"), &json!({})), "is not an object"),
    ]
}

fn placing() -> Vec<Dagger> {
    let vm = json!({ "vm_uuid": "{ghost}", "owner_uuid": "{ghost}", "ram": 1 });
    let with = |name: &str, value: Value| {
        let mut body = json!({ "vm": vm.clone(), "image": {}, "nic_tags": [], "package": {} });
        body[name] = value;
        post("/allocate", &body)
    };
    let mut owner = vm.clone();
    owner["owner_uuid"] = json!("x");
    vec![
        invalid(with("image", json!({ "image_size": "x" })), "image.image_size"),
        invalid(with("package", json!({ "overprovision_cpu": "x" })), "package.overprovision_cpu"),
        invalid(with("vm", owner), "owner_uuid"),
        invalid(with("servers", json!(["x"])), "invalid server UUID"),
        invalid(with("nic_tag_requirements", json!(["x"])), "nic_tag_requirements"),
        invalid(with("nic_tags", json!([7])), "invalid nic_tag"),
        invalid(post("/capacity", &json!({ "servers": ["x"] })), "invalid server UUID"),
    ]
}

fn tickets() -> Vec<Dagger> {
    let all = "/servers/{server_uuid}/tickets";
    vec![
        invalid(post(all, &json!({})), "value was not a string"),
        invalid(
            post(all, &json!({ "scope": 1, "id": "x", "expires_at": "3000" })),
            "value was not a string",
        ),
        invalid(get("/servers/{server_uuid}/tickets?limit=0"), "Invalid value for param 'limit'"),
        dagger(get("/tickets/{expired}/wait"), ARGUMENT, "InternalError", "is expired"),
    ]
}

/// A server that is not set up, and a ticket that is over.
async fn prepare(cluster: &mut Cluster) {
    let unset = post("/servers/{victim}", &json!({ "setup": false }));
    assert_eq!(cluster.send(&unset).await.status, 204);
    let ticket = json!({ "scope": "vm", "id": "over", "expires_at": "2000-01-01T00:00:00.000Z" });
    let ticket = post("/servers/default/tickets", &ticket).keep("uuid", "expired");
    let answer = cluster.send(&ticket).await;
    cluster.remember(&ticket, &answer);
    for _ in 0..1_000 {
        if cluster.send(&get("/tickets/{expired}")).await.value()["status"] == "expired" {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the ticket never expires");
}

#[tokio::test]
async fn validation_status_gives_every_dagger_the_reference_s_number() {
    let mut by_default = Cluster::start().await;
    let mut reference = Cluster::with(|config| config.api.validation_status = 500).await;
    prepare(&mut by_default).await;
    prepare(&mut reference).await;
    let all = [servers(), vms(), placing(), tickets()];
    for Dagger { sent, code, reference: old_code, tells } in all.iter().flatten() {
        let ours = by_default.send(sent).await;
        let theirs = reference.send(sent).await;
        let shown = format!("{sent}: {} {}", ours.text(), theirs.text());
        ours.expect(409, code);
        theirs.expect(500, old_code);
        assert!(ours.text().contains(tells), "{shown}");
        let without = |answer: &super::Answer, cluster: &Cluster| {
            let mut body = answer.value();
            body["code"] = Value::Null;
            // The only thing that two clusters name differently.
            body.to_string().replace(cluster.name("expired"), "expired")
        };
        assert_eq!(without(&ours, &by_default), without(&theirs, &reference), "{shown}");
    }
    // A ticket that expires under who waits for it.
    for (cluster, status, code) in
        [(&mut by_default, 409, ARGUMENT), (&mut reference, 500, "InternalError")]
    {
        let body = |expires_at: &str| json!({ "scope": "vm", "id": "w", "expires_at": expires_at });
        let soon = cluster.app().parts().clock.wall() + std::time::Duration::from_millis(700);
        let soon = muster_shared::clock::iso(soon);
        for (expires_at, name) in [("2099-01-01T00:00:00.000Z", "holder"), (&soon, "waits")] {
            let sent = post("/servers/default/tickets", &body(expires_at)).keep("uuid", name);
            let answer = cluster.send(&sent).await;
            cluster.remember(&sent, &answer);
        }
        let over = cluster.send(&get("/tickets/{waits}/wait")).await;
        over.expect(status, code);
        let message = over.value()["message"].as_str().unwrap().to_owned();
        assert!(message == "ticket has expired" || message.ends_with("is expired"), "{message}");
    }
    by_default.stop().await;
    reference.stop().await;
}
