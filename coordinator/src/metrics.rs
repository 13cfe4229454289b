//! Prometheus metrics. Families of CNAPI's names are present at 0 from the start.

use std::collections::BTreeSet;
use std::fmt;

use muster_shared::exposition::escape;
use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeLabelSet, text};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};

use crate::roster::Tally;

/// The reference's name of this counter, which has no suffix.
const REQUESTS_COMPLETED: &str = "http_requests_completed";
/// Most user agents that get a label of their own; later ones are counted as `other`. Each is a
/// series for every route and status.
const MAX_USER_AGENTS: usize = 20;
/// Most kinds of tasks that get a label of their own.
const MAX_TASK_KINDS: usize = 100;
/// What has no label of its own.
const OTHER: &str = "other";
/// Longest user agent label, bytes.
const MAX_USER_AGENT_BYTES: usize = 64;
/// Upper bounds of the request duration's buckets, seconds; waits last up to an hour.
const DURATION_BUCKETS_S: [f64; 14] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0, 600.0, 3600.0];

/// Labels of the HTTP metrics.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct HttpLabels {
    route: String,
    method: String,
    user_agent: String,
    status_code: u16,
    buckets_version: &'static str,
}

/// Labels of the HTTP metrics under Muster's own names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: String,
    code: u16,
}

/// Labels of ended tasks.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TaskLabels {
    task: String,
    outcome: &'static str,
}

/// Labels of decisions where a VM goes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlacementLabels {
    asked_by: &'static str,
    outcome: &'static str,
}

/// Values of a label that come from outside: the first few, and `other`.
#[derive(Debug, Default)]
struct Names(Mutex<Vec<String>>);

impl Names {
    fn label(&self, name: &str, most: usize) -> String {
        let mut known = self.0.lock();
        if known.iter().any(|known| known == name) {
            return name.to_owned();
        }
        if known.len() >= most {
            return OTHER.to_owned();
        }
        known.push(name.to_owned());
        name.to_owned()
    }
}

/// The metrics of one coordinator.
pub struct Metrics {
    registry: Mutex<Registry>,
    static_labels: String,
    user_agents: Names,
    task_kinds: Names,
    requests: Family<RequestLabels, Counter>,
    request_seconds: Family<RequestLabels, Histogram, fn() -> Histogram>,
    tasks: Family<TaskLabels, Counter>,
    placements: Family<PlacementLabels, Counter>,
    completed: Family<HttpLabels, Counter>,
    duration: Family<HttpLabels, Histogram, fn() -> Histogram>,
    /// Servers whose heartbeats this instance hears.
    pub heartbeating_servers: Gauge,
    /// Heartbeats from servers that were not remembered.
    pub new_heartbeaters: Counter,
    /// Servers found stale.
    pub stale_heartbeaters: Counter,
    /// Another instance had a newer heartbeat.
    pub usurped_heartbeaters: Counter,
    /// Server record writes by the roster.
    pub server_put: Counter,
    /// Server record writes that lost a race.
    pub server_put_etag_failures: Counter,
    /// Server record writes that failed.
    pub server_put_failures: Counter,
    /// Status record writes.
    pub status_put: Counter,
    /// Status record writes that lost a race.
    pub status_put_etag_failures: Counter,
    /// Status record writes that failed.
    pub status_put_failures: Counter,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

/// The labels that every metric of a coordinator carries.
#[derive(Clone, Debug, Default)]
pub struct StaticLabels {
    /// Name of the datacentre.
    pub datacenter: String,
    /// The coordinator's instance id.
    pub instance: String,
    /// The host's name.
    pub server: String,
}

impl Metrics {
    /// All families, at 0.
    #[must_use]
    pub fn new(labels: &StaticLabels) -> Self {
        let labels = [
            ("datacenter", labels.datacenter.clone()),
            ("instance", labels.instance.clone()),
            ("server", labels.server.clone()),
            ("service", "cnapi".to_owned()),
        ];
        let written =
            labels.each_ref().map(|(name, value)| format!("{name}=\"{}\"", escape(value)));
        let labels = labels.map(|(name, value)| (name.into(), value.into()));
        let histogram: fn() -> Histogram = || Histogram::new(DURATION_BUCKETS_S);
        let metrics = Self {
            registry: Mutex::new(Registry::with_labels(labels.into_iter())),
            static_labels: written.join(","),
            user_agents: Names::default(),
            task_kinds: Names::default(),
            requests: Family::default(),
            request_seconds: Family::new_with_constructor(histogram),
            tasks: Family::default(),
            placements: Family::default(),
            completed: Family::default(),
            duration: Family::new_with_constructor(histogram),
            heartbeating_servers: Gauge::default(),
            new_heartbeaters: Counter::default(),
            stale_heartbeaters: Counter::default(),
            usurped_heartbeaters: Counter::default(),
            server_put: Counter::default(),
            server_put_etag_failures: Counter::default(),
            server_put_failures: Counter::default(),
            status_put: Counter::default(),
            status_put_etag_failures: Counter::default(),
            status_put_failures: Counter::default(),
        };
        metrics.register_all();
        // A family without a member is not shown at all.
        let nothing = metrics.http_labels(None, "GET", "unknown", 404);
        drop(metrics.completed.get_or_create(&nothing));
        drop(metrics.duration.get_or_create(&nothing));
        for asked_by in ["create", "allocate"] {
            for outcome in ["placed", "refused"] {
                drop(metrics.placements.get_or_create(&PlacementLabels { asked_by, outcome }));
            }
        }
        metrics
    }

