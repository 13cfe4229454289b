//! Jobs with a fake agent on paused time: outcomes of steps, crashes, two coordinators.

use muster_shared::api::job::{Execution, Job, JobParams, NicTags, SetupParams, StepState};
use muster_shared::wire::{Code, TaskError};

use super::*;
use crate::app::jobs::JobFilter;
use crate::app::keys;
use crate::store::{Expect, Write};

async fn reboot(app: &Arc<App>, server: ServerUuid, drain: bool) -> Uuid {
    let params = JobParams { drain: Some(drain), ..JobParams::default() };
    app.jobs.server_reboot(server, params, caller()).await.unwrap()
}

/// The job once it has ended.
async fn ended(app: &App, job: Uuid) -> Job {
    let waiting = async {
        loop {
            let (view, _) = app.jobs.get(job).await.unwrap();
            if view.execution.has_ended() {
                return view;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10_000), waiting).await.expect("the job ends")
}

async fn fail(agent: &mut Agent, id: &TaskId) {
    agent.send(Accepted { id: id.clone(), intake: None }).await;
    let error =
        TaskError { message: "no".to_owned(), code: Code::HostActionsDisabled, details: None };
    let ended = TaskResult {
        id: id.clone(),
        status: Outcome::Failure,
        result: Value::Null,
        error: Some(error),
        finished_at: String::new(),
    };
    agent.send(ended).await;
}

fn transitional(app: &App, server: ServerUuid) -> Option<String> {
    let shown = app.servers.get(server, crate::app::fields::Extras::default()).unwrap();
    shown.record.transitional_status
}

#[tokio::test(start_paused = true)]
async fn a_reboot_is_marked_before_it_is_sent() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let job = reboot(&app, server(1), false).await;
    let dispatch = agent.dispatched().await;
    assert_eq!(dispatch.task, "server_reboot");
    assert_eq!(transitional(&app, server(1)).as_deref(), Some("rebooting"));
    assert_eq!(reboot(&app, server(1), false).await, job, "one job of a kind per server");
    agent.finish(&dispatch.id, Value::Null).await;
    let view = ended(&app, job).await;
    assert_eq!(view.execution, Execution::Succeeded);
    let states: Vec<_> = view.steps.iter().map(|step| step.state).collect();
    let (ok, skipped) = (StepState::Ok, StepState::Skipped);
    assert_eq!(states[..5], [ok, skipped, skipped, ok, ok]);
    assert_ne!(reboot(&app, server(1), false).await, job, "it has ended");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_drain_ends_before_the_reboot_and_is_taken_back_when_that_fails() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let job = reboot(&app, server(1), true).await;
    let FromCoordinator::Drain(drain) = agent.next().await else { panic!("no drain") };
    agent.send(Accepted { id: drain.token, intake: None }).await;
    let mut report = Report { full: false, ..Report::whole(&BTreeMap::new()) };
    report.muster = json!({ "intake": "drained" });
    agent.send(Box::new(Status { report: Some(report) })).await;
    for _ in 0..2 {
        let dispatch = agent.dispatched().await;
        fail(&mut agent, &dispatch.id).await;
        agent.acknowledged(&dispatch.id).await;
    }
    let resume = loop {
        if let FromCoordinator::Resume(resume) = agent.next().await {
            break resume;
        }
    };
    agent.send(Accepted { id: resume.token, intake: None }).await;
    let view = ended(&app, job).await;
    assert_eq!(view.execution, Execution::Failed);
    assert_eq!(view.chain_results.last().unwrap().error, "server_reboot: no");
    assert!(view.elapsed >= 1.0, "with the pause between the tries");
    assert_eq!(transitional(&app, server(1)), None);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_the_task_that_was_made() {
    let disk = Disk::new();
    let first = disk.start().await;
    let mut agent = Agent::connect(&first, server(1)).await;
    let job = reboot(&first, server(1), false).await;
    let dispatch = agent.dispatched().await;
    first.shutdown().await;
    let second = disk.start().await;
    let mut agent = Agent::connect(&second, server(1)).await;
    assert_eq!(agent.welcome.open_task_ids, vec![dispatch.id.clone()]);
    agent.finish(&dispatch.id, Value::Null).await;
    assert_eq!(ended(&second, job).await.execution, Execution::Succeeded);
    let filter = TaskFilter::default();
    assert_eq!(second.tasks.list(&filter).await.unwrap().tasks.len(), 1, "one reboot");
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_takes_over_the_jobs_of_a_coordinator_that_is_gone() {
    let disk = Disk::new();
    let store = disk.store().await;
    let first = disk.join(&store, "a").await;
    let mut agent = Agent::connect(&first, server(1)).await;
    let job = reboot(&first, server(1), true).await;
    let FromCoordinator::Drain(drain) = agent.next().await else { panic!("no drain") };
    let second = disk.join(&store, "b").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let claim = |app: &Arc<App>| {
        let app = Arc::clone(app);
        async move {
            let stored = app.ctx.parts.store.get(&format!("job/{job}")).await.unwrap().unwrap();
            let record: crate::app::jobs::JobRecord = keys::decode(&stored).unwrap();
            record.claim.map(|claim| claim.instance)
        }
    };
    assert_eq!(claim(&second).await.as_deref(), Some("a"), "a member keeps its jobs");
    first.shutdown().await;
    let mut agent = Agent::connect(&second, server(1)).await;
    let FromCoordinator::Drain(again) = agent.next().await else { panic!("no drain") };
    assert_eq!(again.token, drain.token, "the same drain, so that it is one");
    assert_eq!(claim(&second).await.as_deref(), Some("b"));
    second.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_step_that_takes_too_long_is_given_up_and_its_task_recalled() {
    let disk = Disk::new();
    let app = disk.start().await;
    let agent = Agent::connect(&app, server(1)).await;
    // Away, but nobody has noticed yet: the task waits to be sent.
    drop(agent);
    let job = reboot(&app, server(1), false).await;
    let view = ended(&app, job).await;
    assert_eq!(view.execution, Execution::Failed);
    let tasks = app.tasks.list(&TaskFilter::default()).await.unwrap().tasks;
    let open = tasks.iter().filter(|task| task.status == TaskStatus::Active).count();
    assert_eq!(open, 0, "nobody reboots later: {tasks:#?}");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn jobs_are_listed_and_deleted_when_they_are_old() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let mut made = Vec::new();
    for _ in 0..3 {
        let job = reboot(&app, server(1), false).await;
        let dispatch = agent.dispatched().await;
        agent.finish(&dispatch.id, Value::Null).await;
        ended(&app, job).await;
        made.push(job);
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let filter = JobFilter { limit: Some(2), offset: 1, ..JobFilter::default() };
    let listed = app.jobs.list(&filter).await.unwrap();
    let uuids: Vec<_> = listed.iter().map(|job| job.uuid).collect();
    assert_eq!(uuids, [made[1], made[0]]);
    assert_eq!(app.jobs.sweep().await.unwrap(), 0);
    app.shutdown().await;
    tokio::time::advance(Duration::from_hours(31 * 24)).await;
    let app = disk.start().await;
    assert_eq!(app.jobs.sweep().await.unwrap(), 3);
    assert!(app.jobs.list(&JobFilter::default()).await.unwrap().is_empty());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_can_t_be_is_refused_before_a_job_is_made() {
    let disk = Disk::new();
    let app = disk.start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    let request = JobParams::default();
    assert_eq!(
        app.jobs.server_setup(server(1), request, caller()).await.unwrap(),
        None,
        "it is set up"
    );
    let change = async |tag: &str| {
        let nic = NicTags { mac: "a".to_owned(), nic_tags_provided: vec![tag.to_owned()] };
        let params = JobParams { nics: Some(vec![nic]), ..JobParams::default() };
        app.jobs.nic_update(server(1), params, caller()).await
    };
    let job = change("x").await.unwrap();
    assert_eq!(change("x").await.unwrap(), job);
    assert!(matches!(change("y").await, Err(AppError::RefusedArgument(_))));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_second_setup_changes_nothing_of_the_first() {
    let app = Disk::new().start().await;
    let _agent = Agent::connect(&app, server(1)).await;
    app.fleet
        .update_record(server(1), &Expected::ANY, |record| record.setup = false)
        .await
        .unwrap();
    let set_up = async |name: &str| {
        let hostname = Some(name.to_owned());
        let setup = SetupParams { hostname, ..SetupParams::default() };
        let request = JobParams { setup, ..JobParams::default() };
        app.jobs.server_setup(server(1), request, caller()).await.unwrap().unwrap()
    };
    let job = set_up("first").await;
    assert_eq!(set_up("second").await, job);
    let shown = app.servers.get(server(1), crate::app::fields::Extras::default()).unwrap();
    assert_eq!(shown.record.hostname, "first");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_job_ends_with_the_ticket_under_which_it_was_started() {
    let disk = Disk::new();
    let app = disk.start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let ticket = super::tickets::create(&app, "a").await;
    let queued = super::tickets::create(&app, "a").await;
    let params = JobParams { drain: Some(true), ..JobParams::default() };
    let under = async |ticket: muster_shared::ids::TicketUuid| {
        let caller = caller().clone().under(Some(ticket.to_string()));
        app.jobs.server_reboot(server(1), params.clone(), &caller).await
    };
    assert!(matches!(under(queued).await, Err(AppError::TicketNotActive(_))));
    assert!(app.jobs.list(&JobFilter::default()).await.unwrap().is_empty());
    let job = under(ticket).await.unwrap();
    let FromCoordinator::Drain(drain) = agent.next().await else { panic!("no drain") };
    agent.send(Accepted { id: drain.token, intake: None }).await;
    app.tickets.release(ticket, Expected::ANY).await.unwrap();
    let mut report = Report { full: false, ..Report::whole(&BTreeMap::new()) };
    report.muster = json!({ "intake": "drained" });
    agent.send(Box::new(Status { report: Some(report) })).await;
    // The reboot is refused, and what was begun is taken back.
    let FromCoordinator::Resume(resume) = agent.next().await else { panic!("no resume") };
    agent.send(Accepted { id: resume.token, intake: None }).await;
    let view = ended(&app, job).await;
    assert_eq!((view.execution, view.ticket_uuid), (Execution::Failed, Some(ticket)));
    let last = view.chain_results.last().unwrap();
    assert_eq!(last.error, format!("ticket {ticket} is not active"));
    assert!(app.tasks.list(&TaskFilter::default()).await.unwrap().tasks.is_empty());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn no_more_than_ten_thousand_ended_jobs_are_kept() {
    const MORE: usize = 30;
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let job = reboot(&app, server(1), false).await;
    let dispatch = agent.dispatched().await;
    agent.finish(&dispatch.id, Value::Null).await;
    ended(&app, job).await;
    let stored = app.ctx.parts.store.get(&format!("job/{job}")).await.unwrap().unwrap();
    let mut record: Object = keys::decode(&stored).unwrap();
    let copies: Vec<Uuid> = (0..9_999 + MORE).map(|_| app.ctx.mint_id()).collect();
    for batch in copies.chunks(90) {
        let copy = |uuid: &Uuid| {
            record.set("uuid", json!(uuid));
            Write::put(format!("job/{uuid}"), Expect::Absent, keys::encode(&record))
        };
        app.ctx.parts.store.commit(batch.iter().map(copy).collect()).await.unwrap();
    }
    assert_eq!(app.jobs.sweep().await.unwrap(), MORE);
    assert!(app.jobs.get(job).await.is_err(), "the oldest go first");
    assert_eq!(app.jobs.sweep().await.unwrap(), 0);
    app.shutdown().await;
}
