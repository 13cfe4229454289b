//! The server record as CNAPI shows it: what a sysinfo derives, what the extras add. Pure.
//!
//! Source of the rules: sdc-cnapi lib/models/server.js as described by the CNAPI contract.

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::lenient::{js_parse_int, truncated};
use serde_json::{Map, Value, json};

/// Stored members of a record in the order in which they are shown.
pub const STORED: &[&str] = &[
    "uuid",
    "created",
    "hostname",
    "datacenter",
    "agents",
    "boot_params",
    "boot_platform",
    "boot_modules",
    "kernel_flags",
    "default_console",
    "serial",
    "comments",
    "rack_identifier",
    "reservation_ratio",
    "reserved",
    "reservoir",
    "traits",
    "next_reboot",
    "transitional_status",
    "setting_up",
    "setup",
    "current_platform",
    "headnode",
    "system_type",
    "last_boot",
    "ram",
];

/// The record of a server that was never seen before.
#[must_use]
pub fn new_record(
    uuid: &str,
    datacenter: &str,
    sysinfo: &Map<String, Value>,
    now: Timestamp,
) -> Map<String, Value> {
    let created = seconds(sysinfo.get("Zpool Creation")).unwrap_or(now);
    let text = |name: &str| sysinfo.get(name).filter(|value| value.is_string()).cloned();
    let platform = text("Live Image").unwrap_or_else(|| json!(""));
    let record = json!({
        "uuid": uuid,
        "created": iso(created),
        "hostname": text("Hostname").unwrap_or_else(|| json!("")),
        "datacenter": datacenter,
        "agents": [],
        "boot_params": { "smt_enabled": true },
        "boot_platform": platform,
        "kernel_flags": {},
        "default_console": "serial",
        "serial": "ttyb",
        "comments": "",
        "rack_identifier": "",
        "reservation_ratio": 0.15,
        "reserved": false,
        "reservoir": false,
        "traits": {},
        "setup": false,
    });
    let Value::Object(mut record) = record else { return Map::new() };
    derive(&mut record, sysinfo);
    record
}

/// Lays over a record what its sysinfo says; a value of another type than the member's is as if it
/// were not there.
pub fn derive(record: &mut Map<String, Value>, sysinfo: &Map<String, Value>) {
    let setup = matches!(sysinfo.get("Setup"), Some(Value::Bool(true)))
        || sysinfo.get("Setup").and_then(Value::as_str) == Some("true");
    record.insert("setup".to_owned(), json!(setup));
    let text = |name: &str| sysinfo.get(name).filter(|value| value.is_string()).cloned();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            record.insert(name.to_owned(), value);
        }
    };
    set("current_platform", text("Live Image"));
    set("system_type", text("System Type"));
    let boot = sysinfo.get("Boot Parameters");
    set("headnode", boot.map(|b| json!(b.get("headnode").and_then(Value::as_str) == Some("true"))));
    set("last_boot", seconds(sysinfo.get("Boot Time")).map(|at| json!(iso(at))));
    set("ram", sysinfo.get("MiB of Memory").and_then(js_parse_int).map(|mib| json!(mib)));
    let empty = record.get("agents").and_then(Value::as_array).is_none_or(Vec::is_empty);
    if empty && let Some(agents @ Value::Array(_)) = sysinfo.get("SDC Agents") {
        record.insert("agents".to_owned(), agents.clone());
    }
}

/// The last second of the year 9999.
const MAX_SECONDS: i64 = 253_402_300_799;

/// A time in seconds (text or number, possibly fractional).
fn seconds(value: Option<&Value>) -> Option<Timestamp> {
    let seconds = match value? {
        Value::Number(number) => number.as_f64()?,
        Value::String(text) => text.trim().parse().ok()?,
        _ => return None,
    };
    let duration = jiff::SignedDuration::try_from_secs_f64(seconds).ok()?;
    // Outside of this range the year has another form.
    let plain = (0..=MAX_SECONDS).contains(&duration.as_secs()) && !duration.is_negative();
    Timestamp::from_duration(duration).ok().filter(|_| plain)
}

/// `memory_provisionable_bytes`, or `None` when it can't be computed. When neither the sysinfo nor
/// the status say how much memory there is, it is as much as the last sysinfo that did.
#[must_use]
pub fn provisionable(
    record: &Map<String, Value>,
    sysinfo_mib: Option<i64>,
    total_bytes: Option<i64>,
    vms_mib: u64,
) -> Option<i64> {
    let ratio = record.get("reservation_ratio").and_then(Value::as_f64)?;
    let of_sysinfo = sysinfo_mib.map(|mib| mib.saturating_mul(1 << 20));
    let of_record = record.get("ram").and_then(Value::as_i64);
    let of_record = of_record.map(|mib| mib.saturating_mul(1 << 20));
    let mut known = [of_sysinfo, total_bytes, of_record].into_iter().flatten();
    let total = known.find(|total| *total > 0)?;
    #[expect(clippy::cast_precision_loss, reason = "memory sizes are far below 2^53")]
    let (total, vms) = (total as f64, vms_mib as f64 * 1_048_576.0);
    truncated((total - total * ratio - vms).floor())
}

/// What a reader asks for beyond the base record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a word of CNAPI's extras")]
pub struct Extras {
    /// The list of agents.
    pub agents: bool,
    /// The VMs.
    pub vms: bool,
    /// The sysinfo.
    pub sysinfo: bool,
    /// Four memory figures.
    pub memory: bool,
    /// Twelve disk figures.
    pub disk: bool,
    /// Free capacity.
    pub capacity: bool,
    /// When the server was last heard.
    pub last_heartbeat: bool,
}