    fn register_all(&self) {
        self.register(
            "heartbeating_servers_count",
            "Servers in this instance's heartbeat map",
            self.heartbeating_servers.clone(),
        );
        // The encoder adds `_total` to the names of counters.
        let counters = [
            ("reconciler_new_heartbeaters", "Heartbeats from new servers", &self.new_heartbeaters),
            ("reconciler_stale_heartbeaters", "Servers found stale", &self.stale_heartbeaters),
            (
                "reconciler_usurped_heartbeaters",
                "Servers with a newer heartbeat at another instance",
                &self.usurped_heartbeaters,
            ),
            ("reconciler_server_put", "Server record writes", &self.server_put),
            (
                "reconciler_server_put_etag_failures",
                "Server record writes that lost a race",
                &self.server_put_etag_failures,
            ),
            (
                "reconciler_server_put_failures",
                "Server record writes that failed",
                &self.server_put_failures,
            ),
            ("reconciler_status_put", "Status record writes", &self.status_put),
            (
                "reconciler_status_put_etag_failures",
                "Status record writes that lost a race",
                &self.status_put_etag_failures,
            ),
            (
                "reconciler_status_put_failures",
                "Status record writes that failed",
                &self.status_put_failures,
            ),
            (
                "reconciler_status_failures",
                "Deprecated alias of reconciler_status_put_failures_total",
                &self.status_put_failures,
            ),
        ];
        for (name, help, counter) in counters {
            self.register(name, help, counter.clone());
        }
        self.register(
            "muster_servers_heard",
            "Servers that this coordinator hears",
            self.heartbeating_servers.clone(),
        );
        self.register("muster_http_requests", "Requests answered", self.requests.clone());
        self.register(
            "muster_http_request_duration_seconds",
            "Time from the first byte of a request to its answer",
            self.request_seconds.clone(),
        );
        self.register(
            "muster_tasks_finished",
            "Tasks ended, by kind and outcome",
            self.tasks.clone(),
        );
        self.register(
            "muster_placements",
            "Decisions where a VM goes, and those that found no server",
            self.placements.clone(),
        );
        self.register(REQUESTS_COMPLETED, "Requests answered", self.completed.clone());
        self.register(
            "http_request_duration_seconds",
            "Time from the first byte of a request to its answer",
            self.duration.clone(),
        );
    }

    /// Adds a metric of another part of the coordinator. Counters get the suffix `_total`.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.registry.lock().register(name, help, metric);
    }

