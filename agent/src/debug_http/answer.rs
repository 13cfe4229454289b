//! Answers in the reference agent's form.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue, SERVER};
use hyper::{Method, Response, StatusCode};
use muster_shared::wire::{Code, TaskError};
use serde_json::{Value, json};

use crate::tasks::Refusal;

/// What a route answers.
#[derive(Debug)]
pub(super) struct Answer {
    response: Response<Full<Bytes>>,
}

impl Answer {
    pub(super) fn json(status: u16, body: &Value) -> Self {
        let mut answer = Self::bytes(status, body.to_string().into());
        let json = HeaderValue::from_static("application/json");
        answer.response.headers_mut().insert(CONTENT_TYPE, json);
        answer
    }

    pub(super) fn empty(status: u16) -> Self {
        Self::bytes(status, Bytes::new())
    }

    pub(super) fn text(body: String) -> Self {
        let mut answer = Self::bytes(200, body.into());
        let text = HeaderValue::from_static("text/plain; version=0.0.4");
        answer.response.headers_mut().insert(CONTENT_TYPE, text);
        answer
    }

    /// Plain text.
    pub(super) fn lines(body: String) -> Self {
        let mut answer = Self::bytes(200, body.into());
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.response.headers_mut().insert(CONTENT_TYPE, text);
        answer
    }

    /// A method that no route has.
    pub(super) fn bad_method(method: &Method) -> Self {
        let mut answer = Self::error(405, &Code::BadMethod, &format!("{method} is not allowed"));
        answer.response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        answer
    }

    /// An error that is no task's.
    pub(super) fn error(status: u16, code: &Code, message: &str) -> Self {
        Self::json(status, &json!({ "code": code, "message": message }))
    }

    /// A task's error; `details.restCode` carries the code as the reference does.
    pub(super) fn task_failed(error: &TaskError) -> Self {
        let mut details = match &error.details {
            Some(Value::Object(details)) => details.clone(),
            Some(other) => [("details".to_owned(), other.clone())].into_iter().collect(),
            None => serde_json::Map::new(),
        };
        details.entry("restCode").or_insert_with(|| json!(error.code));
        let body = json!({ "error": error.message, "code": error.code, "details": details });
        Self::json(500, &body)
    }

    pub(super) fn refused(refusal: &Refusal) -> Self {
        let code = &refusal.code;
        let (status, code) = match code {
            Code::NotSupported | Code::UnknownTask => (404, &Code::ResourceNotFound),
            Code::TaskIdReused | Code::NotCancellable | Code::StaleTicket => (409, code),
            Code::Draining => (503, &Code::ServiceUnavailable),
            _ => (503, code),
        };
        Self::error(status, code, &refusal.message)
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(super) fn upgrade(response: Response<Full<Bytes>>) -> Self {
        Self { response }
    }

    fn bytes(status: u16, body: Bytes) -> Self {
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        Self { response }
    }

    pub(super) fn into_response(
        self,
        id: &str,
        elapsed_ms: u64,
        server: &str,
    ) -> Response<Full<Bytes>> {
        let mut response = self.response;
        let headers = response.headers_mut();
        headers.insert(SERVER, HeaderValue::from_static("Compute Node Agent"));
        headers.insert("x-response-time", HeaderValue::from(elapsed_ms));
        for (name, value) in [("x-request-id", id), ("x-server-name", server)] {
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        }
        response
    }
}
