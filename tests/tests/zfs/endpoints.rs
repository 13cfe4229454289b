//! ZFS on a node as clients of CNAPI know it, through the coordinator.

use muster_tests::system::SHORT;
use muster_tests::system::node::Node;
use serde_json::{Value, json};

use crate::pools::{datasets, node};

/// Asks for something below the server; the status and the answer.
async fn ask(node: &Node, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let script = format!(
        "curl -sS -w '\\n%{{http_code}}' -X {method} -H content-type:application/json --data @- \
         'http://127.0.0.1:8480/servers/{}{path}' <<'END'\n{body}\nEND\n",
        node.server
    );
    let ran = node.system.try_run(&script, SHORT).await.expect("the machine answers");
    let (answer, status) = ran.stdout.trim_end().rsplit_once('\n').expect("an answer");
    let answer = serde_json::from_str(answer).unwrap_or(Value::Null);
    (status.parse().expect("a status"), answer)
}

async fn done(node: &Node, method: &str, path: &str, body: &Value) -> Value {
    let (status, answer) = ask(node, method, path, body).await;
    assert!((200..300).contains(&status), "{method} {path}: {status} {answer}");
    answer
}

fn names(listed: &Value) -> Vec<&str> {
    listed.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect()
}

#[tokio::test]
async fn every_zfs_endpoint_does_what_it_says_on_a_real_pool() {
    let node = node().await;
    let none = &Value::Null;
    let pools = done(&node, "GET", "/zpools", none).await;
    assert_eq!(names(&pools), ["zones"]);
    assert_eq!(pools[0]["health"], "ONLINE");
    let members: Vec<_> = pools[0].as_object().expect("an object").keys().cloned().collect();
    let mut wanted = ["name", "size", "allocated", "free", "cap", "health", "altroot"];
    wanted.sort_unstable();
    let mut members = members;
    members.sort_unstable();
    assert_eq!(members, wanted);

    let x = "/datasets/zones%2Fx";
    assert_eq!(ask(&node, "POST", "/datasets", &json!({ "dataset": "zones/x" })).await.0, 204);
    let again = ask(&node, "POST", "/datasets", &json!({ "dataset": "zones/x" })).await;
    assert_eq!((again.0, &again.1["code"]), (409, &json!("DatasetExists")));
    let listed = done(&node, "GET", "/datasets", none).await;
    assert!(names(&listed).contains(&"zones/x"), "{listed}");

    node.system.run("echo before >/zones/x/file").await;
    done(&node, "POST", &format!("{x}/snapshot"), &json!({ "name": "a" })).await;
    node.system.run("echo after >/zones/x/file").await;
    done(&node, "POST", &format!("{x}/snapshot"), &json!({ "name": "b" })).await;
    let taken = done(&node, "GET", &format!("{x}/snapshots"), none).await;
    assert_eq!(names(&taken), ["zones/x@a", "zones/x@b"]);
    done(&node, "POST", &format!("{x}/rollback"), &json!({ "name": "a" })).await;
    assert_eq!(node.system.run("cat /zones/x/file").await, "before\n");
    assert!(!datasets(&node.system).await.contains(&"zones/x@b".to_owned()));

    let properties = json!({ "properties": { "quota": "64M", "example:note": "one two" } });
    done(&node, "POST", &format!("{x}/properties"), &properties).await;
    let asked = format!("{x}/properties?prop1=quota&prop2=example:note");
    let set = json!({ "zones/x": { "quota": "67108864", "example:note": "one two" } });
    assert_eq!(done(&node, "GET", &asked, none).await, set);
    let all = done(&node, "GET", "/dataset-properties?prop1=type", none).await;
    assert_eq!(all["zones/x"]["type"], "filesystem");
    // One that is wrong keeps the other from being set.
    let bad = json!({ "properties": { "atime": "off", "quota": "many" } });
    assert_eq!(ask(&node, "POST", &format!("{x}/properties"), &bad).await.0, 409);
    let told = done(&node, "GET", &format!("{x}/properties?prop1=atime"), none).await;
    assert_eq!(told["zones/x"]["atime"], "on");

    // A snapshot is in the way; a name that leads outside, and what is the agent's own, are not touched.
    assert_eq!(ask(&node, "DELETE", x, none).await.0, 409);
    for bad in ["zones", "zones%2Fmuster", "zones%2F-r", "zones%2F..%2Fx", "zones%2Fa%20b"] {
        let (status, answer) = ask(&node, "DELETE", &format!("/datasets/{bad}"), none).await;
        assert_eq!(status, 409, "{bad}: {answer}");
    }
    assert!(datasets(&node.system).await.contains(&"zones/muster".to_owned()));
    node.system.run("zfs destroy zones/x@a").await;
    assert_eq!(ask(&node, "DELETE", x, none).await.0, 204);
    assert_eq!(ask(&node, "DELETE", x, none).await.0, 404);
    assert_eq!(ask(&node, "DELETE", &format!("{x}?idempotent=true"), none).await.0, 204);

    // What has to be atomic went through the library.
    let asked = "curl -sS http://127.0.0.1:5309/metrics | grep zfs_operations_total";
    let counts = node.system.run(asked).await;
    println!("{counts}");
    for operation in ["create", "snapshot", "destroy_snapshots", "rollback", "destroy"] {
        let count = format!("operation=\"{operation}\",way=\"libzfs_core\"");
        assert!(counts.contains(&count), "{operation}: {counts}");
    }
}
