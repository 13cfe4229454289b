//! The shell over real sockets: every rule of how requests are read and answered.

mod connections;
mod contract;
mod images;
mod layout;
mod page;
mod rules;
mod table;

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use http::Method;
use muster_shared::clock::{SharedClock, SystemClock};
use muster_shared::entropy::SeededEntropy;
use muster_shared::ids::ServerUuid;
use muster_shared::kv::MemKv;
use muster_shared::threads::SameRuntime;
use object_store::memory::InMemory;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use super::error::ApiError;
use super::gate::{Gate, ServerGate};
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule, object_schema};
use super::rule::Rule;
use super::server::{Server, ServerSettings, bind};
use super::{ApiConfig, Shell, table};
use crate::app::{App, AppConfig, Parts};
use crate::config::Config;
use crate::store::KvStore;

pub(super) const RUNNING: &str = "11111111-1111-4111-8111-111111111111";
pub(super) const STOPPED: &str = "22222222-2222-4222-8222-222222222222";
pub(super) const MISSING: &str = "33333333-3333-4333-8333-333333333333";

/// A part of the OpenAPI document, or what its `$ref` names.
pub(super) fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(&reference[1..]).expect("the reference leads on"),
        None => value,
    }
}

/// Knows one running server and one that is not.
struct TwoServers;

#[async_trait]
impl Gate for TwoServers {
    async fn server(&self, server: ServerUuid) -> Result<Option<ServerGate>, ApiError> {
        let server = server.to_string();
        let known = server == RUNNING || server == STOPPED;
        Ok(known.then_some(ServerGate { running: server == RUNNING }))
    }
}

const ECHO_PARAMS: &[Param] = &[
    Param::new("n", &[Rule::Optional, Rule::Int], "a number"),
    Param::new("flag", &[Rule::Optional, Rule::BooleanString, Rule::ToBoolean], "a flag"),
    Param::new("name", &[Rule::Optional, Rule::StringType, Rule::Trim], "a name"),
];

/// Answers with the parameters.
async fn echo(request: Request) -> Result<Response, ApiError> {
    Response::json(json!({ "params": request.params, "req_id": request.caller.req_id }))
}

async fn nothing(_request: Request) -> Result<Response, ApiError> {
    Ok(Response::empty())
}

async fn wait(_request: Request) -> Result<Response, ApiError> {
    std::future::pending().await
}

async fn defect(_request: Request) -> Result<Response, ApiError> {
    panic!("a defect, on purpose")
}

/// Sends every frame back.
async fn echo_frames(request: Request) -> Result<Response, ApiError> {
    request.into_websocket(Some("echo.v1"), |mut connection| async move {
        while let Ok(Some(frame)) = connection.stream.next().await {
            if connection.sink.send(frame).await.is_err() {
                return;
            }
        }
    })
}

fn test_routes() -> Vec<Route> {
    let route = |method: Method, pattern, operation| {
        Route::new(method, pattern, operation, echo).summary("a test").returns_schema(object_schema)
    };
    let pause = route(Method::POST, "/t/servers/:server_uuid/pause", "TPause");
    vec![
        route(Method::POST, "/t/echo", "TEcho").params(ECHO_PARAMS),
        route(Method::GET, "/t/echo", "TEchoGet").params(ECHO_PARAMS),
        route(Method::DELETE, "/t/echo", "TEchoDelete"),
        route(Method::POST, "/t/strict/:id", "TStrict").params(ECHO_PARAMS).strict(),
        route(Method::POST, "/t/shaped/:server_uuid", "TShaped").server(ServerRule::Shaped),
        route(Method::GET, "/t/servers/:server_uuid", "TServer")
            .server(ServerRule::ExistsOrDefault),
        route(Method::POST, "/t/servers/:server_uuid/vms/:uuid/update", "TVm")
            .server(ServerRule::Exists)
            .vm()
            .running()
            .params(ECHO_PARAMS)
            .strict(),
        route(Method::POST, "/t/servers/:server_uuid/vms/nics/update", "TNics"),
        pause.alias(Method::GET, true),
        pause,
        Route::new(Method::POST, "/t/nothing", "TNothing", nothing).no_content(),
        Route::new(Method::POST, "/t/empty", "TEmpty", nothing),
        Route::new(Method::GET, "/t/wait", "TWait", wait),
        Route::new(Method::GET, "/t/defect", "TDefect", defect),
        Route::new(Method::GET, "/t/socket", "TSocket", echo_frames).websocket(),
    ]
}

