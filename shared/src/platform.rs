//! Which platform a Linux host runs: what its agent reports, and what a coordinator on it offers.

use std::path::Path;

/// When this program was built, as `20260101T000000Z`: the platform of a host that names none. Images
/// and packages ask for a platform of a certain age, and what runs their VMs here is Muster.
pub const BUILT: &str = env!("MUSTER_BUILD_STAMP");

/// The platform stamp; never empty, because the allocator passes over servers without one.
#[must_use]
pub fn stamp(os_release: &str, command_line: &str) -> String {
    let of_os = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim().trim_matches(['"', '\''])).filter(|v| !v.is_empty())
    };
    let booted = command_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("muster.platform="))
        .filter(|platform| !platform.is_empty());
    let stamp = of_os("IMAGE_VERSION").or_else(|| of_os("MUSTER_PLATFORM")).or(booted);
    stamp.unwrap_or(BUILT).to_owned()
}

/// The stamp of the host that this process runs on.
#[must_use]
pub fn of_this_host() -> String {
    // What can't be read is as if it said nothing.
    let text = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    stamp(&text("/etc/os-release"), &text("/proc/cmdline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_stamp_is_never_empty() {
        let debian = "NAME=\"Debian\"\nVERSION_ID=\"12\"\n";
        let check = |os: &str, line: &str, expected: &str| assert_eq!(stamp(os, line), expected);
        check(&format!("{debian}IMAGE_VERSION=20260101T000000Z\n"), "", "20260101T000000Z");
        check(debian, "quiet muster.platform=20260202T000000Z", "20260202T000000Z");
        check(debian, "muster.platform=", BUILT);
        check("", "", BUILT);
    }

    #[test]
    fn a_build_is_younger_than_what_old_packages_ask_for() {
        let at = jiff::civil::DateTime::strptime("%Y%m%dT%H%M%SZ", BUILT).unwrap();
        assert_eq!(at.strftime("%Y%m%dT%H%M%SZ").to_string(), BUILT);
        // Stamps compare as texts; this one is in the packages of old data centres.
        assert!(BUILT > "20130122T122401Z");
    }
}
