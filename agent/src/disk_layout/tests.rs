//! Pools worked out by hand from the rules, and what holds of every pool.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const GB: u64 = 1_000_000_000;

fn disk(name: &str, gb: u64, solid_state: bool) -> Disk {
    let kind = if solid_state { "sata" } else { "sas" }.to_owned();
    let (vendor, product) = ("ACME".to_owned(), format!("D{gb}"));
    let bytes = gb * GB;
    Disk { name: name.to_owned(), vendor, product, kind, bytes, solid_state, ..Disk::default() }
}

/// So many disks that turn, of so many GB each.
fn turning(count: usize, gb: u64) -> Vec<Disk> {
    (0..count).map(|number| disk(&format!("sd{number:02}"), gb, false)).collect()
}

fn solid(count: usize, gb: u64) -> Vec<Disk> {
    (0..count).map(|number| disk(&format!("ss{number:02}"), gb, true)).collect()
}

fn spares(spares: usize) -> Wishes {
    Wishes { spares: Some(spares), ..Wishes::default() }
}

/// E.g. `raidz2 2*8 +1 28000`: layout, groups, their width, spares, capacity in GB.
fn short(pool: Result<PoolLayout, LayoutError>) -> String {
    let pool = match pool {
        Ok(pool) => pool,
        Err(error) => return error.to_string(),
    };
    let (kind, width) = match pool.vdevs.first() {
        Some(Vdev::Group { kind, devices }) => (kind.as_str(), devices.len()),
        _ => ("single", 1),
    };
    assert!(pool.vdevs.iter().all(|vdev| vdev.devices().len() == width));
    let capacity = serde_json::to_string(&pool.capacity).unwrap();
    format!("{kind} {}*{width} +{} {capacity}", pool.vdevs.len(), pool.spares.len())
}

#[test]
fn layouts_follow_from_the_number_of_disks() {
    for (count, expected) in [
        (0, "no primary storage disks available"),
        (1, "single 1*1 +0 1000"),
        (2, "mirror 1*2 +0 1000"),
        (3, "raidz1 1*3 +0 2000"),
        (4, "raidz1 1*4 +0 3000"),
        (5, "raidz2 1*5 +0 3000"),
        (6, "raidz2 1*6 +0 4000"),
        // One stands by, and one more where the rest is odd.
        (7, "mirror 3*2 +1 3000"),
        (8, "mirror 3*2 +2 3000"),
        (15, "mirror 7*2 +1 7000"),
        (16, "mirror 7*2 +2 7000"),
        // 17 - 1: 7 does not divide it, 8 does.
        (17, "raidz2 2*8 +1 12000"),
        // 17 and then 16.
        (18, "raidz2 2*8 +2 12000"),
        (24, "raidz2 2*11 +2 18000"),
        // 34 and then 33.
        (36, "raidz2 3*11 +3 27000"),
        // 43 and then 42, which 7 divides.
        (45, "raidz2 6*7 +3 30000"),
    ] {
        let pool = lay_out(&turning(count, 1000), &Wishes::default());
        assert_eq!(short(pool), expected, "{count} disks");
    }
}

#[test]
fn fast_and_large_disks_have_other_layouts() {
    for (disks, expected) in [
        (solid(5, 400), "raidz1 1*5 +0 1600"),
        // The smallest width that divides them.
        (solid(6, 400), "raidz1 2*3 +0 1600"),
        (solid(7, 400), "raidz2 1*7 +0 2000"),
        (solid(11, 400), "raidz2 1*11 +0 3600"),
        (solid(12, 400), "mirror 5*2 +2 2000"),
        (turning(7, 2000), "mirror 3*2 +1 6000"),
        (turning(8, 2000), "raidz2 1*8 +0 12000"),
        (turning(8, 1500), "mirror 3*2 +2 4500"),
        (turning(12, 2000), "raidz2 1*11 +1 18000"),
        // 13 - 1.
        (turning(13, 4000), "raidz2 1*12 +1 40000"),
    ] {
        let count = disks.len();
        assert_eq!(short(lay_out(&disks, &Wishes::default())), expected, "{count} disks");
    }
}

