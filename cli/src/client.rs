//! HTTP and websockets to the coordinator.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{Sink, Stream, StreamExt as _};
use muster_shared::tls::{self, Identity};
use reqwest::header::{ETAG, HeaderValue, IF_MATCH, USER_AGENT};
use reqwest::{Body, Method, RequestBuilder, Response, StatusCode};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream};
use url::Url;

use crate::silence::{PATIENCE, unless_silent};
use crate::{CliError, Connection};

/// The coordinator that is meant if nobody names one.
pub(crate) const DEFAULT_URL: &str = "http://127.0.0.1:8480";
/// What this program calls itself.
const AGENT: &str = concat!("muster/", env!("CARGO_PKG_VERSION"));
/// Time to reach the coordinator.
const CONNECT: Duration = Duration::from_secs(5);
/// Items in a page; the coordinator's limit.
const PAGE: usize = 1_000;
/// Most pages that are read.
const MAX_PAGES: usize = 1_000;
/// Pause after a lost connection; the coordinator may be restarting.
const RETRY: Duration = Duration::from_millis(500);
/// Time for a piece of a disk to be durable at its server.
const PIECE: Duration = Duration::from_secs(330);
/// Time for an answer that nothing has to be waited for.
const ANSWER: Duration = Duration::from_secs(60);

/// A coordinator.
#[derive(Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    socket: Option<PathBuf>,
    tls: Option<Arc<rustls::ClientConfig>>,
    name: String,
    ticket: Option<uuid::Uuid>,
}

/// A websocket over whatever leads to the coordinator.
pub(crate) enum Socket {
    /// TCP, with or without TLS.
    Net(Box<WebSocketStream<MaybeTlsStream<TcpStream>>>),
    /// A unix socket.
    Unix(Box<WebSocketStream<UnixStream>>),
}

/// What arrives.
pub(crate) type Frames = BoxStream<'static, Result<Message, SocketError>>;
/// Where to send.
pub(crate) type Keys = Pin<Box<dyn Sink<Message, Error = SocketError> + Send>>;

impl Socket {
    /// Both directions of it.
    pub(crate) fn split(self) -> (Frames, Keys) {
        match self {
            Self::Net(socket) => {
                let (keys, frames) = socket.split();
                (frames.boxed(), Box::pin(keys))
            }
            Self::Unix(socket) => {
                let (keys, frames) = socket.split();
                (frames.boxed(), Box::pin(keys))
            }
        }
    }
}

