//! What stands in a table's cell: text for people, and what it is sorted and selected by.

use std::fmt::Write as _;

use jiff::Timestamp;
use muster_shared::clock::{Clock as _, SystemClock};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

/// Characters of an id that is cut short.
const SHORT_ID: usize = 8;
const KIB: f64 = 1024.0;

/// How a cell is to strike the eye.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Not at all.
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// On its way, or to be looked at.
    Busy,
    /// Failed or missing.
    Bad,
    /// Of no interest.
    Faint,
}

/// A cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    /// For people.
    pub(crate) text: String,
    /// The whole of what `text` shows a part of, e.g. of an id.
    pub(crate) whole: Option<String>,
    /// What it is sorted by, instead of its text.
    pub(crate) rank: Option<f64>,
    pub(crate) tone: Tone,
    /// Numbers stand at the right.
    pub(crate) right: bool,
}

impl Cell {
    /// A text; control characters are escaped.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self { text: safe(text.as_ref()), ..Self::default() }
    }

    /// A text, or a dash.
    pub(crate) fn maybe(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(Self::dash, Self::text)
    }

    /// Nothing is known.
    pub(crate) fn dash() -> Self {
        Self { text: "-".to_owned(), tone: Tone::Faint, ..Self::default() }
    }

    /// A member of a record.
    pub(crate) fn of(member: &impl Serialize) -> Self {
        match json!(member) {
            Value::Null => Self::dash(),
            Value::String(text) => Self::text(text),
            Value::Number(number) => {
                let rank = number.as_f64();
                Self { text: number.to_string(), rank, right: true, ..Self::default() }
            }
            other => Self::text(other.to_string()),
        }
    }

    /// An id, cut short unless there is room for all of it. Ids that begin with the time of their
    /// making look alike there and differ at their end.
    pub(crate) fn id(id: &impl ToString) -> Self {
        let whole = safe(&id.to_string());
        let text = if begins_with_time(&whole) {
            whole.chars().skip(whole.chars().count().saturating_sub(SHORT_ID)).collect()
        } else {
            whole.chars().take(SHORT_ID).collect()
        };
        Self { text, whole: Some(whole), ..Self::default() }
    }

    /// A size in bytes.
    pub(crate) fn bytes(bytes: Option<u64>) -> Self {
        let Some(bytes) = bytes else { return Self::dash() };
        #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
        let rank = bytes as f64;
        let whole = Some(bytes.to_string());
        Self { text: size(rank), whole, rank: Some(rank), right: true, ..Self::default() }
    }

    /// A size in MiB.
    pub(crate) fn mib(mib: Option<u64>) -> Self {
        Self::bytes(mib.map(|mib| mib.saturating_mul(1024 * 1024)))
    }

    /// How long ago a time in ISO form was.
    pub(crate) fn age(time: Option<&str>, now: Timestamp) -> Self {
        let Some(time) = time.filter(|time| !time.is_empty()) else { return Self::dash() };
        match time.parse::<Timestamp>() {
            Ok(at) => {
                let seconds = now.duration_since(at).as_secs();
                let text = ago(seconds);
                #[expect(clippy::cast_precision_loss, reason = "only compared")]
                let rank = Some(seconds as f64);
                Self { text, whole: Some(safe(time)), rank, ..Self::default() }
            }
            Err(_) => Self::text(time),
        }
    }

    /// How long ago that was, by this machine's clock.
    pub(crate) fn since(time: Option<&str>) -> Self {
        Self::age(time, SystemClock::new().wall())
    }

    /// A word that says how something is.
    pub(crate) fn state(word: &str) -> Self {
        Self { tone: tone(word), ..Self::text(word) }
    }

    pub(crate) fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }

    /// All that is known of it.
    pub(crate) fn full(&self) -> &str {
        self.whole.as_deref().unwrap_or(&self.text)
    }
}

/// Whether this is a uuid of version 7.
fn begins_with_time(id: &str) -> bool {
    id.parse::<Uuid>().is_ok_and(|id| id.get_version_num() == 7)
}

/// What a state's word means to an operator.
fn tone(word: &str) -> Tone {
    match word.split([' ', '?']).next().unwrap_or_default() {
        "running" | "complete" | "succeeded" | "active" => Tone::Good,
        "failed" | "failure" | "unknown" | "io-error" | "panicked" | "destroyed" => Tone::Bad,
        "stopped" | "finished" | "expired" | "disabled" => Tone::Faint,
        _ => Tone::Busy,
    }
}

