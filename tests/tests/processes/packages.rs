//! Packages, against a real coordinator and agent: what operators make of them, and what VMs get.

use std::process::Output;

use muster_tests::cli;
use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::guest;
use muster_tests::http::Client;
use serde_json::{Value, json};

fn run(coordinator: &Coordinator, line: &str) -> Output {
    cli::output(coordinator, &line.split(' ').collect::<Vec<_>>())
}

#[track_caller]
fn done(coordinator: &Coordinator, line: &str) -> String {
    cli::text(coordinator, &line.split(' ').collect::<Vec<_>>())
}

/// What is said of a command that fails so.
#[track_caller]
fn fails(coordinator: &Coordinator, line: &str, code: i32) -> String {
    let output = run(coordinator, line);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{line}: {text}");
    text
}

/// The machine as its agent tells it.
async fn machine(client: &Client, agent: &Agent, name: &str) -> Value {
    let all = client.get(&format!("/vms?alias={name}")).await.expect(200);
    assert_eq!(all[0]["package_name"], "tiny", "{all:#}");
    let uuid = all[0]["uuid"].as_str().unwrap_or_else(|| panic!("no {name}: {all:#}"));
    client.get(&format!("/servers/{}/vms/{uuid}", agent.server_uuid)).await.expect(200)
}

#[tokio::test]
async fn of_two_that_make_a_name_at_once_one_wins_and_a_restart_keeps_it() {
    let mut coordinator = Coordinator::start();
    let client = coordinator.client();
    let of = |vcpus: u64| json!({ "name": "tiny", "max_physical_memory": 192, "vcpus": vcpus });
    let (one, other) = (of(1), of(2));
    let (one, other) =
        tokio::join!(client.post("/packages", &one), client.post("/packages", &other));
    let (won, lost) = if one.status == 200 { (one, other) } else { (other, one) };
    let made = won.expect(200);
    assert_eq!(lost.expect(409)["code"], "PackageExists");

    coordinator.kill9();
    coordinator.restart();
    let kept = client.get("/packages/tiny").await;
    let version = kept.headers["etag"].to_str().expect("text").to_owned();
    assert_eq!(kept.expect(200), made);
    let uuid = made["uuid"].as_str().expect("a uuid");
    assert_eq!(client.get(&format!("/packages/{uuid}")).await.expect(200), made);
    assert_eq!(client.get("/packages").await.expect(200), json!([made]));

    let send = async |body: &Value| {
        let header = ("if-match", version.as_str());
        let post = reqwest::Method::POST;
        let sent = client.try_send_with(post, "/packages/tiny", header, Some(body)).await;
        sent.expect("an answer")
    };
    let bad = send(&json!({ "vcpus": 0, "vcpu": 1 })).await.expect(409);
    let mut fields: Vec<_> = (bad["errors"].as_array().expect("errors").iter())
        .map(|error| error["field"].as_str().expect("a field"))
        .collect();
    fields.sort_unstable();
    assert!(bad["code"] == "InvalidParameters" && fields.contains(&"vcpus"), "{bad}");
    assert_eq!(send(&json!({ "vcpus": 4 })).await.expect(200)["vcpus"], 4);
    send(&json!({ "vcpus": 8 })).await.expect(412);
    client.delete("/packages/tiny").await.expect(204);
    client.get(&format!("/packages/{uuid}")).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn machines_get_the_sizes_of_their_package_and_keep_them() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    guest::import(&client).await;

    done(&coordinator, "package create tiny --ram 192 --disk 2 --vcpus 2 --cpu-cap 150");
    fails(&coordinator, "package create tiny --ram 192", 6);
    assert!(done(&coordinator, "package list").contains("192 MiB"));
    let create = "vm create --image muster-guest --package tiny --name";
    let dry = done(&coordinator, &format!("{create} dry --dry-run"));
    assert!(dry.contains("chosen"), "{dry}");
    assert!(done(&coordinator, "allocate --package tiny").contains("chosen"));
    assert!(done(&coordinator, "capacity --package tiny").contains("more fit on 1 server"));

    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, more: &str| {
        let file = folder.path().join(name);
        let text = format!("image: muster-guest\npackage: tiny\nautostart: false\n{more}");
        std::fs::write(&file, text).expect("it is written");
        file.display().to_string()
    };
    let file = write("one.yaml", "name: one\n");
    done(&coordinator, &format!("vm create --file {file}"));
    // With a size of its own the disk is not counted with a whole image beside it.
    let file = write("two.yaml", "name: two\ndisks: [{ size: 1GiB, model: scsi }]\n");
    done(&coordinator, &format!("vm create --file {file} --ram 128"));
    let (one, two) = (machine(&client, &agent, "one").await, machine(&client, &agent, "two").await);
    let sizes = |vm: &Value| ["ram", "quota", "vcpus", "cpu_cap"].map(|name| vm[name].clone());
    assert_eq!(sizes(&one), [192, 2, 2, 150].map(Value::from));
    assert_eq!(sizes(&two), [128, 0, 2, 150].map(Value::from));
    assert_eq!((&one["disks"][0]["size"], &two["disks"][0]["size"]), (&json!(2048), &json!(1024)));
    let uuid = client.get("/packages/tiny").await.expect(200)["uuid"].clone();
    assert_eq!((&one["billing_id"], &one["package_name"]), (&uuid, &json!("tiny")));

    let wide = done(&coordinator, "vm list -o wide");
    assert!(wide.contains("PACKAGE") && wide.contains("tiny"), "{wide}");
    assert!(done(&coordinator, "vm get one").contains("Package"), "of a machine");
    let decisions = cli::json(&coordinator, &["allocation", "list"]);
    let decision = decisions[0]["id"].as_str().expect("an id");
    let decision = done(&coordinator, &format!("allocation get {decision}"));
    assert!(decision.contains("tiny"), "{decision}");

    let unknown = fails(&coordinator, "vm create --image muster-guest --package tinny", 3);
    assert!(unknown.contains("muster package list"), "{unknown}");
    let image = one["disks"][0]["image_uuid"].clone();
    let body = json!({ "image_uuid": image, "package": "tinny" });
    let refused = client.post("/vms", &body).await.expect(409);
    let error = &refused["errors"][0];
    assert_eq!(error["field"], "package", "{refused}");
    assert!(error["message"].to_string().contains("did you mean tiny?"), "{refused}");

    // What becomes of it changes no machine.
    done(&coordinator, "package update tiny --ram 256");
    done(&coordinator, "package delete tiny --yes");
    fails(&coordinator, "package delete tiny --yes", 3);
    done(&coordinator, "package delete tiny --yes --if-exists");
    assert_eq!(sizes(&machine(&client, &agent, "one").await), sizes(&one));
}
