//! Tasks from creation to their end, over restarts and lost messages.

use muster_shared::api::Object;
use muster_shared::entropy::SharedEntropy;
use muster_shared::wire::Progress;

use super::*;
use crate::app::HistoryLimits;
use crate::app::events::{EventFilter, Item};

#[tokio::test(start_paused = true)]
async fn a_task_is_sent_accepted_ended_and_acknowledged() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    let dispatch = agent.dispatched().await;
    assert_eq!((&dispatch.id, dispatch.task.as_str()), (&id, "nop"));
    let (task, ()) = tokio::join!(ended(&app, &id), agent.finish(&id, json!({ "x": 1 })));
    assert_eq!(task["status"], "complete");
    assert_eq!(task["history"][0]["name"], "finish");
    assert_eq!(task["history"][0]["event"]["x"], 1);
    agent.acknowledged(&id).await;
    agent.finish(&id, json!({ "x": 2 })).await;
    agent.acknowledged(&id).await;
    assert_eq!(json!(app.tasks.get(&id).await.unwrap())["history"][0]["event"]["x"], 1);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_a_task_waits_for_has_its_subtasks() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    agent.dispatched().await;
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    let part =
        |part: &str| json!({ "id": part, "task": "sleep", "name": format!("{part}'s name") });
    let ended = |part: &str| json!({ "id": part, "status": "failure" });
    let steps = [
        ("subtask", part("one")),
        ("subtask", part("one")),
        ("subtask:end", ended("one")),
        ("subtask:end", ended("unknown")),
        ("subtask", part("two")),
    ];
    for (seq, (name, event)) in (1..).zip(steps) {
        let (id, name, ts) = (id.clone(), name.to_owned(), String::new());
        agent.send(Progress { id, seq, name, event, ts }).await;
    }
    let why = loop {
        let why = app.why.task(&id).await.unwrap();
        if why["subtasks"].as_array().is_some_and(|parts| parts.len() == 2) {
            break why;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(why["subtasks"][0]["status"], "failure");
    let two = json!({ "id": "two", "task": "sleep", "name": "two's name", "status": "active" });
    assert_eq!(why["subtasks"][1], two);
    assert!(why["text"].as_str().unwrap().ends_with("its subtask sleep is under way"), "{why}");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn secrets_reach_the_agent_and_who_asks_for_the_task() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let mut reader = app.events.subscribe(EventFilter::default(), None).await.unwrap();
    let secrets = json!({
        "uuid": vm(1), "customer_metadata": { "root_authorized_keys": "SECRET" },
        "internal_metadata": { "root_pw": "SECRET" }, "tags": { "password": "SECRET" },
    });
    let params = Object::of(&secrets);
    let id = app.tasks.create(server(1), "machine_create", params.clone(), caller()).await.unwrap();
    let dispatch = agent.dispatched().await;
    assert_eq!(&dispatch.params, params.as_map());
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    let step = Progress {
        id: id.clone(),
        seq: 1,
        name: "start:x".to_owned(),
        event: secrets.clone(),
        ts: String::new(),
    };
    agent.send(step).await;
    let mut seen = Vec::new();
    while seen.len() < 2 {
        if let Item::Change(_, change) | Item::Progress(change) = soon(reader.next()).await {
            let change = json!(change);
            seen.extend((change["task"] == "machine_create").then_some(change));
        }
    }
    let mut shown = vec![json!(seen), json!(app.tasks.get(&id).await.unwrap())];
    assert_eq!(shown[1]["events"][0]["event"]["tags"]["password"], "***");
    let whole = app.tasks.ended(&id, SOON);
    let (whole, ()) = tokio::join!(whole, agent.finish(&id, json!({ "vm": secrets })));
    let whole = whole.unwrap().unwrap().outcome();
    assert_eq!(whole, Some(Ok(json!({ "vm": secrets }))), "jobs need what tasks return");
    for task in [app.tasks.get(&id).await.unwrap(), app.tasks.wait(&id, SOON).await.unwrap()] {
        assert_eq!(task.history[0].event["vm"], secrets, "clients read the VM from there");
    }
    shown.push(json!(app.tasks.list(&TaskFilter::default()).await.unwrap().tasks));
    assert_eq!(shown[2][0]["history"][0]["event"]["vm"]["internal_metadata"]["root_pw"], "***");
    for shown in shown {
        assert!(!shown.to_string().contains("SECRET"), "{shown}");
    }
    let last = loop {
        if let Item::Change(_, change) = soon(reader.next()).await
            && json!(change)["status"] == "complete"
        {
            break json!(change);
        }
    };
    assert_eq!(last["accepted"], true, "also of a task that was too short to be marked before");
    app.shutdown().await;
}

async fn soon(item: impl Future<Output = Option<Item>>) -> Item {
    tokio::time::timeout(Duration::from_secs(60), item).await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_restart_in_the_middle_loses_no_task_and_writes_no_status() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    agent.dispatched().await;
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    app.shutdown().await;
    drop(agent);

    let app = disk.start().await;
    assert_eq!(
        app.servers.get(server(1), crate::app::fields::Extras::default()).unwrap().status.as_str(),
        "running"
    );
    let mut agent = Agent::connect_only(&app, server(1)).await;
    assert_eq!(agent.welcome.open_task_ids, std::slice::from_ref(&id));
    assert_eq!(agent.welcome.sysinfo_hash, "h");
    agent.finish(&id, Value::Null).await;
    assert_eq!(ended(&app, &id).await["status"], "complete");
    agent.acknowledged(&id).await;
    assert_eq!(app.why.server(server(1)).unwrap()["status_writes_total"], 0);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_that_the_agent_does_not_know_is_sent_again_unless_it_was_accepted() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    agent.dispatched().await;
    agent.refuse(&id, "UnknownTask").await;
    assert_eq!(agent.dispatched().await.id, id);
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    agent.refuse(&id, "UnknownTask").await;
    let task = ended(&app, &id).await;
    assert_eq!((&task["status"], &task["error"]["code"]), (&json!("failure"), &json!("TaskLost")));
    app.shutdown().await;
}

/// Agents repeat results, but not refusals.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_meets_a_full_disk_is_stored_later() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    agent.dispatched().await;
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    disk.kv.set_full(true);
    agent.refuse(&id, "UnknownTask").await;
    eventually(|| app.tasks.table.get(&id).is_some_and(|open| open.unstored.is_some())).await;
    assert_eq!(json!(app.tasks.get(&id).await.unwrap())["status"], "active");
    disk.kv.set_full(false);
    assert_eq!(ended(&app, &id).await["error"]["code"], "TaskLost");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn only_a_task_that_was_never_sent_expires_or_is_cancelled_here() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let sent = nop(&app).await;
    agent.dispatched().await;
    drop(agent);
    eventually(|| !app.agents().is_connected(server(1))).await;
    let never = nop(&app).await;
    let cancelled = nop(&app).await;
    app.tasks.cancel(&cancelled, &Expected::ANY).await.unwrap();
    assert_eq!(json!(app.tasks.get(&cancelled).await.unwrap())["error"]["code"], "Cancelled");
    assert!(matches!(
        app.tasks.cancel(&cancelled, &Expected::ANY).await,
        Err(AppError::NotCancellable(_))
    ));
    assert!(matches!(
        app.tasks.cancel(&sent, &Expected::ANY).await,
        Err(AppError::NotConnected(_))
    ));
    let waited = app.tasks.wait(&never, Duration::from_secs(400)).await.unwrap();
    assert_eq!(waited.error.unwrap().code.as_str(), "NotAccepted");
    let open = app.tasks.get(&sent).await.unwrap();
    assert_eq!(open.status, TaskStatus::Active);
    let mut agent = Agent::connect_only(&app, server(1)).await;
    assert_eq!(agent.welcome.open_task_ids, std::slice::from_ref(&sent));
    agent.finish(&sent, Value::Null).await;
    assert_eq!(ended(&app, &sent).await["status"], "complete");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_listed_and_bounded() {
    let config = AppConfig { max_open_tasks: 3, ..AppConfig::default() };
    let app = Disk::new().start_with(config).await;
    let _agent = Agent::connect(&app, server(1)).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(nop(&app).await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let refused = app.tasks.create(server(1), "nop", Object::new(), caller()).await;
    assert!(matches!(refused, Err(AppError::Busy(_))), "{refused:?}");
    for status in [None, Some(TaskStatus::Active)] {
        let filter = TaskFilter { limit: Some(2), status, ..TaskFilter::default() };
        let page = app.tasks.list(&filter).await.unwrap();
        assert_eq!(page.tasks[0].id, ids[0]);
        assert_eq!(page.next.as_ref(), Some(&ids[1]));
        let rest = TaskFilter { marker: page.next, ..filter };
        assert_eq!(app.tasks.list(&rest).await.unwrap().tasks[0].id, ids[2]);
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn deleting_a_server_ends_its_tasks() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    agent.dispatched().await;
    app.servers.delete(server(1), &Expected::ANY).await.unwrap();
    assert_eq!(ended(&app, &id).await["error"]["code"], "ServerDeleted");
    assert!(app.servers.get(server(1), crate::app::fields::Extras::default()).is_err());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn who_stops_waits_for_what_is_being_stored_and_no_longer() {
    const SYNC: Duration = Duration::from_millis(10);
    const MOMENTS: usize = 12;
    let mut stored = 0;
    for moment in 0..MOMENTS {
        let entropy: SharedEntropy = Arc::new(SeededEntropy::new(1));
        let slow = MemOptions { sync: SYNC, entropy: Some(entropy) };
        let app = Disk { kv: Arc::new(MemKv::new(slow)), ..Disk::new() }.start().await;
        let mut agent = Agent::connect(&app, server(1)).await;
        let id = nop(&app).await;
        agent.dispatched().await;
        agent.finish(&id, json!({})).await;
        tokio::time::sleep(SYNC / 10 * u32::try_from(moment).unwrap()).await;
        let stopping = app.ctx.parts.clock.monotonic();
        app.shutdown().await;
        let took = app.ctx.parts.clock.monotonic().saturating_sub(stopping);
        assert!(took < Duration::from_secs(1), "stopped after {moment}: {took:?}");
        stored += usize::from(app.tasks.record_of(&id).await.unwrap().status != TaskStatus::Active);
    }
    assert_eq!(stored, MOMENTS, "what came before the stop is stored, also in the same moment");
}

#[tokio::test(start_paused = true)]
async fn no_more_ended_tasks_are_kept_than_their_limits_allow() {
    let task_history = HistoryLimits { count: 3, bytes: 1 << 20 };
    let config = AppConfig { task_history, ..AppConfig::default() };
    let app = Disk::new().start_with(config).await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let mut ids = Vec::new();
    for _ in 0..6 {
        let id = nop(&app).await;
        agent.dispatched().await;
        agent.finish(&id, json!({})).await;
        ended(&app, &id).await;
        ids.push(id);
        // Ids sort by the millisecond in which they were made.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ids.push(nop(&app).await);
    assert!(app.tasks.history_is_over());
    assert_eq!(app.tasks.sweep().await.unwrap(), 3);
    assert!(!app.tasks.history_is_over());
    let page = app.tasks.list(&TaskFilter::default()).await.unwrap();
    let left: Vec<_> = page.tasks.into_iter().map(|task| task.id).collect();
    assert_eq!(left, ids[3..], "the oldest go first, an open one stays");
    app.shutdown().await;
}
