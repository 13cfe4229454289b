//! What becomes of the tasks that coordinators send.

use super::*;

#[tokio::test(start_paused = true)]
async fn results_are_sent_until_acknowledged_also_on_the_next_connection() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    coordinator.dispatch("t1", "nop", json!({})).await;
    let first = coordinator.result("t1").await;
    assert_eq!(coordinator.result("t1").await, first, "again on the same connection");
    drop(coordinator);
    let mut welcome_back = welcome();
    welcome_back.open_task_ids = vec!["never".parse().unwrap()];
    let mut coordinator = cluster.accept(welcome_back).await;
    assert_eq!(coordinator.hello.unacked_result_ids, ["t1".parse().unwrap()]);
    assert_eq!(coordinator.error().await, (Some("never".to_owned()), "UnknownTask".to_owned()));
    coordinator.result("t1").await;
    coordinator.send(Acknowledge { id: "t1".parse().unwrap() }).await;
    coordinator.dispatch("t2", "nop", json!({})).await;
    coordinator.result("t2").await;
    for _ in 0..20 {
        if let FromAgent::Result(result) = receive(&mut coordinator.connection).await {
            assert_ne!(result.id.as_str(), "t1", "sent after its acknowledgement");
        }
    }
}

/// A store that was lost may come back.
#[tokio::test(start_paused = true)]
async fn a_result_that_the_store_lacks_is_kept_and_told_again() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    coordinator.dispatch("t1", "machine_destroy", json!({ "uuid": uuid() })).await;
    let unknown = || muster_shared::wire::Error {
        id: Some("t1".to_owned()),
        code: Code::UnknownTask,
        message: String::new(),
    };
    coordinator.result("t1").await;
    coordinator.send(unknown()).await;
    let clock = cluster.agent.drivers.clock.clone();
    let before = clock.monotonic();
    coordinator.result("t1").await;
    assert!(clock.monotonic() - before > Duration::from_secs(60), "not every few seconds");
    coordinator.send(unknown()).await;
    drop(coordinator);
    let mut coordinator = cluster.accept(welcome()).await;
    assert_eq!(coordinator.hello.unacked_result_ids, ["t1".parse().unwrap()]);
    coordinator.result("t1").await;
}

#[tokio::test(start_paused = true)]
async fn refusals_are_repeated_until_acknowledged() {
    let mut cluster = cluster().await;
    let repeats = Welcome { capabilities: vec![feature::REFUSALS.to_owned()], ..welcome() };
    let mut coordinator = cluster.accept(repeats.clone()).await;
    let refused = (Some("t".to_owned()), "NotSupported".to_owned());
    coordinator.dispatch("t", "nonsense", json!({})).await;
    for _ in 0..3 {
        assert_eq!(coordinator.error().await, refused);
    }
    drop(coordinator);
    let mut asks = repeats;
    asks.open_task_ids = vec!["t".parse().unwrap()];
    let mut coordinator = cluster.accept(asks).await;
    assert_eq!(coordinator.error().await, refused);
    coordinator.send(Acknowledge { id: "t".parse().unwrap() }).await;
    coordinator.dispatch("x", "nonsense", json!({})).await;
    loop {
        match coordinator.error().await {
            (Some(id), _) if id == "x" => break,
            other => assert_eq!(other, refused, "sent before its acknowledgement"),
        }
    }
    for _ in 0..2 {
        assert_eq!(coordinator.error().await.0.as_deref(), Some("x"), "the other is known");
    }
}

/// What is not in the journal is not said to be accepted: it would be taken for lost after a
/// restart of the agent.
#[tokio::test(start_paused = true)]
async fn only_what_is_durable_is_accepted() {
    let mut cluster = cluster().await;
    let mut asks = welcome();
    asks.open_task_ids = vec!["q".parse().unwrap()];
    let mut coordinator = cluster.accept(welcome()).await;
    coordinator.dispatch("q", "sleep", json!({ "timeout": 60_000 })).await;
    coordinator.dispatch("m", "machine_destroy", json!({ "uuid": uuid() })).await;
    coordinator.accepted("m").await;
    coordinator.result("m").await;
    drop(coordinator);
    let mut coordinator = cluster.accept(asks).await;
    loop {
        match receive(&mut coordinator.connection).await {
            FromAgent::Result(result) if result.id.as_str() == "q" => break,
            FromAgent::Accepted(accepted) => panic!("{accepted:?}"),
            FromAgent::Error(error) => panic!("{error:?}"),
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_accepted_and_shown() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    let token: TaskId = "drain-1".parse().unwrap();
    coordinator.send(Drain { reason: "test".into(), token, ttl_s: 60, owner: None }).await;
    coordinator.accepted("drain-1").await;
    let draining = |message| match message {
        FromAgent::Status(status) => status.report.filter(|r| r.muster["draining"] == true),
        _ => None,
    };
    coordinator.until(draining).await;
    coordinator.dispatch("t", "machine_destroy", json!({ "uuid": uuid() })).await;
    assert_eq!(coordinator.error().await, (Some("t".to_owned()), "Draining".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn history_can_be_asked_for_without_being_part_of_it() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    coordinator.dispatch("t", "nop", json!({ "root_pw": "hidden" })).await;
    coordinator.result("t").await;
    coordinator.dispatch("h", "task_history", json!({})).await;
    let history = coordinator.result("h").await.result;
    assert_eq!(history.as_array().unwrap().len(), 1);
    assert_eq!(history[0]["status"], "finished");
    assert_eq!(history[0]["params"]["root_pw"], "***");
}
