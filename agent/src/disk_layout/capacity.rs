//! Sizes of disks as they are sold.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Steps in which disks of some size are sold, MB.
const STEPS: [u64; 6] = [500_000, 150_000, 80_000, 20_000, 4_500, 1_000];
/// How far a size may be from the one that the disk is sold with: a twentieth of its own.
const TOLERANCE: u64 = 20;
const BYTES: u64 = 1_000_000;
const MB_PER_GB: u64 = 1_000;

/// A size in units of 10⁶ bytes; told in gigabytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Megabytes(u64);

impl Megabytes {
    /// So many gigabytes.
    #[must_use]
    pub const fn of_gb(gb: u64) -> Self {
        Self(gb * MB_PER_GB)
    }

    /// The size that a disk of so many bytes is sold with.
    #[must_use]
    pub fn rounded(bytes: u64) -> Self {
        // Distances are compared in bytes: a disk has few whole megabytes exactly.
        let candidate = |step: u64| {
            let sold_mb = (bytes / BYTES + step / 2) / step * step;
            let distance = bytes.abs_diff(sold_mb * BYTES);
            let near = u128::from(distance) * u128::from(TOLERANCE) <= u128::from(bytes);
            (near && sold_mb > 0).then(|| (weight(distance, sold_mb / step), sold_mb))
        };
        // The first one of equals: the larger step.
        let nearest = STEPS
            .into_iter()
            .filter_map(candidate)
            .reduce(|best, next| if next.0 < best.0 { next } else { best });
        Self(nearest.map_or_else(|| whole_gb(bytes) * MB_PER_GB, |(_, sold_mb)| sold_mb))
    }

    /// Nothing can be stored.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0.saturating_mul(BYTES)
    }

    /// So many times.
    #[must_use]
    pub fn times(self, count: usize) -> Self {
        Self(self.0.saturating_mul(u64::try_from(count).unwrap_or(u64::MAX)))
    }

    /// Both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// Whether it is within a twentieth of another size.
    pub(super) fn is_near(self, other: Self) -> bool {
        self.0.abs_diff(other.0).saturating_mul(TOLERANCE) <= other.0
    }
}

/// The square of the distance, in bytes, times the fourth power of the number of steps: sizes that are
/// few steps are more likely.
fn weight(distance: u64, steps: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "weights are compared, not added up")]
    let (distance, steps) = (distance as f64, steps as f64);
    distance.powi(2) * steps.powi(4)
}

/// To the nearest one, halves up.
fn whole_gb(bytes: u64) -> u64 {
    let gb = BYTES * MB_PER_GB;
    bytes / gb + u64::from(bytes % gb >= gb / 2)
}

impl Serialize for Megabytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.is_multiple_of(MB_PER_GB) {
            return serializer.serialize_u64(self.0 / MB_PER_GB);
        }
        #[expect(clippy::cast_precision_loss, reason = "no disk has 2⁵³ MB")]
        serializer.serialize_f64(self.0 as f64 / MB_PER_GB as f64)
    }
}

impl<'de> Deserialize<'de> for Megabytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let gb = f64::deserialize(deserializer)?;
        if !(0.0..=1e12).contains(&gb) {
            return Err(serde::de::Error::custom("no size of a disk in GB"));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "it is in a range of whole numbers"
        )]
        Ok(Self((gb * MB_PER_GB as f64).round() as u64))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sizes_are_those_that_disks_are_sold_with() {
        for (bytes, mb) in [
            // What makers of disks call these sizes.
            (500_107_862_016, 500_000),
            (1_000_204_886_016, 1_000_000),
            (2_000_398_934_016, 2_000_000),
            (4_000_787_030_016, 4_000_000),
            (300_000_000_000, 300_000),
            (146_815_737_856, 150_000),
            (600_127_266_816, 600_000),
            (80_026_361_856, 80_000),
            (160_041_885_696, 160_000),
            // 16 times 4.5 GB are near; what is a multiple of 20 GB or more is not.
            (73_407_865_856, 72_000),
            // 4.5 GB.
            (4_551_129_088, 4_500),
            // No step is near: the nearest gigabyte.
            (1_499_000_000, 1_000),
            (1_500_000_000, 2_000),
            (499_999_999, 0),
            (0, 0),
        ] {
            assert_eq!(Megabytes::rounded(bytes).0, mb, "{bytes}");
        }
    }

    #[test]
    fn sizes_are_told_in_gigabytes() {
        let text = |mb| serde_json::to_string(&Megabytes(mb)).unwrap();
        assert_eq!((text(4_500), text(2_000_000)), ("4.5".to_owned(), "2000".to_owned()));
        assert_eq!(serde_json::from_str::<Megabytes>("4.5").unwrap(), Megabytes(4_500));
        assert!(serde_json::from_str::<Megabytes>("-1").is_err());
    }

    proptest! {
        #[test]
        fn no_size_is_far_from_the_disks_own(bytes in 10_000_000_000_u64..1_000_000_000_000_000) {
            let rounded = Megabytes::rounded(bytes);
            prop_assert!(rounded.bytes().abs_diff(bytes) * 20 <= bytes);
            let told = serde_json::to_string(&rounded).unwrap();
            prop_assert_eq!(serde_json::from_str::<Megabytes>(&told).unwrap(), rounded);
        }
    }
}
