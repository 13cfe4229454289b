//! The image repositories that a node installs from: the coordinators, or configured ones.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use muster_shared::backoff::Backoff;
use muster_shared::entropy::SharedEntropy;
use muster_shared::error_chain::Chain;
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use reqwest::header::{AUTHORIZATION, HeaderValue, LOCATION, RANGE};
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use url::{Origin, Url};

use crate::drivers::DriverError;

/// A repository that takes longer to accept a connection is tried again later.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A transfer on which nothing arrives for this long is given up and resumed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Attempts without progress, over all sources, before a fetch fails.
pub(super) const MAX_ATTEMPTS: u32 = 8;
/// Largest manifest that is read.
const MAX_MANIFEST_BYTES: usize = 1024 * 1024;
/// Redirects that are followed, e.g. to a blob store.
const MAX_REDIRECTS: usize = 5;

/// Where images come from: the configured repositories, or else the coordinators, whose HTTP
/// address is that of their websocket.
#[must_use]
pub fn sources(configured: &[Url], coordinators: &[Url]) -> Vec<Url> {
    if !configured.is_empty() {
        return configured.to_vec();
    }
    coordinators.iter().filter_map(http_of).collect()
}

/// Where a coordinator serves HTTP.
fn http_of(coordinator: &Url) -> Option<Url> {
    let scheme = match coordinator.scheme() {
        "wss" | "https" => "https",
        _ => "http",
    };
    // Url::set_scheme refuses to go from ws to http, so the text is put together anew.
    let host = coordinator.host_str()?;
    let port = coordinator.port().map(|port| format!(":{port}")).unwrap_or_default();
    Url::parse(&format!("{scheme}://{host}{port}/")).ok()
}

/// How the agent shows itself to its coordinators and knows them, as on its link. Nobody else gets
/// to see any of it.
#[derive(Clone, Default)]
pub struct Credentials {
    coordinators: Vec<Origin>,
    tls: Option<Arc<rustls::ClientConfig>>,
    bearer: Option<HeaderValue>,
}

/// Without the token.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Those for `coordinators`, given by the URLs of their websockets. Without `tls` the machine's
    /// own authorities are trusted.
    ///
    /// # Errors
    /// The token holds bytes that no header may hold.
    pub fn new(
        coordinators: &[Url],
        tls: Option<Arc<rustls::ClientConfig>>,
        token: Option<&str>,
    ) -> Result<Self, reqwest::header::InvalidHeaderValue> {
        let bearer = token.map(|token| HeaderValue::from_str(&format!("Bearer {token}")));
        let mut bearer = bearer.transpose()?;
        bearer.iter_mut().for_each(|value| value.set_sensitive(true));
        let coordinators = coordinators.iter().filter_map(http_of).map(|url| url.origin());
        Ok(Self { coordinators: coordinators.collect(), tls, bearer })
    }
}

/// Talks to the repositories.
#[derive(Debug)]
pub(super) struct Repository {
    /// For coordinators.
    own: Client,
    /// For everybody else, also where a coordinator leads to.
    others: Client,
    /// The same two for what is sent to them: the answer comes once all of it is there.
    own_uploads: Client,
    other_uploads: Client,
    credentials: Credentials,
    sources: Vec<Url>,
    entropy: SharedEntropy,
    backoff: Backoff,
}

/// A request to a repository failed in a way that may pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    #[error("GET {url}")]
    Transport {
        url: Url,
        #[source]
        source: reqwest::Error,
    },
    #[error("GET {url}: status {status}")]
    Status { url: Url, status: StatusCode },
    #[error("GET {url}: the answer is over {limit} bytes")]
    TooLarge { url: Url, limit: usize },
    #[error("GET {url}: not a JSON object")]
    NotJson { url: Url },
}

/// The start of a file's transfer.
#[derive(Debug)]
pub(super) struct Transfer {
    /// The first byte that the answer holds.
    pub(super) offset_bytes: u64,
    /// The bytes.
    pub(super) response: reqwest::Response,
    /// For messages.
    pub(super) url: Url,
}

impl Repository {
    pub(super) fn new(
        sources: Vec<Url>,
        credentials: Credentials,
        entropy: SharedEntropy,
    ) -> Result<Self, DriverError> {
        muster_shared::tls::install_provider();
        let tls = credentials.tls.as_deref();
        let own = client(tls, Some(IDLE_TIMEOUT))?;
        let others = client(None, Some(IDLE_TIMEOUT))?;
        let (own_uploads, other_uploads) = (client(tls, None)?, client(None, None)?);
        let backoff = Backoff::RECONNECT;
        Ok(Self { own, others, own_uploads, other_uploads, credentials, sources, entropy, backoff })
    }

