//! An agent's connection that ends at every moment after each of its messages.

use muster_shared::wire::{Code, Progress, TaskError};

use super::sound::unsound;
use super::*;

/// The connection ends after so many turns of the runtime; what a message does takes fewer.
const MOMENTS: usize = 24;

fn refusal(id: &TaskId, code: Code) -> FromAgent {
    WireError { id: Some(id.to_string()), code, message: "no".to_owned() }.into()
}

fn result(id: &TaskId, status: Outcome) -> FromAgent {
    let error = (status == Outcome::Failure).then(|| TaskError {
        code: Code::Other("Broken".to_owned()),
        message: "no".to_owned(),
        details: None,
    });
    let (result, finished_at) = (json!({}), String::new());
    TaskResult { id: id.clone(), status, result, error, finished_at }.into()
}

fn messages(id: &TaskId) -> Vec<(&'static str, FromAgent)> {
    let event = json!({ "value": 50 });
    let progress =
        Progress { id: id.clone(), seq: 1, name: "progress".to_owned(), event, ts: String::new() };
    let report = Report::whole(&BTreeMap::new());
    let other = json!({ "UUID": server(1), "Hostname": "other" }).as_object().cloned();
    vec![
        ("hello", hello(server(1)).into()),
        ("heartbeat", Heartbeat { seq: 1, ts: String::new() }.into()),
        ("sysinfo", Sysinfo { sysinfo: other, agents: None, hash: "h2".to_owned() }.into()),
        ("status", Box::new(Status { report: Some(report) }).into()),
        ("accepted", Accepted { id: id.clone(), intake: None }.into()),
        ("progress", progress.into()),
        ("result", result(id, Outcome::Complete)),
        ("failure", result(id, Outcome::Failure)),
        ("refusal", refusal(id, Code::Other("Broken".to_owned()))),
        ("refusal elsewhere", refusal(id, Code::Draining)),
        ("unknown task", refusal(id, Code::UnknownTask)),
    ]
}

/// The task that the server was sent, its connection, and the VM that it makes.
async fn placed(app: &Arc<App>) -> (Agent, TaskId) {
    let mut agent = Agent::connect(app, server(1)).await;
    app.placement.create(&body(vm(5)), caller()).await.unwrap();
    let id = agent.dispatched().await.id;
    (agent, id)
}

#[tokio::test(start_paused = true)]
async fn what_an_agent_said_is_done_or_not_whenever_its_connection_ends() {
    let kinds = messages(&"t".parse().unwrap()).len();
    let mut tried = 0;
    for kind in 0..kinds {
        for moment in 0..MOMENTS {
            let app = Disk::new().start().await;
            let (mut agent, id) = placed(&app).await;
            let (name, message) = messages(&id).swap_remove(kind);
            agent.send(message).await;
            for _ in 0..moment {
                tokio::task::yield_now().await;
            }
            drop(agent);
            tokio::time::sleep(Duration::from_secs(5)).await;
            let findings = unsound(&app).await;
            assert!(findings.is_empty(), "{name} after {moment}: {findings:#?}");
            tried += 1;
            app.shutdown().await;
        }
    }
    println!("{kinds} messages of an agent, {tried} moments of its end, 0 failures");
}