#[test]
fn spares_that_are_asked_for_change_the_layout() {
    for (count, gb, wanted, expected) in [
        (2, 1000, 1, "too many spares (1) for this disk configuration"),
        (5, 1000, 9, "too many spares (9) for this disk configuration"),
        (17, 1000, 0, "invalid number of spares (0) for this disk configuration"),
        (25, 1000, 2, "invalid number of spares (2) for this disk configuration"),
        (3, 1000, 1, "mirror 1*2 +1 1000"),
        (6, 1000, 1, "raidz1 1*5 +1 4000"),
        (6, 1000, 0, "raidz1 2*3 +0 4000"),
        (7, 1000, 0, "raidz2 1*7 +0 5000"),
        (9, 1000, 1, "mirror 4*2 +1 4000"),
        (10, 1000, 1, "raidz2 1*9 +1 7000"),
        (14, 1000, 1, "raidz3 1*13 +1 10000"),
        (16, 1000, 1, "raidz1 5*3 +1 10000"),
        (20, 1000, 2, "raidz2 2*9 +2 14000"),
        // 25 is divided by 5 alone.
        (26, 1000, 1, "raidz1 5*5 +1 20000"),
        (14, 4000, 1, "raidz3 1*13 +1 40000"),
        (16, 4000, 1, "raidz1 5*3 +1 40000"),
    ] {
        let pool = lay_out(&turning(count, gb), &spares(wanted));
        assert_eq!(short(pool), expected, "{count} disks of {gb} GB, {wanted} spares");
    }
}

#[test]
fn widths_and_layouts_that_are_asked_for_are_had_or_refused() {
    use Layout::{Mirror, Raidz1, Raidz2, Raidz3, Single};
    for (count, layout, width, wanted, expected) in [
        (8, None, Some(2), None, "mirror 4*2 +0 4000"),
        (8, None, Some(4), None, "raidz1 2*4 +0 6000"),
        (16, None, Some(7), None, "raidz2 2*7 +2 10000"),
        (16, None, Some(13), None, "raidz3 1*13 +3 10000"),
        // With fewer disks the layout is that of their number.
        (6, None, Some(6), None, "raidz2 1*6 +0 4000"),
        (5, Some(Single), None, None, "single 1*1 +0 1000"),
        (5, Some(Single), None, Some(1), "spares are not allowed for a single disk pool"),
        (1, Some(Mirror), None, None, "at least 2 disks are required for mirroring"),
        (4, Some(Mirror), None, None, "mirror 2*2 +0 2000"),
        (7, Some(Mirror), Some(3), None, "mirror 2*3 +1 2000"),
        (7, Some(Mirror), Some(3), Some(5), "too many spares (5) for this disk configuration"),
        // What is less than a mirror is left unused.
        (6, Some(Mirror), None, Some(1), "mirror 2*2 +1 2000"),
        (2, Some(Mirror), Some(3), None, "a width of 3 is not possible for mirror with 2 disks"),
        (4, Some(Mirror), Some(1), None, "a width of 1 is not possible for mirror with 4 disks"),
        (7, Some(Raidz1), None, None, "raidz1 2*3 +1 4000"),
        (
            8,
            Some(Raidz1),
            None,
            Some(1),
            "no acceptable raidz1 layout is possible with 8 disks and 1 spare(s)",
        ),
        (
            2,
            Some(Raidz1),
            None,
            None,
            "no acceptable raidz1 layout is possible with 2 disks and 0 spare(s)",
        ),
        (10, Some(Raidz1), Some(4), None, "raidz1 2*4 +2 6000"),
        (10, Some(Raidz1), Some(4), Some(1), "raidz1 2*4 +1 6000"),
        (
            10,
            Some(Raidz1),
            Some(4),
            Some(7),
            "no acceptable raidz1 layout is possible with 10 disks and 7 spare(s)",
        ),
        (10, Some(Raidz1), Some(2), None, "a width of 2 is not possible for raidz1 with 10 disks"),
        (
            10,
            Some(Raidz1),
            Some(11),
            None,
            "a width of 11 is not possible for raidz1 with 10 disks",
        ),
        (5, Some(Raidz2), None, None, "raidz2 1*5 +0 3000"),
        (7, Some(Raidz3), None, None, "raidz3 1*7 +0 4000"),
        (8, Some(Raidz3), None, None, "raidz3 1*8 +0 5000"),
        (9, Some(Raidz3), None, None, "raidz3 1*9 +0 6000"),
        // 15 has one that stands by; 14 is a width.
        (15, Some(Raidz3), None, None, "raidz3 1*14 +1 11000"),
        (
            4,
            Some(Raidz2),
            None,
            None,
            "no acceptable raidz2 layout is possible with 4 disks and 0 spare(s)",
        ),
    ] {
        let wishes = Wishes { layout, width, spares: wanted, ..Wishes::default() };
        let pool = lay_out(&turning(count, 1000), &wishes);
        assert_eq!(short(pool), expected, "{count} disks, {wishes:?}");
    }
    assert_eq!("raidz5".parse::<Layout>().unwrap_err().to_string(), "unknown layout raidz5");
    assert_eq!("raidz3".parse(), Ok(Raidz3));
}