    /// Waits before attempt number `attempt` (from 0, which does not wait).
    pub(super) async fn pause(&self, attempt: u32) {
        if let Some(failed) = attempt.checked_sub(1) {
            tokio::time::sleep(self.backoff.delay(failed, self.entropy.fraction())).await;
        }
    }

    /// The manifest, and the number of the source that has the image.
    pub(super) async fn manifest(&self, image: ImageUuid) -> Result<(Value, usize), DriverError> {
        let mut last = None;
        for attempt in 0..MAX_ATTEMPTS {
            self.pause(attempt).await;
            last = None;
            for (index, source) in self.sources.iter().enumerate() {
                match self.try_manifest(source, image).await {
                    Ok(manifest) => return Ok((manifest, index)),
                    Err(FetchError::Status { status: StatusCode::NOT_FOUND, .. }) => {}
                    Err(error) => {
                        tracing::warn!(image_uuid = %image, attempt, error = %Chain(&error),
                            "cannot read an image's manifest");
                        last = Some(error);
                    }
                }
            }
            // Every source answered, and none has it.
            if last.is_none() {
                break;
            }
        }
        match last {
            Some(error) => Err(unavailable(image, &error)),
            None => {
                let urls: Vec<&str> = self.sources.iter().map(Url::as_str).collect();
                Err(super::not_found(image, &format!(" in {}", urls.join(", "))))
            }
        }
    }

    async fn try_manifest(&self, source: &Url, image: ImageUuid) -> Result<Value, FetchError> {
        let url = endpoint(source, &["images", &image.to_string()]);
        let mut response = self.get(&url, 0).await?;
        let mut body = BytesMut::new();
        loop {
            let chunk = response.chunk().await;
            let transport = |source| FetchError::Transport { url: url.clone(), source };
            let Some(chunk) = chunk.map_err(transport)? else { break };
            if body.len().saturating_add(chunk.len()) > MAX_MANIFEST_BYTES {
                return Err(FetchError::TooLarge { url, limit: MAX_MANIFEST_BYTES });
            }
            body.extend_from_slice(&chunk);
        }
        match serde_json::from_slice(&body) {
            Ok(Value::Object(manifest)) => Ok(Value::Object(manifest)),
            _ => Err(FetchError::NotJson { url }),
        }
    }

    /// Opens the image's file from `offset_bytes` on; a repository may start over from 0.
    /// `attempt` moves on to the next source.
    pub(super) async fn file(
        &self,
        image: ImageUuid,
        first_source: usize,
        attempt: u32,
        offset_bytes: u64,
    ) -> Result<Transfer, FetchError> {
        let count = self.sources.len().max(1);
        let turn = usize::try_from(attempt).unwrap_or(0);
        let source = &self.sources[(first_source + turn) % count];
        let url = endpoint(source, &["images", &image.to_string(), "file"]);
        let response = match self.get(&url, offset_bytes).await {
            // Nothing after the offset: the partial file is longer than the real one.
            Err(FetchError::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) => {
                self.get(&url, 0).await?
            }
            other => other?,
        };
        let starts_at = if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(reqwest::header::CONTENT_RANGE);
            range.and_then(|range| first_byte(range.to_str().ok()?)).unwrap_or(offset_bytes)
        } else {
            0
        };
        Ok(Transfer { offset_bytes: starts_at, response, url })
    }

    async fn get(&self, url: &Url, offset_bytes: u64) -> Result<reqwest::Response, FetchError> {
        let mut url = url.clone();
        let mut redirects = 0;
        loop {
            let sent = self.request(&url, offset_bytes).send().await;
            let response =
                sent.map_err(|source| FetchError::Transport { url: url.clone(), source })?;
            if response.status().is_success() {
                return Ok(response);
            }
            match redirect(&url, &response) {
                Some(next) if redirects < MAX_REDIRECTS => url = next,
                _ => return Err(FetchError::Status { url, status: response.status() }),
            }
            redirects += 1;
        }
    }

    /// Where an image goes: what was asked for, or the first of the sources.
    ///
    /// # Errors
    /// `ImageUnavailable`: there are none.
    pub(super) fn target(&self, wanted: Option<&Url>) -> Result<Url, DriverError> {
        let found = wanted.or(self.sources.first()).cloned();
        let text = "there is no repository for images";
        found.ok_or_else(|| DriverError::refused(Code::ImageUnavailable, text))
    }

    /// A redirect may lead anywhere, so who is asked decides each time about what is shown.
    pub(super) fn request_of(&self, method: Method, url: &Url) -> reqwest::RequestBuilder {
        let own = self.credentials.coordinators.contains(&url.origin());
        let client = match (own, method == Method::PUT) {
            (true, false) => &self.own,
            (false, false) => &self.others,
            (true, true) => &self.own_uploads,
            (false, true) => &self.other_uploads,
        };
        let request = client.request(method, url.clone());
        match &self.credentials.bearer {
            Some(bearer) if own => request.header(AUTHORIZATION, bearer),
            _ => request,
        }
    }

    /// The JSON of an answer that is no larger than a manifest; null of any other.
    pub(super) async fn small(
        &self,
        mut response: reqwest::Response,
    ) -> Result<Value, reqwest::Error> {
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len().saturating_add(chunk.len()) > MAX_MANIFEST_BYTES {
                return Ok(Value::Null);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(serde_json::from_slice(&body).unwrap_or_default())
    }

    fn request(&self, url: &Url, offset_bytes: u64) -> reqwest::RequestBuilder {
        let mut request = self.request_of(Method::GET, url);
        if offset_bytes > 0 {
            request = request.header(RANGE, format!("bytes={offset_bytes}-"));
        }
        request
    }
}

