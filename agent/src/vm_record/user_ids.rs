//! Which ids of the host a container gets for its own.

use crate::host::idmap::IdRange;

/// Ids of one container: those that images know.
pub const EACH: u32 = 65_536;

/// The first ones that are no other's.
#[must_use]
pub fn free(of: IdRange, taken: &[IdRange]) -> Option<IdRange> {
    let all = (0..of.count / EACH).map(|number| IdRange {
        first: of.first.saturating_add(number.saturating_mul(EACH)),
        count: EACH,
    });
    all.into_iter().find(|ids| !taken.iter().any(|other| other.overlaps(*ids)))
}

/// Those of some container.
#[must_use]
pub fn one_of(all: IdRange) -> IdRange {
    IdRange { count: EACH.min(all.count), ..all }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_container_has_ids_that_no_other_one_has() {
        let all = IdRange { first: 1_000_000, count: 3 * EACH };
        let mut taken = Vec::new();
        for number in 0..3 {
            let ids = free(all, &taken).unwrap();
            assert_eq!(ids, IdRange { first: 1_000_000 + number * EACH, count: EACH });
            taken.push(ids);
        }
        assert_eq!(free(all, &taken), None);
        let given_back = taken.remove(1);
        assert_eq!(free(all, &taken), Some(given_back));
        // As of an agent that was configured otherwise.
        taken.push(IdRange { first: given_back.first + 5, count: 1 });
        assert_eq!(free(all, &taken), None);
        assert_eq!(one_of(all), IdRange { first: 1_000_000, count: EACH });
    }
}
