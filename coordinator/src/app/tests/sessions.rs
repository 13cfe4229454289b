//! Connections that end at a bad moment: what was said on them counts all the same.

use muster_shared::wire::{Code, TaskError, close, feature};

use super::*;
use crate::agents::Reason;

/// Says that a task failed.
async fn fail(agent: &mut Agent, id: &TaskId) {
    let error = TaskError { message: "no".to_owned(), code: "NoRoom".into(), details: None };
    let failed = TaskResult {
        id: id.clone(),
        status: Outcome::Failure,
        result: Value::Null,
        error: Some(error),
        finished_at: String::new(),
    };
    agent.send(failed).await;
}

/// Nothing more is sent to an agent than an answer to a question that comes after it.
async fn is_sent_no_task(agent: &mut Agent) {
    agent.connection.sink.send(Frame::Text("{\"kind\":\"x\"}".to_owned())).await.unwrap();
    loop {
        match agent.next().await {
            FromCoordinator::Error(_) => return,
            FromCoordinator::Dispatch(dispatch) => panic!("sent again: {dispatch:?}"),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_counts_although_its_connection_ends_at_once() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    for _ in 0..20 {
        let id = nop(&app).await;
        assert_eq!(agent.dispatched().await.id, id);
        agent.refuse(&id, "Draining").await;
        drop(agent);
        agent = Agent::connect_only(&app, server(1)).await;
        assert!(agent.welcome.open_task_ids.is_empty(), "it ended before the next connection");
        agent.refuse(&id, "Draining").await;
        agent.acknowledged(&id).await;
        is_sent_no_task(&mut agent).await;
        assert_eq!(ended(&app, &id).await["error"]["code"], "Draining");
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_arrives_is_closed() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let clock = app.ctx.parts.clock.clone();
    let start = clock.monotonic();
    let stream = &mut agent.connection.stream;
    while stream.next().await.unwrap().is_some() {}
    assert_eq!(stream.close_code(), Some(1008));
    let silent_for = clock.monotonic() - start;
    let within = Duration::from_secs(89)..=Duration::from_secs(121);
    assert!(within.contains(&silent_for), "{silent_for:?}");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_comes_late_ends_no_task_that_was_sent_again() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    let sent_on = || app.tasks.table.get(&id).unwrap().sent_on.unwrap().0;
    agent.dispatched().await;
    let first = sent_on();
    drop(agent);
    let mut agent = Agent::connect_only(&app, server(1)).await;
    assert_eq!(agent.welcome.open_task_ids, std::slice::from_ref(&id));
    agent.refuse(&id, "UnknownTask").await;
    assert_eq!(agent.dispatched().await.id, id);
    assert_ne!(sent_on(), first);
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    // It stood behind a store that stalled, with all else that the first connection brought.
    for code in [Code::Draining, Code::UnknownTask] {
        app.tasks.refused((server(1), first), &id, &code, "late").await;
    }
    agent.finish(&id, json!({})).await;
    assert_eq!(ended(&app, &id).await["status"], "complete");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_vm_refused_on_a_connection_that_ends_is_made_elsewhere_only() {
    let app = Disk::new().start().await;
    let mut agents = [Agent::connect(&app, server(1)).await, Agent::connect(&app, server(2)).await];
    let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
    let first = usize::from(placed.server_uuid == agents[1].server);
    agents[first].dispatched().await;
    agents[first].refuse(&placed.id, "Draining").await;
    agents[first] = Agent::connect_only(&app, placed.server_uuid).await;
    assert!(agents[first].welcome.open_task_ids.is_empty());
    assert_eq!(agents[1 - first].dispatched().await.id, placed.id);
    is_sent_no_task(&mut agents[first]).await;
    let stored = app.tasks.record_of(&placed.id).await.unwrap();
    assert_eq!(stored.server_uuid, agents[1 - first].server);
    assert_eq!(app.tasks.table.get(&placed.id).unwrap().record.server_uuid, stored.server_uuid);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_create_that_failed_gives_its_room_back_although_its_connection_ends_at_once() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    for _ in 0..10 {
        let placed = app.placement.create(&body(vm(5)), caller()).await.unwrap();
        agent.dispatched().await;
        agent.send(Accepted { id: placed.id.clone(), intake: None }).await;
        fail(&mut agent, &placed.id).await;
        drop(agent);
        assert_eq!(ended(&app, &placed.id).await["error"]["code"], "NoRoom");
        agent = Agent::connect_only(&app, server(1)).await;
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_later_version_never_end_a_connection() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    agent.dispatched().await;
    for text in ["{\"kind\":\"later\",\"id\":\"i\"}", "{\"kind\":\"progress\",\"id\":\"i\"}"] {
        for _ in 0..300 {
            agent.connection.sink.send(Frame::Text(text.to_owned())).await.unwrap();
            let FromCoordinator::Error(error) = agent.next().await else { panic!("no error") };
            assert_eq!(error.id.as_deref(), Some("i"), "{error:?}");
        }
    }
    agent.refuse(&id, "UnknownKind").await;
    assert_eq!(
        app.tasks.get(&id).await.unwrap().status,
        TaskStatus::Active,
        "another message was meant"
    );
    let result = json!({ "kind": "result", "id": id, "status": "partial" }).to_string();
    agent.connection.sink.send(Frame::Text(result)).await.unwrap();
    agent.acknowledged(&id).await;
    let task = json!(app.tasks.get(&id).await.unwrap());
    assert_eq!(
        (&task["status"], &task["error"]["code"]),
        (&json!("failure"), &json!("UnknownOutcome"))
    );
    assert!(task["error"]["message"].as_str().unwrap().contains("partial"), "{task:?}");
    // But who speaks something else altogether is not listened to for ever.
    for _ in 0..100 {
        agent.connection.sink.send(Frame::Text("{".to_owned())).await.unwrap();
        assert!(matches!(agent.next().await, FromCoordinator::Error(_)));
    }
    agent.connection.sink.send(Frame::Text("{".to_owned())).await.unwrap();
    let end = tokio::time::timeout(SOON, agent.connection.stream.next()).await.unwrap();
    assert!(matches!(end, Ok(None)), "{end:?}");
    assert_eq!(agent.connection.stream.close_code(), Some(1008));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_hello_with_values_of_a_later_version_is_welcome() {
    let app = Disk::new().start().await;
    let (mut ours, theirs) = memory::pair();
    app.agents().accept(theirs);
    let mut hello = serde_json::to_value(FromAgent::from(hello(server(1)))).unwrap();
    hello["intake"] = json!("by_invitation");
    for text in ["{\"kind\":\"later\"}".to_owned(), hello.to_string()] {
        ours.sink.send(Frame::Text(text)).await.unwrap();
    }
    let Ok(Some(Frame::Text(text))) = ours.stream.next().await else { panic!("no welcome") };
    assert!(matches!(decode(&text), Ok(FromCoordinator::Welcome(_))), "{text}");
    app.shutdown().await;
}

/// Of two agents that claim to be one server only the first is listened to, while it lives.
#[tokio::test(start_paused = true)]
async fn a_second_agent_of_a_server_is_turned_away_while_the_first_is_heard() {
    let app = Disk::new().start().await;
    let mut first = Agent::connect(&app, server(1)).await;
    let id = nop(&app).await;
    first.dispatched().await;
    let twin = |boot: &str| Hello {
        boot_id: boot.to_owned(),
        agent_instance_id: Uuid::from_u128(2),
        ..hello(server(1))
    };
    for times in 1..3 {
        let (mut ours, theirs) = memory::pair();
        app.agents().accept(theirs);
        let frame = Frame::Text(encode(&FromAgent::from(twin("another"))));
        ours.sink.send(frame).await.unwrap();
        assert_eq!(ours.stream.next().await.unwrap(), None);
        assert_eq!(ours.stream.close_code(), Some(close::DUPLICATE));
        let why = app.why.server(server(1)).unwrap();
        assert_eq!(why["turned_away"]["reason"], "duplicate");
        assert_eq!(why["turned_away"]["times"], times);
        assert_eq!(why["turned_away"]["boot_id"], "another");
        assert!(why["text"].as_str().unwrap().contains("another agent"), "{why:#}");
        assert_eq!(app.agents().turned_away_total(Reason::Duplicate).get(), times);
    }
    first.finish(&id, Value::Null).await;
    assert_eq!(ended(&app, &id).await["status"], "complete");

    // Another start of the agent on the same boot takes its place at once; so does a host that
    // booted again, once the old connection is silent.
    let mut again = Agent::connect_as(&app, twin("b")).await;
    while let Ok(Some(_)) = first.connection.stream.next().await {}
    assert_eq!(first.connection.stream.close_code(), Some(close::REPLACED));
    tokio::time::sleep(Duration::from_secs(3)).await;
    drop(Agent::connect_as(&app, Hello { agent_instance_id: Uuid::nil(), ..twin("c") }).await);
    while let Ok(Some(_)) = again.connection.stream.next().await {}
    assert_eq!(again.connection.stream.close_code(), Some(close::REPLACED));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_of_another_cluster_is_turned_away() {
    let disk = Disk::new();
    let app = disk.start().await;
    let agent = Agent::connect(&app, server(1)).await;
    let cluster = agent.welcome.cluster;
    assert!(cluster.is_some());
    drop(agent);
    app.shutdown().await;

    let app = disk.start().await;
    let agent = Agent::connect_as(&app, Hello { cluster, ..hello(server(1)) }).await;
    assert_eq!(agent.welcome.cluster, cluster, "a restart is the same cluster");
    drop(agent);
    let (mut ours, theirs) = memory::pair();
    app.agents().accept(theirs);
    let foreign = Hello { cluster: Some(Uuid::from_u128(1)), ..hello(server(1)) };
    ours.sink.send(Frame::Text(encode(&FromAgent::from(foreign)))).await.unwrap();
    assert_eq!(ours.stream.next().await.unwrap(), None);
    assert_eq!(ours.stream.close_code(), Some(close::FOREIGN));
    let why = app.why.server(server(1)).unwrap();
    assert_eq!(why["turned_away"]["reason"], "foreign");
    assert_eq!(app.agents().turned_away_total(Reason::Foreign).get(), 1);
    app.shutdown().await;
}

/// A store that lacks a task may be the wrong one, or a lost one; only the result tells what
/// became of the task.
#[tokio::test(start_paused = true)]
async fn a_result_of_a_task_that_the_store_lacks_is_not_acknowledged() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let id: TaskId = "of-another-store".parse().unwrap();
    agent.finish(&id, Value::Null).await;
    match agent.next().await {
        FromCoordinator::Error(error) => {
            assert_eq!(error.id.as_deref(), Some(id.as_str()));
            assert_eq!(error.code, Code::UnknownTask);
        }
        other => panic!("{other:?}"),
    }
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_listens_hears_its_coordinator_every_second() {
    let app = Disk::new().start().await;
    let listens = Hello { capabilities: vec![feature::HEARTBEAT.to_owned()], ..hello(server(1)) };
    let mut agent = Agent::connect_as(&app, listens).await;
    assert!(agent.welcome.capabilities.contains(&feature::HEARTBEAT.to_owned()));
    let clock = app.ctx.parts.clock.clone();
    let mut last = clock.monotonic();
    for _ in 0..10 {
        assert!(matches!(agent.next().await, FromCoordinator::Heartbeat(_)));
        let now = clock.monotonic();
        assert!(now - last <= Duration::from_millis(1_010), "{:?}", now - last);
        last = now;
    }
    app.shutdown().await;
}

/// What an agent says while the store stands still waits for it; the next connection waits too.
#[tokio::test(start_paused = true)]
async fn a_connection_begins_after_the_last_one_s_work() {
    let app = Disk::new().start().await;
    drop(Agent::connect(&app, server(1)).await);
    let turn = app.agents().hold_turn_of(server(1)).await;
    let mut next = Box::pin(Agent::connect_only(&app, server(1)));
    let early = tokio::time::timeout(Duration::from_secs(4), &mut next).await;
    assert!(early.is_err(), "it has to wait");
    assert!(!app.agents().is_connected(server(1)), "nothing is sent before");
    let status = app.fleet.with(server(1), |entry| entry.stored_status());
    assert_eq!(status, Some("running"), "its silence is not its fault");
    drop(turn);
    drop(next.await);
    app.shutdown().await;
}
