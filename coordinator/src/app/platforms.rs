//! Platform images that servers can boot: those in the configured folder and those registered in
//! the configuration; without either, the one that the coordinator's host runs.

use std::collections::BTreeMap;
use std::path::Path;

use muster_shared::api::boot::{PlatformOs, ShownPlatform};
use muster_shared::api::server::ServerRecord;

use super::App;
use super::error::AppError;

/// Most entries of the folder that are looked at.
const MAX_ENTRIES: usize = 10_000;
/// The folder's link to the newest platform, which is no platform.
const LATEST: &str = "latest";

/// A platform registered in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredPlatform {
    /// Its name, usually a time: `20260101T000000Z`.
    pub name: String,
    /// What it boots.
    pub os: PlatformOs,
}

/// `NAME` (Linux), `NAME:linux` or `NAME:smartos`.
impl std::str::FromStr for RegisteredPlatform {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (name, os) = text.split_once(':').unwrap_or((text, "linux"));
        let os = match os {
            "linux" => PlatformOs::Linux,
            "smartos" => PlatformOs::SmartOs,
            _ => return Err("the part after the colon is `linux` or `smartos`"),
        };
        let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
        if name.is_empty() || name.len() > 64 || name == LATEST || !name.bytes().all(plain) {
            return Err("a name has 1 to 64 letters, digits, dots, dashes and underscores");
        }
        Ok(Self { name: name.to_owned(), os })
    }
}

/// Platforms by name. Pure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Platforms(BTreeMap<String, PlatformOs>);

impl Platforms {
    /// Whether there is a platform of this name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The newest of all whose name is a time.
    #[must_use]
    pub fn newest(&self) -> Option<String> {
        self.newest_of(|_| true)
    }

    fn newest_of(&self, wanted: impl Fn(PlatformOs) -> bool) -> Option<String> {
        let mut fitting = self.0.iter().rev().filter(|(name, os)| is_time(name) && wanted(**os));
        fitting.next().map(|(name, _)| name.clone())
    }

    /// CNAPI's answer: the newest is marked, of each operating system when that is shown.
    #[must_use]
    pub fn shown(&self, with_os: bool) -> BTreeMap<String, ShownPlatform> {
        let latest: Vec<String> = if with_os {
            let newest = |os| self.newest_of(|of| of == os);
            [PlatformOs::Linux, PlatformOs::SmartOs].into_iter().filter_map(newest).collect()
        } else {
            self.newest().into_iter().collect()
        };
        let show = |(name, os): (&String, &PlatformOs)| {
            let shown = ShownPlatform { latest: latest.contains(name), os: with_os.then_some(*os) };
            (name.clone(), shown)
        };
        self.0.iter().map(show).collect()
    }
}

/// `\d{8}T\d{6}Z`
fn is_time(name: &str) -> bool {
    let bytes = name.as_bytes();
    let digits = |range: std::ops::Range<usize>| {
        bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit))
    };
    bytes.len() == 16 && digits(0..8) && bytes[8] == b'T' && digits(9..15) && bytes[15] == b'Z'
}

impl App {
    /// The platforms there are now; what the coordinator's own host runs when none are configured.
    ///
    /// # Errors
    /// [`AppError::Platforms`]: the folder can't be read.
    pub async fn platforms(&self) -> Result<Platforms, AppError> {
        let registered = &self.config.platforms;
        let mut platforms: BTreeMap<_, _> =
            registered.iter().map(|platform| (platform.name.clone(), platform.os)).collect();
        if let Some(folder) = &self.config.platforms_dir {
            let failed = |source| AppError::Platforms { path: folder.clone(), source };
            platforms.extend(read(folder).await.map_err(failed)?);
        } else if platforms.is_empty() {
            platforms.extend(self.config.host_platform.clone().map(|own| (own, PlatformOs::Linux)));
        }
        Ok(Platforms(platforms))
    }

    /// Whether a server can be told to boot this platform: there is such a platform, or a server
    /// runs it or is to boot it, so that whoever reads boot parameters may write them back.
    ///
    /// # Errors
    /// As [`App::platforms`].
    pub async fn platform_exists(&self, name: &str) -> Result<bool, AppError> {
        let named = |record: &ServerRecord| {
            let known = [&record.current_platform, &record.boot.boot_platform];
            known.iter().any(|platform| platform.as_deref() == Some(name))
        };
        Ok(self.platforms().await?.contains(name) || self.fleet.any_record(named))
    }
}

/// `<folder>/<name>/platform/…`, as on a head node.
async fn read(folder: &Path) -> std::io::Result<BTreeMap<String, PlatformOs>> {
    let mut platforms = BTreeMap::new();
    let mut entries = tokio::fs::read_dir(folder).await?;
    for _ in 0..MAX_ENTRIES {
        let Some(entry) = entries.next_entry().await? else { break };
        let Ok(name) = entry.file_name().into_string() else { continue };
        // `latest` is a link; so the type of the entry itself counts.
        if name == LATEST || !entry.file_type().await?.is_dir() {
            continue;
        }
        let linux = tokio::fs::try_exists(entry.path().join("platform/x86_64")).await?;
        platforms.insert(name, if linux { PlatformOs::Linux } else { PlatformOs::SmartOs });
    }
    Ok(platforms)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn a_folder_is_read_as_on_a_head_node() {
        let folder = tempfile::tempdir().unwrap();
        for path in
            ["20260101T000000Z/platform/x86_64", "20250101T000000Z/platform/i86pc", "custom"]
        {
            std::fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        std::fs::write(folder.path().join("a-file"), "").unwrap();
        std::os::unix::fs::symlink("20250101T000000Z", folder.path().join("latest")).unwrap();
        let platforms = Platforms(read(folder.path()).await.unwrap());
        assert_eq!(
            json!(platforms.shown(false)),
            json!({ "20250101T000000Z": {}, "20260101T000000Z": { "latest": true }, "custom": {} })
        );
        assert_eq!(
            json!(platforms.shown(true)),
            json!({
                "20250101T000000Z": { "latest": true, "os": "smartos" },
                "20260101T000000Z": { "latest": true, "os": "linux" },
                "custom": { "os": "smartos" },
            })
        );
        assert!(!platforms.contains("latest"));
        assert!(read(&folder.path().join("missing")).await.is_err());
    }

    #[test]
    fn registered_platforms_are_checked() {
        let parse = |text: &str| text.parse::<RegisteredPlatform>();
        assert_eq!(parse("20260101T000000Z:smartos").unwrap().os, PlatformOs::SmartOs);
        assert_eq!(parse("20260101T000000Z").unwrap().os, PlatformOs::Linux);
        for bad in ["", "a/b", "..:x", "x:windows", "latest", "a b"] {
            parse(bad).unwrap_err();
        }
    }

    #[test]
    fn only_times_are_newest() {
        for (name, time) in
            [("20260101T000000Z", true), ("20260101T000000", false), ("x0260101T000000Z", false)]
        {
            assert_eq!(is_time(name), time, "{name}");
        }
    }
}