/// A client that follows no redirects.
fn client(
    tls: Option<&rustls::ClientConfig>,
    idle: Option<Duration>,
) -> Result<Client, DriverError> {
    let mut builder = Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none())
        // Like the agent's websockets: what reaches the coordinator reaches its images.
        .no_proxy()
        .user_agent(concat!("muster-agent/", env!("CARGO_PKG_VERSION")));
    if let Some(idle) = idle {
        builder = builder.read_timeout(idle);
    }
    if let Some(tls) = tls {
        builder = builder.tls_backend_preconfigured(tls.clone());
    }
    builder.build().map_err(|e| DriverError::failed("set up the client for images", e))
}

/// Where an answer sends its client on to, e.g. a blob store.
fn redirect(from: &Url, response: &reqwest::Response) -> Option<Url> {
    let location = response.headers().get(LOCATION).filter(|_| response.status().is_redirection());
    let next = from.join(location?.to_str().ok()?).ok()?;
    matches!(next.scheme(), "http" | "https").then_some(next)
}

/// `ImageUnavailable`: no repository gave what it should have.
pub(super) fn unavailable(image: ImageUuid, error: &FetchError) -> DriverError {
    let text = format!("image {image} cannot be fetched: {error}");
    match error.source() {
        Some(cause) => {
            DriverError::refused_because(Code::ImageUnavailable, text, Chain(cause).to_string())
        }
        None => DriverError::refused(Code::ImageUnavailable, text),
    }
}

pub(super) fn endpoint(base: &Url, segments: &[&str]) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// `bytes 10-19/20` → 10.
fn first_byte(content_range: &str) -> Option<u64> {
    content_range.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(texts: &[&str]) -> Vec<Url> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn a_coordinator_serves_images_where_it_serves_websockets() {
        let coordinators = urls(&["ws://127.0.0.1:8480/agent", "wss://muster.example.com"]);
        assert_eq!(
            sources(&[], &coordinators),
            urls(&["http://127.0.0.1:8480/", "https://muster.example.com/"])
        );
        let configured = urls(&["https://images.example.com/base/"]);
        assert_eq!(sources(&configured, &coordinators), configured);
    }

    #[test]
    fn endpoints_keep_the_path_of_their_base() {
        let bases = urls(&["http://h/base/", "http://h/base", "http://h"]);
        let made: Vec<String> =
            bases.iter().map(|base| endpoint(base, &["images", "u"]).to_string()).collect();
        assert_eq!(made, ["http://h/base/images/u", "http://h/base/images/u", "http://h/images/u"]);
    }

    #[test]
    fn content_ranges_are_read() {
        assert_eq!(first_byte("bytes 10-19/20"), Some(10));
        assert_eq!(first_byte("items 1-2/3"), None);
    }
}
