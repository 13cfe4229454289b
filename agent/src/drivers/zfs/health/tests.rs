use super::*;

fn listed(lines: &[&str]) -> Vec<Properties> {
    super::super::table::rows(&lines.join("\n"), COLUMNS).unwrap()
}

const WELL: &str = "\
  pool: zones
 state: ONLINE
  scan: scrub repaired 0B in 00:00:01 with 0 errors on Sun Nov 24 10:00:05 2024
config:

\tNAME                      STATE     READ WRITE CKSUM
\tzones                     ONLINE       0     0     0
\t  raidz2-0                ONLINE       0     0     0
\t    /dev/vdb1             ONLINE       0     0     0
\t    /dev/vdc1             ONLINE       0     0     0
\tlogs\t
\t  mirror-1                ONLINE       0     0     0
\t    /dev/vdd1             ONLINE       0     0     0
\tcache
\t  /dev/vde1               ONLINE       0     0     0
\tspares
\t  /dev/vdf1               AVAIL

errors: No known data errors
";

const DEGRADED: &str = "\
  pool: tank
 state: DEGRADED
status: One or more devices has been removed by the administrator.
\tSufficient replicas exist for the pool to continue functioning in a
\tdegraded state.
action: Online the device using zpool online' or replace the device with
\t'zpool replace'.
  scan: resilver in progress since Sun Nov 24 10:00:00 2024
\t1.00G scanned at 100M/s, 500M issued at 50M/s, 2.0G total
\t0B resilvered, 25.31% done, 00:00:30 to go
config:

\tNAME                       STATE     READ WRITE CKSUM
\ttank                       DEGRADED     0     0     0
\t  mirror-0                 DEGRADED     0     0     0
\t    /dev/vdg1              ONLINE       1     2     3
\t    replacing-1            DEGRADED     0     0     0
\t      1234567890           REMOVED      0     0     0  was /dev/vdh1
\t      /dev/vdi1            ONLINE       0     0     0  (resilvering)

errors: 3 data errors, use '-v' for a list
";

#[test]
fn pools_are_read_with_all_their_devices() {
    let list =
        ["zones\t1000000\t250000\t750000\t25\t7\tONLINE", "tank\t2000\t10\t1990\t0\t-\tDEGRADED"];
    let pools = of(&listed(&list), &format!("{WELL}\n{DEGRADED}"));
    let [zones, tank] = &pools[..] else { panic!("{pools:?}") };
    assert_eq!((zones.size_bytes, zones.alloc_bytes, zones.capacity), (1_000_000, 250_000, 25));
    assert_eq!((zones.fragmentation, tank.fragmentation), (Some(7), None));
    assert_eq!((zones.profile, tank.profile), ("raidz2", "mirror"));
    let roles: Vec<_> = zones.leaves.iter().map(|leaf| (&*leaf.name, &*leaf.role)).collect();
    let expected = [
        ("/dev/vdb1", "data"),
        ("/dev/vdc1", "data"),
        ("/dev/vdd1", "logs"),
        ("/dev/vde1", "cache"),
        ("/dev/vdf1", "spares"),
    ];
    assert_eq!(roles, expected);
    assert!(zones.is_well() && zones.problem().is_none() && zones.trouble.is_none());

    assert!(!tank.is_well());
    let problem = tank.problem().unwrap();
    assert_eq!(problem, "pool tank is DEGRADED, 1234567890 is REMOVED, data errors: 3");
    let first = &tank.leaves[0];
    assert_eq!((first.read_errors, first.write_errors, first.checksum_errors), (1, 2, 3));
    assert_eq!(tank.leaves.len(), 3);
    let trouble = tank.trouble.as_deref().unwrap();
    assert!(trouble.ends_with("continue functioning in a degraded state."), "{trouble}");
}

#[test]
fn scans_are_told_with_their_time_and_progress() {
    let scan = |text: &str| super::scan(text);
    let done = scan("scrub repaired 0B in 00:00:01 with 2 errors on Sun Nov 24 10:00:05 2024");
    let done = done.unwrap();
    assert_eq!((done.kind, done.state, done.errors), ("scrub", ScanState::Finished, Some(2)));
    assert_eq!(done.at.unwrap().to_string(), "2024-11-24T10:00:05Z");
    let text =
        "resilver in progress since Sun Nov  3 10:00:00 2024 1G scanned, 25.31% done, 1s to go";
    let running = scan(text).unwrap();
    assert_eq!((running.kind, running.percent), ("resilver", Some(25)));
    assert_eq!(running.at.unwrap().to_string(), "2024-11-03T10:00:00Z");
    let paused = scan("scrub paused since Sun Nov 24 10:00:00 2024 3.00% done").unwrap();
    assert_eq!((paused.state, paused.percent), (ScanState::Paused, Some(3)));
    let canceled = scan("scrub canceled on Sun Nov 24 10:00:00 2024").unwrap();
    assert_eq!((canceled.state, canceled.errors), (ScanState::Canceled, None));
    let resilvered = scan("resilvered 1.2M in 00:00:01 with 0 errors on Sun Nov 24 10:00:00 2024");
    assert_eq!(resilvered.unwrap().errors, Some(0));
    assert_eq!(scan("none requested"), None);
}

#[test]
fn a_pool_without_a_status_is_told_from_the_list_alone() {
    let pools = of(&listed(&["zones\t10\t1\t9\t10\t0\tSUSPENDED"]), "");
    assert_eq!(pools[0].problem().unwrap(), "pool zones is SUSPENDED");
}

#[test]
fn errors_that_can_not_be_counted_count() {
    assert_eq!(data_errors("No known data errors"), 0);
    assert_eq!(data_errors("3 data errors, use '-v' for a list"), 3);
    let listed = "Permanent errors have been detected in the following files:";
    assert_eq!(data_errors(listed), 1);
    assert_eq!(data_errors("List of errors unavailable: no such pool"), 1);
}
