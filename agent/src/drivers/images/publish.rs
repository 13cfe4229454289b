//! An image that was made here goes into a repository: its manifest, its file, and then it is active.
//!
//! Each step finds out what an earlier attempt did: an image with the mark of the task is that
//! task's, whatever became of the agent meanwhile.

use std::error::Error as _;
use std::path::Path;
use std::time::Duration;

use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId};
use muster_shared::wire::Code;
use reqwest::{Body, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use tokio_util::io::ReaderStream;
use url::Url;

use super::pack::Packed;
use super::repository::{MAX_ATTEMPTS, Repository, endpoint};
use crate::drivers::{DriverError, files};

/// Longest time for a file.
const UPLOAD_LIMIT: Duration = Duration::from_secs(3600);
/// The tag that says which task made an image.
pub const TASK_TAG: &str = "muster:task";

/// What is to be published.
#[derive(Clone, Debug)]
pub struct Publication {
    /// The repository; the first one of the agent's own without.
    pub url: Option<Url>,
    /// The image.
    pub image: ImageUuid,
    /// Its manifest, with [`TASK_TAG`].
    pub manifest: Value,
    /// How its file is packed, in IMGAPI's words.
    pub compression: String,
    /// Its file.
    pub packed: Packed,
}

/// A request was answered with a refusal, or not at all.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error("{method} {url}")]
    Transport {
        method: Method,
        url: Url,
        #[source]
        source: reqwest::Error,
    },
    #[error("{method} {url}: status {status}: {message}")]
    Status { method: Method, url: Url, status: StatusCode, code: String, message: String },
}

impl UploadError {
    /// Whether the same request may succeed later.
    fn may_pass(&self) -> bool {
        match self {
            Self::Transport { .. } => true,
            Self::Status { status, .. } => status.is_server_error(),
        }
    }

    fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Status { code, .. } if code == wanted)
    }

    fn into_driver(self, image: ImageUuid) -> DriverError {
        let text = format!("image {image} cannot be published: {self}");
        match (&self, self.source()) {
            (Self::Status { .. }, _) if self.is("ImageUuidAlreadyExists") => {
                DriverError::refused(Code::ImageUuidAlreadyExists, text)
            }
            (Self::Status { status, .. }, _) if status.is_client_error() => {
                DriverError::refused(Code::InvalidManifest, text)
            }
            (_, Some(cause)) => {
                let cause = Chain(cause).to_string();
                DriverError::refused_because(Code::UploadError, text, cause)
            }
            (_, None) => DriverError::refused(Code::UploadError, text),
        }
    }
}

impl Repository {
    /// Publishes an image; returns its manifest as the repository has it. May be repeated.
    pub(super) async fn publish(
        &self,
        task: &TaskId,
        what: &Publication,
        file: &Path,
    ) -> Result<Value, DriverError> {
        let base = self.target(what.url.as_ref())?;
        let mut attempt = 0;
        loop {
            self.pause(attempt).await;
            attempt += 1;
            match self.try_publish(&base, task, what, file).await? {
                Ok(manifest) => return Ok(manifest),
                Err(error) if error.may_pass() && attempt < MAX_ATTEMPTS => {
                    tracing::warn!(image_uuid = %what.image, attempt, error = %Chain(&error),
                        "cannot publish an image");
                }
                Err(error) => return Err(error.into_driver(what.image)),
            }
        }
    }

    async fn try_publish(
        &self,
        base: &Url,
        task: &TaskId,
        what: &Publication,
        file: &Path,
    ) -> Result<Result<Value, UploadError>, DriverError> {
        let image = what.image.to_string();
        let images = endpoint(base, &["images"]);
        let made = self.send(Method::POST, &images, |request| request.json(&what.manifest));
        match made.await {
            Err(error) if error.is("ImageUuidAlreadyExists") => {
                let url = endpoint(base, &["images", &image]);
                let there = match self.send(Method::GET, &url, |request| request).await {
                    Ok(there) => there,
                    Err(error) => return Ok(Err(error)),
                };
                if !is_of(&there, task) {
                    return Ok(Err(error));
                }
                if there.get("state").is_some_and(|state| state == "active") {
                    return Ok(Ok(there));
                }
            }
            Err(error) => return Ok(Err(error)),
            Ok(_) => {}
        }
        let opened = tokio::fs::File::open(file).await;
        let body = ReaderStream::new(opened.map_err(|e| files::failed("open", file, e))?);
        let mut url = endpoint(base, &["images", &image, "file"]);
        url.query_pairs_mut()
            .append_pair("compression", &what.compression)
            .append_pair("sha256", &what.packed.sha256);
        let uploaded = self.send(Method::PUT, &url, |request| {
            request
                .header("content-type", "application/octet-stream")
                .header("content-length", what.packed.size_bytes)
                .timeout(UPLOAD_LIMIT)
                .body(Body::wrap_stream(body))
        });
        if let Err(error) = uploaded.await {
            return Ok(Err(error));
        }
        let mut url = endpoint(base, &["images", &image]);
        url.query_pairs_mut().append_pair("action", "activate");
        Ok(self.send(Method::POST, &url, |request| request).await)
    }

    /// Removes an image that a task has published, or has begun to; none is no error.
    pub(super) async fn withdraw(
        &self,
        task: &TaskId,
        url: Option<&Url>,
        image: ImageUuid,
    ) -> Result<(), DriverError> {
        let base = self.target(url)?;
        let url = endpoint(&base, &["images", &image.to_string()]);
        let mut attempt = 0;
        loop {
            self.pause(attempt).await;
            attempt += 1;
            let done = match self.send(Method::GET, &url, |request| request).await {
                Ok(there) if is_of(&there, task) => {
                    self.send(Method::DELETE, &url, |request| request).await.map(drop)
                }
                Ok(_) => return Ok(()),
                Err(error) => Err(error),
            };
            match done {
                Ok(()) => return Ok(()),
                Err(UploadError::Status { status: StatusCode::NOT_FOUND, .. }) => return Ok(()),
                Err(error) if error.may_pass() && attempt < MAX_ATTEMPTS => {}
                Err(error) => return Err(error.into_driver(image)),
            }
        }
    }

    async fn send(
        &self,
        method: Method,
        url: &Url,
        build: impl FnOnce(RequestBuilder) -> RequestBuilder,
    ) -> Result<Value, UploadError> {
        let transport = |source: reqwest::Error| UploadError::Transport {
            method: method.clone(),
            url: url.clone(),
            source: source.without_url(),
        };
        let request = build(self.request_of(method.clone(), url));
        let response = request.send().await.map_err(transport)?;
        let status = response.status();
        let answer = self.small(response).await.map_err(transport)?;
        if status.is_success() {
            return Ok(answer);
        }
        let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or_default();
        let (code, message) = (text("code").to_owned(), text("message").to_owned());
        Err(UploadError::Status { method, url: url.clone(), status, code, message })
    }
}

/// Whether an image is one that the task made.
fn is_of(manifest: &Value, task: &TaskId) -> bool {
    let tag = manifest.get("tags").and_then(|tags| tags.get(TASK_TAG)).and_then(Value::as_str);
    tag == Some(task.as_str())
}