/// An application on stores in memory.
pub(super) async fn test_app(clock: SharedClock) -> Arc<App> {
    let tasks = TaskTracker::new();
    let store = KvStore::open(Arc::new(MemKv::default()), clock.clone(), &tasks);
    let parts = Parts {
        clock,
        entropy: Arc::new(SeededEntropy::new(1)),
        threads: Arc::new(SameRuntime),
        store: Arc::new(store.await.unwrap()),
        blobs: Arc::new(InMemory::new()),
        instance: "test".to_owned(),
    };
    App::new(AppConfig::default(), parts)
}

/// A served API with its own routes and the tests'.
pub(super) struct Api {
    pub(super) address: String,
    pub(super) app: Arc<App>,
    pub(super) server: Server,
}

impl Api {
    pub(super) async fn start() -> Self {
        Self::with(|_| {}).await
    }

    pub(super) async fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config { listen: "127.0.0.1:0".parse().unwrap(), ..Config::default() };
        change(&mut config);
        muster_shared::tls::install_provider();
        let tls = config.tls.identity().map(|identity| {
            muster_shared::tls::server(&identity, &config.tls.client_auth()).unwrap()
        });
        let app = test_app(Arc::new(SystemClock::new())).await;
        let routes = table().into_iter().chain(test_routes()).collect();
        let api = Arc::clone(&app);
        let shell = move |config| Shell::with_routes(api, config, Arc::new(TwoServers), routes);
        Self::serve(app, &config, tls, shell).await
    }

    /// The API of an application as it is in production.
    pub(super) async fn over(app: Arc<App>, config: &Config) -> Self {
        let api = Arc::clone(&app);
        Self::serve(app, config, None, move |config| Shell::new(api, config)).await
    }

    async fn serve(
        app: Arc<App>,
        config: &Config,
        tls: Option<Arc<rustls::ServerConfig>>,
        shell: impl FnOnce(ApiConfig) -> Arc<Shell>,
    ) -> Self {
        // What the tests write as their `Host`.
        let mut config = config.clone();
        config.api.hosts.push("x".to_owned());
        let config = &config;
        let settings = ServerSettings::new(config, tls, None);
        let bound = bind(&config.listen).await.unwrap();
        let metrics = match &config.metrics.listen {
            Some(listen) => Some(bind(listen).await.unwrap()),
            None => None,
        };
        let server = Server::start_shell(shell, settings, bound, metrics);
        Self { address: server.address.to_string(), app, server }
    }

    /// Sends a request with `Connection: close` and reads the answer.
    pub(super) async fn send(&self, head: &str, body: &[u8]) -> Answer {
        let mut request = format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n");
        if !body.is_empty() {
            request += &format!("content-length: {}\r\n", body.len());
        }
        // Further headers follow the request line after a `|`.
        let request = match request.split_once('|') {
            Some((line, rest)) => {
                let (headers, rest) = rest.split_once(" HTTP/1.1\r\n").unwrap();
                format!("{line} HTTP/1.1\r\n{}\r\n{rest}", headers.replace('|', "\r\n"))
            }
            None => request,
        };
        let mut bytes = (request + "\r\n").into_bytes();
        bytes.extend_from_slice(body);
        self.raw(&bytes).await
    }

    /// Sends bytes and reads until the connection closes.
    pub(super) async fn raw(&self, bytes: &[u8]) -> Answer {
        let stream = TcpStream::connect(&self.address).await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let mut answer = Vec::new();
        let (sent, read) = tokio::join!(writer.write_all(bytes), reader.read_to_end(&mut answer));
        read.unwrap();
        // The server may refuse a body before it has all of it.
        drop(sent);
        Answer::parse(&answer)
    }

    /// A JSON body.
    pub(super) async fn json(&self, head: &str, body: &str) -> Answer {
        let (line, headers) = head.split_once('|').unwrap_or((head, ""));
        let separator = if headers.is_empty() { "" } else { "|" };
        let head = format!("{line}|content-type: application/json{separator}{headers}");
        self.send(&head, body.as_bytes()).await
    }
}

/// An answer as it came over the wire.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        let end = end.unwrap_or_else(|| panic!("no answer: {}", String::from_utf8_lossy(bytes)));
        let head = std::str::from_utf8(&bytes[..end]).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Self { status, headers, body: bytes[end + 4..].to_vec() }
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(super) fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// The status and the CNAPI code.
    #[track_caller]
    pub(super) fn expect(&self, status: u16, code: &str) -> &Self {
        let value = self.value();
        assert_eq!((self.status, value["code"].as_str()), (status, Some(code)), "{self:?}");
        assert!(value["message"].as_str().is_some_and(|message| !message.is_empty()));
        self
    }

    /// 200 and the parameters that the handler got.
    #[track_caller]
    pub(super) fn params(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        self.value()["params"].clone()
    }
}
