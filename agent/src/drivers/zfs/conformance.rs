//! What every ZFS owes, for tests of each of them: the simulated one, and on a machine with OpenZFS the
//! real one, see `tests/tests/zfs`.
#![allow(clippy::unwrap_used, reason = "a ZFS that does not conform ends the test")]

use std::collections::BTreeMap;
use std::time::Duration;

use muster_shared::wire::Code;
use tokio::io::AsyncReadExt as _;

use super::{Dataset, Kind, Name, Properties, Receive, Snapshot, StreamOf, Wanted, Zfs};
use crate::drivers::DriverError;

#[track_caller]
fn check_code<T: std::fmt::Debug>(result: &Result<T, DriverError>, wanted: &Code) {
    match result {
        Err(DriverError::Refused { code, .. }) if code == wanted => {}
        other => panic!("expected {wanted}, got {other:?}"),
    }
}

fn properties(of: &[(&str, &str)]) -> Properties {
    of.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

async fn value(zfs: &dyn Zfs, name: impl Into<Name>, property: &str) -> String {
    let name = name.into();
    let found = zfs.get(&Wanted::of(name.clone(), &[property])).await.unwrap();
    found[&name.to_string()][property].clone()
}

async fn names(zfs: &dyn Zfs, wanted: &Wanted<'_>) -> Vec<String> {
    zfs.list(wanted).await.unwrap().into_iter().map(|row| row["name"].clone()).collect()
}

async fn there(zfs: &dyn Zfs, name: impl Into<Name>) -> bool {
    zfs.exists(&name.into()).await.unwrap()
}

const NAME: &[&str] = &["name"];

/// Datasets, clones and their names. `root` is an empty dataset.
async fn datasets(zfs: &dyn Zfs, root: &Dataset) {
    let [a, b, volume] = ["a", "b", "v"].map(|name| root.child(name).unwrap());
    let stamp = properties(&[("muster:create_task", "one two"), ("compression", "off")]);
    zfs.create(&a, Kind::Filesystem, &stamp).await.unwrap();
    check_code(&zfs.create(&a, Kind::Filesystem, &stamp).await, &Code::DatasetExists);
    assert_eq!(value(zfs, &a, "muster:create_task").await, "one two");
    let orphan = root.child("x/y").unwrap();
    check_code(&zfs.create(&orphan, Kind::Filesystem, &stamp).await, &Code::DatasetNotFound);
    let bad = properties(&[("nonsense", "1")]);
    check_code(&zfs.create(&b, Kind::Filesystem, &bad).await, &Code::InvalidProperty);
    assert!(!there(zfs, &b).await);
    let own = properties(&[("muster:create_task", "three")]);
    zfs.create(&b, Kind::Filesystem, &own).await.unwrap();
    let size = Kind::Volume { size_bytes: 8 << 20, sparse: true };
    zfs.create(&volume, size, &own).await.unwrap();
    assert_eq!(value(zfs, &volume, "volsize").await, (8_u64 << 20).to_string());
    let huge = Kind::Volume { size_bytes: 1 << 60, sparse: false };
    check_code(&zfs.create(&root.child("huge").unwrap(), huge, &own).await, &Code::NoSpace);

    // What is inherited is not its own.
    let below = a.child("below").unwrap();
    zfs.create(&below, Kind::Filesystem, &Properties::new()).await.unwrap();
    assert_eq!(value(zfs, &below, "muster:create_task").await, "one two");
    let own = Wanted { only_local: true, ..Wanted::of(&below, &["muster:create_task"]) };
    assert_eq!(zfs.get(&own).await.unwrap(), BTreeMap::new());
    let all = names(zfs, &Wanted::below(root, NAME)).await;
    let expected = [root, &a, &below, &b, &volume].map(Dataset::to_string);
    assert_eq!(all, expected);

    check_code(&zfs.destroy(&a).await, &Code::DatasetHasChildren);
    let moved = b.child("moved").unwrap();
    check_code(&zfs.rename(&a, &b).await, &Code::DatasetExists);
    zfs.rename(&a, &moved).await.unwrap();
    check_code(&zfs.rename(&a, &moved).await, &Code::DatasetNotFound);
    assert!(there(zfs, &moved.child("below").unwrap()).await && !there(zfs, &a).await);
    for gone in [&moved.child("below").unwrap(), &moved, &b, &volume] {
        zfs.destroy(gone).await.unwrap();
    }
    check_code(&zfs.destroy(&b).await, &Code::DatasetNotFound);
    assert_eq!(names(zfs, &Wanted::below(root, NAME)).await, [root.to_string()]);
}

/// Clones of volumes, which may be larger, and may have room set aside. Their devices are opened by
/// others for a moment, so they are destroyed in time.
async fn volumes(zfs: &dyn Zfs, root: &Dataset) {
    const BYTES: u64 = 8 << 20;
    let [volume, clone, plain, huge] =
        ["v", "larger", "plain", "huge"].map(|name| root.child(name).unwrap());
    let size_of = async |name: &Name| zfs.volume_bytes(name).await.unwrap();
    let none = Properties::new();
    zfs.create(&volume, Kind::Volume { size_bytes: BYTES, sparse: true }, &none).await.unwrap();
    let whole = volume.at("whole").unwrap();
    zfs.snapshot(std::slice::from_ref(&whole), &none).await.unwrap();
    zfs.create(&plain, Kind::Filesystem, &properties(&[("canmount", "off")])).await.unwrap();
    assert_eq!(value(zfs, &plain, "canmount").await, "off");
    let sizes = [(&Name::from(&volume), Some(BYTES)), (&Name::from(&whole), Some(BYTES))];
    let nothing = volume.at("nothing").unwrap();
    let none_of = [(&Name::from(&plain), None), (&Name::from(&nothing), None)];
    for (name, size) in sizes.into_iter().chain(none_of) {
        assert_eq!(size_of(name).await, size, "{name}");
    }
    let (stamp, more) = (("muster:create_task", "one"), (4 * BYTES).to_string());
    let wanted = properties(&[stamp, ("volsize", &more), ("refreservation", &more)]);
    zfs.clone_snapshot(&whole, &clone, &wanted).await.unwrap();
    for (property, wanted) in &wanted {
        assert_eq!(&value(zfs, &clone, property).await, wanted, "{property}");
    }
    assert_eq!(size_of(&Name::from(&clone)).await, Some(4 * BYTES));
    check_code(&zfs.clone_snapshot(&whole, &clone, &wanted).await, &Code::DatasetExists);
    let too_much = properties(&[stamp, ("refreservation", &(1_u64 << 50).to_string())]);
    check_code(&zfs.clone_snapshot(&whole, &huge, &too_much).await, &Code::NoSpace);
    assert!(!there(zfs, &huge).await, "nothing is left of it");
    zfs.destroy(&plain).await.unwrap();
    destroy_in_time(&async || zfs.destroy(&clone).await).await;
    destroy_in_time(&async || zfs.destroy_snapshots(std::slice::from_ref(&whole), false).await)
        .await;
    destroy_in_time(&async || zfs.destroy(&volume).await).await;
    assert_eq!(names(zfs, &Wanted::below(root, NAME)).await, [root.to_string()]);
}

/// udev opens the device of every volume that appears, for a moment.
async fn destroy_in_time(destroy: &impl AsyncFn() -> Result<(), DriverError>) {
    for _ in 0..100 {
        match destroy().await {
            Err(DriverError::Refused { code: Code::DatasetBusy, .. }) => {}
            done => return done.unwrap(),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    destroy().await.unwrap();
}

/// Snapshots, holds, rollback.
async fn snapshots(zfs: &dyn Zfs, root: &Dataset) {
    let (a, b) = (root.child("a").unwrap(), root.child("b").unwrap());
    let none = Properties::new();
    for dataset in [&a, &b] {
        zfs.create(dataset, Kind::Filesystem, &none).await.unwrap();
    }
    let of = |dataset: &Dataset, name: &str| dataset.at(name).unwrap();
    let stamp = properties(&[("muster:create_task", "one")]);
    zfs.snapshot(&[of(&a, "1"), of(&b, "1")], &stamp).await.unwrap();
    assert_eq!(value(zfs, &of(&b, "1"), "muster:create_task").await, "one");
    // All or none.
    check_code(&zfs.snapshot(&[of(&a, "2"), of(&b, "1")], &none).await, &Code::DatasetExists);
    assert!(!there(zfs, &of(&a, "2")).await);
    zfs.snapshot(&[of(&a, "2")], &none).await.unwrap();
    zfs.snapshot(&[of(&a, "3")], &none).await.unwrap();
    let all = names(zfs, &Wanted::snapshots(&a, NAME)).await;
    assert_eq!(all, ["1", "2", "3"].map(|name| of(&a, name).to_string()));
    check_code(&zfs.destroy(&a).await, &Code::DatasetHasChildren);

    check_code(&zfs.rollback(&of(&a, "1"), &[]).await, &Code::DatasetBusy);
    check_code(&zfs.rollback(&of(&a, "nothing"), &[]).await, &Code::SnapshotNotFound);
    zfs.hold("kept", &[of(&a, "3")]).await.unwrap();
    zfs.hold("kept", &[of(&a, "3")]).await.unwrap();
    check_code(&zfs.hold("kept", &[of(&a, "nothing")]).await, &Code::SnapshotNotFound);
    let newer = [of(&a, "2"), of(&a, "3")];
    check_code(&zfs.rollback(&of(&a, "1"), &newer).await, &Code::SnapshotHeld);
    check_code(&zfs.destroy_snapshots(&[of(&a, "3")], false).await, &Code::SnapshotHeld);
    for _ in 0..2 {
        zfs.release("kept", &[of(&a, "3")]).await.unwrap();
    }
    zfs.rollback(&of(&a, "1"), &newer).await.unwrap();
    zfs.rollback(&of(&a, "1"), &newer).await.unwrap();
    assert_eq!(names(zfs, &Wanted::snapshots(&a, NAME)).await, [of(&a, "1").to_string()]);

    // One that is held goes when it is released.
    zfs.hold("kept", &[of(&b, "1")]).await.unwrap();
    zfs.destroy_snapshots(&[of(&b, "1")], true).await.unwrap();
    assert!(there(zfs, &of(&b, "1")).await);
    zfs.release("kept", &[of(&b, "1")]).await.unwrap();
    assert!(!there(zfs, &of(&b, "1")).await);
    // What is gone is gone.
    zfs.destroy_snapshots(&[of(&b, "1"), of(&a, "1")], false).await.unwrap();
    zfs.destroy_snapshots(&[of(&b, "1")], false).await.unwrap();
    for dataset in [&a, &b] {
        zfs.destroy(dataset).await.unwrap();
    }
}

/// Clones and promotion.
async fn clones(zfs: &dyn Zfs, root: &Dataset) {
    let (image, clone) = (root.child("image").unwrap(), root.child("clone").unwrap());
    let none = Properties::new();
    let size = Kind::Volume { size_bytes: 8 << 20, sparse: true };
    zfs.create(&image, size, &none).await.unwrap();
    let taken: Snapshot = image.at("final").unwrap();
    check_code(&zfs.clone_snapshot(&taken, &clone, &none).await, &Code::DatasetNotFound);
    zfs.snapshot(std::slice::from_ref(&taken), &none).await.unwrap();
    let stamp = properties(&[("muster:create_task", "one")]);
    zfs.clone_snapshot(&taken, &clone, &stamp).await.unwrap();
    check_code(&zfs.clone_snapshot(&taken, &clone, &stamp).await, &Code::DatasetExists);
    assert_eq!(value(zfs, &clone, "origin").await, taken.to_string());
    assert_eq!(value(zfs, &clone, "muster:create_task").await, "one");
    let destroyed = zfs.destroy_snapshots(std::slice::from_ref(&taken), false).await;
    check_code(&destroyed, &Code::DatasetHasClones);
    // The snapshot moves to the clone, and the image becomes a clone of that.
    zfs.promote(&clone).await.unwrap();
    assert_eq!(value(zfs, &image, "origin").await, clone.at("final").unwrap().to_string());
    zfs.destroy(&image).await.unwrap();
    zfs.destroy_snapshots(&[clone.at("final").unwrap()], false).await.unwrap();
    zfs.destroy(&clone).await.unwrap();
}

/// Properties.
async fn settings(zfs: &dyn Zfs, root: &Dataset) {
    let a = root.child("a").unwrap();
    zfs.create(&a, Kind::Filesystem, &Properties::new()).await.unwrap();
    let name = Name::from(&a);
    let two = properties(&[("quota", "1073741824"), ("muster:note", "a b=c")]);
    zfs.set(&name, &two).await.unwrap();
    assert_eq!(value(zfs, &a, "quota").await, "1073741824");
    assert_eq!(value(zfs, &a, "muster:note").await, "a b=c");
    // All or none.
    let bad = properties(&[("muster:note", "new"), ("nonsense", "1")]);
    check_code(&zfs.set(&name, &bad).await, &Code::InvalidProperty);
    assert_eq!(value(zfs, &a, "muster:note").await, "a b=c");
    check_code(&zfs.set(&name, &properties(&[("used", "1")])).await, &Code::InvalidProperty);
    zfs.inherit(&name, "muster:note").await.unwrap();
    assert_eq!(value(zfs, &a, "muster:note").await, "-");
    let human = Wanted { parseable: false, ..Wanted::of(&a, &["quota"]) };
    assert_eq!(zfs.get(&human).await.unwrap()[a.as_str()]["quota"], "1G");
    let missing = root.child("missing").unwrap();
    check_code(&zfs.get(&Wanted::of(&missing, &["quota"])).await, &Code::DatasetNotFound);
    check_code(&zfs.list(&Wanted::below(&missing, NAME)).await, &Code::DatasetNotFound);
    zfs.destroy(&a).await.unwrap();
}

/// Streams, one of which is cut and goes on.
async fn streams(zfs: &dyn Zfs, root: &Dataset, fill: &(dyn Fn(&Dataset) + Sync)) {
    let (from, to) = (root.child("from").unwrap(), root.child("to").unwrap());
    let none = Properties::new();
    zfs.create(&from, Kind::Filesystem, &none).await.unwrap();
    fill(&from);
    let (one, two) = (from.at("1").unwrap(), from.at("2").unwrap());
    zfs.snapshot(std::slice::from_ref(&one), &none).await.unwrap();
    zfs.snapshot(std::slice::from_ref(&two), &none).await.unwrap();
    let whole = StreamOf::Whole(one.clone());
    assert!(zfs.send_size(&whole).await.unwrap() > 0);
    let mut sent = zfs.send(&whole).await.unwrap();
    let mut data = Vec::new();
    sent.data.read_to_end(&mut data).await.unwrap();
    sent.sender.end().await.unwrap();

    let how = Receive { properties: properties(&[("muster:note", "got")]), ..Receive::default() };
    let half = std::io::Cursor::new(data[..data.len() * 2 / 3].to_vec());
    let at = to.at("1").unwrap();
    zfs.receive(&at, &how, Box::new(half)).await.unwrap_err();
    assert!(!there(zfs, &at).await);
    let token = value(zfs, &to, "receive_resume_token").await;
    let rest = zfs.send(&StreamOf::Rest(token)).await.unwrap();
    zfs.receive(&at, &Receive::default(), rest.data).await.unwrap();
    rest.sender.end().await.unwrap();
    assert_eq!(value(zfs, &at, "guid").await, value(zfs, &one, "guid").await);
    zfs.abort_receive(&to).await.unwrap_err();

    let changes = StreamOf::Changes { since: one.clone(), until: two.clone() };
    let sent = zfs.send(&changes).await.unwrap();
    let at = to.at("2").unwrap();
    zfs.receive(&at, &Receive::default(), sent.data).await.unwrap();
    sent.sender.end().await.unwrap();
    assert_eq!(value(zfs, &at, "guid").await, value(zfs, &two, "guid").await);
    let again = zfs.send(&whole).await.unwrap();
    check_code(&zfs.receive(&at, &Receive::default(), again.data).await, &Code::DatasetExists);
    // Whether it had sent all by then is its own business.
    drop(again.sender.end().await);
    for dataset in [&from, &to] {
        let both = [dataset.at("1").unwrap(), dataset.at("2").unwrap()];
        zfs.destroy_snapshots(&both, false).await.unwrap();
        zfs.destroy(dataset).await.unwrap();
    }
}

/// Pools.
async fn pools(zfs: &dyn Zfs, root: &Dataset) {
    let listed = zfs.pools(&["name", "size", "health"], true).await.unwrap();
    let pool = listed.iter().find(|pool| pool["name"] == root.pool()).unwrap();
    assert!(pool["size"].parse::<u64>().unwrap() > 0);
    let pools = zfs.health().await.unwrap();
    let pool = pools.iter().find(|pool| pool.name == root.pool()).unwrap();
    assert!(pool.is_well() && !pool.leaves.is_empty(), "{pool:?}");
    assert!(pool.size_bytes >= pool.alloc_bytes && pool.size_bytes > 0);
}

/// Everything, below the empty dataset `root`; `fill` puts something into a file system.
///
/// # Panics
/// If it does not conform.
pub async fn of_zfs(zfs: &dyn Zfs, root: &Dataset, fill: &(dyn Fn(&Dataset) + Sync)) {
    assert!(zfs.availability().works());
    datasets(zfs, root).await;
    volumes(zfs, root).await;
    snapshots(zfs, root).await;
    clones(zfs, root).await;
    settings(zfs, root).await;
    streams(zfs, root, fill).await;
    pools(zfs, root).await;
}

#[cfg(test)]
mod tests {
    use super::super::sim::{SimPools, SimZfs};
    use super::*;
    use crate::drivers::faults::Faults;

    #[tokio::test]
    async fn the_simulated_zfs_conforms() {
        let pools = SimPools::new("zones");
        let zfs = SimZfs::new(pools.clone(), Faults::none());
        let root: Dataset = "zones/tests".parse().unwrap();
        zfs.create(&root, Kind::Filesystem, &Properties::new()).await.unwrap();
        let fill = |dataset: &Dataset| pools.write(dataset, &[7; 100_000]);
        of_zfs(&zfs, &root, &fill).await;
        assert_eq!(pools.content().into_keys().collect::<Vec<_>>(), ["zones", "zones/tests"]);
    }
}
