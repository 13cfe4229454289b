//! Size constants, and sizes as people write them. Field names elsewhere end in their unit (`_bytes`,
//! `_mib`, `_ms`).

/// Bytes in one MiB.
pub const MIB: u64 = 1024 * 1024;
/// Bytes in one GiB.
pub const GIB: u64 = 1024 * MIB;

/// What a size in a file looks like.
pub const SIZE_FORM: &str = "must be a size with its unit, e.g. 512MiB or 20GiB";

/// A size such as `512MiB`, `20GiB` or `1TiB`, MiB; `None` for anything else, 0 among it.
#[must_use]
pub fn parse_mib(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim_start() {
        "MiB" => 1,
        "GiB" => 1024,
        "TiB" => 1024 * 1024,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(factor).filter(|mib| *mib > 0)
}

/// A size in MiB as [`parse_mib`] reads it, in the largest unit of which it is a whole number.
#[must_use]
pub fn format_mib(mib: u64) -> String {
    match mib {
        mib if mib > 0 && mib % (1024 * 1024) == 0 => format!("{}TiB", mib / (1024 * 1024)),
        mib if mib > 0 && mib % 1024 == 0 => format!("{}GiB", mib / 1024),
        mib => format!("{mib}MiB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        for (text, mib) in [
            ("512MiB", Some(512)),
            ("20 GiB", Some(20 * 1024)),
            ("1TiB", Some(1024 * 1024)),
            ("0MiB", None),
            ("512", None),
            ("512MB", None),
            ("1.5GiB", None),
            ("GiB", None),
            ("99999999999999999999MiB", None),
            ("18446744073709551615TiB", None),
        ] {
            assert_eq!(parse_mib(text), mib, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_as_they_are_read() {
        for text in ["1MiB", "1536MiB", "20GiB", "3TiB"] {
            assert_eq!(parse_mib(text).map(format_mib).as_deref(), Some(text));
        }
    }
}
