//! Milliseconds of the two forms of time in records.

use jiff::Timestamp;
use jiff::civil::date;

use crate::validate::is_stamp;

/// Milliseconds since 1970 as the scorers' number.
#[expect(clippy::cast_precision_loss, reason = "exact for the next 200,000 years")]
fn float(ms: i64) -> f64 {
    ms as f64
}

/// A platform stamp, `20130101T000000Z`; `None` if it is no possible time.
pub(crate) fn stamp_ms(text: &str) -> Option<f64> {
    if !is_stamp(text) {
        return None;
    }
    let year: i16 = text[..4].parse().ok()?;
    let two = |at: usize| text[at..at + 2].parse::<i8>().ok();
    let (month, day) = (two(4)?, two(6)?);
    let (hour, minute, second) = (two(9)?, two(11)?, two(13)?);
    let valid = (1..=12).contains(&month) && (1..=31).contains(&day);
    if !valid || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let civil = jiff::civil::Date::new(year, month, day).ok()?.at(hour, minute, second, 0);
    let days = civil.date().since(date(1970, 1, 1)).ok()?.get_days();
    let seconds = i64::from(days) * 86_400
        + i64::from(hour) * 3_600
        + i64::from(minute) * 60
        + i64::from(second);
    Some(float(seconds * 1_000))
}

/// An ISO 8601 time with zone.
pub(crate) fn iso_ms(text: &str) -> Option<f64> {
    text.parse::<Timestamp>().ok().map(|time| float(time.as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_and_times_are_milliseconds() {
        assert_eq!(stamp_ms("20130101T000001Z"), Some(1_356_998_401_000.0));
        assert_eq!(stamp_ms("20131901T000001Z"), None);
        assert_eq!(stamp_ms("20130231T000001Z"), None);
        assert_eq!(iso_ms("2013-01-01T00:00:01.500Z"), Some(1_356_998_401_500.0));
        assert_eq!(iso_ms("soon"), None);
    }
}