    /// Takes over what the roster counted.
    pub(crate) fn count_heartbeats(&self, tally: Tally) {
        self.heartbeating_servers.set(i64::try_from(tally.heard).unwrap_or(i64::MAX));
        for (counter, total) in
            [(&self.new_heartbeaters, tally.new), (&self.stale_heartbeaters, tally.stale)]
        {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }

    /// Counts one answered request.
    pub(crate) fn observe_request(
        &self,
        operation: Option<&str>,
        method: &str,
        user_agent: &str,
        status: u16,
        elapsed_s: f64,
    ) {
        let labels = self.http_labels(operation, method, user_agent, status);
        self.completed.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(elapsed_s);
        let operation = operation.unwrap_or("unknown").to_owned();
        let labels = RequestLabels { operation, code: status };
        self.requests.get_or_create(&labels).inc();
        self.request_seconds.get_or_create(&labels).observe(elapsed_s);
    }

    /// Counts a task that has ended.
    pub(crate) fn count_task(&self, kind: &str, outcome: &'static str) {
        let task = self.task_kinds.label(kind, MAX_TASK_KINDS);
        self.tasks.get_or_create(&TaskLabels { task, outcome }).inc();
    }

    /// Counts a decision where a VM goes.
    pub(crate) fn count_placement(&self, asked_by: &'static str, placed: bool) {
        let outcome = if placed { "placed" } else { "refused" };
        self.placements.get_or_create(&PlacementLabels { asked_by, outcome }).inc();
    }

    fn http_labels(
        &self,
        operation: Option<&str>,
        method: &str,
        user_agent: &str,
        status: u16,
    ) -> HttpLabels {
        HttpLabels {
            route: operation.unwrap_or("unknown").to_ascii_lowercase(),
            method: method_label(method).to_owned(),
            user_agent: self.user_agent_label(user_agent),
            status_code: status,
            buckets_version: "1",
        }
    }

    /// The first token; a client that varies it can't make the metrics grow without bound.
    fn user_agent_label(&self, user_agent: &str) -> String {
        let token = user_agent.split_whitespace().next().unwrap_or("unknown");
        if token.len() > MAX_USER_AGENT_BYTES {
            return OTHER.to_owned();
        }
        self.user_agents.label(token, MAX_USER_AGENTS)
    }

    /// All metrics in Prometheus' text format, version 0.0.4.
    ///
    /// # Errors
    /// A metric that can't be encoded.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut encoded = String::new();
        text::encode(&mut encoded, &self.registry.lock())?;
        Ok(to_classic(&encoded))
    }

    /// The labels that every metric carries, as they stand in the text: `a="b",c="d"`.
    #[must_use]
    pub fn static_labels(&self) -> &str {
        &self.static_labels
    }
}

/// The library writes OpenMetrics, where a counter's description names it without the suffix
/// `_total` and the text ends in a marker. The older format, which everything reads, wants the
/// same name in both places. [`REQUESTS_COMPLETED`] has no suffix in the reference.
fn to_classic(text: &str) -> String {
    let described = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: BTreeSet<&str> =
        described.filter_map(|line| line.strip_suffix(" counter")).collect();
    let mut classic = String::with_capacity(text.len());
    for line in text.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let (hash, kind, name, rest) = (words.next(), words.next(), words.next(), words.next());
        match (hash, kind, name, rest) {
            (Some("#"), Some(kind), Some(name), Some(rest)) if counters.contains(name) => {
                let suffix = if name == REQUESTS_COMPLETED { "" } else { "_total" };
                classic += &format!("# {kind} {name}{suffix} {rest}\n");
            }
            _ => {
                let sample = line.strip_prefix(REQUESTS_COMPLETED);
                match sample.and_then(|rest| rest.strip_prefix("_total")) {
                    Some(rest) => classic += &format!("{REQUESTS_COMPLETED}{rest}\n"),
                    None => classic += &format!("{line}\n"),
                }
            }
        }
    }
    classic
}

