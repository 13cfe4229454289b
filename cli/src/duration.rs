//! Lengths of time as people write them: `90s`, `10m`, `1h 30m`, `2d`.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Reads one; a number alone is in seconds.
///
/// # Errors
/// What is wrong with the text.
pub(crate) fn read(text: &str) -> Result<Duration, String> {
    let wanted = |_| "expected a time with a unit, e.g. 500ms, 90s, 10m, 2h or 1d".to_owned();
    if let Ok(seconds) = text.trim().parse() {
        return Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string());
    }
    let span: Span = text.trim().parse().map_err(wanted)?;
    let length = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(wanted)?;
    Duration::try_from(length).map_err(|_| "must not be negative".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_named_or_it_is_seconds() {
        for (text, millis) in [
            ("500ms", 500),
            ("2", 2_000),
            ("0.5", 500),
            ("1.5s", 1_500),
            ("10m", 600_000),
            ("1h 30m", 5_400_000),
            ("2d", 172_800_000),
        ] {
            assert_eq!(read(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "soon", "10 parsecs", "-5s", "-1", "1e400"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
