//! The operator's commands for planning and decisions, against a real coordinator.

use muster_tests::cli::{json as json_of, output as run, text};
use muster_tests::daemon::Coordinator;
use muster_tests::sim_agent::SimAgent;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn planners_and_skeptics_have_their_commands() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let (first, second) =
        (SimAgent::connect(&coordinator).await, SimAgent::connect(&coordinator).await);
    first.wait_running(&client).await;
    second.wait_running(&client).await;

    // 64 GiB, 15 % of which are never promised, and 1 GiB for each machine's hypervisor.
    let plan = json_of(&coordinator, &["capacity", "--ram", "1024", "--disk", "1"]);
    assert_eq!((&plan["fleet"]["servers"], &plan["fleet"]["fits"]), (&json!(2), &json!(54)));
    let limit = &plan["servers"][0]["limited_by"];
    assert!(limit.is_string(), "{plan:#}");
    assert!(plan["fleet"]["stranded"]["ram"].as_u64() > Some(0), "{plan:#}");
    let one = json_of(&coordinator, &["capacity", "--ram", "1024", "--server", &first.server_uuid]);
    assert_eq!(one["servers"][0]["server_uuid"], *first.server_uuid);
    assert_eq!(one["fleet"]["servers"], 1);
    let shown = text(&coordinator, &["capacity", "--ram", "1024", "--disk", "1"]);
    assert!(shown.contains("54 more fit on 2 servers; stranded:"), "{shown}");

    let body = json!({
        "vm": { "vm_uuid": muster_tests::daemon::fresh_uuid(), "ram": 1024, "brand": "joyent",
                "owner_uuid": muster_tests::daemon::fresh_uuid(), "cpu_cap": 100, "quota": 1 },
        "image": {}, "nic_tags": ["admin"],
        "package": { "max_physical_memory": 1024, "cpu_cap": 100, "quota": 1024 },
    });
    let decided = client.post("/allocate?keep=true", &body).await.expect(200);
    let (id, server) = (decided["id"].as_str().expect("an id"), &decided["server"]["uuid"]);
    let list = json_of(&coordinator, &["allocation", "list"]);
    assert_eq!((&list[0]["id"], &list[0]["server_uuid"]), (&json!(id), server));
    let got = json_of(&coordinator, &["allocation", "get", id]);
    assert_eq!((&got["seed"], &got["keep"]), (&decided["seed"], &json!(true)));
    let shown = text(&coordinator, &["allocation", "get", id]);
    assert!(shown.contains("2  Servers that were considered"), "{shown}");

    let replay = json_of(&coordinator, &["allocation", "replay", id]);
    assert_eq!((&replay["identical"], &replay["server"]), (&json!(true), server));
    let shown = text(&coordinator, &["allocation", "replay", id]);
    assert!(shown.starts_with("identical: "), "{shown}");
    let dir = tempfile::tempdir().expect("a folder");
    let policy = dir.path().join("policy.json");
    let strict = json!({ "changeDefaults": { "minimum_free_disk": 1e9 } });
    std::fs::write(&policy, strict.to_string()).expect("the file is written");
    let with = policy.display().to_string();
    let other = json_of(&coordinator, &["allocation", "replay", id, "--with", &with]);
    assert_eq!((&other["identical"], &other["server"]), (&json!(false), &Value::Null));
    let shown = text(&coordinator, &["allocation", "replay", id, "--with", &with]);
    assert!(shown.contains("is:  no server") && shown.contains("enough free disk"), "{shown}");
    std::fs::write(&policy, "{").expect("the file is written");
    assert!(!run(&coordinator, &["allocation", "replay", id, "--with", &with]).status.success());
    let unknown = muster_tests::daemon::fresh_uuid();
    let missing = run(&coordinator, &["allocation", "get", &unknown]);
    let error = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && error.contains("there is no allocation"), "{error}");
}
