//! How pools are, from what `zpool list` and `zpool status` print. Pure.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::Serialize;

use super::Properties;

/// What `zpool list` is asked for.
pub(super) const COLUMNS: &[&str] =
    &["name", "size", "allocated", "free", "capacity", "fragmentation", "health"];
/// Longest text of a pool's trouble, bytes.
const MAX_TEXT_BYTES: usize = 1_024;
/// Most devices that are told of one pool.
const MAX_LEAVES: usize = 1_024;

/// A pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PoolHealth {
    /// Its name.
    pub name: String,
    /// `ONLINE`, `DEGRADED`, `SUSPENDED`, `FAULTED`, …
    pub health: String,
    /// All space, bytes.
    pub size_bytes: u64,
    /// Space in use, bytes.
    pub alloc_bytes: u64,
    /// Percent of the space that is in use.
    pub capacity: u64,
    /// Percent; not of all pools.
    pub fragmentation: Option<u64>,
    /// What is wrong, in ZFS's words.
    pub trouble: Option<String>,
    /// Files, or blocks, that are lost.
    pub data_errors: u64,
    /// The check, or repair, that runs or ran last.
    pub scan: Option<Scan>,
    /// Its devices.
    pub leaves: Vec<Leaf>,
    /// What its data lies on: `mirror`, `raidz`, `raidz2`, `raidz3`, `draid` or `striped`.
    pub profile: &'static str,
}

impl PoolHealth {
    /// Whether all of it is as it should be.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.health == "ONLINE"
            && self.data_errors == 0
            && self.leaves.iter().all(|leaf| matches!(&*leaf.state, "ONLINE" | "AVAIL" | "INUSE"))
    }

    /// What is wrong with it, for people.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        if self.is_well() {
            return None;
        }
        let mut text = format!("pool {} is {}", self.name, self.health);
        let bad =
            self.leaves.iter().filter(|leaf| !matches!(&*leaf.state, "ONLINE" | "AVAIL" | "INUSE"));
        for leaf in bad.take(8) {
            text.push_str(&format!(", {} is {}", leaf.name, leaf.state));
        }
        if self.data_errors > 0 {
            text.push_str(&format!(", data errors: {}", self.data_errors));
        }
        Some(text)
    }
}

/// A device of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Leaf {
    /// Its path, or the number of one that is gone.
    pub name: String,
    /// `ONLINE`, `REMOVED`, `UNAVAIL`, `AVAIL` (a spare), …; `GONE`: its device is not there any more,
    /// and ZFS has not noticed.
    pub state: String,
    /// `data`, `logs`, `cache`, `spares`, `special` or `dedup`.
    pub role: String,
    /// Reads that failed.
    pub read_errors: u64,
    /// Writes that failed.
    pub write_errors: u64,
    /// Blocks that were not what had been written.
    pub checksum_errors: u64,
}

/// A check or repair of a whole pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// `scrub` or `resilver`.
    pub kind: &'static str,
    /// How far it is.
    pub state: ScanState,
    /// When it ended, or began if it has not ended.
    pub at: Option<Timestamp>,
    /// Percent; of one that runs.
    pub percent: Option<u64>,
    /// What it could not repair; of one that ended.
    pub errors: Option<u64>,
}

/// How far a scan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ScanState {
    /// It runs.
    Running,
    /// It waits.
    Paused,
    /// It ended.
    Finished,
    /// It was given up.
    Canceled,
}

/// The pools, from both answers.
pub(super) fn of(listed: &[Properties], status: &str) -> Vec<PoolHealth> {
    let sections = sections(status);
    let pool = |listed: &Properties| {
        let text = |name: &str| listed.get(name).map_or("", String::as_str);
        let number = |name: &str| text(name).trim_end_matches('%').parse::<u64>().ok();
        let mut pool = PoolHealth {
            name: text("name").to_owned(),
            health: text("health").to_owned(),
            size_bytes: number("size").unwrap_or(0),
            alloc_bytes: number("allocated").unwrap_or(0),
            capacity: number("capacity").unwrap_or(0),
            fragmentation: number("fragmentation"),
            profile: "striped",
            ..PoolHealth::default()
        };
        if let Some(section) = sections.iter().find(|section| section.name == pool.name) {
            section.add_to(&mut pool);
        }
        pool
    };
    listed.iter().map(pool).collect()
}

/// What `zpool status` prints of one pool.
#[derive(Debug, Default)]
struct Section<'a> {
    name: &'a str,
    fields: Vec<(&'a str, String)>,
    config: Vec<&'a str>,
}

fn sections(status: &str) -> Vec<Section<'_>> {
    let mut sections: Vec<Section<'_>> = Vec::new();
    let mut in_config = false;
    for line in status.lines() {
        let label = line.trim_start().split_once(':').filter(|(label, _)| {
            !line.starts_with('\t') && label.bytes().all(|byte| byte.is_ascii_lowercase())
        });
        match (label, sections.last_mut()) {
            (Some(("pool", name)), _) => {
                in_config = false;
                sections.push(Section { name: name.trim(), ..Section::default() });
            }
            (Some((label, text)), Some(section)) => {
                in_config = label == "config";
                section.fields.push((label, text.trim().to_owned()));
            }
            (None, Some(section)) if in_config => section.config.push(line),
            (None, Some(section)) => {
                if let Some((_, text)) =
                    section.fields.last_mut().filter(|_| !line.trim().is_empty())
                {
                    text.push(' ');
                    text.push_str(line.trim());
                }
            }
            (_, None) => {}
        }
    }
    sections
}

