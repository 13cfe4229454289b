//! Whether a VM whose process ended is started again, and when. Pure.

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::backoff::Backoff;

use super::VmRecord;
use crate::drivers::compute::{Ended, Live};
pub use crate::vm_record::restart::{BadPolicy, POLICY_FORM, POLICY_KEY, Policy, Power, Restarts};

/// Pauses before a start: a guest that ends at once does not keep the node busy.
const PAUSE: Backoff =
    Backoff { first: Duration::from_secs(1), factor: 2.0, cap: Duration::from_secs(300) };
/// A guest that ran this long has recovered: its next pause is the first again.
const RECOVERED: Duration = Duration::from_secs(600);
/// The hypervisor's word for a guest that powered itself off.
const GUEST_SHUTDOWN: &str = "guest-shutdown";

/// When a VM that ended in this way is to be started again; `None`: it is not.
///
/// An end that is still to come is that of a clock that was set back since: the VM has waited long
/// enough then, and who tries knows how long ago that was.
#[must_use]
pub fn due(record: &VmRecord, ended: &Ended, now: Timestamp) -> Option<Timestamp> {
    let exited = ended.exited_at_ms.and_then(|ms| i64::try_from(ms).ok());
    let exited = exited.and_then(|ms| Timestamp::from_millisecond(ms).ok());
    is_wanted(record, is_failure(ended)).then(|| after_pause(record, exited, now))
}

/// When a VM whose guest has panicked, which is a failure, is to be reset; `None`: it is not.
#[must_use]
pub fn reset_due(record: &VmRecord, panicked_at: Timestamp, now: Timestamp) -> Option<Timestamp> {
    is_wanted(record, true).then(|| after_pause(record, Some(panicked_at), now))
}

fn is_wanted(record: &VmRecord, is_failure: bool) -> bool {
    let wanted = match record.restart_policy() {
        Policy::Never => false,
        Policy::OnFailure(most) => {
            is_failure && most.is_none_or(|most| record.restarts.count < most.get())
        }
        Policy::Always => true,
    };
    wanted && record.power == Power::On
}

fn after_pause(record: &VmRecord, since: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let pause = PAUSE.delay(record.restarts.count, 1.0);
    let after = |time: Timestamp| time.saturating_add(pause).unwrap_or(Timestamp::MAX);
    since.filter(|since| *since <= now).map_or(now, after)
}

/// When the starts of a VM that runs are forgotten; `None`: there are none.
#[must_use]
pub fn recovered(record: &VmRecord, live: &Live) -> Option<Timestamp> {
    if record.restarts.count == 0 {
        return None;
    }
    // A reset is no start of its process.
    let booted = Timestamp::from_millisecond(i64::try_from(live.booted_at_ms).ok()?).ok()?;
    booted.saturating_add(RECOVERED).ok()
}

/// A guest of which nobody saw the end may have been cut off: that counts as a failure.
fn is_failure(ended: &Ended) -> bool {
    match ended.exit_status {
        Some(status) => status != 0,
        None => ended.reason.as_deref() != Some(GUEST_SHUTDOWN),
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::clock::iso;
    use serde_json::json;

    use super::*;
    use crate::vms::sim::record;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn now() -> Timestamp {
        Timestamp::from_millisecond(i64::try_from(NOW_MS).unwrap()).unwrap()
    }

    fn vm(policy: &str, power: Power, count: u32) -> VmRecord {
        let mut record = VmRecord { power, restarts: Restarts { count }, ..record(1) };
        let metadata = json!({ POLICY_KEY: policy });
        record.properties.insert("internal_metadata".to_owned(), metadata);
        record
    }

    fn ended(exit_status: Option<i32>, reason: Option<&str>) -> Ended {
        Ended { exit_status, exited_at_ms: Some(NOW_MS), reason: reason.map(Into::into) }
    }

    #[test]
    fn who_is_started_again_follows_from_policy_and_end() {
        let killed = ended(Some(137), None);
        let shut_down = ended(Some(0), Some(GUEST_SHUTDOWN));
        let unseen = ended(None, None);
        for (policy, end, again) in [
            ("never", &killed, false),
            ("nonsense", &killed, false),
            ("on-failure", &killed, true),
            ("on-failure", &unseen, true),
            ("on-failure", &shut_down, false),
            ("always", &shut_down, true),
            ("always", &unseen, true),
        ] {
            let due = due(&vm(policy, Power::On, 0), end, now());
            assert_eq!(due.is_some(), again, "{policy} {end:?}");
        }
        for power in [Power::Off, Power::Unknown] {
            assert_eq!(due(&vm("always", power, 0), &killed, now()), None);
        }
    }

    #[test]
    fn pauses_grow_to_a_limit_and_starts_in_a_row_are_counted() {
        let pause = |policy: &str, count| {
            let due = due(&vm(policy, Power::On, count), &ended(Some(1), None), now());
            due.map(|due| iso(due)[14..19].to_owned())
        };
        for (count, expected) in
            [(0, "00:01"), (3, "00:08"), (8, "04:16"), (9, "05:00"), (900, "05:00")]
        {
            assert_eq!(pause("always", count).as_deref(), Some(expected), "{count}");
        }
        assert!(pause("on-failure:3", 2).is_some());
        assert_eq!(pause("on-failure:3", 3), None);
    }

    #[test]
    fn a_clock_that_was_set_back_does_not_delay_a_start_for_ever() {
        let hour_ago = now() - jiff::Span::new().hours(1);
        let due = |now| due(&vm("always", Power::On, 0), &ended(Some(1), None), now).unwrap();
        assert_eq!(due(hour_ago), hour_ago);
        assert_eq!(due(now()), now() + jiff::Span::new().seconds(1));
    }
}
