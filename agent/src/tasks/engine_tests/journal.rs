//! What the journal keeps: results, old tasks, large ones, and a device that is full or broken.

use super::*;
use crate::tasks::live::Ended;

#[tokio::test(start_paused = true)]
async fn results_are_kept_until_acknowledged_and_bound_the_journal() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    for id in ["r1", "r2"] {
        engine.submit(submission(id, "script", json!({ "steps": ["ok"] }))).await.unwrap();
        ended(&engine, id).await;
    }
    engine.acknowledge(&task("r1"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.cut_power();
    let engine = node.start().await;
    assert_eq!(engine.unacked_ids(10), [task("r2")]);
    {
        let mut shared = engine.shared.lock();
        for n in 0..10_000 {
            shared.unacked.insert((n, format!("many{n}").parse().unwrap()));
        }
    }
    assert_eq!(refused(engine.submit(submission("r3", "script", json!({}))).await), "JournalFull");
    engine.submit(submission("query", "nop", json!({}))).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn old_tasks_are_forgotten_but_never_unacknowledged_ones() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let count = crate::tasks::retention::KEPT_TASKS + 3;
    for n in 0..count {
        let wanted = Submission {
            origin: if n == 0 { Origin::Coordinator } else { Origin::Local },
            ..submission(&format!("n{n}"), "script", json!({ "n": n }))
        };
        engine.submit(wanted).await.unwrap();
        ended(&engine, &format!("n{n}")).await;
    }
    tokio::time::sleep(Duration::from_secs(3 * 24 * 3600)).await;
    assert!(engine.record(&task("n1")).await.is_some(), "younger than seven days");
    tokio::time::sleep(Duration::from_secs(5 * 24 * 3600)).await;
    for (id, kept) in [("n0", true), ("n1", false), ("n2", false), ("n3", true)] {
        assert_eq!(engine.record(&task(id)).await.is_some(), kept, "{id}");
    }
    let left = node.kv.lock().contents().iter().filter(|(k, _)| k.starts_with(b"params/")).count();
    assert_eq!(left, crate::tasks::retention::KEPT_TASKS + 1);
}

#[tokio::test(start_paused = true)]
async fn ended_tasks_take_bounded_memory() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let local = Submission { origin: Origin::Local, ..submission("last", "script", json!({})) };
    engine.submit(local).await.unwrap();
    ended(&engine, "last").await;
    let record = engine.record(&task("last")).await.unwrap();
    {
        let mut shared = engine.shared.lock();
        for n in 0..crate::tasks::retention::MAX_KEPT_TASKS + 100 {
            let seq = shared.next_seq;
            shared.next_seq += 1;
            let id = task(&format!("n{n}"));
            let ended = Ended { seq, ..Ended::new(&record, true) };
            shared.by_seq.insert(seq, id.clone());
            shared.ended.insert(id, ended);
        }
    }
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let kept = engine.shared.lock().ended.len();
    assert_eq!(kept, crate::tasks::retention::MAX_KEPT_TASKS);
    assert!(engine.record(&task("last")).await.is_none(), "the oldest goes first");
}

#[tokio::test(start_paused = true)]
async fn a_full_device_refuses_and_a_broken_one_ends_the_agent() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let kv = node.kv.lock().clone();
    kv.set_full(true);
    let wanted = submission("full", "script", json!({ "steps": ["ok"] }));
    assert_eq!(refused(engine.submit(wanted.clone()).await), "StoreFull");
    kv.set_full(false);
    assert_eq!(refused(engine.submit(wanted.clone()).await), "StoreFull", "as it was told");
    engine.acknowledge(&task("full"));
    engine.submit(wanted).await.unwrap();
    kv.set_full(true);
    assert!(!engine.wait(&task("full"), Duration::from_secs(60)).await, "it waits for room");
    kv.set_full(false);
    assert_eq!(ended(&engine, "full").await.status, Outcome::Complete);
    kv.break_device();
    let broken = engine.broken();
    assert_eq!(refused(engine.submit(submission("b", "script", json!({}))).await), "JournalFull");
    assert!(broken.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn large_parameters_and_results_survive() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let text = "x".repeat(900_000);
    let params = json!({ "steps": ["ok", "hang"], "text": text, "uuid": Uuid::nil() });
    engine.submit(submission("large", "script", params.clone())).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    node.cut_power();
    let engine = node.start().await;
    let record = engine.record(&task("large")).await.unwrap();
    assert_eq!(Value::Object(record.params.clone()), params);
    assert_eq!(record.result["a"], true, "the result was journaled with its step");
}

/// Its files can be written as before, and are gone with the process.
#[tokio::test(start_paused = true)]
async fn without_its_journals_folder_no_task_begins_or_goes_on() {
    let node = Node::new(SCRIPTS);
    let engine = node.start().await;
    let mut changes = engine.watch();
    engine.submit(submission("half", "script", json!({ "steps": ["wait", "ok"] }))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(done("half"), ["+a"]);
    changes.mark_unchanged();
    engine.lose_journal("the data folder is lost");
    assert!(changes.has_changed().unwrap());
    assert_eq!(engine.intake(), Intake::Paused);
    let refusal = engine.submit(submission("late", "script", json!({}))).await.unwrap_err();
    assert_eq!(
        (refusal.code.as_str(), &*refusal.message),
        ("JournalFull", "the data folder is lost")
    );
    engine.submit(submission("look", "query", json!({}))).await.unwrap();
    assert!(!engine.wait(&task("half"), Duration::from_secs(1000)).await, "it goes on");
    assert_eq!(done("half"), ["+a"]);
    assert!(engine.broken().is_cancelled());
}
