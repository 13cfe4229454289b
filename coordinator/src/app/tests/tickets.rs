//! The waitlist: turns, waits, expiry, retention, fencing, two coordinators on one store.

use std::time::Duration;

use muster_shared::api::Object;
use muster_shared::api::ticket::{QueueName, TicketCreated, TicketServer, TicketStatus};
use muster_shared::clock::iso;
use muster_shared::ids::TicketUuid;
use muster_shared::wire::Code;

use super::*;
use crate::app::tickets::{TicketFilter, TicketRecord, TicketRequest};

fn queue(id: &str) -> QueueName {
    QueueName { server_uuid: TicketServer(None), scope: "vm".to_owned(), id: id.to_owned() }
}

fn request(id: &str, expires_at: &str) -> TicketRequest {
    TicketRequest {
        queue: queue(id),
        expires_at: expires_at.to_owned(),
        action: None,
        extra: Object::new(),
        req_id: "r".to_owned(),
        client: None,
    }
}

pub(super) async fn create(app: &App, id: &str) -> TicketUuid {
    app.tickets.create(request(id, "3000")).await.unwrap().uuid
}

async fn status(app: &App, uuid: TicketUuid) -> TicketStatus {
    app.tickets.get(uuid).await.unwrap().value.status
}

fn list(app: &App) -> Vec<Arc<TicketRecord>> {
    app.tickets.list(TicketServer(None), &TicketFilter::default())
}

