//! The setup record `setup.json`: whether this server is ready for VMs.

use std::path::Path;

use jiff::Timestamp;
use muster_shared::clock::iso;
use serde::{Deserialize, Serialize};

use crate::disk_layout::plan::PoolPlan;
use crate::drivers::{DriverError, files};

/// The record, with the members of SmartOS's setup file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// `computenode`.
    pub node_type: String,
    /// ISO 8601.
    pub start_time: String,
    /// The last state reached.
    pub current_state: String,
    /// All states reached, in order.
    pub seen_states: Vec<String>,
    /// Nothing is left to do.
    pub complete: bool,
    /// ISO 8601.
    pub last_updated: String,
    /// The pool that is made; once its making has begun, no other one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_plan: Option<PoolPlan>,
    /// Its making has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pool_begun: bool,
}

impl Setup {
    /// One that begins now.
    #[must_use]
    pub fn begun(now: &str) -> Self {
        Self {
            node_type: "computenode".to_owned(),
            start_time: now.to_owned(),
            current_state: String::new(),
            seen_states: Vec::new(),
            complete: false,
            last_updated: now.to_owned(),
            pool_plan: None,
            pool_begun: false,
        }
    }
}

/// Reads the record.
///
/// # Errors
/// It could not be read, or holds no setup record.
pub async fn read(data_dir: &Path) -> Result<Option<Setup>, DriverError> {
    let path = data_dir.join("setup.json");
    let Some(content) = files::read(&path).await? else { return Ok(None) };
    let parsed = serde_json::from_slice(&content);
    let text = || format!("read {} (if you remove it, a new one is made)", path.display());
    parsed.map(Some).map_err(|e| DriverError::failed(text(), e))
}

/// Completes the record of a server on which there is nothing to set up (`setup.auto`); durable
/// when it returns. A record that was begun otherwise is left alone.
///
/// # Errors
/// It could not be read or written.
pub async fn complete_by_itself(data_dir: &Path, now: Timestamp) -> Result<Setup, DriverError> {
    if let Some(setup) = read(data_dir).await? {
        return Ok(setup);
    }
    let setup = Setup {
        current_state: "complete".to_owned(),
        seen_states: vec!["complete".to_owned()],
        complete: true,
        ..Setup::begun(&iso(now))
    };
    let content = serde_json::to_vec(&setup).expect("a setup record has only string keys");
    files::make_folder(data_dir).await?;
    files::write(&data_dir.join("setup.json"), &content).await?;
    tracing::info!("nothing to set up: the setup record is complete");
    Ok(setup)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_start_completes_the_record_and_later_ones_keep_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).await.unwrap(), None);
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let first = complete_by_itself(folder.path(), at("2026-01-01T00:00:00Z")).await.unwrap();
        assert!(first.complete);
        let later = complete_by_itself(folder.path(), at("2026-02-02T00:00:00Z")).await.unwrap();
        assert_eq!((&later, later.start_time.as_str()), (&first, "2026-01-01T00:00:00.000Z"));
    }

    #[tokio::test]
    async fn a_setup_under_way_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let begun = r#"{"node_type":"computenode","start_time":"x","current_state":"layout",
            "seen_states":["layout"],"complete":false,"last_updated":"x"}"#;
        std::fs::write(folder.path().join("setup.json"), begun).unwrap();
        let kept = complete_by_itself(folder.path(), Timestamp::UNIX_EPOCH).await.unwrap();
        assert!(!kept.complete);
    }
}