/// Methods that a client makes up are one.
fn method_label(method: &str) -> &str {
    match method {
        "GET" | "POST" | "PUT" | "DELETE" | "HEAD" | "OPTIONS" | "PATCH" => method,
        _ => OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_contract_s_names_are_there_from_the_start() {
        let metrics = Metrics::new(&StaticLabels {
            datacenter: "dc1".to_owned(),
            instance: "i".to_owned(),
            server: "h".to_owned(),
        });
        let text = metrics.text().unwrap();
        let labels = r#"{datacenter="dc1",instance="i",server="h",service="cnapi"}"#;
        for name in [
            "heartbeating_servers_count",
            "reconciler_new_heartbeaters_total",
            "reconciler_stale_heartbeaters_total",
            "reconciler_usurped_heartbeaters_total",
            "reconciler_server_put_total",
            "reconciler_server_put_etag_failures_total",
            "reconciler_server_put_failures_total",
            "reconciler_status_put_total",
            "reconciler_status_put_etag_failures_total",
            "reconciler_status_put_failures_total",
            "reconciler_status_failures_total",
        ] {
            assert!(text.contains(&format!("\n{name}{labels} 0\n")), "{name} in {text}");
            assert!(text.contains(&format!("# TYPE {name} ")), "{name} in {text}");
        }
        for name in ["http_requests_completed", "http_request_duration_seconds_count"] {
            let zero = format!(
                "\n{name}{},route=\"unknown\",method=\"GET\",user_agent=\"unknown\",\
                 status_code=\"404\",buckets_version=\"1\"}} 0\n",
                &labels[..labels.len() - 1]
            );
            assert!(text.contains(&zero), "{zero} in {text}");
        }
        assert_eq!(format!("{{{}}}", metrics.static_labels()), labels);
        assert!(!text.contains("# EOF"));
        metrics.observe_request(Some("ServerList"), "GET", "restify/1.0 (x; y)", 200, 0.002);
        let text = metrics.text().unwrap();
        assert!(text.contains("http_requests_completed{"), "{text}");
        assert!(text.contains(r#"route="serverlist",method="GET",user_agent="restify/1.0","#));
        assert!(text.contains("http_request_duration_seconds_bucket{"), "{text}");
    }

    #[test]
    fn muster_s_own_names_follow_prometheus_conventions() {
        let metrics = Metrics::new(&StaticLabels::default());
        metrics.observe_request(Some("ServerList"), "GET", "x", 200, 0.002);
        metrics.count_task("machine_create", "failure");
        metrics.count_placement("create", false);
        metrics.heartbeating_servers.set(3);
        let text = metrics.text().unwrap();
        for (name, labels, value) in [
            ("muster_http_requests_total", r#"operation="ServerList",code="200""#, 1),
            ("muster_tasks_finished_total", r#"task="machine_create",outcome="failure""#, 1),
            ("muster_placements_total", r#"asked_by="create",outcome="refused""#, 1),
            ("muster_placements_total", r#"asked_by="allocate",outcome="refused""#, 0),
            ("muster_servers_heard", r#"service="cnapi""#, 3),
        ] {
            let ends = format!("{labels}}} {value}");
            let found = text.lines().any(|line| line.starts_with(name) && line.ends_with(&ends));
            assert!(found, "{name}{{…{ends} in {text}");
            assert!(text.contains(&format!("# TYPE {name} ")), "{name} in {text}");
        }
        assert!(text.contains("muster_http_request_duration_seconds_bucket{"), "{text}");
    }

    #[test]
    fn user_agents_do_not_grow_the_metrics_without_bound() {
        let metrics = Metrics::new(&StaticLabels::default());
        for n in 0..1000 {
            metrics.observe_request(None, &format!("M{n}"), &format!("agent/{n}"), 404, 0.0);
        }
        let text = metrics.text().unwrap();
        let series = text.lines().filter(|line| line.starts_with("http_requests_completed{"));
        // One of them is there from the start, as `unknown`; the last is `other`.
        assert_eq!(series.count(), MAX_USER_AGENTS + 1);
    }
}
