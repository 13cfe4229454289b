//! One request to an agent that is called by HTTP: on a connection of its own, with a deadline, no
//! redirect is followed and nothing is sent twice.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONNECTION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use muster_shared::ids::ServerUuid;
use serde_json::Value;
use tokio::net::TcpStream;

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest answer, bytes: a task's result.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;

/// A request.
pub(super) struct Call<'a> {
    pub(super) address: SocketAddr,
    pub(super) method: Method,
    pub(super) path: &'static str,
    /// JSON.
    pub(super) body: Bytes,
    pub(super) server: ServerUuid,
    pub(super) req_id: &'a str,
    /// For the answer, connecting included.
    pub(super) timeout: Duration,
}

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unanswered {
    /// The agent can't have seen the request.
    #[error("cannot reach the agent at {address}: {reason}")]
    NotSent { address: SocketAddr, reason: String },
    /// The agent may have done what was asked.
    #[error("{reason}: outcome unknown")]
    Unknown { reason: String },
}

/// An answer; no JSON is null.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) body: Value,
}

impl Call<'_> {
    /// Sends it.
    pub(super) async fn send(self) -> Result<Answered, Unanswered> {
        let address = self.address;
        let not_sent = |reason: String| Unanswered::NotSent { address, reason };
        let unknown = |reason: String| Unanswered::Unknown { reason };
        let timeout = self.timeout;
        let connected =
            tokio::time::timeout(timeout.min(CONNECT_TIMEOUT), TcpStream::connect(address)).await;
        let stream = match connected {
            Err(_) => return Err(not_sent("no connection in time".to_owned())),
            Ok(Err(error)) => return Err(not_sent(error.to_string())),
            Ok(Ok(stream)) => stream,
        };
        let request = self.request().map_err(|error| not_sent(error.to_string()))?;
        let exchange = async {
            let lost = |error: hyper::Error| unknown(format!("the connection was lost: {error}"));
            let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
            let (mut sender, connection) =
                handshake.await.map_err(|error| not_sent(error.to_string()))?;
            let answer = async {
                let answer = sender.send_request(request).await.map_err(lost)?;
                let status = answer.status();
                let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
                let body = body.map_err(|error| unknown(format!("no whole answer: {error}")))?;
                let body = serde_json::from_slice(&body.to_bytes()).unwrap_or_default();
                Ok(Answered { status, body })
            };
            // The connection moves the bytes; who answered on it is done with it.
            tokio::pin!(connection, answer);
            tokio::select! {
                biased;
                answer = &mut answer => answer,
                _ = &mut connection => answer.await,
            }
        };
        match tokio::time::timeout(timeout, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(unknown(format!("no answer within {} s", timeout.as_secs()))),
        }
    }

    fn request(&self) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let mut request = http::Request::builder()
            .method(self.method.clone())
            .uri(self.path)
            .header(HOST, self.address.to_string())
            .header(ACCEPT, "application/json")
            .header(CONNECTION, "close")
            .header("x-server-uuid", self.server.to_string());
        // Its characters are the bytes that a client sent.
        let req_id: Option<Vec<u8>> = self.req_id.chars().map(|c| u8::try_from(c).ok()).collect();
        if let Some(Ok(id)) = req_id.map(|bytes| HeaderValue::from_bytes(&bytes)) {
            request = request.header("x-request-id", id);
        }
        if self.method == Method::POST {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(self.body.clone()))
    }
}