impl Section<'_> {
    fn field(&self, label: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(name, _)| *name == label);
        found.map(|(_, text)| text.as_str()).filter(|text| !text.is_empty())
    }

    fn add_to(&self, pool: &mut PoolHealth) {
        // The list and the status are two moments; the status is the later one.
        if let Some(state) = self.field("state") {
            state.clone_into(&mut pool.health);
        }
        pool.trouble = self.field("status").map(|text| {
            let mut text = text.to_owned();
            text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
            text
        });
        pool.data_errors = self.field("errors").map_or(0, data_errors);
        pool.scan = self.field("scan").and_then(scan);
        let mut role = "data";
        for line in &self.config {
            let line = line.strip_prefix('\t').unwrap_or(line);
            let depth = line.len() - line.trim_start().len();
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [] | ["NAME", ..] => {}
                // The pool's own line, and those of its classes.
                [name, ..] if depth == 0 => role = if name == self.name { "data" } else { name },
                [name, state, ref counts @ ..] => {
                    if let Some(profile) = profile(name).filter(|_| role == "data" && depth == 2) {
                        pool.profile = better(pool.profile, profile);
                    }
                    if !is_group(name) && pool.leaves.len() < MAX_LEAVES {
                        pool.leaves.push(leaf(name, state, role, counts));
                    }
                }
                [_] => {}
            }
        }
    }
}

/// The kind of a group of devices by the beginning of its name.
fn profile(name: &str) -> Option<&'static str> {
    let kinds = [
        ("mirror-", "mirror"),
        ("raidz3-", "raidz3"),
        ("raidz2-", "raidz2"),
        ("raidz1-", "raidz"),
        ("draid", "draid"),
    ];
    kinds.iter().find(|(start, _)| name.starts_with(start)).map(|(_, kind)| *kind)
}

/// Of a pool with several kinds the first in this order is told.
fn better(one: &'static str, other: &'static str) -> &'static str {
    const ORDER: [&str; 6] = ["mirror", "raidz3", "raidz2", "raidz", "draid", "striped"];
    ORDER.into_iter().find(|kind| *kind == one || *kind == other).unwrap_or(one)
}

/// Whether a line is of a group of devices: these stand below it, with lines of their own.
fn is_group(name: &str) -> bool {
    profile(name).is_some()
        || ["replacing-", "spare-", "indirect-"].iter().any(|start| name.starts_with(start))
}

fn leaf(name: &str, state: &str, role: &str, counts: &[&str]) -> Leaf {
    let count = |at: usize| counts.get(at).and_then(|count| count.parse().ok()).unwrap_or(0);
    Leaf {
        name: name.to_owned(),
        state: state.to_owned(),
        role: role.to_owned(),
        read_errors: count(0),
        write_errors: count(1),
        checksum_errors: count(2),
    }
}

/// `No known data errors`, `3 data errors, use '-v' for a list`, or a list; what can't be counted
/// counts as one.
fn data_errors(text: &str) -> u64 {
    if text.starts_with("No known data errors") {
        return 0;
    }
    text.split(' ').next().and_then(|count| count.parse().ok()).unwrap_or(1)
}

fn scan(text: &str) -> Option<Scan> {
    let kind = if text.starts_with("resilver") { "resilver" } else { "scrub" };
    if !text.starts_with(kind) {
        return None;
    }
    let state = if text.contains(" paused since ") {
        ScanState::Paused
    } else if text.contains(" in progress since ") {
        ScanState::Running
    } else if text.contains(" canceled on ") {
        ScanState::Canceled
    } else {
        ScanState::Finished
    };
    let number_before = |mark: &str| {
        let before = text.split(mark).next().filter(|before| before.len() < text.len())?;
        before.rsplit(' ').next()?.split('.').next()?.parse().ok()
    };
    let percent = match state {
        ScanState::Running | ScanState::Paused => number_before("% done"),
        ScanState::Finished | ScanState::Canceled => None,
    };
    let errors = match state {
        ScanState::Finished => number_before(" errors on "),
        _ => None,
    };
    Some(Scan { kind, state, at: time(text), percent, errors })
}

/// The time in a line: after `on` or `since`, as C's `ctime` writes it, in UTC.
fn time(text: &str) -> Option<Timestamp> {
    let at = [" on ", " since "].iter().find_map(|mark| text.split(mark).nth(1))?;
    let words: Vec<_> = at.split_whitespace().take(5).collect();
    let time = DateTime::strptime("%a %b %d %H:%M:%S %Y", words.join(" ")).ok()?;
    time.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

#[cfg(test)]
mod tests;
