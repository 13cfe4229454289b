//! The server record as CNAPI shows it: what a sysinfo derives, what the extras add. Pure.
//!
//! Source of the rules: sdc-cnapi lib/models/server.js as described by the CNAPI contract.

use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::api::boot::BootRecord;
use muster_shared::api::server::{ServerRecord, ServerStatus, Sysinfo};
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use muster_shared::lenient::truncated;
use serde_json::{Map, Number};

/// The record of a server that was never seen before.
#[must_use]
pub fn new_record(
    uuid: ServerUuid,
    datacenter: &str,
    sysinfo: &Sysinfo,
    now: Timestamp,
) -> ServerRecord {
    let created = time(sysinfo.pool_created).unwrap_or(now);
    let boot = BootRecord {
        boot_params: Some(Object::from_iter([("smt_enabled", true)])),
        boot_platform: Some(sysinfo.live_image.clone().unwrap_or_default()),
        boot_modules: None,
        kernel_flags: Some(Object::new()),
        default_console: Some("serial".to_owned()),
        serial: Some("ttyb".to_owned()),
    };
    let mut record = ServerRecord {
        uuid,
        created: iso(created),
        hostname: sysinfo.hostname.clone().unwrap_or_default(),
        datacenter: datacenter.to_owned(),
        agents: Some(Vec::new()),
        boot,
        comments: String::new(),
        rack_identifier: String::new(),
        reservation_ratio: Number::from_f64(0.15),
        reserved: false,
        reservoir: false,
        traits: Object::new(),
        next_reboot: None,
        transitional_status: None,
        setting_up: None,
        setup: false,
        current_platform: None,
        headnode: None,
        system_type: None,
        last_boot: None,
        ram: None,
        unknown: Map::new(),
    };
    derive(&mut record, sysinfo);
    record
}

/// Lays over a record what its sysinfo says; a value of another type than the member's is as if it
/// were not there.
pub fn derive(record: &mut ServerRecord, sysinfo: &Sysinfo) {
    let boot = sysinfo.boot_parameters.as_ref();
    record.setup = sysinfo.setup == Some(true);
    lay_over(&mut record.current_platform, sysinfo.live_image.clone());
    lay_over(&mut record.system_type, sysinfo.system_type.clone());
    lay_over(&mut record.headnode, boot.map(|b| b.headnode.as_deref() == Some("true")));
    lay_over(&mut record.last_boot, time(sysinfo.boot_time).map(iso));
    lay_over(&mut record.ram, sysinfo.memory_mib);
    if record.agents.as_ref().is_none_or(Vec::is_empty) {
        lay_over(&mut record.agents, sysinfo.agents.clone());
    }
}

fn lay_over<T>(member: &mut Option<T>, value: Option<T>) {
    if value.is_some() {
        *member = value;
    }
}

/// The last millisecond of the year 9999.
const MAX_MILLIS: i64 = 253_402_300_799_999;

/// A time in seconds, possibly fractional. Multiplied before it is cut to whole milliseconds, as
/// CNAPI does: most fractions have no exact double, and would lose their last millisecond.
fn time(seconds: Option<f64>) -> Option<Timestamp> {
    let millis = truncated(seconds? * 1000.0)?;
    // Outside of this range the year has another form.
    let plain = (0..=MAX_MILLIS).contains(&millis);
    Timestamp::from_millisecond(millis).ok().filter(|_| plain)
}

/// `memory_provisionable_bytes`, or `None` when it can't be computed. When neither the sysinfo nor
/// the status say how much memory there is, it is as much as the last sysinfo that did.
#[must_use]
pub fn provisionable(
    record: &ServerRecord,
    sysinfo_mib: Option<i64>,
    total_bytes: Option<i64>,
    vms_mib: u64,
) -> Option<i64> {
    let ratio = record.reservation_ratio.as_ref()?.as_f64()?;
    let of_sysinfo = sysinfo_mib.map(|mib| mib.saturating_mul(1 << 20));
    let of_record = record.ram.map(|mib| mib.saturating_mul(1 << 20));
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
    /// The agent's own remarks; only if asked for by name.
    pub muster: bool,
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
        muster: false,
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
                "all" => extras = Self { muster: extras.muster, ..Self::ALL },
                "muster" => extras.muster = true,
                _ => {}
            }
        }
        extras
    }
}