#[tokio::test(start_paused = true)]
async fn the_answer_about_a_ticket_does_not_grow_with_its_queue() {
    let app = Disk::new().start().await;
    let large = || {
        let mut wanted = request("a", "3000");
        wanted.extra.set("text", json!("x".repeat(30_000)));
        wanted
    };
    for _ in 0..19 {
        app.tickets.create(large()).await.unwrap();
    }
    let created = app.tickets.create(large()).await.unwrap();
    assert_eq!(created.queue.last().map(|ticket| ticket.uuid), Some(created.uuid));
    assert_eq!(created.queue[0].status, TicketStatus::Active);
    assert_eq!(created.queue.len() + created.queue_left_out.unwrap(), 20);
    assert!(json!(created).to_string().len() < 320 * 1024);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn tickets_take_turns_in_the_order_in_which_they_were_made() {
    let disk = Disk::new();
    let app = disk.start().await;
    let TicketCreated { uuid: first, queue: shown, .. } =
        app.tickets.create(request("a", "3000")).await.unwrap();
    assert_eq!(shown.len(), 1);
    assert_eq!(shown[0].status, TicketStatus::Active);
    let TicketCreated { uuid: second, queue: shown, .. } =
        app.tickets.create(request("a", "3000")).await.unwrap();
    let statuses: Vec<_> = shown.iter().map(|t| (t.uuid, t.status)).collect();
    assert_eq!(statuses, [(first, TicketStatus::Active), (second, TicketStatus::Queued)]);
    let third = create(&app, "a").await;
    let other = create(&app, "b").await;
    assert_eq!(status(&app, other).await, TicketStatus::Active, "queues are independent");
    app.tickets.delete(second, Expected::ANY).await.unwrap();
    app.tickets.release(first, Expected::ANY).await.unwrap();
    assert_eq!(status(&app, third).await, TicketStatus::Active);
    assert_eq!(status(&app, first).await, TicketStatus::Finished);
    assert!(matches!(app.tickets.get(second).await, Err(AppError::TicketNotFound(_))));
    assert!(matches!(
        app.tickets.release(second, Expected::ANY).await,
        Err(AppError::TicketNotFound(_))
    ));
    app.shutdown().await;

    // Other uuids than before.
    let app = disk.start_on(&disk.store().await, "a", 8, AppConfig::default()).await;
    let order: Vec<_> = list(&app).iter().map(|ticket| ticket.uuid).collect();
    assert_eq!(order, [first, third, other], "kept over a restart");
    app.tickets.release(third, Expected::ANY).await.unwrap();
    assert_eq!(status(&app, create(&app, "a").await).await, TicketStatus::Active);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn waits_end_when_the_ticket_s_fate_is_known() {
    let app = Disk::new().start().await;
    let first = create(&app, "a").await;
    app.tickets.wait(first, None).await.unwrap();
    let second = create(&app, "a").await;
    let third = create(&app, "a").await;
    let wait = |uuid| {
        tokio::spawn({
            let app = Arc::clone(&app);
            async move { app.tickets.wait(uuid, None).await }
        })
    };
    let waits: Vec<_> = (0..3).map(|_| wait(second)).collect();
    let queued = wait(third);
    eventually(|| app.tickets.waits().len() == 4).await;
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    app.tickets.release(first, Expected::ANY).await.unwrap();
    for wait in waits {
        wait.await.unwrap().unwrap();
    }
    app.tickets.wait(first, None).await.unwrap();
    app.tickets.delete(third, Expected::ANY).await.unwrap();
    assert!(matches!(queued.await.unwrap(), Err(AppError::NoSuchTicket(_))));
    let fourth = create(&app, "a").await;
    let released = wait(fourth);
    eventually(|| app.tickets.waits().len() == 1).await;
    app.tickets.release(fourth, Expected::ANY).await.unwrap();
    released.await.unwrap().unwrap();
    assert_eq!(app.tickets.waits().len(), 0);
    assert!(matches!(app.tickets.wait(third, None).await, Err(AppError::NoSuchTicket(_))));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn tickets_expire_in_time_also_over_a_restart() {
    let disk = Disk::new();
    let app = disk.start().await;
    let at = |seconds| iso(app.ctx.parts.clock.wall() + Duration::from_secs(seconds));
    let first = app.tickets.create(request("a", &at(10))).await.unwrap().uuid;
    let second = app.tickets.create(request("a", &at(20))).await.unwrap().uuid;
    let third = app.tickets.create(request("a", &at(5))).await.unwrap().uuid;
    let last = create(&app, "a").await;
    let TicketCreated { uuid: past, queue: shown, .. } =
        app.tickets.create(request("b", "2015-10-10T00:00:00")).await.unwrap();
    assert_eq!(shown[0].status, TicketStatus::Active, "first active, then expired");
    let error = app.tickets.wait(third, None).await.unwrap_err();
    assert_eq!(error.to_string(), "ticket has expired");
    assert_eq!(status(&app, past).await, TicketStatus::Expired);
    let error = app.tickets.wait(third, None).await.unwrap_err();
    assert_eq!(error.to_string(), format!("ticket {third} is expired"));
    let before = app.ctx.parts.clock.monotonic();
    app.tickets.wait(second, None).await.unwrap();
    let waited = app.ctx.parts.clock.monotonic() - before;
    assert!(waited > Duration::from_secs(3) && waited < Duration::from_secs(6), "{waited:?}");
    assert_eq!(status(&app, first).await, TicketStatus::Expired);
    app.shutdown().await;

    tokio::time::sleep(Duration::from_secs(60)).await;
    let app = disk.start_on(&disk.store().await, "a", 8, AppConfig::default()).await;
    let before = app.ctx.parts.clock.monotonic();
    app.tickets.wait(last, None).await.unwrap();
    assert!(app.ctx.parts.clock.monotonic() - before < Duration::from_secs(2));
    assert_eq!(status(&app, second).await, TicketStatus::Expired);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn all_of_a_waitlist_are_deleted_and_nobody_s_turn_comes_meanwhile() {
    let app = Disk::new().start().await;
    let made = (0..1_100).map(|n| create(&app, if n % 10 == 0 { "a" } else { "b" }));
    let made = futures_util::future::join_all(made).await;
    assert_eq!(list(&app).len(), 1_000, "a page");
    let filter = TicketFilter { offset: 1_000, ..TicketFilter::default() };
    assert_eq!(app.tickets.list(TicketServer(None), &filter).len(), 100);
    let elsewhere = TicketRequest {
        queue: QueueName { server_uuid: TicketServer(Some(server(1))), ..queue("a") },
        ..request("a", "3000")
    };
    let elsewhere = app.tickets.create(elsewhere).await.unwrap().uuid;
    let waits: Vec<_> = made[1_000..]
        .iter()
        .map(|uuid| {
            let (app, uuid) = (Arc::clone(&app), *uuid);
            tokio::spawn(async move { app.tickets.wait(uuid, None).await })
        })
        .collect();
    eventually(|| app.tickets.waits().len() == 100).await;
    app.tickets.delete_all(TicketServer(None)).await.unwrap();
    assert!(list(&app).is_empty());
    for wait in waits {
        assert!(matches!(wait.await.unwrap(), Err(AppError::NoSuchTicket(_))));
    }
    assert_eq!(status(&app, elsewhere).await, TicketStatus::Active);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn lists_are_sorted_and_paged() {
    let app = Disk::new().start().await;
    for (id, expires_at) in [("c", "2030"), ("a", "2031"), ("b", "2029")] {
        app.tickets.create(request(id, expires_at)).await.unwrap();
    }
    let ids = |attribute: Option<&str>, descending, limit, offset| {
        let attribute = attribute.map(str::to_owned);
        let filter = TicketFilter { attribute, descending, limit, offset };
        let tickets = app.tickets.list(TicketServer(None), &filter);
        tickets.iter().map(|ticket| ticket.queue.id.clone()).collect::<String>()
    };
    assert_eq!(ids(None, false, None, 0), "cab");
    assert_eq!(ids(None, true, None, 0), "bac");
    assert_eq!(ids(Some("id"), false, None, 0), "abc");
    assert_eq!(ids(Some("expires_at"), true, None, 0), "acb");
    assert_eq!(ids(Some("scope"), false, Some(2), 1), "ab");
    assert_eq!(ids(Some("nonsense"), false, None, 2), "b");
    app.shutdown().await;
}

/// The same disk so many days later.
async fn days_later(disk: &Disk, days: i64, seed: u64) -> (Disk, Arc<App>) {
    let origin = disk.clock.wall() + jiff::SignedDuration::from_hours(24 * days);
    let disk = Disk { clock: Arc::new(TokioClock::new(origin)), ..disk.clone() };
    let app = disk.start_on(&disk.store().await, "a", seed, AppConfig::default()).await;
    // The sweeps come every hour.
    tokio::time::sleep(Duration::from_secs(3_660)).await;
    (disk, app)
}

#[tokio::test(start_paused = true)]
async fn what_ended_is_kept_for_thirty_days() {
    let disk = Disk::new();
    let app = disk.start().await;
    let released = create(&app, "a").await;
    app.tickets.release(released, Expected::ANY).await.unwrap();
    let open = create(&app, "a").await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let task = nop(&app).await;
    agent.dispatched().await;
    agent.finish(&task, Value::Null).await;
    ended(&app, &task).await;
    let forgotten = nop(&app).await;
    agent.dispatched().await;
    app.shutdown().await;
    drop(agent);

    let (disk, app) = days_later(&disk, 29, 8).await;
    let late = create(&app, "b").await;
    app.tickets.release(late, Expected::ANY).await.unwrap();
    assert_eq!(status(&app, released).await, TicketStatus::Finished);
    assert!(app.tasks.get(&task).await.is_ok());
    app.shutdown().await;

    let (_, app) = days_later(&disk, 1, 9).await;
    assert!(matches!(app.tickets.get(released).await, Err(AppError::TicketNotFound(_))));
    assert!(matches!(app.tasks.get(&task).await, Err(AppError::TaskNotFound)));
    assert_eq!(status(&app, open).await, TicketStatus::Active, "what is open stays");
    assert_eq!(json!(app.tasks.get(&forgotten).await.unwrap())["status"], "active");
    assert_eq!(status(&app, late).await, TicketStatus::Finished);
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_old_is_deleted_in_batches() {
    let disk = Disk::new();
    let app = disk.start().await;
    let ids: Vec<_> = (0..250).map(|n| n.to_string()).collect();
    let made = ids.iter().map(|id| create(&app, id));
    let made = futures_util::future::join_all(made).await;
    let releases = made.iter().map(|uuid| app.tickets.release(*uuid, Expected::ANY));
    futures_util::future::join_all(releases).await;
    assert_eq!(list(&app).len(), 250);
    app.shutdown().await;
    let (_, app) = days_later(&disk, 31, 8).await;
    assert!(list(&app).is_empty());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn two_coordinators_share_the_queues() {
    let disk = Disk::new();
    let store = disk.store().await;
    let apps = [disk.join(&store, "a").await, disk.join(&store, "b").await];
    let holding = Arc::new(parking_lot::Mutex::new(None));
    let turns = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let clients: Vec<_> = (0..40)
        .map(|n: usize| {
            let (one, other) = (Arc::clone(&apps[n % 2]), Arc::clone(&apps[(n / 2) % 2]));
            let (holding, turns) = (Arc::clone(&holding), Arc::clone(&turns));
            tokio::spawn(async move {
                for _ in 0..3 {
                    let uuid = create(&one, "a").await;
                    other.tickets.wait(uuid, None).await.unwrap();
                    assert_eq!(holding.lock().replace(uuid), None, "two are active");
                    turns.lock().push(uuid);
                    tokio::task::yield_now().await;
                    assert_eq!(holding.lock().take(), Some(uuid), "two are active");
                    one.tickets.release(uuid, Expected::ANY).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    for app in &apps {
        eventually(|| list(app).iter().all(|t| t.status == TicketStatus::Finished)).await;
        let order: Vec<_> = list(app).iter().map(|ticket| ticket.uuid).collect();
        assert_eq!(order.len(), 120);
        assert_eq!(*turns.lock(), order, "turns come in the order of creation");
    }
    for app in apps {
        app.shutdown().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_client_takes_half_of_the_room_for_open_tickets_at_most() {
    let disk = Disk::new();
    let app = disk.start().await;
    let client = |n: u8| Some([10, 0, 0, n].into());
    let of =
        |n: u8, id: usize| TicketRequest { client: client(n), ..request(&id.to_string(), "3000") };
    let mut made = Vec::new();
    // Each in a queue of its own, and not more at a time than may be under way.
    for first in (0..10_000).step_by(1_000) {
        let some = (first..first + 1_000).map(|id| app.tickets.create(of(1, id)));
        made.extend(futures_util::future::try_join_all(some).await.unwrap());
    }
    let refused = app.tickets.create(of(1, 1)).await.unwrap_err();
    assert!(matches!(&refused, AppError::Busy(text) if text.contains("this client")), "{refused}");
    for other in [of(2, 1), request("1", "3000")] {
        app.tickets.create(other).await.unwrap();
    }
    // Whoever had them, and after a start of the coordinator as well.
    app.shutdown().await;
    let app = disk.start().await;
    app.tickets.create(of(1, 1)).await.unwrap_err();
    app.tickets.release(made[0].uuid, Expected::ANY).await.unwrap();
    app.tickets.create(of(1, 1)).await.unwrap();
    app.tickets.create(of(1, 1)).await.unwrap_err();
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn open_provisioning_tickets_are_listed_for_the_allocator() {
    let app = Disk::new().start().await;
    let provision =
        |id: &str| TicketRequest { action: Some("provision".to_owned()), ..request(id, "3000") };
    let first = app.tickets.create(provision("a")).await.unwrap().uuid;
    let second = app.tickets.create(provision("a")).await.unwrap().uuid;
    create(&app, "a").await;
    let listed = || app.tickets.provisioning().iter().map(|t| t.uuid).collect::<Vec<_>>();
    assert_eq!(listed(), [first, second]);
    app.tickets.release(first, Expected::ANY).await.unwrap();
    assert_eq!(listed(), [second]);
    app.tickets.delete(second, Expected::ANY).await.unwrap();
    assert!(listed().is_empty());
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn only_the_holder_of_an_active_ticket_starts_tasks() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let first = create(&app, "a").await;
    let second = create(&app, "a").await;
    let under = |ticket: String| {
        let app = Arc::clone(&app);
        async move {
            let caller = caller().clone().under(Some(ticket));
            app.tasks.create(server(1), "nop", Object::new(), &caller).await
        }
    };
    let id = under(first.to_string()).await.unwrap();
    let older = agent.dispatched().await.ticket.unwrap();
    assert_eq!(older.resource, "default/vm/a");
    assert_eq!(json!(app.tasks.get(&id).await.unwrap())["ticket_uuid"], json!(first));
    for refused in [second.to_string(), Uuid::from_u128(9).to_string(), "nonsense".to_owned()] {
        let error = under(refused.clone()).await.unwrap_err();
        assert_eq!(error.to_string(), format!("ticket {refused} is not active"));
        assert!(matches!(error, AppError::TicketNotActive(_)));
    }
    app.tickets.release(first, Expected::ANY).await.unwrap();
    assert!(matches!(under(first.to_string()).await, Err(AppError::TicketNotActive(_))));
    under(second.to_string()).await.unwrap();
    let newer = agent.dispatched().await.ticket.unwrap();
    assert!(newer.token > older.token);

    let ask = async |ticket: TicketUuid| {
        let caller = caller().clone().under(Some(ticket.to_string()));
        let query = crate::agents::Query {
            server: server(1),
            task: "machine_load",
            label: None,
            params: Object::new(),
            req_id: &caller.req_id,
            timeout: SOON,
        };
        app.nodes.query(&caller, query).await
    };
    assert!(matches!(ask(first).await, Err(AppError::TicketNotActive(_))));
    let answer = async {
        let dispatch = agent.dispatched().await;
        assert_eq!(dispatch.ticket, Some(newer.clone()));
        agent.refuse(&dispatch.id, "StaleTicket").await;
    };
    let (refused, ()) = tokio::join!(ask(second), answer);
    assert!(matches!(refused, Err(AppError::Agent { code: Code::StaleTicket, .. })));
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn why_a_ticket_waits() {
    let app = Disk::new().start().await;
    let mut agent = Agent::connect(&app, server(1)).await;
    let first = create(&app, "a").await;
    let second = create(&app, "a").await;
    let caller = caller().clone().under(Some(first.to_string()));
    let task = app.tasks.create(server(1), "nop", Object::new(), &caller).await.unwrap();
    agent.dispatched().await;
    let why = app.why.ticket(second).await.unwrap();
    assert_eq!(why["holder"]["uuid"], json!(first));
    assert_eq!(why["holder_tasks"][0]["id"], json!(task));
    assert_eq!((&why["place"], &why["queue"]["length"]), (&json!(1), &json!(2)));
    assert_eq!(why["deadlock"], Value::Null);
    let text = why["text"].as_str().unwrap();
    assert!(text.contains(&format!("ticket {first} to be released")), "{text}");
    app.tickets.release(first, Expected::ANY).await.unwrap();
    let why = app.why.ticket(first).await.unwrap();
    assert_eq!(why["text"], "the ticket is finished; nothing is pending");
    app.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn holders_that_wait_for_each_other_are_shown_as_a_circle() {
    let app = Disk::new().start().await;
    let wait = |uuid, holds| {
        let app = Arc::clone(&app);
        tokio::spawn(async move { app.tickets.wait(uuid, holds).await })
    };
    // One client holds a and waits for b, another holds b and waits for a.
    let (a1, b2) = (create(&app, "a").await, create(&app, "b").await);
    let (b1, a2) = (create(&app, "b").await, create(&app, "a").await);
    wait(b1, Some(a1));
    eventually(|| app.tickets.waits().len() == 1).await;
    assert_eq!(app.why.ticket(a2).await.unwrap()["deadlock"], Value::Null);
    let last = wait(a2, Some(b2));
    eventually(|| app.tickets.waits().len() == 2).await;
    for uuid in [a1, a2, b1, b2] {
        let deadlock = app.why.ticket(uuid).await.unwrap()["deadlock"].clone();
        assert_eq!(deadlock["cycle"].as_array().unwrap().len(), 4, "{deadlock:#}");
        assert!(deadlock["text"].as_str().unwrap().contains(&a1.to_string()));
    }
    // A client that gives up ends it.
    last.abort();
    eventually(|| app.tickets.waits().len() == 1).await;
    assert_eq!(app.why.ticket(a1).await.unwrap()["deadlock"], Value::Null);

    // The same job holds both, and says so by its name.
    let of_job = |id: &str, job: &str| {
        let extra = Object::from_iter([("workflow_job_uuid", job)]);
        TicketRequest { extra, ..request(id, "3000") }
    };
    let make = async |id: &str, job: &str| app.tickets.create(of_job(id, job)).await.unwrap().uuid;
    let (c1, d2) = (make("c", "one").await, make("d", "two").await);
    let (d1, c2) = (make("d", "one").await, make("c", "two").await);
    wait(d1, None);
    wait(c2, None);
    eventually(|| app.tickets.waits().len() == 3).await;
    let deadlock = app.why.ticket(c1).await.unwrap()["deadlock"].clone();
    assert_eq!(deadlock["cycle"], json!([c1, d1, d2, c2]));
    app.shutdown().await;
}
