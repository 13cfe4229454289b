//! What is POSTed to a CNAPI, one request at a time: sysinfo and agents first, then a heartbeat 5 s
//! after the last one, the status when it has changed and once a minute, the sysinfo when it has
//! changed.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::backoff::Backoff;
use muster_shared::entropy::SharedEntropy;
use muster_shared::error_chain::Chain;
use muster_shared::ids::ServerUuid;
use reqwest::StatusCode;
use serde_json::{Map, Value, json};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use url::Url;

use crate::report::feed::{Feed, PoolAge, Sample};

/// Between the end of a heartbeat and the next one.
const BEAT: Duration = Duration::from_secs(5);
/// Least time between two status updates.
const STATUS_GAP: Duration = Duration::from_secs(5);
/// A status update without any change.
const STATUS_PERIOD: Duration = Duration::from_secs(60);
/// Between attempts to register.
const REGISTER: Backoff =
    Backoff { first: Duration::from_millis(500), factor: 1.6, cap: Duration::from_secs(120) };
/// Longest wait for a connection, and for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Reports to one CNAPI.
#[derive(Debug)]
pub struct Poster {
    http: reqwest::Client,
    base: Url,
    server: ServerUuid,
    feed: Arc<dyn Feed>,
    entropy: SharedEntropy,
}

/// Why a request had no effect.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("send it")]
    Http(#[from] reqwest::Error),
    #[error("it was answered {0}")]
    Status(StatusCode),
}

impl Poster {
    /// Nothing is sent yet.
    ///
    /// # Errors
    /// The TLS settings of this machine can't be used.
    pub fn new(
        base: Url,
        server: ServerUuid,
        feed: Arc<dyn Feed>,
        entropy: SharedEntropy,
    ) -> reqwest::Result<Self> {
        let http = reqwest::Client::builder()
            .connect_timeout(TIMEOUT)
            .timeout(TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        Ok(Self { http, base, server, feed, entropy })
    }

    /// Reports until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.report()).await;
    }

    async fn report(&self) {
        let mut sysinfo = self.feed.sysinfo();
        let mut vms = self.feed.changed();
        sysinfo.mark_unchanged();
        self.register().await;
        let mut beat = pin!(sleep(Duration::ZERO));
        let mut quiet = pin!(sleep(Duration::ZERO));
        let mut period = pin!(sleep(STATUS_PERIOD));
        let mut dirty = true;
        loop {
            tokio::select! {
                biased;
                () = beat.as_mut() => {
                    self.tell("a heartbeat", "/events/heartbeat", &json!({})).await;
                    beat.set(sleep(BEAT));
                }
                Ok(()) = sysinfo.changed() => {
                    sysinfo.mark_unchanged();
                    self.register().await;
                }
                () = quiet.as_mut(), if dirty => {
                    // First: what changes while the status is on its way is not in it.
                    vms.mark_unchanged();
                    dirty = !self.status().await;
                    quiet.set(sleep(STATUS_GAP));
                    period.set(sleep(STATUS_PERIOD));
                }
                Ok(()) = vms.changed() => dirty = true,
                () = period.as_mut() => {
                    dirty = true;
                    period.set(sleep(STATUS_PERIOD));
                }
            }
        }
    }

    /// Says who this server is, until that is known: without a record nothing else counts.
    async fn register(&self) {
        for attempt in 0.. {
            let document = self.feed.sysinfo().borrow().clone();
            let sysinfo = json!({ "sysinfo": document.sysinfo });
            let agents = json!({ "agents": document.agents });
            let sent = match self.post("/sysinfo", &sysinfo).await {
                // It is too old to take one.
                Err(PostError::Status(StatusCode::NOT_FOUND)) | Ok(()) => {
                    self.post("", &agents).await
                }
                Err(error) => Err(error),
            };
            match sent {
                Ok(()) => return tracing::info!(cnapi = %self.base, "registered"),
                Err(error) => {
                    tracing::warn!(cnapi = %self.base, error = %Chain(&error), "cannot register");
                    sleep(REGISTER.delay(attempt, self.entropy.fraction())).await;
                }
            }
        }
    }

    /// `true` when it has arrived.
    async fn status(&self) -> bool {
        match self.feed.sample(PoolAge::Fresh).await {
            Ok(sample) => self.tell("a status update", "/events/status", &update(&sample)).await,
            Err(error) => {
                tracing::warn!(error = %Chain(&error), "no status sample");
                false
            }
        }
    }

    async fn tell(&self, what: &str, path: &str, body: &Value) -> bool {
        match self.post(path, body).await {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(cnapi = %self.base, what, error = %Chain(&error), "not told");
                false
            }
        }
    }

    async fn post(&self, path: &str, body: &Value) -> Result<(), PostError> {
        let base = self.base.as_str().trim_end_matches('/');
        let url = format!("{base}/servers/{}{path}", self.server);
        let answer = self.http.post(url).json(body).send().await?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(PostError::Status(status)),
        }
    }
}

/// A sample in CNAPI's form, which knows nine members of a VM.
fn update(sample: &Sample) -> Value {
    let vms: Map<String, Value> =
        sample.vms.iter().map(|(uuid, report)| (uuid.to_string(), json!(report.vm))).collect();
    let figures = &sample.figures;
    json!({
        "vms": vms,
        "zpoolStatus": figures.zpool_status,
        "meminfo": figures.meminfo,
        "diskinfo": figures.diskinfo,
        "boot_time": figures.boot_time,
        "timestamp": figures.timestamp,
    })
}