/// Status as shown: a server that is away because it reboots says so.
#[must_use]
pub fn shown_status(stored: &str, record: &ServerRecord) -> ServerStatus {
    let reboots = record.transitional_status.as_ref().is_some_and(|text| !text.is_empty());
    match stored {
        "running" => ServerStatus::Running,
        _ if reboots => ServerStatus::Rebooting,
        _ => ServerStatus::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::lenient::js_parse_int;
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    fn sysinfo() -> Sysinfo {
        let value = json!({
            "UUID": "564d0b8e-6099-7648-351e-877faf6c56f6", "Hostname": "cn1",
            "Live Image": "20260101T000000Z", "System Type": "Linux", "Boot Time": "1700000000.5",
            "MiB of Memory": "49139", "Setup": "true", "Zpool Creation": 1_500_000_000,
            "Boot Parameters": { "headnode": "true" },
            "SDC Agents": [{ "name": "cn-agent", "version": "2.14.0" }],
        });
        serde_json::from_value(value).unwrap()
    }

    fn seen() -> ServerRecord {
        new_record(ServerUuid(Uuid::nil()), "dc", &sysinfo(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn a_new_record_has_exactly_the_stored_members_of_the_contract_in_their_order() {
        assert_eq!(
            serde_json::to_string(&seen()).unwrap(),
            r#"{"uuid":"00000000-0000-0000-0000-000000000000","created":"2017-07-14T02:40:00.000Z","hostname":"cn1","datacenter":"dc","agents":[{"name":"cn-agent","version":"2.14.0"}],"boot_params":{"smt_enabled":true},"boot_platform":"20260101T000000Z","kernel_flags":{},"default_console":"serial","serial":"ttyb","comments":"","rack_identifier":"","reservation_ratio":0.15,"reserved":false,"reservoir":false,"traits":{},"setup":true,"current_platform":"20260101T000000Z","headnode":true,"system_type":"Linux","last_boot":"2023-11-14T22:13:20.500Z","ram":49139}"#
        );
    }

    #[test]
    fn times_of_a_sysinfo_are_cut_to_milliseconds_as_cnapi_does() {
        for (text, expected) in [
            ("1795305276.191", "2026-11-21T23:54:36.191Z"),
            ("1795305276.1915", "2026-11-21T23:54:36.191Z"),
            ("1795305276.19099999", "2026-11-21T23:54:36.191Z"),
            ("1714550000.9999", "2024-05-01T07:53:20.999Z"),
            ("1700000000.0009", "2023-11-14T22:13:20.000Z"),
            ("0.001", "1970-01-01T00:00:00.001Z"),
            ("1.005", "1970-01-01T00:00:01.004Z"),
        ] {
            assert_eq!(time(text.parse().ok()).map(iso).as_deref(), Some(expected), "{text}");
        }
        for text in ["-1", "253402300800", "1e300", "NaN"] {
            assert_eq!(time(text.parse().ok()), None, "{text}");
        }
    }

    proptest! {
        /// In CNAPI none is within this range, and few are outside.
        #[test]
        fn no_millisecond_of_a_boot_time_is_lost(at in 1_700_000_000_000_i64..1_800_000_000_000) {
            let sysinfo = json!({ "Boot Time": format!("{}.{:03}", at / 1000, at % 1000) });
            let mut record = seen();
            derive(&mut record, &serde_json::from_value(sysinfo).unwrap());
            let expected = iso(Timestamp::from_millisecond(at).unwrap());
            prop_assert_eq!(record.last_boot, Some(expected));
        }
    }

    #[test]
    fn what_another_version_keeps_in_a_record_survives() {
        let mut stored = json!(seen());
        stored["of_another_version"] = json!([1]);
        let record: ServerRecord = serde_json::from_value(stored.clone()).unwrap();
        assert_eq!(json!(record), stored);
    }

    #[test]
    fn a_sysinfo_without_setup_resets_it_and_keeps_what_it_lacks() {
        let mut record = seen();
        derive(&mut record, &Sysinfo::default());
        assert!(!record.setup);
        assert_eq!(record.current_platform.as_deref(), Some("20260101T000000Z"));
    }

    #[test]
    fn provisionable_memory_is_as_observed() {
        let record = seen();
        assert_eq!(provisionable(&record, Some(49139), None, 0), Some(43_797_079_654));
        assert_eq!(provisionable(&record, Some(49139), None, 128), Some(43_662_861_926));
        assert_eq!(provisionable(&record, None, None, 0), Some(43_797_079_654), "the last known");
        let mut unknown = record.clone();
        unknown.ram = None;
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
        assert!(Extras::parse("muster,all").muster && !Extras::parse("all").muster);
        assert!(!Extras::default().last_heartbeat);
    }

    #[test]
    fn an_absent_server_that_reboots_says_so() {
        let mut record = seen();
        assert_eq!(shown_status("unknown", &record), ServerStatus::Unknown);
        record.transitional_status = Some("rebooting".to_owned());
        assert_eq!(shown_status("unknown", &record), ServerStatus::Rebooting);
        assert_eq!(shown_status("running", &record), ServerStatus::Running);
    }
}
