//! Orders from outside: cancelling, draining, pausing, tickets; and the limits of queues.

use super::*;

#[tokio::test(start_paused = true)]
async fn cancel_stops_what_waits_and_what_runs() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for id in ["run", "wait"] {
        let params = json!({ "steps": ["ok", "wait"], "vm": 1, "undo": true });
        engine.submit(submission(id, "script", params)).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    engine.cancel(&task("wait")).unwrap();
    engine.cancel(&task("run")).unwrap();
    for id in ["run", "wait"] {
        assert_eq!(code(&ended(&engine, id).await), "Cancelled", "{id}");
        assert_eq!(engine.record(&task(id)).await.unwrap().state, State::Cancelled);
    }
    check_log("run", &["+a", "+b", "-b", "-a"]);
    check_log("wait", &[]);
    assert_eq!(engine.cancel(&task("none")).unwrap_err().code, "UnknownTask");
    engine.cancel(&task("run")).unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_urgent_task_shortens_the_wait_of_another_on_its_vm() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let waits = json!({ "steps": ["wait"], "vm": 1 });
    engine.submit(submission("slow", "script", waits)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let urgent = json!({ "steps": ["ok"], "vm": 1 });
    engine.submit(submission("urgent", "urgent", urgent)).await.unwrap();
    assert!(engine.wait(&task("urgent"), Duration::from_secs(1)).await);
    assert_eq!(ended(&engine, "slow").await.status, Outcome::Complete, "its outcome is its own");
    assert_eq!(ended(&engine, "urgent").await.status, Outcome::Complete);
}

#[tokio::test(start_paused = true)]
async fn queues_have_limits_of_places_depth_and_patience() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let hang = json!({ "steps": ["hang"] });
    for n in 0..2 + crate::tasks::order::MAX_DEPTH {
        let id = format!("q{n}");
        engine.submit(submission(&id, "script", hang.clone())).await.unwrap();
    }
    assert_eq!(refused(engine.submit(submission("over", "script", hang)).await), "QueueFull");
    assert_eq!(engine.counts().active, 2);
    tokio::time::sleep(Duration::from_secs(101)).await;
    assert_eq!(code(&ended(&engine, "q2").await), "QueueTimeout");
    assert_eq!(code(&ended(&engine, "q0").await), "Timeout");
}