fn names(devices: &[Device]) -> Vec<&str> {
    devices.iter().map(|device| device.name.as_str()).collect()
}

#[test]
fn disks_have_roles_by_their_kind() {
    let mut disks = turning(3, 1000);
    disks.extend([disk("log0", 100, true), disk("log1", 100, true)]);
    disks.extend([disk("fast0", 400, true), disk("small", 300, false)]);
    let caching = Wishes { cache: true, ..Wishes::default() };
    let pool = lay_out(&disks, &caching).unwrap();
    assert_eq!(short(Ok(pool.clone())), "raidz1 1*3 +0 2000");
    assert_eq!(
        (names(&pool.logs), names(&pool.cache)),
        (vec!["log0", "log1"], vec!["small", "fast0"])
    );
    let pool = lay_out(&disks, &Wishes::default()).unwrap();
    assert_eq!((names(&pool.logs), names(&pool.cache)), (vec!["log0", "log1"], Vec::new()));
    // Five of them are no log.
    let mut disks = turning(3, 1000);
    disks.extend(solid(5, 100));
    let pool = lay_out(&disks, &caching).unwrap();
    assert_eq!((pool.logs.len(), pool.cache.len()), (0, 5));
    // Nothing turns: the largest store, the smallest log, and the rest cache.
    let mut disks = solid(2, 800);
    disks.extend([disk("x", 200, true), disk("y", 400, true)]);
    let pool = lay_out(&disks, &caching).unwrap();
    assert_eq!(names(pool.vdevs[0].devices()), ["ss00", "ss01"]);
    assert_eq!((names(&pool.logs), names(&pool.cache)), (vec!["x"], vec!["y"]));
}

#[test]
fn sizes_that_are_near_are_one_kind() {
    // 4 % apart; with the larger ones at the end, where they stand by.
    let mut disks: Vec<Disk> = turning(6, 1000);
    disks.extend([disk("a", 1040, false), disk("b", 1040, false)]);
    let pool = lay_out(&disks, &Wishes::default()).unwrap();
    assert_eq!(short(Ok(pool.clone())), "mirror 3*2 +2 3000");
    assert_eq!(names(&pool.spares), ["a", "b"]);
    // Kinds that are further apart are not mixed: the largest store.
    let mut disks = turning(2, 1000);
    disks.extend([disk("a", 2000, false), disk("b", 2000, false)]);
    assert_eq!(short(lay_out(&disks, &Wishes::default())), "mirror 1*2 +0 2000");
    // Nor are disks that turn with others.
    let mut disks = turning(2, 1000);
    disks.extend(solid(2, 1000));
    let pool = lay_out(&disks, &Wishes::default()).unwrap();
    assert_eq!((short(Ok(pool.clone())), pool.logs.len()), ("mirror 1*2 +0 1000".to_owned(), 2));
}

#[test]
fn what_may_not_be_used_is_left_alone() {
    let mut disks = turning(5, 1000);
    disks[0].removable = true;
    disks[1].mounted = true;
    disks[2].bytes = 400_000_000;
    let exclude = vec!["SD03".to_owned(), "nothing".to_owned()];
    let wishes = Wishes { exclude, ..Wishes::default() };
    let pool = lay_out(&disks, &wishes).unwrap();
    assert_eq!(names(pool.vdevs[0].devices()), ["sd04"]);
    disks.pop();
    assert_eq!(lay_out(&disks, &wishes), Err(LayoutError::NoDisks));
}

#[test]
fn a_pool_is_told_as_operators_know_it() {
    let pool = lay_out(&turning(1, 1000), &Wishes::default()).unwrap();
    let device = json!({
        "name": "sd00", "vid": "ACME", "pid": "D1000", "size": 1000, "solid_state": false,
    });
    assert_eq!(json!(pool), json!({ "vdevs": [device], "capacity": 1000 }));
    let pool = lay_out(&turning(3, 1000), &spares(1)).unwrap();
    let told = json!(pool);
    assert_eq!(
        (&told["vdevs"][0]["type"], &told["spares"][0]["name"]),
        (&json!("mirror"), &json!("sd02"))
    );
    assert_eq!(serde_json::from_value::<PoolLayout>(told).unwrap(), pool);
    assert_eq!(json!(pool).get("logs"), None::<&Value>);
}