impl Client {
    /// A client for the address in the arguments; connects to nothing yet.
    pub(crate) fn new(connection: &Connection) -> Result<Self, CliError> {
        tls::install_provider();
        let name = connection.url.clone().unwrap_or_else(|| DEFAULT_URL.to_owned());
        let bad = |why: &str| CliError::Usage(format!("--url {name}: {why}"));
        let socket = name.strip_prefix("unix:").map(PathBuf::from);
        let text = if socket.is_some() { "http://localhost" } else { name.as_str() };
        if socket.is_none() && !text.contains("://") {
            let text = format!("is not an address; did you mean http://{text} or https://{text}?");
            return Err(bad(&text));
        }
        let base: Url = text.parse().map_err(|error| bad(&format!("{error}")))?;
        let tls = match base.scheme() {
            "http" if connection.ca.is_some() || connection.cert.is_some() => {
                return Err(bad("--ca and --cert are for https://"));
            }
            "http" => None,
            "https" => Some(tls::client(connection.ca.as_deref(), identity(connection)?.as_ref())?),
            _ => return Err(bad("expected http://HOST:PORT, https://HOST:PORT or unix:/PATH")),
        };
        // The machine's proxies are for the internet, not for the control plane.
        let mut http =
            reqwest::Client::builder().connect_timeout(CONNECT).no_proxy().user_agent(AGENT);
        if let Some(path) = &socket {
            http = http.unix_socket(path.clone());
        }
        if let Some(tls) = &tls {
            http = http.tls_backend_preconfigured(rustls::ClientConfig::clone(tls));
        }
        let http = http.build().map_err(|error| bad(&format!("{error}")))?;
        Ok(Self { http, base, socket, tls, name, ticket: connection.ticket })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_str().trim_end_matches('/'))
    }

    fn unreachable(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> CliError {
        CliError::Unreachable { url: self.name.clone(), source: source.into() }
    }

    /// A connection that broke while an answer was read.
    pub(crate) fn lost(&self, error: reqwest::Error) -> CliError {
        self.unreachable(error.without_url())
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, CliError> {
        let response =
            request.send().await.map_err(|error| self.unreachable(error.without_url()))?;
        self.read(response).await
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, CliError> {
        let status = response.status();
        let path = response.url().path().to_owned();
        let text = response.text().await.map_err(|error| self.unreachable(error.without_url()))?;
        if !status.is_success() {
            return Err(self.refused(status, &path, &text));
        }
        let text = if text.is_empty() { "null" } else { &text };
        serde_json::from_str(text).map_err(|error| {
            let message = match error.classify() {
                Category::Data => format!("something this version cannot read: {error}"),
                _ => "something other than JSON; is this a Muster coordinator?".to_owned(),
            };
            CliError::Server { status: status.as_u16(), message }
        })
    }

    fn refused(&self, status: StatusCode, path: &str, text: &str) -> CliError {
        let outer = self.base.path().trim_end_matches('/');
        refusal(status, path.strip_prefix(outer).unwrap_or(path), text)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let reads = method == Method::GET;
        let request = self.http.request(method, self.url(path));
        match &self.ticket {
            Some(ticket) if !reads => request.header("x-muster-ticket", ticket.to_string()),
            _ => request,
        }
    }

    /// `GET`; `query` pairs are encoded.
    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<T, CliError> {
        let answer = self.answer(self.request(Method::GET, path).query(query).timeout(ANSWER));
        let ping = self.http.get(self.url("/ping"));
        unless_silent(answer, ping, PATIENCE).await.map_err(|silent| self.unreachable(silent))?
    }

    /// `GET` of a whole list, page by page: each page but the first starts after the item that
    /// ends the one before, by its id.
    pub(crate) async fn get_all<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        id: fn(&T) -> String,
    ) -> Result<Vec<T>, CliError> {
        let mut all: Vec<T> = Vec::new();
        for _ in 0..MAX_PAGES {
            let mut query = query.to_vec();
            query.push(("limit", PAGE.to_string()));
            query.extend(all.last().map(|last| ("marker", id(last))));
            let page: Vec<T> = self.get(path, &query).await?;
            let full = page.len() >= PAGE;
            all.extend(page);
            if !full {
                break;
            }
        }
        Ok(all)
    }

    /// `POST` with a JSON body.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, CliError> {
        self.post_within(ANSWER, path, body).await
    }

    /// As [`Client::post`], of what may take so long.
    pub(crate) async fn post_within<T: DeserializeOwned>(
        &self,
        limit: Duration,
        path: &str,
        body: &Value,
    ) -> Result<T, CliError> {
        self.answer(self.request(Method::POST, path).json(body).timeout(limit)).await
    }

    /// The version of a record.
    pub(crate) async fn version(&self, path: &str) -> Result<HeaderValue, CliError> {
        let sent = self.request(Method::GET, path).timeout(ANSWER).send().await;
        let response = sent.map_err(|error| self.unreachable(error.without_url()))?;
        let (status, version) = (response.status(), response.headers().get(ETAG).cloned());
        self.read::<IgnoredAny>(response).await?;
        let message = "a record without a version".to_owned();
        version.ok_or(CliError::Server { status: status.as_u16(), message })
    }

    /// As [`Client::post`], refused unless the record has this version.
    pub(crate) async fn post_to<T: DeserializeOwned>(
        &self,
        version: HeaderValue,
        path: &str,
        body: &Value,
    ) -> Result<T, CliError> {
        let request = self.request(Method::POST, path).header(IF_MATCH, version);
        self.answer(request.json(body).timeout(ANSWER)).await
    }

    /// `PUT` with a JSON body.
    pub(crate) async fn put<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
    ) -> Result<T, CliError> {
        self.answer(self.request(Method::PUT, path).json(body).timeout(ANSWER)).await
    }

    /// `GET` of what is answered once something has happened; a lost connection is tried again.
    ///
    /// # Errors
    /// [`CliError::Timeout`] naming `what` when it does not happen in time.
    pub(crate) async fn wait(
        &self,
        path: &str,
        header: Option<(&str, String)>,
        limit: Duration,
        what: &str,
    ) -> Result<(), CliError> {
        let asking = async {
            loop {
                let mut request = self.request(Method::GET, path);
                if let Some((name, value)) = &header {
                    request = request.header(*name, value);
                }
                match self.answer::<IgnoredAny>(request).await {
                    Err(CliError::Unreachable { .. }) => tokio::time::sleep(RETRY).await,
                    answer => return answer.map(drop),
                }
            }
        };
        let late = |_| {
            CliError::Timeout(format!("timed out after {} s waiting for {what}", limit.as_secs()))
        };
        tokio::time::timeout(limit, asking).await.map_err(late)?
    }

    /// `GET` of an answer without an end.
    pub(crate) async fn stream(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<impl Stream<Item = reqwest::Result<Bytes>> + Unpin, CliError> {
        let sent = self.request(Method::GET, path).query(query).send().await;
        let response = sent.map_err(|error| self.unreachable(error.without_url()))?;
        let status = response.status();
        if !status.is_success() {
            let text = response.text().await.unwrap_or_default();
            return Err(refusal(status, path, &text));
        }
        Ok(Box::pin(response.bytes_stream()))
    }

    /// `DELETE`.
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, CliError> {
        self.answer(self.request(Method::DELETE, path).timeout(ANSWER)).await
    }

    /// `PUT` of a file of `length` bytes; takes as long as it takes.
    pub(crate) async fn upload(
        &self,
        path: &str,
        query: &[(&str, String)],
        length: u64,
        body: Body,
    ) -> Result<(), CliError> {
        let request = self
            .request(Method::PUT, path)
            .query(query)
            .header("content-type", "application/octet-stream")
            .header("content-length", length)
            .body(body);
        self.answer::<IgnoredAny>(request).await.map(drop)
    }

    /// `PUT` of a few bytes as they are.
    pub(crate) async fn put_bytes<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        bytes: Bytes,
    ) -> Result<T, CliError> {
        let request = self
            .request(Method::PUT, path)
            .query(query)
            .header("content-type", "application/octet-stream")
            .timeout(PIECE)
            .body(bytes);
        self.answer(request).await
    }

    /// Opens a websocket.
    pub(crate) async fn websocket(&self, path: &str) -> Result<Socket, CliError> {
        use tokio_tungstenite::{client_async, connect_async_tls_with_config};
        let refused = |error| match error {
            tokio_tungstenite::tungstenite::Error::Http(response) => {
                let body = response.body().as_deref().unwrap_or_default();
                refusal(response.status(), path, &String::from_utf8_lossy(body))
            }
            other => self.unreachable(other),
        };
        let url = self.url(path).replacen("http", "ws", 1);
        let mut request = url.into_client_request().map_err(refused)?;
        request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(AGENT));
        let connect = async {
            if let Some(path) = &self.socket {
                let stream = UnixStream::connect(path).await.map_err(|e| self.unreachable(e))?;
                let (socket, _) = client_async(request, stream).await.map_err(refused)?;
                return Ok(Socket::Unix(Box::new(socket)));
            }
            let connector = self.tls.clone().map_or(Connector::Plain, Connector::Rustls);
            let connected =
                connect_async_tls_with_config(request, None, true, Some(connector)).await;
            connected.map(|(socket, _)| Socket::Net(Box::new(socket))).map_err(refused)
        };
        let late = || self.unreachable("opening the websocket took too long");
        tokio::time::timeout(ANSWER, connect).await.map_err(|_| late())?
    }
}

