//! Settings as files in the data folder: `nic-tags.json` and `node.conf`, each replaced as a
//! whole. NIC tags that were never set here are those that somebody configured by hand.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{NicTag, Settings};
use crate::drivers::{DriverError, files};

/// `{"nictags": [{name, mac}]}`.
pub const NIC_TAGS_FILE: &str = "nic-tags.json";
/// What is configured by hand.
const BY_HAND: &str = "/etc/muster/nic-tags.json";
/// Lines of the form `name='value'`.
pub const NODE_CONF: &str = "node.conf";

/// The driver.
#[derive(Debug)]
pub struct FileSettings {
    folder: PathBuf,
    by_hand: PathBuf,
    // A read and the write that follows from it, without another one between.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct TagFile {
    nictags: Vec<NicTag>,
}

impl FileSettings {
    /// Settings in this folder, which exists.
    #[must_use]
    pub fn new(folder: &Path) -> Self {
        let by_hand = PathBuf::from(BY_HAND);
        Self { folder: folder.to_owned(), by_hand, writing: tokio::sync::Mutex::default() }
    }
}

/// `None`: there is no such file.
async fn read_tags(path: &Path) -> Result<Option<Vec<NicTag>>, DriverError> {
    let Some(content) = files::read(path).await? else { return Ok(None) };
    let parsed: Result<TagFile, _> = serde_json::from_slice(&content);
    let failed = |e| DriverError::failed(format!("read {}", path.display()), e);
    parsed.map(|file| Some(file.nictags)).map_err(failed)
}

#[async_trait]
impl Settings for FileSettings {
    async fn nic_tags(&self) -> Result<Vec<NicTag>, DriverError> {
        match read_tags(&self.folder.join(NIC_TAGS_FILE)).await? {
            Some(own) => Ok(own),
            None => Ok(read_tags(&self.by_hand).await?.unwrap_or_default()),
        }
    }

    async fn set_nic_tags(&self, tags: &[NicTag]) -> Result<(), DriverError> {
        let _writing = self.writing.lock().await;
        let file = TagFile { nictags: tags.to_vec() };
        let content = serde_json::to_vec_pretty(&file).expect("tags have only string keys");
        files::write(&self.folder.join(NIC_TAGS_FILE), &content).await
    }

    async fn set_option(&self, name: &str, value: &str) -> Result<(), DriverError> {
        let _writing = self.writing.lock().await;
        let path = self.folder.join(NODE_CONF);
        let old = files::read(&path).await?.unwrap_or_default();
        let new = with_option(&String::from_utf8_lossy(&old), name, value);
        files::write(&path, new.as_bytes()).await
    }
}

/// The text with this option in the place of its old value, or at the end.
fn with_option(text: &str, name: &str, value: &str) -> String {
    let line = format!("{name}='{}'", value.replace('\'', ""));
    let is_it = |old: &str| old.split_once('=').is_some_and(|(key, _)| key.trim() == name);
    let mut found = false;
    let mut lines: Vec<&str> = Vec::new();
    for old in text.lines() {
        if !is_it(old) {
            lines.push(old);
        } else if !found {
            found = true;
            lines.push(&line);
        }
    }
    if !found {
        lines.push(&line);
    }
    lines.join("\n") + "\n"
}

/// The value of an option in such a text.
#[must_use]
pub fn option(text: &str, name: &str) -> Option<String> {
    let line = text.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then_some(value)
    })?;
    Some(line.trim().trim_matches('\'').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_is_replaced_in_its_place() {
        let text = with_option("a='1'\n# b\nc='3'\n", "b", "2");
        assert_eq!(text, "a='1'\n# b\nc='3'\nb='2'\n");
        let text = with_option(&text, "a", "o'ne");
        assert_eq!(text, "a='one'\n# b\nc='3'\nb='2'\n");
        assert_eq!(option(&text, "c").as_deref(), Some("3"));
        assert_eq!(option(&text, "d"), None);
    }

    #[tokio::test]
    async fn tags_and_options_survive() {
        let folder = tempfile::tempdir().unwrap();
        let by_hand = folder.path().join("by-hand.json");
        let settings =
            FileSettings { by_hand: by_hand.clone(), ..FileSettings::new(folder.path()) };
        assert_eq!(settings.nic_tags().await.unwrap(), []);
        let written = r#"{"nictags": [{"name": "storage", "mac": "02:00:00:00:00:02"}]}"#;
        std::fs::write(by_hand, written).unwrap();
        assert_eq!(settings.nic_tags().await.unwrap()[0].name, "storage");
        let tag = NicTag {
            name: "admin".to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            bridge: true,
            ..NicTag::default()
        };
        settings.set_nic_tags(std::slice::from_ref(&tag)).await.unwrap();
        settings.set_option("overprovision_ratio", "ram=2").await.unwrap();
        let settings = FileSettings::new(folder.path());
        assert_eq!(settings.nic_tags().await.unwrap(), [tag]);
        let conf = std::fs::read_to_string(folder.path().join(NODE_CONF)).unwrap();
        assert_eq!(option(&conf, "overprovision_ratio").as_deref(), Some("ram=2"));
    }
}
