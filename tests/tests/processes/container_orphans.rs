//! What an agent does about containers that it has lost the records of.

use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::{Answer, Client};
use muster_tests::wait::wait_for;
use muster_tests::{container, own_network};
use serde_json::{Value, json};

const LONG: Duration = Duration::from_secs(60);

async fn done(client: &Client, answer: Answer) -> Value {
    let started = answer.expect(200);
    client.complete_task(started["id"].as_str().expect("an id"), 60).await
}

#[tokio::test]
async fn orphans_are_told_with_their_roots_and_adopted_or_removed() {
    if !container::can_run() || !own_network::enter() {
        return;
    }
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let named = format!("instance=o{}", &fresh_uuid()[..6]);
    let mut agent = Agent::with(&[&coordinator.agent_url()], &[&named], &[]);
    agent.wait_allocatable(&client).await;
    let config = json!({ "Entrypoint": ["/bin/sleep", "100000"] });
    let image = container::import(&client, &config).await;
    let (lost, off, foreign) = (fresh_uuid(), fresh_uuid(), fresh_uuid());
    for vm in [&lost, &off, &foreign] {
        let payload = json!({
            "uuid": vm, "brand": "lx", "ram": 64, "alias": format!("vm-{}", &vm[..8]),
            "owner_uuid": fresh_uuid(), "image_uuid": image, "autoboot": *vm != off,
            "image": { "uuid": image, "files": [{ "compression": "none" }] },
        });
        agent.run_task("machine_create", &payload).await;
    }
    let server = format!("/servers/{}", agent.server_uuid);
    let path = format!("{server}/vms/{foreign}");
    let pid = client.get(&path).await.expect(200)["pid"].clone();
    agent.kill9();
    let data = agent.data_dir();
    for vm in [&lost, &off, &foreign] {
        for name in [format!("{vm}.json"), format!("{vm}.json.bak")] {
            std::fs::remove_file(data.join("vms").join(name)).expect("a record");
        }
    }
    for vm in [&lost, &off] {
        std::fs::remove_file(data.join(format!("records/{vm}.json"))).expect("a copy");
    }
    let copy = data.join(format!("records/{foreign}.json"));
    let text = std::fs::read_to_string(&copy).expect("a copy");
    let mut stamped: Value = serde_json::from_str(&text).expect("JSON");
    stamped["server_uuid"] = json!(fresh_uuid());
    std::fs::write(&copy, stamped.to_string()).expect("it can be written");
    agent.restart();
    agent.wait_allocatable(&client).await;

    let told = client.get(&format!("{server}/orphans")).await.expect(200);
    let all = told["orphans"].as_array().expect("a list");
    assert_eq!(all.len(), 3, "{told:#}");
    for (vm, runs, adoptable) in
        [(&lost, true, false), (&off, false, false), (&foreign, true, true)]
    {
        let orphan = all.iter().find(|orphan| orphan["uuid"] == **vm).expect("it is listed");
        assert_eq!((&orphan["runs"], &orphan["adoptable"]), (&json!(runs), &json!(adoptable)));
        let root = &orphan["volumes"][0];
        assert_eq!((&root["image_uuid"], &root["disk"]), (&json!(image), &Value::Null), "{orphan}");
        assert_eq!(root["path"], json!(data.join("roots").join(vm)), "{orphan}");
    }

    let adopt = client.post(&format!("{server}/orphans/{foreign}/adopt"), &json!({})).await;
    done(&client, adopt).await;
    let adopted = client.get(&path).await.expect(200);
    assert_eq!((&adopted["pid"], &adopted["state"]), (&pid, &json!("running")));
    for vm in [&lost, &off] {
        let remove = client.delete(&format!("{server}/orphans/{vm}?confirm={vm}")).await;
        done(&client, remove).await;
        assert!(
            !data.join("roots").join(vm).exists() && !data.join("containers").join(vm).exists()
        );
    }
    let run_dir = agent.run_dir();
    assert_eq!(container::monitors(&run_dir).len(), 1);
    done(&client, client.post(&format!("{path}/reboot"), &json!({ "force": true })).await).await;
    done(&client, client.delete(&path).await).await;
    wait_for("nothing is left", LONG, || async {
        let mounts = [container::mounts(&data), container::mounts(&run_dir)].concat();
        let left = (mounts, container::monitors(&run_dir));
        if left == (vec![], vec![]) { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    let told = client.get(&format!("{server}/orphans")).await.expect(200);
    assert_eq!(told, json!({ "orphans": [] }));
}
