use std::sync::Arc;

use super::*;
use crate::host::{FakeExec, SystemExec};

/// A host whose programs are scripted.
struct Host {
    folder: tempfile::TempDir,
    exec: Arc<FakeExec>,
}

impl Host {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["zfs", "zpool", "device"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let host = Self { folder, exec: Arc::default() };
        host.exec.prints(&[&host.path("zpool"), "list"], "zones\n");
        host.exec.fails(&[&host.path("zfs"), "version"], 2, "unrecognized command 'version'");
        host
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn config(&self) -> ZfsConfig {
        ZfsConfig {
            folders: vec![self.folder.path().join("nowhere"), self.folder.path().to_owned()],
            device: self.folder.path().join("device"),
            helper: None,
        }
    }

    async fn zfs(&self) -> CommandZfs {
        CommandZfs::open(&self.config(), self.exec.clone()).await
    }

    /// The arguments of the last program.
    fn last(&self) -> String {
        self.exec.calls().last().unwrap()[1..].join(" ")
    }
}

fn code(error: &DriverError) -> Code {
    match error {
        DriverError::Refused { code, .. } => code.clone(),
        DriverError::Failed { .. } => Code::InternalError,
    }
}

#[tokio::test]
async fn a_host_without_zfs_says_why_and_does_nothing() {
    let host = Host::new();
    std::fs::remove_file(host.path("device")).unwrap();
    let zfs = host.zfs().await;
    let Availability::Missing(reason) = zfs.availability() else { panic!("it has ZFS") };
    assert!(reason.ends_with("its kernel module is not loaded"), "{reason}");
    let refused = zfs.destroy(&"zones/a".parse().unwrap()).await.unwrap_err();
    assert_eq!(code(&refused), Code::ZfsUnavailable);
    assert!(host.exec.calls().is_empty());

    let host = Host::new();
    std::fs::remove_file(host.path("zpool")).unwrap();
    let missing = Availability::Missing("there is no program zpool".to_owned());
    assert_eq!(host.zfs().await.availability(), missing);

    let host = Host::new();
    host.exec.fails(&[&host.path("zpool"), "list"], 1, "The ZFS modules are not loaded.\nTry");
    let missing = "The ZFS modules are not loaded. Try".to_owned();
    assert_eq!(host.zfs().await.availability(), Availability::Missing(missing));
}

#[tokio::test]
async fn a_userland_that_does_not_know_its_version_works_all_the_same() {
    let host = Host::new();
    let works = |version| Availability::Works { version, atomic: false };
    assert_eq!(host.zfs().await.availability(), works(None));
    host.exec.prints(&[&host.path("zfs"), "version"], "zfs-2.1.11-1\nzfs-kmod-2.1.11-1\n");
    assert_eq!(host.zfs().await.availability(), works(Some("zfs-2.1.11-1".to_owned())));
}

#[tokio::test]
async fn operations_are_command_lines_without_a_shell() {
    let host = Host::new();
    host.exec.prints(&[&host.path("zfs")], "");
    let zfs = host.zfs().await;
    let (a, b): (Dataset, Dataset) = ("zones/a".parse().unwrap(), "zones/b".parse().unwrap());
    let (one, two) = (a.at("1").unwrap(), a.at("2").unwrap());
    let stamp = Properties::from([("muster:note".to_owned(), "; rm -rf $HOME".to_owned())]);

    zfs.create(&a, Kind::Filesystem, &stamp).await.unwrap();
    assert_eq!(host.last(), "create -o muster:note=; rm -rf $HOME zones/a");
    let call = host.exec.calls().pop().unwrap();
    assert_eq!(call[3], "muster:note=; rm -rf $HOME", "one argument");
    let volume = Kind::Volume { size_bytes: 4096, sparse: true };
    zfs.create(&a, volume, &Properties::new()).await.unwrap();
    assert_eq!(host.last(), "create -s -V 4096 zones/a");
    zfs.clone_snapshot(&one, &b, &Properties::new()).await.unwrap();
    assert_eq!(host.last(), "clone zones/a@1 zones/b");
    zfs.snapshot(&[one.clone(), b.at("1").unwrap()], &Properties::new()).await.unwrap();
    assert_eq!(host.last(), "snapshot zones/a@1 zones/b@1");
    zfs.destroy_snapshots(&[one.clone(), two.clone()], true).await.unwrap();
    assert_eq!(host.last(), "destroy -d zones/a@1,2");
    zfs.rollback(&one, &[]).await.unwrap();
    assert_eq!(host.last(), "rollback zones/a@1");
    zfs.set(&Name::from(&a), &stamp).await.unwrap();
    assert_eq!(host.last(), "set muster:note=; rm -rf $HOME zones/a");
    zfs.list(&Wanted::below(&a, &["name", "used"])).await.unwrap();
    assert_eq!(host.last(), "list -o name,used -H -p -t filesystem,volume -r zones/a");
    zfs.get(&Wanted { only_local: true, ..Wanted::of(&one, &["guid"]) }).await.unwrap();
    let get = "get -o name,property,value -s local,received -H -p -t snapshot guid zones/a@1";
    assert_eq!(host.last(), get);
    zfs.scrub(&a, Scrub::Pause).await.unwrap_err();
    assert_eq!(host.last(), "scrub -p zones");
    let calls = zfs.calls();
    assert_eq!(calls[&("create", Way::Command)], 2);
    assert!(calls.keys().all(|(_, way)| *way == Way::Command));

    let before = host.exec.calls().len();
    let bad = Properties::from([("used".to_owned(), "1".to_owned())]);
    zfs.create(&a, Kind::Filesystem, &bad).await.unwrap_err();
    zfs.hold("-r", &[one]).await.unwrap_err();
    assert_eq!(host.exec.calls().len(), before, "what can't be is not tried");
}

/// `zfs clone` takes no size, and sets aside no more than there is yet.
#[tokio::test]
async fn clones_get_their_size_and_their_room_one_after_the_other() {
    let host = Host::new();
    let program = host.path("zfs");
    host.exec.prints(&[&program], "");
    let zfs = host.zfs().await;
    let (from, to) = ("zones/a@1".parse().unwrap(), "zones/b".parse().unwrap());
    let wanted = [("muster:note", "x"), ("volsize", "8192"), ("refreservation", "8192")];
    let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let done = |from: usize| {
        let calls = host.exec.calls();
        calls[from..].iter().map(|call| call[1..].join(" ")).collect::<Vec<_>>()
    };
    let before = host.exec.calls().len();
    zfs.clone_snapshot(&from, &to, &wanted).await.unwrap();
    let one_after_the_other = [
        "clone -o muster:note=x zones/a@1 zones/b",
        "set volsize=8192 zones/b",
        "set refreservation=8192 zones/b",
    ];
    assert_eq!(done(before), one_after_the_other);

    // What can't be had leaves nothing, but for what is no clone of this.
    host.exec.fails(&[&program, "set", "refreservation=8192"], 1, "out of space\n");
    for (origin, last) in [("zones/a@1\n", "destroy zones/b"), ("-\n", "list -o origin")] {
        host.exec.prints(&[&program, "list"], origin);
        let before = host.exec.calls().len();
        let refused = zfs.clone_snapshot(&from, &to, &wanted).await.unwrap_err();
        assert_eq!(code(&refused), Code::NoSpace);
        let done = done(before);
        assert!(done.last().unwrap().starts_with(last), "{done:?}");
    }
}

#[tokio::test]
async fn what_zfs_says_has_a_code_and_that_it_does_not_tell_is_no_absence() {
    let host = Host::new();
    let zfs = host.zfs().await;
    let name = Name::from(&"zones/a".parse::<Dataset>().unwrap());
    let program = host.path("zfs");
    let list = [&*program, "list"];
    host.exec.fails(&list, 1, "cannot open 'zones/a': dataset does not exist\n");
    assert!(!zfs.exists(&name).await.unwrap());
    host.exec.fails(&list, 1, "cannot open 'zones': pool I/O is currently suspended\n");
    assert_eq!(code(&zfs.exists(&name).await.unwrap_err()), Code::PoolUnavailable);
    host.exec.prints(&list, "zones/a\n");
    assert!(zfs.exists(&name).await.unwrap());
}

#[tokio::test]
async fn streams_run_through_pipes_and_their_end_says_whether_they_are_good() {
    use std::os::unix::fs::PermissionsExt as _;
    let host = Host::new();
    let script = "#!/bin/sh\ncase \"$1\" in\nsend) shift 4; echo \"sent $*\"; \
                  [ \"$1\" != zones/a@bad ] || { echo 'out of space' >&2; exit 1; };;\n\
                  receive) shift; echo \"$*\" >\"$0.args\"; cat >\"$0.got\";;\nesac\n";
    std::fs::write(host.path("zfs"), script).unwrap();
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(host.path("zfs"), executable.clone()).unwrap();
    std::fs::write(host.path("zpool"), "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(host.path("zpool"), executable).unwrap();
    let zfs = CommandZfs::open(&host.config(), Arc::new(SystemExec::new())).await;
    let snapshot: Snapshot = "zones/a@1".parse().unwrap();
    let sent = zfs.send(&StreamOf::Whole(snapshot.clone())).await.unwrap();
    let how = Receive { force: true, without: vec!["mountpoint".to_owned()], ..Receive::default() };
    zfs.receive(&"zones/b@1".parse().unwrap(), &how, sent.data).await.unwrap();
    let read = |name: &str| std::fs::read_to_string(host.path(name)).unwrap();
    assert_eq!(read("zfs.args"), "-s -u -F -x mountpoint zones/b@1\n");
    assert_eq!(read("zfs.got"), "sent zones/a@1\n");

    let mut bad = zfs.send(&StreamOf::Whole("zones/a@bad".parse().unwrap())).await.unwrap();
    let mut data = Vec::new();
    tokio::io::AsyncReadExt::read_to_end(&mut bad.data, &mut data).await.unwrap();
    assert_eq!(code(&bad.sender.end().await.unwrap_err()), Code::NoSpace);
}
