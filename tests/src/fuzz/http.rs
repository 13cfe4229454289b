//! Requests as clients write them, through every route of the API: how path, query, headers and
//! body are read, and what is answered. The application is a real one on stores in memory.
//!
//! An input is text: `METHOD /path?query`, then headers, then an empty line and the body.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, RETRY_AFTER};
use hyper::{Method, Request, StatusCode};
use muster_coordinator::app::{App, AppConfig, Parts};
use muster_coordinator::http::{ApiConfig, LocalApi};
use muster_coordinator::store::KvStore;
use muster_shared::clock::TokioClock;
use muster_shared::entropy::SeededEntropy;
use muster_shared::kv::MemKv;
use muster_shared::threads::SameRuntime;
use object_store::memory::InMemory;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio_util::task::TaskTracker;

/// Requests after which a fresh application takes over: what they stored must not add up.
const REQUESTS: usize = 2_000;
/// Longest request, in simulated time: waits take an hour.
const LONGEST: Duration = Duration::from_hours(3);
/// Simulated time between two requests, for what the application does by itself.
const PAUSE: Duration = Duration::from_millis(50);
/// Longest answer that is read, bytes.
const MAX_ANSWER_BYTES: usize = 16 << 20;
/// The server that there is, as the corpus names it.
const SERVER: &str = "11111111-1111-4111-8111-111111111111";

struct Api {
    runtime: Runtime,
    app: Arc<App>,
    api: LocalApi,
    answered: usize,
}

thread_local! {
    static API: RefCell<Option<Api>> = const { RefCell::new(None) };
}

impl Api {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .expect("a runtime needs only a few descriptors");
        let (app, api) = runtime.block_on(async {
            let origin = "2026-01-01T00:00:00Z".parse().expect("a time");
            let clock = Arc::new(TokioClock::new(origin));
            let kv = Arc::new(MemKv::default());
            let store = KvStore::open(kv, clock.clone(), &TaskTracker::new()).await;
            let parts = Parts {
                clock,
                store: Arc::new(store.expect("a store in memory opens")),
                entropy: Arc::new(SeededEntropy::new(1)),
                threads: Arc::new(SameRuntime),
                blobs: Arc::new(InMemory::new()),
                instance: "fuzz".to_owned(),
            };
            let config = AppConfig { allow_command_execute: true, ..AppConfig::default() };
            let app = muster_coordinator::start(config, parts).await.expect("it starts");
            let api = LocalApi::new(Arc::clone(&app), ApiConfig::default());
            (app, api)
        });
        let mut started = Self { runtime, app, api, answered: 0 };
        let sysinfo = format!(
            "POST /servers/{SERVER}/sysinfo\ncontent-type: application/json\n\n\
             {{\"sysinfo\":{{\"UUID\":\"{SERVER}\"}}}}"
        );
        started.ask(sysinfo.as_bytes());
        started.beat();
        started.runtime.block_on(async { tokio::time::sleep(40 * PAUSE).await });
        started
    }

    /// The server's agent posts, so that it is heard.
    fn beat(&mut self) {
        self.ask(format!("POST /servers/{SERVER}/events/heartbeat\n\n").as_bytes());
        self.runtime.block_on(async { tokio::time::sleep(PAUSE).await });
    }

    /// Sends a request, if the input is one, and judges the answer.
    fn ask(&mut self, input: &[u8]) {
        let Some(request) = request(input) else { return };
        let head = *request.method() == Method::HEAD;
        let shown = format!("{} {}", request.method(), request.uri());
        let call = self.api.call(request);
        let answered = self.runtime.block_on(async {
            let answer = tokio::time::timeout(LONGEST, call).await;
            let answer = answer.unwrap_or_else(|_| panic!("{shown}: no answer"));
            let (parts, body) = answer.into_parts();
            // A stream of events ends with its reader.
            let is_json =
                parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
            let body = if is_json {
                Limited::new(body, MAX_ANSWER_BYTES).collect().await.ok()
            } else {
                None
            };
            (parts, body.map(http_body_util::Collected::to_bytes))
        });
        let (parts, body) = answered;
        assert_ne!(parts.status, StatusCode::INTERNAL_SERVER_ERROR, "{shown}: {body:?}");
        if parts.status == StatusCode::SERVICE_UNAVAILABLE {
            assert!(parts.headers.contains_key(RETRY_AFTER), "{shown}: no Retry-After");
        }
        if let Some(body) = body.filter(|_| parts.status.as_u16() >= 400 && !head) {
            let refusal: Value = serde_json::from_slice(&body).unwrap_or_default();
            let has_text = |name: &str| refusal[name].as_str().is_some_and(|text| !text.is_empty());
            assert!(has_text("code") && has_text("message"), "{shown}: {} {refusal}", parts.status);
        }
        self.answered += 1;
    }

    fn end(self) {
        self.runtime.block_on(self.app.shutdown());
    }
}

/// Sends the request of the input.
pub fn run(data: &[u8]) {
    API.with_borrow_mut(|kept| {
        if kept.as_ref().is_some_and(|api| api.answered >= REQUESTS)
            && let Some(used) = kept.take()
        {
            used.end();
        }
        let mut api = kept.take().unwrap_or_else(Api::start);
        api.beat();
        api.ask(data);
        // A panic leaves no API behind: the next input begins with a fresh one.
        *kept = Some(api);
    });
}

fn request(input: &[u8]) -> Option<Request<Full<Bytes>>> {
    let end = input.windows(2).position(|pair| pair == b"\n\n");
    let (head, body) = match end {
        Some(end) => (&input[..end], &input[end + 2..]),
        None => (input, &[][..]),
    };
    let mut lines = std::str::from_utf8(head).ok()?.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method.as_bytes()).uri(target);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        request = request.header(name.trim(), value.trim());
    }
    request.body(Full::new(Bytes::copy_from_slice(body))).ok()
}
