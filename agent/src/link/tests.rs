//! The whole agent against a coordinator that the test plays, over connections in memory.

mod reports;
mod results;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::TaskId;
use muster_shared::kv::MemKv;
use muster_shared::link::memory::{Dialed, MemoryDialer, MemoryListener, listener};
use muster_shared::link::{Connection, Frame};
use muster_shared::threads::SameRuntime;
use muster_shared::wire::status::Reported;
use muster_shared::wire::stream::Control;
use muster_shared::wire::{
    Acknowledge, Code, Dispatch, Drain, FromAgent, FromCoordinator, Heartbeat, Hello,
    MAX_FRAME_BYTES, StreamKind, StreamOpen, TaskResult, Welcome, close, decode, encode, feature,
};
use serde_json::json;
use tokio::time::timeout;
use uuid::Uuid;

use crate::tasks::HANDLERS;
use crate::tasks::machine_tests::{Host, create_params, uuid};
use crate::tasks::registry::Registry;
use crate::vms::sim::record;
use crate::{Agent, AgentConfig, AgentParts, Running};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(1000);

/// An agent and the listener of the coordinator it dials.
struct Cluster {
    agent: Running,
    listener: MemoryListener,
    dialer: MemoryDialer,
}

async fn cluster() -> Cluster {
    let host = Host::new();
    let (dialer, listener) = listener();
    let drivers = host.agent("boot-1").await;
    let parts = AgentParts {
        clock: host.clock.clone(),
        entropy: Arc::new(SeededEntropy::new(1)),
        threads: Arc::new(SameRuntime),
        kv: Arc::new(MemKv::default()),
        dialer: Arc::new(dialer.clone()),
        feed: drivers.report.clone(),
        drivers,
        registry: Registry::new(HANDLERS),
        faults: None,
    };
    let config = AgentConfig {
        server_uuid: Uuid::nil().into(),
        boot_id: "boot-1".to_owned(),
        instance_id: Uuid::nil(),
        coordinators: vec!["ws://coordinator:8480".parse().unwrap()],
        task_ceiling: crate::TASK_CEILING,
        image_gc: None,
    };
    let agent = Agent::start(config, parts).await.unwrap();
    Cluster { agent, listener, dialer }
}

/// The coordinator's end of one connection.
struct Coordinator {
    connection: Connection,
    hello: Hello,
}

impl Cluster {
    async fn dialed(&mut self) -> Dialed {
        timeout(LONG, self.listener.accept()).await.expect("the agent dials").unwrap()
    }

    async fn accept(&mut self, welcome: Welcome) -> Coordinator {
        let dialed = self.dialed().await;
        assert_eq!((dialed.url.path(), dialed.protocol.as_str()), ("/agent", "muster.v1"));
        Coordinator::greet(dialed, welcome).await
    }
}

fn welcome() -> Welcome {
    Welcome {
        instance: "c1".to_owned(),
        capabilities: Vec::new(),
        members: vec!["ws://elsewhere:1".to_owned()],
        open_task_ids: Vec::new(),
        sysinfo_hash: String::new(),
        cluster: Some(Uuid::from_u128(0xc1)),
    }
}

async fn receive(connection: &mut Connection) -> FromAgent {
    let frame = timeout(LONG, connection.stream.next()).await.expect("the agent says something");
    match frame.unwrap() {
        Some(Frame::Text(text)) => {
            assert!(text.len() <= MAX_FRAME_BYTES, "a frame of {} bytes", text.len());
            decode(&text).unwrap()
        }
        other => panic!("no message: {other:?}"),
    }
}

impl Coordinator {
    async fn greet(dialed: Dialed, welcome: Welcome) -> Self {
        let mut connection = dialed.connection;
        let FromAgent::Hello(hello) = receive(&mut connection).await else {
            panic!("the first message is a hello");
        };
        let mut coordinator = Self { connection, hello };
        coordinator.send(welcome).await;
        coordinator
    }

    async fn send(&mut self, message: impl Into<FromCoordinator>) {
        let text = encode(&message.into());
        self.connection.sink.send(Frame::Text(text)).await.unwrap();
    }

    /// The next message that `wanted` takes; others are passed over.
    async fn until<T>(&mut self, mut wanted: impl FnMut(FromAgent) -> Option<T>) -> T {
        let search = async {
            loop {
                if let Some(found) = wanted(receive(&mut self.connection).await) {
                    return found;
                }
            }
        };
        timeout(LONG, search).await.expect("the wanted message comes")
    }

    async fn accepted(&mut self, id: &str) {
        let wanted: TaskId = id.parse().unwrap();
        self.until(|m| matches!(m, FromAgent::Accepted(a) if a.id == wanted).then_some(())).await;
    }

