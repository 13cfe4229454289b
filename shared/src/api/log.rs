//! What a daemon logged of late.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use super::{IsoTime, Object};

/// How much a line matters, the gravest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Something failed that nobody asked again for.
    Error,
    /// Something is not as it should be.
    Warn,
    /// What happens.
    Info,
    /// How it happens.
    Debug,
    /// Every detail of it.
    Trace,
}

impl Level {
    /// All, with their names.
    pub const ALL: [(Self, &str); 5] = [
        (Self::Error, "error"),
        (Self::Warn, "warn"),
        (Self::Info, "info"),
        (Self::Debug, "debug"),
        (Self::Trace, "trace"),
    ];

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(level, _)| *level == self).map_or("", |(_, name)| name)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The text is no level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not one of error, warn, info, debug, trace")]
pub struct BadLevel;

impl FromStr for Level {
    type Err = BadLevel;

    fn from_str(text: &str) -> Result<Self, BadLevel> {
        let found = Self::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
        found.map(|(level, _)| *level).ok_or(BadLevel)
    }
}

/// A line of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogLine {
    /// Number of the line; counts from 1 in each process.
    pub seq: u64,
    /// When, by the clock of the daemon's machine.
    #[schema(value_type = IsoTime)]
    pub time: String,
    /// How much it matters.
    pub level: Level,
    /// The module that logged it.
    pub target: String,
    /// What it says.
    pub message: String,
    /// The task that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task_id: Option<String>,
    /// The VM that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm_uuid: Option<String>,
    /// Its fields beside the message. Secrets are `***`.
    #[serde(default)]
    pub fields: Object,
}

/// Lines of a log, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LogPage {
    /// The process that logged these lines; after a restart there is another, which counts from 1 again.
    pub instance: Uuid,
    /// `after` for the next page.
    pub next: u64,
    /// How many of the requested lines are no longer kept.
    pub lost: u64,
    /// The lines.
    pub lines: Vec<LogLine>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_named_as_they_are_written() {
        for (level, name) in Level::ALL {
            assert_eq!(serde_json::to_string(&level).unwrap(), format!("\"{name}\""));
            assert_eq!(name.to_uppercase().parse(), Ok(level));
            assert_eq!(level.to_string(), name);
        }
        assert!(Level::ALL.is_sorted());
        assert_eq!("loud".parse::<Level>(), Err(BadLevel));
    }
}