/// A text without characters that a terminal obeys or that hide what it says: controls, and those
/// that turn the direction of writing.
pub(crate) fn safe(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if !c.is_control() && !turns {
            safe.push(c);
        } else if c == '\n' {
            safe.push_str("\\n");
        } else if c == '\t' {
            safe.push_str("\\t");
        } else {
            write!(safe, "\\u{{{:x}}}", u32::from(c)).expect("a String takes every write");
        }
    }
    safe
}

/// As [`safe`], line by line.
pub(crate) fn safe_lines(text: &str) -> String {
    text.split('\n').map(safe).collect::<Vec<_>>().join("\n")
}

/// Bytes with three digits and a unit.
pub(crate) fn size(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value.abs() < 999.5 {
            let digits = usize::from(value.abs() < 9.95 && unit != "B" && value.fract() != 0.0);
            return format!("{value:.digits$} {unit}");
        }
        value /= KIB;
    }
    format!("{value:.1} TiB")
}

/// Seconds as people tell an age. Clocks differ: what is in the future by less than a minute is now.
pub(crate) fn ago(seconds: i64) -> String {
    match seconds {
        -59..=0 => "now".to_owned(),
        ..=-60 => format!("in {}", span(seconds.unsigned_abs())),
        1.. => format!("{} ago", span(seconds.unsigned_abs())),
    }
}

/// A time in its largest unit, or two where one would say little.
pub(crate) fn span(seconds: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    let two = |whole: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit}{rest}{small}"),
    };
    match seconds {
        0..MINUTE => format!("{seconds}s"),
        MINUTE..HOUR => format!("{}m", seconds / MINUTE),
        // A few hours are told with their minutes.
        HOUR..36_000 => two(seconds / HOUR, "h", seconds % HOUR / MINUTE, "m"),
        36_000..172_800 => format!("{}h", seconds / HOUR),
        _ => format!("{}d", seconds / DAY),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ages_are_told_as_people_do() {
        for (seconds, text) in [
            (0, "now"),
            (-30, "now"),
            (-90, "in 1m"),
            (5, "5s ago"),
            (185, "3m ago"),
            (3_600, "1h ago"),
            (5_400, "1h30m ago"),
            (86_400, "24h ago"),
            (5 * 86_400, "5d ago"),
        ] {
            assert_eq!(ago(seconds), text);
        }
        let now: Timestamp = "2026-05-01T10:03:05.000Z".parse().unwrap();
        assert_eq!(Cell::age(Some("2026-05-01T10:00:00.000Z"), now).text, "3m ago");
        assert_eq!(Cell::age(Some("soon"), now).text, "soon");
        assert_eq!(Cell::age(None, now).text, "-");
    }

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_536, "1.5 KiB"),
            (256 << 20, "256 MiB"),
            (1 << 30, "1 GiB"),
            (40 << 30, "40 GiB"),
            (3 << 40, "3.0 TiB"),
        ] {
            assert_eq!(Cell::bytes(Some(bytes)).text, text);
        }
    }

    #[test]
    fn ids_are_short_and_states_have_a_tone() {
        let id = Cell::id(&"e5a32d94-1111-4111-8111-111111111111");
        assert_eq!((id.text.as_str(), id.full().len()), ("e5a32d94", 36));
        let made_later = Cell::id(&"0197a1c2-1111-7111-8111-11112222abcd");
        assert_eq!(made_later.text, "2222abcd");
        assert_eq!(Cell::state("running").tone, Tone::Good);
        assert_eq!(Cell::state("unknown (running)").tone, Tone::Bad);
        assert_eq!(Cell::state("stopping").tone, Tone::Busy);
    }

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert_eq!(safe("x\u{1b}[31mRED\n"), "x\\u{1b}[31mRED\\n");
        assert_eq!(safe("\u{202e}gpj.exe\u{9b}1m"), "\\u{202e}gpj.exe\\u{9b}1m");
        assert_eq!(safe("Grüße, 世界"), "Grüße, 世界");
        assert_eq!(safe_lines("a\tb\nc"), "a\\tb\nc");
    }

    proptest! {
        #[test]
        fn nothing_that_is_printed_controls(text in any::<String>()) {
            prop_assert!(!safe(&text).chars().any(char::is_control));
        }
    }
}
