//! Simulated settings, which outlive the simulated agent.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{NicTag, Settings};
use crate::drivers::DriverError;
use crate::drivers::faults::Faults;

#[derive(Debug, Default)]
struct Content {
    tags: Vec<NicTag>,
    options: BTreeMap<String, String>,
}

/// The settings of one simulated host; clones share them.
#[derive(Clone, Debug, Default)]
pub struct SimSettings {
    content: Arc<Mutex<Content>>,
    faults: Faults,
}

impl SimSettings {
    /// Operations in `faults`: `settings.get`, `settings.set`.
    #[must_use]
    pub fn new(faults: Faults) -> Self {
        Self { content: Arc::default(), faults }
    }

    /// An option, if it was set.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<String> {
        self.content.lock().options.get(name).cloned()
    }
}

#[async_trait]
impl Settings for SimSettings {
    async fn nic_tags(&self) -> Result<Vec<NicTag>, DriverError> {
        self.faults.call("settings.get", || Ok(self.content.lock().tags.clone())).await
    }

    async fn set_nic_tags(&self, tags: &[NicTag]) -> Result<(), DriverError> {
        let set = || {
            self.content.lock().tags = tags.to_vec();
            Ok(())
        };
        self.faults.call("settings.set", set).await
    }

    async fn set_option(&self, name: &str, value: &str) -> Result<(), DriverError> {
        let set = || {
            self.content.lock().options.insert(name.to_owned(), value.to_owned());
            Ok(())
        };
        self.faults.call("settings.set", set).await
    }
}