#[tokio::test(start_paused = true)]
async fn a_drain_gives_back_what_waits_and_ends_by_itself() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let params = json!({ "steps": ["wait"], "vm": 1 });
    for id in ["runs", "waits"] {
        engine.submit(submission(id, "script", params.clone())).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    engine.drain("job/token", "test", &task("token"), Duration::from_secs(500)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let given_back = |engine: &Engine| {
        let refusals = engine.refusals(10).into_iter();
        refusals
            .map(|(id, refused)| (id, refused.refusal.code, refused.refused_at))
            .collect::<Vec<_>>()
    };
    assert_eq!(given_back(&engine), [(task("waits"), Code::Draining, None)]);
    let again = submission("waits", "script", params.clone());
    assert_eq!(refused(engine.submit(again.clone()).await), "Draining");
    assert_eq!(engine.intake(), Intake::Draining);
    let more = submission("more", "script", params.clone());
    assert_eq!(refused(engine.submit(more.clone()).await), "Draining");
    engine.submit(submission("look", "nop", json!({}))).await.unwrap();
    ended(&engine, "runs").await;
    assert_eq!(engine.intake(), Intake::Drained);
    assert!(engine.record(&task("waits")).await.is_none(), "nothing else is left of it");
    // The drain is durable, but not for ever.
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(engine.intake(), Intake::Drained);
    tokio::time::sleep(Duration::from_secs(500)).await;
    assert_eq!(engine.intake(), Intake::Accepting);
    // What was given back stays so until a coordinator knows, also over a restart.
    assert_eq!(refused(engine.submit(again.clone()).await), "Draining");
    assert_eq!(refused(engine.submit(more.clone()).await), "accepted", "refused in another life");
    engine.acknowledge(&task("waits"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(given_back(&engine), []);
    engine.submit(again).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refused_task_is_never_run_until_its_refusal_is_known() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    engine.pause(OPERATOR, "test").await.unwrap();
    let wanted = submission("refused", "script", json!({ "steps": ["ok"] }));
    assert_eq!(refused(engine.submit(wanted.clone()).await), "Draining");
    engine.resume(Some(OPERATOR)).await.unwrap();
    assert_eq!(refused(engine.submit(wanted.clone()).await), "Draining", "as it was told");
    assert_eq!(
        engine.standing(&task("refused")).await,
        Standing::Refused(Refusal {
            code: Code::Draining,
            message: engine.refusals(1)[0].1.refusal.message.clone(),
        })
    );
    assert!(done("refused").is_empty());
    let local = Submission { origin: Origin::Local, ..submission("local", "nonsense", json!({})) };
    assert_eq!(refused(engine.submit(local).await), "NotSupported");
    assert_eq!(engine.refusals(10).len(), 1, "whoever asks locally has the answer");
    engine.acknowledge(&task("refused"));
    assert_eq!(engine.refusals(10), []);
    engine.submit(wanted).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pause_lasts_until_resume_or_the_next_boot() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    engine.pause(OPERATOR, "test").await.unwrap();
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(engine.intake(), Intake::Paused);
    engine.resume(Some(OPERATOR)).await.unwrap();
    assert_eq!(engine.intake(), Intake::Accepting);
    engine.pause(OPERATOR, "test").await.unwrap();
    node.cut_power();
    assert_eq!(node.boot("boot-2", None).await.intake(), Intake::Accepting);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_no_store_knows_is_kept_for_a_week_and_stands_in_nobody_s_way() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for id in ["lost", "found"] {
        engine.submit(submission(id, "script", json!({}))).await.unwrap();
        ended(&engine, id).await;
    }
    engine.disowned(&task("lost"));
    assert_eq!(engine.unacked_ids(10), [task("found"), task("lost")]);
    assert_eq!(engine.unacked_ids(1), [task("found")]);
    tokio::time::sleep(Duration::from_secs(6 * 24 * 3600)).await;
    engine.disowned(&task("lost"));
    engine.acknowledge(&task("found"));
    assert_eq!(engine.unacked_ids(10), [task("lost")]);
    tokio::time::sleep(Duration::from_secs(2 * 24 * 3600)).await;
    engine.disowned(&task("lost"));
    assert_eq!(engine.unacked_ids(10), []);
}

/// The clean-up of a failed reboot does not end what an operator asked for.
#[tokio::test(start_paused = true)]
async fn only_its_owner_lifts_a_pause_or_a_drain() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let ttl = Duration::from_secs(500);
    engine.pause(OPERATOR, "test").await.unwrap();
    engine.drain("job/a", "test", &task("a"), ttl).await.unwrap();
    engine.drain("job/b", "test", &task("b"), ttl * 2).await.unwrap();
    assert_eq!(engine.paused_by(), ["job/a", "job/b", OPERATOR]);
    engine.resume(Some("job/b")).await.unwrap();
    engine.resume(Some("job/c")).await.unwrap();
    assert_eq!(engine.intake(), Intake::Drained);
    node.cut_power();
    let engine = node.start().await;
    tokio::time::sleep(ttl + Duration::from_secs(1)).await;
    assert_eq!((engine.intake(), engine.paused_by()), (Intake::Paused, vec![OPERATOR.to_owned()]));
    engine.resume(Some(OPERATOR)).await.unwrap();
    assert_eq!(engine.intake(), Intake::Accepting);
    // A coordinator that knows no owners.
    engine.pause(OPERATOR, "test").await.unwrap();
    engine.drain("job/a", "test", &task("a"), ttl).await.unwrap();
    engine.resume(None).await.unwrap();
    assert_eq!(engine.intake(), Intake::Accepting);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_could_not_be_written_is_not_in_force() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    node.kv.lock().set_full(true);
    assert_eq!(refused(engine.pause(OPERATOR, "test").await), "JournalFull");
    let ttl = Duration::from_secs(500);
    assert_eq!(refused(engine.drain("job/a", "", &task("a"), ttl).await), "JournalFull");
    assert_eq!(engine.intake(), Intake::Accepting);
    node.kv.lock().set_full(false);
    engine.pause(OPERATOR, "test").await.unwrap();
    assert_eq!(engine.intake(), Intake::Paused);
}

#[test]
fn an_intake_of_a_version_without_owners_is_understood() {
    use crate::tasks::journal::StoredIntake;
    let until = "2026-01-01T00:00:00Z";
    let old = json!({ "boot_id": "b", "paused": "why",
        "drain": { "reason": "r", "token": "t", "until": until } });
    let intake: StoredIntake = serde_json::from_value(old).unwrap();
    assert_eq!(intake.pauses[OPERATOR], "why");
    assert_eq!(intake.drains["job/t"].reason, "r");
    let again = serde_json::from_value(serde_json::to_value(&intake).unwrap());
    assert_eq!(again.ok(), Some(intake));
}

#[tokio::test(start_paused = true)]
async fn an_older_ticket_is_refused_even_after_a_restart() {
    let node = Node::new(SCRIPTS);
    let with = |id: &str, epoch, counter| {
        let token = Token { epoch, counter };
        let ticket = Some(Ticket { resource: "vm/1".to_owned(), token });
        Submission { ticket, ..submission(id, "script", json!({})) }
    };
    let engine = node.start().await;
    engine.submit(with("t1", 2, 5)).await.unwrap();
    assert_eq!(refused(engine.submit(with("t2", 2, 4)).await), "StaleTicket");
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(refused(engine.submit(with("t3", 1, 9)).await), "StaleTicket");
    engine.submit(with("t4", 2, 5)).await.unwrap();
    engine.submit(with("t5", 3, 0)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_query_under_a_ticket_makes_older_ones_stale_too() {
    let node = Node::new(SCRIPTS);
    let with = |id: &str, task: &str, counter| {
        let ticket =
            Some(Ticket { resource: "vm/1".to_owned(), token: Token { epoch: 1, counter } });
        Submission { ticket, volatile: true, ..submission(id, task, json!({})) }
    };
    let engine = node.start().await;
    engine.submit(with("q1", "query", 5)).await.unwrap();
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(refused(engine.submit(with("t1", "script", 4)).await), "StaleTicket");
    assert_eq!(refused(engine.submit(with("q2", "query", 4)).await), "StaleTicket");
}

#[tokio::test(start_paused = true)]
async fn the_tokens_that_are_kept_are_bounded_also_on_disk() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for counter in 0..10_010 {
        let resource = format!("vm/{counter}");
        let ticket = Some(Ticket { resource, token: Token { epoch: 1, counter } });
        let id = format!("q{counter}");
        let wanted = Submission { ticket, volatile: true, ..submission(&id, "query", json!({})) };
        engine.submit(wanted).await.unwrap();
        ended(&engine, &id).await;
    }
    let kv = node.kv.lock().clone();
    let stored = kv.scan(b"ticket/", None, 20_000).await.unwrap();
    assert_eq!(stored.len(), 10_000);
    assert!(stored.iter().all(|(key, _)| key.as_ref() != b"ticket/vm/9"));
}