impl Extras {
    /// Everything.
    pub const ALL: Self = Self {
        agents: true,
        vms: true,
        sysinfo: true,
        memory: true,
        disk: true,
        capacity: true,
        last_heartbeat: true,
    };

    /// From the words of `extras`; unknown ones do nothing.
    #[must_use]
    pub fn parse(words: &str) -> Self {
        // Any value at all adds last_heartbeat: a quirk of the reference that CNS relies on.
        let mut extras = Self { last_heartbeat: true, ..Self::default() };
        for word in words.split(',') {
            match word {
                "agents" => extras.agents = true,
                "vms" => extras.vms = true,
                "sysinfo" => extras.sysinfo = true,
                "memory" => extras.memory = true,
                "disk" => extras.disk = true,
                "capacity" => {
                    extras.agents = true;
                    extras.memory = true;
                    extras.disk = true;
                    extras.capacity = true;
                }
                "all" => extras = Self::ALL,
                _ => {}
            }
        }
        extras
    }
}

/// Status as shown: a server that is away because it reboots says so.
#[must_use]
pub fn shown_status<'a>(stored: &'a str, record: &'a Map<String, Value>) -> &'a str {
    let transitional = record.get("transitional_status").and_then(Value::as_str).unwrap_or("");
    if stored == "unknown" && !transitional.is_empty() { transitional } else { stored }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sysinfo() -> Map<String, Value> {
        let value = json!({
            "UUID": "564d0b8e-6099-7648-351e-877faf6c56f6", "Hostname": "cn1",
            "Live Image": "20260101T000000Z", "System Type": "Linux", "Boot Time": "1700000000.5",
            "MiB of Memory": "49139", "Setup": "true", "Zpool Creation": 1_500_000_000,
            "Boot Parameters": { "headnode": "true" },
            "SDC Agents": [{ "name": "cn-agent", "version": "2.14.0" }],
        });
        value.as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn a_new_record_has_exactly_the_stored_keys_of_the_contract() {
        let record = new_record("u", "dc", &sysinfo(), Timestamp::UNIX_EPOCH);
        let mut keys: Vec<_> = record.keys().map(String::as_str).collect();
        keys.sort_unstable();
        let mut expected = vec![
            "agents",
            "boot_params",
            "boot_platform",
            "comments",
            "created",
            "current_platform",
            "datacenter",
            "default_console",
            "headnode",
            "hostname",
            "kernel_flags",
            "last_boot",
            "rack_identifier",
            "ram",
            "reservation_ratio",
            "reserved",
            "reservoir",
            "serial",
            "setup",
            "system_type",
            "traits",
            "uuid",
        ];
        expected.sort_unstable();
        assert_eq!(keys, expected);
        assert_eq!(record["created"], "2017-07-14T02:40:00.000Z");
        assert_eq!(record["last_boot"], "2023-11-14T22:13:20.500Z");
        assert_eq!(record["ram"], 49139);
        assert_eq!(record["setup"], true);
        assert_eq!(record["headnode"], true);
        assert_eq!(record["agents"][0]["name"], "cn-agent");
    }

    #[test]
    fn a_sysinfo_without_setup_resets_it_and_keeps_what_it_lacks() {
        let mut record = new_record("u", "dc", &sysinfo(), Timestamp::UNIX_EPOCH);
        derive(&mut record, &Map::new());
        assert_eq!(record["setup"], false);
        assert_eq!(record["current_platform"], "20260101T000000Z");
    }

    #[test]
    fn provisionable_memory_is_as_observed() {
        let record = new_record("u", "dc", &sysinfo(), Timestamp::UNIX_EPOCH);
        assert_eq!(provisionable(&record, Some(49139), None, 0), Some(43_797_079_654));
        assert_eq!(provisionable(&record, Some(49139), None, 128), Some(43_662_861_926));
        assert_eq!(provisionable(&record, None, None, 0), Some(43_797_079_654), "the last known");
        let mut unknown = record.clone();
        unknown.remove("ram");
        assert_eq!(provisionable(&unknown, None, None, 0), None);
        assert_eq!(provisionable(&unknown, Some(0), Some(0), 0), None);
        assert_eq!(provisionable(&record, Some(0), Some(1000), 0), Some(850));
        assert_eq!(provisionable(&record, Some(1), None, 2), Some(-1_205_863));
    }

    #[test]
    fn parse_int_is_javascript_s() {
        for (text, value) in
            [("49139", Some(49139)), (" 12abc", Some(12)), ("x", None), ("-3", Some(-3))]
        {
            assert_eq!(js_parse_int(&json!(text)), value, "{text}");
        }
        assert_eq!(js_parse_int(&json!(7.9)), Some(7));
    }

    #[test]
    fn extras_add_up() {
        assert_eq!(Extras::parse("all"), Extras::ALL);
        let capacity = Extras::parse("capacity");
        assert!(capacity.agents && capacity.memory && capacity.disk && !capacity.vms);
        assert!(Extras::parse("status").last_heartbeat);
        assert!(!Extras::default().last_heartbeat);
    }

    #[test]
    fn an_absent_server_that_reboots_says_so() {
        let mut record = Map::new();
        assert_eq!(shown_status("unknown", &record), "unknown");
        record.insert("transitional_status".to_owned(), json!("rebooting"));
        assert_eq!(shown_status("unknown", &record), "rebooting");
        assert_eq!(shown_status("running", &record), "running");
    }
}