fn identity(connection: &Connection) -> Result<Option<Identity>, CliError> {
    match (&connection.cert, &connection.key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => {
            Ok(Some(Identity { certificate: certificate.clone(), key: key.clone() }))
        }
        _ => Err(CliError::Usage("--cert and --key belong together".to_owned())),
    }
}

/// What an error answer says, in CNAPI's form or any other.
fn refusal(status: StatusCode, path: &str, text: &str) -> CliError {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let code = body["code"].as_str().unwrap_or_default().to_owned();
    let mut message = body["message"].as_str().unwrap_or(text.trim()).to_owned();
    if message.is_empty() {
        message = status.to_string();
    }
    for error in body["errors"].as_array().into_iter().flatten() {
        let field = error["field"].as_str().unwrap_or("?");
        let detail = error["message"].as_str().or(error["code"].as_str()).unwrap_or("invalid");
        message.push_str(&format!("\n    {field}: {detail}"));
    }
    match status.as_u16() {
        404 if message == format!("{path} does not exist") => {
            CliError::Server { status: 404, message }
        }
        404 => match named_in(path) {
            Some((kind, id)) => CliError::no_such(kind, id),
            None => CliError::NotFound(message),
        },
        400..=499 => CliError::Refused { code, message, body },
        status => CliError::Server { status, message },
    }
}

