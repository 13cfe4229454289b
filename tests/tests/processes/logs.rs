//! What daemons log, read through the coordinator: by task, followed, and across a restart.

use std::time::Duration;

use muster_tests::cli;
use muster_tests::contract::Contract;
use muster_tests::daemon::{Agent, Coordinator};
use muster_tests::http::Client;
use muster_tests::scripted_agent::ScriptedAgent;
use muster_tests::terminal::{Screen, Terminal};
use serde_json::{Value, json};

/// Longer than a request waits for a line.
const LIMIT: Duration = Duration::from_secs(120);

/// Has a task fail with these words; its id.
async fn fails(client: &Client, agent: &Agent, words: &str) -> String {
    let nop = format!("/servers/{}/nop", agent.server_uuid);
    let task = client.post(&nop, &json!({ "error": words })).await.expect(200);
    let id = task["id"].as_str().expect("an id").to_owned();
    client.get(&format!("/tasks/{id}/wait")).await.expect(200);
    id
}

/// The lines that the command prints for programs.
fn lines(coordinator: &Coordinator, words: &[&str]) -> Vec<Value> {
    let words: Vec<&str> = [&["-o", "json", "logs"], words].concat();
    let text = cli::text(coordinator, &words);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_are_found_by_task_level_and_number() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agent = Agent::start(&coordinator.agent_url());
    let server = agent.wait_allocatable(&client).await;
    let hostname = server["hostname"].as_str().expect("a name");
    let first = fails(&client, &agent, "out of luck").await;
    let second = fails(&client, &agent, "out of\u{1b}[2J patience").await;

    let of_first = lines(&coordinator, &["--task", &first]);
    assert!(!of_first.is_empty());
    for line in &of_first {
        assert_eq!((&line["task_id"], &line["hostname"]), (&json!(first), &json!(hostname)));
        assert_eq!(line["server_uuid"], json!(agent.server_uuid));
    }
    let failed = |line: &&Value| line["message"] == "task failed";
    let line = of_first.iter().find(failed).expect("its end");
    assert_eq!(
        (&line["level"], &line["fields"]["reason"]),
        (&json!("warn"), &json!("out of luck"))
    );
    assert!(lines(&coordinator, &["--task", &first, "--level", "error"]).is_empty());
    let all = lines(&coordinator, &[hostname, "--since", "1h"]);
    let numbers: Vec<u64> = all.iter().filter_map(|line| line["seq"].as_u64()).collect();
    assert_eq!(numbers, (1..=numbers[numbers.len() - 1]).collect::<Vec<_>>());
    assert_eq!(lines(&coordinator, &[hostname, "--lines", "2"]).len(), 2);
    let text = cli::text(&coordinator, &["logs", "--task", &second]);
    assert!(text.contains(hostname) && text.contains("task failed"), "{text}");
    assert!(!text.contains('\u{1b}') && text.contains("[2J patience"), "{text:?}");

    let own = lines(&coordinator, &["--coordinator", "--lines", "1000"]);
    assert!(own.iter().any(|line| line["message"] == "serving the API"), "{own:#?}");
    let local = agent.client().get(&format!("/logs?task={first}")).await.expect(200);
    assert_eq!(local["lines"].as_array().map(Vec::len), Some(of_first.len()));
    let contract = Contract::of(&client).await;
    let path = format!("/servers/{}/logs?after=0", agent.server_uuid);
    let page = contract.check(&client, "/servers/{server_uuid}/logs", &path).await;
    assert_eq!((page["lost"].as_u64(), page["lines"][0]["seq"].as_u64()), (Some(0), Some(1)));
    contract.check(&client, "/logs", "/logs?level=warn&limit=5").await;
    client.get("/logs?wait=31").await.expect(409);

    let usage = cli::output(&coordinator, &["logs"]);
    assert_eq!(usage.status.code(), Some(2), "{usage:?}");
    let nobody = cli::output(&coordinator, &["logs", "nowhere"]);
    assert_eq!(nobody.status.code(), Some(3), "{nobody:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_sees_what_comes_also_after_a_restart() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let mut agent = Agent::start(&coordinator.agent_url());
    agent.wait_allocatable(&client).await;
    let home = tempfile::tempdir().expect("a folder");
    let words = ["logs", &agent.server_uuid, "--follow", "--level", "warn"];
    let terminal = Terminal::start(&coordinator, home.path(), &words, LIMIT);
    fails(&client, &agent, "failure-first").await;
    let at = terminal.until(0, "failure-first");
    fails(&client, &agent, "failure-second").await;
    let at = terminal.until(at, "failure-second");

    agent.restart();
    agent.wait_status(&client, "running", LIMIT).await;
    fails(&client, &agent, "failure-third").await;
    let at = terminal.until(at, "was restarted");
    terminal.until(at, "failure-third");
    terminal.interrupt();
    let (code, shown) = terminal.end();
    assert_eq!(code, 0, "Ctrl-C is its end");
    let Screen { text, flaws, .. } = Screen::of(&shown);
    assert!(flaws.is_empty(), "{flaws:?} in {text}");
}

/// An agent of an older version does not have this kind of task.
#[tokio::test]
async fn an_agent_that_can_not_tell_says_so() {
    let coordinator = Coordinator::start();
    let mut agent = ScriptedAgent::register(&coordinator).await;
    let (client, path) = (coordinator.client(), format!("/servers/{}/logs", agent.server_uuid));
    let asking = tokio::spawn(async move { client.get(&path).await });
    let dispatch = agent.expect("dispatch", None, LIMIT).await.expect("it is asked");
    assert_eq!(dispatch["task"], "server_logs");
    agent.refuse(dispatch["id"].as_str().expect("an id"), "NotSupported").await;
    let refused = asking.await.expect("an answer");
    assert_eq!(refused.status.as_u16(), 501, "{}", refused.text);
    assert_eq!(refused.json["code"], "NotSupported", "{}", refused.text);
}
