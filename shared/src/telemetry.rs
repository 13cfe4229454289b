//! Logging of the daemons: tracing events to stderr, with a filter that can be changed at run time.
//! The last lines are kept in memory, for those who ask for them.

mod capture;
mod ring;

use std::fmt;
use std::io::IsTerminal as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt as text, reload};
use utoipa::ToSchema;
use uuid::Uuid;

pub use self::ring::LogRing;

use self::capture::Capture;
use crate::clock::SharedClock;
use crate::config::{Check, Problems};

/// Levels of a filter.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

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

/// Changes what is logged while the program runs, and has the last lines.
#[derive(Clone)]
pub struct LogControl {
    filter: reload::Handle<EnvFilter, Registry>,
    ring: Arc<LogRing>,
}

impl fmt::Debug for LogControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogControl").field("filter", &self.filter()).finish()
    }
}

/// Logging can't be set up or changed.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// A word of the filter.
    #[error(
        "{word:?} is neither a level (off, error, warn, info, debug, trace) nor TARGET=LEVEL{meant}"
    )]
    Level {
        /// The word.
        word: String,
        /// The level that may have been meant.
        meant: String,
    },
    /// The filter's text.
    #[error("{filter:?} is not a log filter ({source})")]
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

    /// The last lines of what was logged.
    #[must_use]
    pub fn ring(&self) -> &Arc<LogRing> {
        &self.ring
    }
}

/// Starts logging to stderr, for the whole process, which has the name `instance` among those of
/// its program. Colours only on a terminal.
///
/// # Errors
/// [`TelemetryError`] for a bad filter or a second start.
pub fn start(
    config: &LogConfig,
    instance: Uuid,
    clock: SharedClock,
) -> Result<LogControl, TelemetryError> {
    let (filter, control) = reload::Layer::new(parse(&config.filter)?);
    let lines = text::layer().with_writer(std::io::stderr);
    let lines = match config.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    let ring = Arc::new(LogRing::new(instance, clock));
    tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(Capture::new(Arc::clone(&ring)))
        .try_init()
        .map_err(TelemetryError::Twice)?;
    Ok(LogControl { filter: control, ring })
}

/// What is neither a level nor names one would be taken for a part of the program, and silence the
/// rest.
fn check_words(filter: &str) -> Result<(), TelemetryError> {
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    let mut words = filter.split(',').map(str::trim).filter(|word| !word.is_empty());
    let wrong = words.find(|word| !word.contains(['=', '[', ':']) && !is_level(word));
    match wrong {
        None => Ok(()),
        Some(word) => {
            let meant = crate::config::nearest(word, LEVELS.iter().copied());
            let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
            Err(TelemetryError::Level { word: word.to_owned(), meant })
        }
    }
}

fn parse(filter: &str) -> Result<EnvFilter, TelemetryError> {
    check_words(filter)?;
    EnvFilter::builder()
        .parse(filter)
        .map_err(|source| TelemetryError::Filter { filter: filter.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    #[test]
    fn filter_is_changed_at_run_time_and_a_bad_one_changes_nothing() {
        let start = |config: &LogConfig| start(config, Uuid::nil(), Arc::new(SystemClock::new()));
        let control = start(&LogConfig::default()).unwrap();
        assert!(!tracing::enabled!(tracing::Level::DEBUG));
        control.set("info,muster_shared=debug").unwrap();
        assert!(tracing::enabled!(tracing::Level::DEBUG));
        control.set("info,muster_shared=loud").unwrap_err();
        assert!(control.filter().contains("muster_shared=debug"), "{}", control.filter());
        assert!(matches!(start(&LogConfig::default()), Err(TelemetryError::Twice(_))));
    }

    #[test]
    fn a_word_that_is_no_level_silences_nothing() {
        for (filter, problem) in
            [("verbose", "is neither a level"), ("info,debgu", "did you mean debug?")]
        {
            let text = parse(filter).unwrap_err().to_string();
            assert!(text.contains(problem), "{text}");
        }
        for good in ["info", "WARN", "info,muster_agent::link=debug", "off", "muster_agent::link"] {
            parse(good).unwrap();
        }
    }

    #[test]
    fn bad_filter_is_a_problem_of_the_configuration() {
        let mut problems = Problems::default();
        LogConfig { filter: "info,x=loud".into(), ..LogConfig::default() }.check(&mut problems);
        let text = problems.into_result().unwrap_err().to_string();
        assert!(text.contains("filter: \"info,x=loud\" is not a log filter"), "{text}");
    }
}