/// What a path is of, if of one thing alone: its kind and its id. The API says in several ways that
/// there is none.
fn named_in(path: &str) -> Option<(&str, &str)> {
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let (all, id) = match parts[..] {
        ["why", kind, id] => return Some((kind, id)),
        [all, id] => (all, id),
        [all @ ("allocations" | "jobs" | "tasks" | "tickets"), id, _] => (all, id),
        _ => return None,
    };
    let all = ["allocations", "images", "jobs", "packages", "servers", "tasks", "tickets", "vms"]
        .into_iter()
        .find(|known| *known == all)?;
    Some((all.strip_suffix('s')?, id))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connection(url: &str) -> Connection {
        Connection { url: Some(url.to_owned()), ..Connection::default() }
    }

    #[test]
    fn addresses() {
        let path = |url: &str| Client::new(&connection(url)).map(|client| client.url("/ping"));
        assert_eq!(path("http://127.0.0.1:8480").unwrap(), "http://127.0.0.1:8480/ping");
        assert_eq!(path("http://host/proxy/").unwrap(), "http://host/proxy/ping");
        assert_eq!(path("unix:/run/x.sock").unwrap(), "http://localhost/ping");
        for bad in ["", "127.0.0.1:8480", "ftp://host"] {
            assert_eq!(path(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
        let meant = path("127.0.0.1:8480").unwrap_err().to_string();
        assert!(meant.contains("did you mean http://127.0.0.1:8480"), "{meant}");
        let unused = Connection { ca: Some("ca.pem".into()), ..connection("http://host") };
        assert!(Client::new(&unused).unwrap_err().to_string().contains("https://"));
    }

    #[test]
    fn refusals_keep_the_fields_at_fault() {
        let body = r#"{"code":"InvalidParameters","message":"Request parameters failed validation",
            "errors":[{"field":"ram","code":"Invalid","message":"is not a number"}]}"#;
        let error = refusal(StatusCode::CONFLICT, "/vms", body);
        assert_eq!(error.exit_code(), 6);
        assert!(error.to_string().ends_with("validation\n    ram: is not a number"), "{error}");
        assert_eq!(refusal(StatusCode::NOT_FOUND, "/x/y/z", "").to_string(), "404 Not Found");
        assert_eq!(refusal(StatusCode::BAD_GATEWAY, "/vms", "<html>").exit_code(), 1);
    }

    #[test]
    fn what_is_missing_is_said_alike_for_all_kinds() {
        let missing = |path: &str| {
            let body = r#"{"code":"ResourceNotFound","message":"as the API has it"}"#;
            refusal(StatusCode::NOT_FOUND, path, body).to_string()
        };
        for (path, kind) in [
            ("/tasks/x", "task"),
            ("/tasks/x/wait", "task"),
            ("/tickets/x/release", "ticket"),
            ("/allocations/x", "allocation"),
            ("/vms/x", "vm"),
            ("/why/server/x", "server"),
        ] {
            assert!(missing(path).starts_with(&format!("there is no {kind} \"x\";")), "{path}");
        }
        for path in ["/servers/x/vms/y", "/boot/x", "/servers"] {
            assert_eq!(missing(path), "as the API has it", "{path}");
        }
    }

    #[test]
    fn an_address_without_such_a_path_is_not_that_of_a_coordinator() {
        let client = Client::new(&connection("http://host/proxy/")).unwrap();
        let body = r#"{"code":"ResourceNotFound","message":"/servers does not exist"}"#;
        let error = client.refused(StatusCode::NOT_FOUND, "/proxy/servers", body);
        assert!(matches!(error, CliError::Server { status: 404, .. }), "{error:?}");
    }
}
