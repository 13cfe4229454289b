//! Which platform a Linux host runs: what its agent reports, and what a coordinator on it offers.

use std::path::Path;

/// The platform stamp; never empty, because the allocator passes over servers without one.
#[must_use]
pub fn stamp(os_release: &str, command_line: &str, kernel: Option<&str>) -> String {
    let of_os = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim().trim_matches(['"', '\''])).filter(|v| !v.is_empty())
    };
    let booted = command_line
        .split_whitespace()
        .find_map(|word| word.strip_prefix("muster.platform="))
        .filter(|platform| !platform.is_empty());
    let stamp = of_os("IMAGE_VERSION").or_else(|| of_os("MUSTER_PLATFORM")).or(booted);
    match (stamp, of_os("VERSION_ID"), kernel) {
        (Some(stamp), _, _) => stamp.to_owned(),
        (None, Some(version), Some(kernel)) => format!("{version}-{kernel}"),
        (None, None, Some(kernel)) => kernel.to_owned(),
        (None, Some(version), None) => version.to_owned(),
        (None, None, None) => "unknown".to_owned(),
    }
}

/// The stamp of the host that this process runs on.
#[must_use]
pub fn of_this_host() -> String {
    // What can't be read is as if it said nothing.
    let text = |path: &str| std::fs::read_to_string(Path::new(path)).unwrap_or_default();
    let kernel = text("/proc/sys/kernel/osrelease");
    let kernel = Some(kernel.trim()).filter(|kernel| !kernel.is_empty());
    stamp(&text("/etc/os-release"), &text("/proc/cmdline"), kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_platform_stamp_is_never_empty() {
        let debian = "NAME=\"Debian\"\nVERSION_ID=\"12\"\n";
        let check = |os: &str, line: &str, kernel: Option<&str>, expected: &str| {
            assert_eq!(stamp(os, line, kernel), expected);
        };
        check(&format!("{debian}IMAGE_VERSION=20260101T000000Z\n"), "", None, "20260101T000000Z");
        check(debian, "quiet muster.platform=20260202T000000Z", Some("6.1"), "20260202T000000Z");
        check(debian, "muster.platform=", Some("6.1.0"), "12-6.1.0");
        check("", "", Some("6.1.0"), "6.1.0");
        check("VERSION_ID=\"\"", "", None, "unknown");
    }
}