fn inventories() -> impl Strategy<Value = Vec<Disk>> {
    let sizes =
        prop_oneof![Just(100_u64), Just(400), Just(960), Just(1000), Just(1040), Just(4000)];
    let one = (sizes, any::<bool>(), 0_u8..20, any::<bool>());
    proptest::collection::vec(one, 0..55).prop_map(|all| {
        let numbered = all.into_iter().enumerate();
        let disk = |(number, (gb, solid_state, oddity, other))| {
            let mut disk = disk(&format!("d{number}"), gb, solid_state);
            disk.removable = oddity == 0;
            disk.mounted = oddity == 1;
            if other {
                disk.kind = "nvme".to_owned();
            }
            disk
        };
        numbered.map(disk).collect()
    })
}

fn wishes() -> impl Strategy<Value = Wishes> {
    let layout = proptest::option::of(proptest::sample::select(&Layout::ALL[..]));
    let numbers = (proptest::option::of(0_usize..6), proptest::option::of(1_usize..22));
    let exclude = proptest::collection::vec("[dD][0-9]{1,2}", 0..4);
    (layout, numbers, any::<bool>(), exclude).prop_map(
        |(layout, (spares, width), cache, exclude)| Wishes {
            layout,
            spares,
            width,
            cache,
            exclude,
        },
    )
}

proptest! {
    #[test]
    fn no_pool_breaks_a_promise(disks in inventories(), wishes in wishes()) {
        let Ok(pool) = lay_out(&disks, &wishes) else { return Ok(()) };
        let find = |device: &Device| disks.iter().find(|disk| disk.name == device.name).unwrap();
        let mut used: Vec<&str> = pool.devices().map(|device| device.name.as_str()).collect();
        for device in pool.devices() {
            let disk = find(device);
            prop_assert!(!disk.removable && !disk.mounted);
            let named = |name: &String| name.eq_ignore_ascii_case(&device.name);
            prop_assert!(!wishes.exclude.iter().any(named));
        }
        let count = used.len();
        used.sort_unstable();
        used.dedup();
        prop_assert_eq!(used.len(), count, "no disk is used twice");
        prop_assert!(!pool.vdevs.is_empty());
        let storing: Vec<&Device> = pool.vdevs.iter().flat_map(Vdev::devices).collect();
        let width = pool.vdevs[0].devices().len();
        for vdev in &pool.vdevs {
            prop_assert_eq!(vdev.devices().len(), width);
            prop_assert!(vdev.devices().is_sorted_by_key(|device| device.size));
        }
        // Nothing that stores is larger than what stands by for it, or of another kind.
        for spare in &pool.spares {
            prop_assert!(storing.iter().all(|device| device.size <= spare.size));
        }
        let kinds = storing.iter().copied().chain(&pool.spares);
        let fast = storing[0].solid_state;
        prop_assert!(kinds.clone().all(|device| device.solid_state == fast));
        let all = storing.iter().map(|device| device.size).fold(Megabytes::default(), Megabytes::plus);
        prop_assert!(pool.capacity <= all && !pool.capacity.is_zero());
        if let Some(spares) = wishes.spares {
            prop_assert_eq!(pool.spares.len(), spares);
        }
        if let (Some(width), Some(Layout::Mirror | Layout::Raidz1 | Layout::Raidz2 | Layout::Raidz3)) =
            (wishes.width, wishes.layout)
        {
            prop_assert_eq!(pool.vdevs[0].devices().len(), width);
        }
        prop_assert!(wishes.cache || pool.cache.is_empty());
        prop_assert!(pool.logs.len() < 5);
        prop_assert!(pool.logs.iter().all(|device| device.solid_state));
    }

    #[test]
    fn the_order_in_which_disks_are_found_does_not_matter(
        (disks, shuffled) in inventories().prop_flat_map(|disks| {
            (Just(disks.clone()), Just(disks).prop_shuffle())
        }),
        wishes in wishes(),
    ) {
        prop_assert_eq!(lay_out(&disks, &wishes), lay_out(&shuffled, &wishes));
    }
}
