//! Which images make room when the pool is full. Pure; [`surplus`](super::surplus) removes them.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use muster_shared::ids::ImageUuid;

use crate::drivers::images::ImageUsage;

/// Guests need room to grow, and a fetch of a usual image a tenth of a small pool.
pub const DEFAULT_HIGH_PERCENT: u8 = 85;
/// Far enough below, so that not every fetch is followed by a removal.
pub const DEFAULT_LOW_PERCENT: u8 = 70;
/// Made free when somebody found no room, percent of the pool.
const WANTED_PERCENT: u8 = 10;
/// Who comes back to an image does so within a week.
pub const DEFAULT_MIN_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// When images go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Use of the pool above which they go, percent.
    pub high_percent: u8,
    /// Use at which no more of them go, percent.
    pub low_percent: u8,
    /// One that was used, or came, within this time stays.
    pub min_age: Duration,
}

impl Policy {
    /// When somebody found no room, however full the pool is: what was wanted is large.
    #[must_use]
    pub fn wanting(self, pool: Pool) -> Self {
        let low_percent = pool.used_percent().saturating_sub(WANTED_PERCENT);
        Self { low_percent: low_percent.min(self.low_percent), ..self }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            high_percent: DEFAULT_HIGH_PERCENT,
            low_percent: DEFAULT_LOW_PERCENT,
            min_age: DEFAULT_MIN_AGE,
        }
    }
}

/// How full the pool is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its size.
    pub size_bytes: u64,
    /// Used by anything.
    pub used_bytes: u64,
}

impl Pool {
    /// Whether more than so much of it is used.
    #[must_use]
    pub fn is_above(self, percent: u8) -> bool {
        u128::from(self.used_bytes) * 100 > u128::from(self.size_bytes) * u128::from(percent)
    }

    /// How much of it is used, percent.
    #[must_use]
    pub fn used_percent(self) -> u8 {
        let percent = u128::from(self.used_bytes) * 100 / u128::from(self.size_bytes.max(1));
        u8::try_from(percent.min(100)).unwrap_or(100)
    }

    fn without(self, bytes: u64) -> Self {
        Self { used_bytes: self.used_bytes.saturating_sub(bytes), ..self }
    }
}

/// When an image was last of use: it came because somebody wanted it.
fn last_use(image: &ImageUsage) -> Timestamp {
    image.last_used_at.map_or(image.installed_at, |used| used.max(image.installed_at))
}

