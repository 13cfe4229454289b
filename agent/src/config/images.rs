//! `images`: where they come from, and when they go.

use std::time::Duration;

use muster_shared::config::{Check, Problems, check_urls};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::tasks::image_gc::{self, Policy};

/// Images.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ImagesConfig {
    /// Base URLs of image repositories. Empty: the coordinators.
    pub sources: Vec<String>,
    /// Removing images that nobody needs.
    pub gc: ImagesGcConfig,
}

/// Removing images that nobody needs: those without disks, that no other image builds on.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ImagesGcConfig {
    /// Whether the agent removes images that nobody needs when room gets scarce.
    pub enabled: bool,
    /// Use of the pool above which images go, percent; also when a task found no room.
    pub high_percent: u8,
    /// Use of the pool at which no more of them go, percent.
    pub low_percent: u8,
    /// An image that came, or from which a disk was made, less than this ago stays, s.
    pub min_age_s: u64,
}

impl Default for ImagesGcConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            high_percent: image_gc::DEFAULT_HIGH_PERCENT,
            low_percent: image_gc::DEFAULT_LOW_PERCENT,
            min_age_s: image_gc::DEFAULT_MIN_AGE.as_secs(),
        }
    }
}

impl ImagesGcConfig {
    /// When images go, if they do.
    #[must_use]
    pub fn policy(&self) -> Option<Policy> {
        let policy = Policy {
            high_percent: self.high_percent,
            low_percent: self.low_percent,
            min_age: Duration::from_secs(self.min_age_s),
        };
        self.enabled.then_some(policy)
    }
}

impl Check for ImagesConfig {
    fn check(&self, problems: &mut Problems) {
        check_urls(problems, "sources", &self.sources, ["http", "https"]);
        let gc = &self.gc;
        problems.require(gc.high_percent <= 100, "gc.high_percent", "must be at most 100");
        let ordered = gc.low_percent <= gc.high_percent;
        problems.require(ordered, "gc.low_percent", "must be at most images.gc.high_percent");
    }
}