    async fn result(&mut self, id: &str) -> TaskResult {
        let wanted: TaskId = id.parse().unwrap();
        self.until(|m| match m {
            FromAgent::Result(result) if result.id == wanted => Some(result),
            _ => None,
        })
        .await
    }

    async fn error(&mut self) -> (Option<String>, String) {
        self.until(|m| match m {
            FromAgent::Error(error) => Some((error.id, error.code.to_string())),
            _ => None,
        })
        .await
    }

    /// Follows the status reports until they have led where they should; what the agent complains
    /// of then.
    async fn report(
        &mut self,
        known: &mut Reported,
        arrived: impl Fn(&Reported) -> bool,
    ) -> serde_json::Value {
        self.until(|message| {
            let FromAgent::Status(status) = message else { return None };
            let report = status.report.unwrap();
            known.apply(&report).unwrap();
            arrived(known).then(|| report.muster["degraded"].clone())
        })
        .await
    }

    async fn dispatch(&mut self, id: &str, task: &str, params: serde_json::Value) {
        let serde_json::Value::Object(params) = params else { panic!("an object is needed") };
        let dispatch = Dispatch {
            id: id.parse().unwrap(),
            req_id: String::new(),
            task: task.to_owned(),
            params,
            deadline_ms: None,
            ticket: None,
            volatile: false,
        };
        self.send(Box::new(dispatch)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_is_dialed_again_within_five_seconds() {
    let mut cluster = cluster().await;
    let clock = cluster.agent.drivers.clock.clone();
    for _ in 0..20 {
        let coordinator = cluster.accept(welcome()).await;
        let lost = clock.monotonic();
        drop(coordinator);
        let dialed = cluster.dialed().await;
        let took = clock.monotonic() - lost;
        assert!(took <= Duration::from_secs(5), "{took:?}");
        drop(dialed);
    }
    assert!(cluster.dialer.attempts() >= 40);
}

#[tokio::test(start_paused = true)]
async fn a_replaced_agent_waits_before_it_claims_its_server_again() {
    let mut cluster = cluster().await;
    let clock = cluster.agent.drivers.clock.clone();
    let coordinator = cluster.accept(welcome()).await;
    let closed = clock.monotonic();
    coordinator.connection.shutdown(4001, "replaced").await;
    cluster.accept(welcome()).await;
    assert!(clock.monotonic() - closed >= Duration::from_secs(5));
}

/// An empty store, or another cluster's, must not destroy what this cluster's agents keep for it.
#[tokio::test(start_paused = true)]
async fn no_coordinator_of_another_cluster_is_asked_to_acknowledge() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    assert_eq!(coordinator.hello.cluster, None);
    coordinator.dispatch("t1", "machine_destroy", json!({ "uuid": uuid() })).await;
    coordinator.result("t1").await;
    drop(coordinator);
    for _ in 0..3 {
        let foreign = Welcome { cluster: Some(Uuid::from_u128(0xc2)), ..welcome() };
        let mut coordinator = cluster.accept(foreign).await;
        assert_eq!(coordinator.hello.cluster, welcome().cluster);
        // Nothing but heartbeats before the end, which says why.
        loop {
            match coordinator.connection.stream.next().await {
                Ok(Some(Frame::Text(text))) => {
                    let message = decode(&text).unwrap();
                    assert!(matches!(message, FromAgent::Heartbeat(_)), "told {message:?}");
                }
                Ok(None) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(coordinator.connection.stream.close_code(), Some(close::FOREIGN));
    }
    let turned_away = cluster.agent.links.turned_away();
    assert!(turned_away[0].1.contains("cluster"), "{turned_away:?}");
    let mut coordinator = cluster.accept(welcome()).await;
    assert_eq!(coordinator.hello.unacked_result_ids, ["t1".parse().unwrap()]);
    coordinator.result("t1").await;
}

/// A stopped coordinator's kernel keeps its connections; only its own word counts.
#[tokio::test(start_paused = true)]
async fn a_coordinator_that_falls_silent_is_dialed_again() {
    let mut cluster = cluster().await;
    let clock = cluster.agent.drivers.clock.clone();
    let beats = Welcome { capabilities: vec![feature::HEARTBEAT.to_owned()], ..welcome() };
    let mut coordinator = cluster.accept(beats.clone()).await;
    assert!(coordinator.hello.capabilities.contains(&feature::HEARTBEAT.to_owned()));
    for seq in 0..20 {
        coordinator.send(Heartbeat { seq, ts: String::new() }).await;
        receive(&mut coordinator.connection).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        while let Some(frame) = coordinator.connection.stream.next().now_or_never() {
            assert!(matches!(frame, Ok(Some(_))), "{frame:?}");
        }
    }
    let silent = clock.monotonic();
    while let Ok(Some(_)) = coordinator.connection.stream.next().await {}
    let noticed = clock.monotonic() - silent;
    assert!((4..=6).contains(&noticed.as_secs()), "{noticed:?}");
    let mut coordinator = cluster.accept(welcome()).await;
    let silent = clock.monotonic();
    while clock.monotonic() - silent < Duration::from_secs(30) {
        receive(&mut coordinator.connection).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_turned_away_says_so_and_does_not_insist() {
    let mut cluster = cluster().await;
    let clock = cluster.agent.drivers.clock.clone();
    for _ in 0..3 {
        let closed = clock.monotonic();
        let dialed = cluster.dialed().await;
        dialed.connection.shutdown(close::DUPLICATE, "").await;
        let again = cluster.dialed().await;
        assert!(clock.monotonic() - closed >= Duration::from_secs(5));
        let turned_away = cluster.agent.links.turned_away();
        assert!(turned_away[0].1.contains("unique"), "{turned_away:?}");
        again.connection.shutdown(close::DUPLICATE, "").await;
    }
    let coordinator = cluster.accept(welcome()).await;
    coordinator.connection.shutdown(1012, "").await;
    let _again = cluster.accept(welcome()).await;
    assert!(cluster.agent.links.turned_away().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_not_understood_is_answered_and_the_connection_stays() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    for (frame, code) in [
        (r#"{"kind":"later_version"}"#, "UnknownKind"),
        (r#"{"kind":"dispatch","id":7}"#, "Malformed"),
        ("garbage", "Malformed"),
    ] {
        coordinator.connection.sink.send(Frame::Text(frame.to_owned())).await.unwrap();
        assert_eq!(coordinator.error().await.1, code, "{frame}");
    }
    coordinator.dispatch("x", "nonsense", json!({})).await;
    assert_eq!(coordinator.error().await, (Some("x".to_owned()), "NotSupported".to_owned()));
    coordinator.dispatch("t", "nop", json!({})).await;
    coordinator.result("t").await;
}

#[tokio::test(start_paused = true)]
async fn every_other_coordinator_of_the_list_is_dialed_too() {
    let mut cluster = cluster().await;
    let mut both = welcome();
    both.members = vec!["ws://coordinator:8480/agent".into(), "ws://second:8480".into()];
    let mut first = cluster.accept(both).await;
    let second = cluster.dialed().await;
    assert_eq!(second.url.as_str(), "ws://second:8480/agent");
    drop(second);
    first.dispatch("t", "nop", json!({})).await;
    first.result("t").await;
    assert_eq!(cluster.agent.links.states().len(), 2);
}

/// A balancer beside the coordinators' own names: two ways to one coordinator are used as one, until
/// the coordinator is gone.
#[tokio::test(start_paused = true)]
async fn two_ways_to_one_coordinator_are_one_until_it_goes() {
    let mut cluster = cluster().await;
    let mut both = welcome();
    both.members = vec!["ws://coordinator:8480/agent".into(), "ws://second:8480".into()];
    let first = cluster.accept(both.clone()).await;
    // As a coordinator does: the older connection ends before the newer one is welcome.
    let dialed = cluster.dialed().await;
    assert_eq!(dialed.url.host_str(), Some("second"));
    first.connection.shutdown(close::REPLACED, "").await;
    let mut second = Coordinator::greet(dialed, both.clone()).await;
    let links = Arc::clone(&cluster.agent.links);
    let hosts = || -> Vec<String> {
        links.states().iter().map(|s| s.url.host_str().unwrap().to_owned()).collect()
    };
    // The learned name is given up, and the configured one dialed at once.
    while second.connection.stream.next().await.is_ok_and(|frame| frame.is_some()) {}
    let clock = cluster.agent.drivers.clock.clone();
    let before = clock.monotonic();
    let first = cluster.accept(both.clone()).await;
    assert!(clock.monotonic() - before < Duration::from_secs(1));
    assert_eq!(hosts(), ["coordinator"]);
    drop(first);
    let mut again = [cluster.dialed().await, cluster.dialed().await].map(|dialed| dialed.url);
    again.sort();
    assert_eq!(again.map(|url| url.host_str().unwrap().to_owned()), ["coordinator", "second"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_the_connection_in_order() {
    let mut cluster = cluster().await;
    let mut coordinator = cluster.accept(welcome()).await;
    let stop = cluster.agent.shut_down(Duration::from_secs(1));
    let read = async {
        while let Ok(Some(_)) = coordinator.connection.stream.next().await {}
        let code = coordinator.connection.stream.close_code();
        coordinator.connection.sink.close(1000, "").await;
        code
    };
    let ((), code) = tokio::join!(stop, read);
    assert_eq!(code, Some(1001));
}