/// The images that go now, in this order: of those that nothing needs and nobody used for long, the
/// one that was used longest ago first, until the pool is at its low mark. `held` are images that
/// tasks work with.
#[must_use]
pub fn choose(
    policy: &Policy,
    mut pool: Pool,
    images: &[ImageUsage],
    held: &BTreeSet<ImageUuid>,
    now: Timestamp,
) -> Vec<ImageUuid> {
    let origins: BTreeSet<_> = images.iter().filter_map(ImageUsage::origin).collect();
    let is_old = |image: &ImageUsage| {
        // A use that is still to come is that of a clock that went wrong: such an image stays.
        let age = Duration::try_from(now.duration_since(last_use(image)));
        age.is_ok_and(|age| age >= policy.min_age)
    };
    let mut surplus: Vec<&ImageUsage> = images
        .iter()
        .filter(|image| image.dependents.disks == 0)
        .filter(|image| !origins.contains(&image.image) && !held.contains(&image.image))
        .filter(|image| is_old(image))
        .collect();
    surplus.sort_by_key(|image| (last_use(image), image.image));
    let mut chosen = Vec::new();
    for image in surplus {
        if !pool.is_above(policy.low_percent) {
            break;
        }
        pool = pool.without(image.used_bytes);
        chosen.push(image.image);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::drivers::storage::Dependents;

    const POOL: Pool = Pool { size_bytes: 1000, used_bytes: 900 };
    const POLICY: Policy =
        Policy { high_percent: 85, low_percent: 70, min_age: Duration::from_secs(100) };
    const NOW_S: i64 = 1000;

    fn uuid(n: u8) -> ImageUuid {
        ImageUuid(Uuid::from_u128(n.into()))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn image(n: u8, used_bytes: u64, installed_s: i64, used_s: Option<i64>) -> ImageUsage {
        ImageUsage {
            image: uuid(n),
            manifest: json!({}),
            used_bytes,
            installed_at: at(installed_s),
            last_used_at: used_s.map(at),
            dependents: Dependents::default(),
        }
    }

    #[track_caller]
    fn check(images: &[ImageUsage], held: &[u8], chosen: &[u8]) {
        let held = held.iter().map(|n| uuid(*n)).collect();
        let wanted: Vec<_> = chosen.iter().map(|n| uuid(*n)).collect();
        assert_eq!(choose(&POLICY, POOL, images, &held, at(NOW_S)), wanted);
    }

    #[test]
    fn the_one_that_was_used_longest_ago_goes_first() {
        let images =
            [image(1, 150, 0, Some(500)), image(2, 150, 300, None), image(3, 150, 0, Some(400))];
        check(&images, &[], &[2, 3]);
        check(&images, &[2], &[3, 1]);
    }

    #[test]
    fn a_tenth_of_the_pool_goes_for_who_found_no_room() {
        let half = Pool { used_bytes: 500, ..POOL };
        let images = [image(1, 60, 0, None), image(2, 60, 10, None), image(3, 60, 20, None)];
        let chosen =
            |policy: Policy| choose(&policy, half, &images, &BTreeSet::new(), at(NOW_S)).len();
        assert_eq!((chosen(POLICY), chosen(POLICY.wanting(half))), (0, 2));
        assert_eq!(POLICY.wanting(POOL), POLICY);
    }

    #[test]
    fn what_is_needed_or_young_stays() {
        let mut based_on = image(1, 100, 0, None);
        based_on.dependents = Dependents { disks: 1, vms: 1 };
        let mut child = image(3, 100, 950, None);
        child.manifest = json!({ "origin": uuid(2) });
        let images = [
            based_on,
            image(2, 100, 0, None),
            child,
            image(4, 100, 0, Some(901)),
            image(5, 100, 0, Some(2000)),
            image(6, 100, 0, Some(900)),
        ];
        check(&images, &[], &[6]);
    }

    fn any_images() -> impl Strategy<Value = Vec<ImageUsage>> {
        let one = (0u64..300, 0i64..1200, prop::option::of(0i64..1200), 0usize..2, 0u8..24);
        prop::collection::vec(one, 0..12).prop_map(|all| {
            let images = (0u8..).zip(all).map(|(n, (bytes, installed, used, disks, origin))| {
                let manifest = if origin < 12 && origin != n {
                    json!({ "origin": uuid(origin) })
                } else {
                    json!({})
                };
                let dependents = Dependents { disks, vms: disks };
                ImageUsage { manifest, dependents, ..image(n, bytes, installed, used) }
            });
            images.collect()
        })
    }

    proptest! {
        /// Never one that is needed, held or young; in the order of use; not one too many, and not
        /// one too few.
        #[test]
        fn the_choice_is_safe_ordered_and_just_enough(
            images in any_images(),
            held in prop::collection::btree_set((0u8..12).prop_map(uuid), 0..3),
            used_bytes in 0u64..=1000,
        ) {
            let pool = Pool { size_bytes: 1000, used_bytes };
            let chosen = choose(&POLICY, pool, &images, &held, at(NOW_S));
            let of = |uuid: &ImageUuid| images.iter().find(|image| image.image == *uuid).unwrap();
            let may_go = |image: &ImageUsage| {
                let young = NOW_S - 100;
                image.dependents.disks == 0
                    && !held.contains(&image.image)
                    && image.installed_at <= at(young)
                    && image.last_used_at.is_none_or(|used| used <= at(young))
                    && images.iter().all(|other| other.origin() != Some(image.image))
            };
            for uuid in &chosen {
                prop_assert!(may_go(of(uuid)), "{uuid} of {images:?}");
            }
            prop_assert!(chosen.is_sorted_by_key(|uuid| last_use(of(uuid))));
            let freed = |chosen: &[ImageUuid]| {
                chosen.iter().map(|uuid| of(uuid).used_bytes).sum::<u64>()
            };
            if let Some((_, before)) = chosen.split_last() {
                prop_assert!(pool.without(freed(before)).is_above(70), "one too many");
            }
            if pool.without(freed(&chosen)).is_above(70) {
                let all = images.iter().filter(|image| may_go(image)).count();
                prop_assert_eq!(chosen.len(), all, "one too few");
            }
            let distinct: BTreeSet<_> = chosen.iter().collect();
            prop_assert_eq!(distinct.len(), chosen.len());
        }
    }
}
