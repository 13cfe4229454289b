//! Platforms: their names, what they boot, and which is the newest. Pure.

use std::collections::BTreeMap;
use std::str::FromStr;

use muster_shared::api::boot::{PlatformOs, ShownPlatform};

/// The folder's link to the newest platform, which is no platform.
pub(super) const LATEST: &str = "latest";

/// A platform registered in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredPlatform {
    /// Its name, usually a time: `20260101T000000Z`.
    pub name: String,
    /// What it boots.
    pub os: PlatformOs,
}

/// `NAME` (Linux), `NAME:linux` or `NAME:smartos`.
impl FromStr for RegisteredPlatform {
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
pub struct Platforms(pub(super) BTreeMap<String, PlatformOs>);

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

#[cfg(test)]
mod tests {
    use super::*;

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
