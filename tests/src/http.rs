//! A small JSON client for the daemons under test.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::Value;

/// What came back.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Response headers.
    pub headers: reqwest::header::HeaderMap,
    /// The body as JSON; `null` when it is empty or no JSON.
    pub json: Value,
    /// The body as text.
    pub text: String,
}

impl Answer {
    /// The body, if the status is as expected.
    ///
    /// # Panics
    /// If it is not.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "body: {}", self.text);
        self.json
    }
}

/// A client for one base URL.
#[derive(Clone, Debug)]
pub struct Client {
    base: String,
    http: reqwest::Client,
}

impl Client {
    /// A client for `http://host:port` with a connection per request: a daemon that was killed
    /// leaves no stale one behind.
    ///
    /// # Panics
    /// If the client can't be built.
    #[must_use]
    pub fn new(base: impl Into<String>) -> Self {
        Self::build(base.into(), 0)
    }

    /// A client that keeps its connections, for measurements.
    ///
    /// # Panics
    /// If the client can't be built.
    #[must_use]
    pub fn pooled(base: impl Into<String>) -> Self {
        Self::build(base.into(), usize::MAX)
    }

    fn build(base: String, idle: usize) -> Self {
        // Another test of this process may have been first; the provider is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(120))
            .pool_max_idle_per_host(idle)
            .build()
            .expect("a plain client has nothing that can fail");
        Self { base, http }
    }

    /// The base URL.
    #[must_use]
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Sends one request; an error is that of the transport.
    ///
    /// # Errors
    /// If no answer came.
    pub async fn try_send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> reqwest::Result<Answer> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(body) = body {
            request = request.json(body);
        }
        Self::read(request.send().await?).await
    }

    /// As [`Client::try_send`], with a header.
    ///
    /// # Errors
    /// If no answer came.
    pub async fn try_send_with(
        &self,
        method: Method,
        path: &str,
        header: (&str, &str),
        body: Option<&Value>,
    ) -> reqwest::Result<Answer> {
        let request = self.http.request(method, format!("{}{path}", self.base));
        let mut request = request.header(header.0, header.1);
        if let Some(body) = body {
            request = request.json(body);
        }
        Self::read(request.send().await?).await
    }

    /// Sends raw bytes.
    ///
    /// # Panics
    /// If no answer came.
    pub async fn send_bytes(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> Answer {
        let request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .header("content-type", content_type)
            .body(body);
        let response = request.send().await.unwrap_or_else(|e| panic!("{path}: {e:?}"));
        Self::read(response).await.unwrap_or_else(|e| panic!("{path}: {e:?}"))
    }

    async fn read(response: reqwest::Response) -> reqwest::Result<Answer> {
        let (status, headers) = (response.status(), response.headers().clone());
        let text = response.text().await?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(Answer { status, headers, json, text })
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let sent = self.try_send(method.clone(), path, body).await;
        sent.unwrap_or_else(|e| panic!("{method} {path}: {e:?}"))
    }

    /// `GET`.
    ///
    /// # Panics
    /// If no answer came.
    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, None).await
    }

    /// `GET` of a document that is read away and not parsed; its length, bytes.
    ///
    /// # Panics
    /// If it is not answered with 200.
    pub async fn get_length(&self, path: &str) -> usize {
        let sent = self.http.get(format!("{}{path}", self.base)).send().await;
        let response = sent.unwrap_or_else(|e| panic!("{path}: {e:?}"));
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        response.bytes().await.unwrap_or_else(|e| panic!("{path}: {e:?}")).len()
    }

    /// `POST` with a JSON body.
    ///
    /// # Panics
    /// If no answer came.
    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::POST, path, Some(body)).await
    }

    /// `POST` with a JSON body; the answer is received and not looked at, for measurements.
    ///
    /// # Panics
    /// If no answer came.
    pub async fn post_unread(&self, path: &str, body: &Value) -> StatusCode {
        let request = self.http.post(format!("{}{path}", self.base)).json(body);
        let drained = async {
            let mut response = request.send().await?;
            while response.chunk().await?.is_some() {}
            reqwest::Result::Ok(response.status())
        };
        drained.await.unwrap_or_else(|e| panic!("{path}: {e:?}"))
    }

    /// `PUT` with a JSON body.
    ///
    /// # Panics
    /// If no answer came.
    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send(Method::PUT, path, Some(body)).await
    }

    /// `DELETE`.
    ///
    /// # Panics
    /// If no answer came.
    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, None).await
    }

    /// Waits for a task to end and returns its record.
    ///
    /// # Panics
    /// If it is still active after `timeout_s`.
    pub async fn wait_task(&self, id: &str, timeout_s: u64) -> Value {
        let task = self.get(&format!("/tasks/{id}/wait?timeout={timeout_s}")).await.expect(200);
        assert_ne!(task["status"], "active", "task did not end: {task:#}");
        task
    }

    /// Waits for a task to end well and returns its result.
    ///
    /// # Panics
    /// If it fails or does not end.
    pub async fn complete_task(&self, id: &str, timeout_s: u64) -> Value {
        let task = self.wait_task(id, timeout_s).await;
        assert_eq!(task["status"], "complete", "task failed: {task:#}");
        task["history"][0]["event"].clone()
    }
}
