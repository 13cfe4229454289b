//! Logging of the daemons: tracing events to stderr, with a filter that can be changed at run time.

use std::fmt;
use std::io::IsTerminal as _;

use serde::{Deserialize, Serialize};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt as text, reload};
use utoipa::ToSchema;

use crate::config::{Check, Problems};

/// What is logged, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct LogConfig {
    /// `error`, `warn`, `info`, `debug` or `trace`, or a list by module, e.g.
    /// `info,muster_agent::link=debug`.
    pub filter: String,
    /// One line of text or one JSON object per event.
    pub format: LogFormat,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { filter: "info".to_owned(), format: LogFormat::Text }
    }
}

impl Check for LogConfig {
    fn check(&self, problems: &mut Problems) {
        if let Err(error) = parse(&self.filter) {
            problems.add("filter", error.to_string());
        }
    }
}

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Changes what is logged while the program runs.
#[derive(Clone)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl").field("filter", &self.filter()).finish()
    }
}

/// Logging can't be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter's text.
    #[error("{filter:?} is no log filter ({source})")]
    Filter {
        /// The text.
        filter: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// The process has a logger already.
    #[error("logging is set up already")]
    Twice(#[source] tracing_subscriber::util::TryInitError),
    /// The logger is gone, at the end of the process.
    #[error("the logger is gone")]
    Gone(#[source] reload::Error),
}

impl LogControl {
    /// Sets a new filter, in the form of [`LogConfig::filter`].
    ///
    /// # Errors
    /// [`TelemetryError::Filter`] for a bad text; the old filter then stays.
    pub fn set(&self, filter: &str) -> Result<(), TelemetryError> {
        let parsed = parse(filter)?;
        self.filter.reload(parsed).map_err(TelemetryError::Gone)
    }

    /// The filter in force.
    #[must_use]
    pub fn filter(&self) -> String {
        self.filter.with_current(ToString::to_string).unwrap_or_default()
    }
}

/// Starts logging to stderr, for the whole process. Colours only on a terminal.
///
/// # Errors
/// [`TelemetryError`] for a bad filter or a second start.
pub fn start(config: &LogConfig) -> Result<LogControl, TelemetryError> {
    let (filter, control) = reload::Layer::new(parse(&config.filter)?);
    let lines = text::layer().with_writer(std::io::stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .try_init()
        .map_err(TelemetryError::Twice)?;
    Ok(LogControl { filter: control })
}

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_is_changed_at_run_time_and_a_bad_one_changes_nothing() {
        let control = start(&LogConfig::default()).unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        control.set("info,muster_shared=debug").unwrap();
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        control.set("info,muster_shared=loud").unwrap_err();
        assert!(control.filter().contains("muster_shared=debug"), "{}", control.filter());
        assert!(matches!(start(&LogConfig::default()), Err(TelemetryError::Twice(_))));
    }

    #[test]
    fn bad_filter_is_a_problem_of_the_configuration() {
        let mut problems = Problems::default();
        LogConfig { filter: "info,x=loud".into(), ..LogConfig::default() }.check(&mut problems);
        let text = problems.into_result().unwrap_err().to_string();
        assert!(text.contains("filter: \"info,x=loud\" is no log filter"), "{text}");
    }
}
