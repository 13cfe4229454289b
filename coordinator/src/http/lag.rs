//! Measures how late the event loop is: work that keeps its threads makes everything late, from
//! answers to signs of life.

use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use tokio_util::sync::CancellationToken;

use crate::app::App;

/// How often it is looked.
const PERIOD: Duration = Duration::from_millis(100);
/// Lateness that is worth a line in the log.
const WARN: Duration = Duration::from_secs(1);
/// Upper bounds of the buckets, seconds.
const BUCKETS_S: [f64; 9] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Measures until `stop`.
pub(super) async fn watch(app: Arc<App>, stop: CancellationToken) {
    let lag = Histogram::new(BUCKETS_S);
    let largest = Gauge::<f64, std::sync::atomic::AtomicU64>::default();
    let metrics = app.metrics();
    metrics.register(
        "event_loop_lag_seconds",
        "How late work begins that is due, measured each 100 ms",
        lag.clone(),
    );
    metrics.register(
        "event_loop_lag_max_seconds",
        "The largest lag since the start",
        largest.clone(),
    );
    let clock = &app.parts().clock;
    loop {
        let due = clock.monotonic() + PERIOD;
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
        let late = clock.monotonic().saturating_sub(due);
        lag.observe(late.as_secs_f64());
        if late.as_secs_f64() > largest.get() {
            largest.set(late.as_secs_f64());
        }
        if late > WARN {
            let lag_ms = u64::try_from(late.as_millis()).unwrap_or(u64::MAX);
            tracing::warn!(lag_ms, "the event loop was held up");
        }
    }
}
