//! Archives that are right, and archives that attack.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tar::EntryType;
use tokio_util::sync::CancellationToken;

use super::samples::{File, Members, config, docker, gzip, here, layer, layout, zstd};
use super::{Unpacked, unpack_here};
use crate::drivers::untar::{Bounds, Fault};

/// A folder with an archive, and beside it what attacks may want to reach.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("secret"), "of the host").unwrap();
        Self(folder)
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("root")
    }

    fn unpack(&self, members: &Members, bounds: &Bounds) -> Result<Unpacked, Fault> {
        let archive = self.0.path().join("archive");
        members.write(&archive);
        let stop = CancellationToken::new();
        let unpacked = unpack_here(&archive, &self.root(), bounds, &stop, &|_| ());
        fs::remove_file(archive).unwrap();
        unpacked
    }

    /// Nothing is here but what was, and the root if one is expected.
    fn check_untouched(&self, root: bool) {
        assert_eq!(fs::read_to_string(self.0.path().join("secret")).unwrap(), "of the host");
        let names: Vec<_> =
            fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names.len(), 1 + usize::from(root), "{names:?}");
    }
}

fn image(layers: &[Vec<File>]) -> Members {
    let layers: Vec<_> = layers.iter().map(|files| layer(files)).collect();
    layout(&[config(&here(), &layers)], &layers, gzip)
}

/// All paths beneath a folder, sorted.
fn paths(root: &Path) -> Vec<String> {
    fn walk(folder: &Path, root: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            found.push(path.strip_prefix(root).unwrap().display().to_string());
            if path.symlink_metadata().unwrap().is_dir() {
                walk(&path, root, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(root, root, &mut found);
    found.sort();
    found
}

/// Unpacks layers; returns the place and the paths there.
fn unpacked(layers: &[Vec<File>]) -> (Place, Vec<String>) {
    let place = Place::new();
    let unpacked = place.unpack(&image(layers), &Bounds::default());
    unpacked.unwrap_or_else(|fault| panic!("{fault}")).folder.keep();
    place.check_untouched(true);
    let paths = paths(&place.root());
    (place, paths)
}

#[track_caller]
fn check_refused_within(layers: &[Vec<File>], bounds: &Bounds, why: &str) {
    let place = Place::new();
    let fault = place.unpack(&image(layers), bounds).unwrap_err();
    assert!(matches!(fault, Fault::Invalid(_)), "{fault:?}");
    assert!(fault.to_string().contains(why), "{fault}");
    place.check_untouched(false);
}

#[track_caller]
fn check_refused(files: Vec<File>, why: &str) {
    check_refused_within(&[files], &Bounds::default(), why);
}

#[test]
fn files_come_with_their_modes_times_and_content() {
    let mut tool = File::plain("./usr/bin/tool", "#!/bin/sh\n");
    tool.mode = 0o4755;
    let files = vec![
        File::folder("./"),
        File::folder("./usr/"),
        tool,
        File::link("./bin", "usr/bin"),
        File::hard_link("./usr/bin/same", "./usr/bin/tool"),
        File::plain("etc/new/motd", "hello"),
    ];
    let (place, paths) = unpacked(&[files]);
    let wanted = ["bin", "etc", "etc/new", "etc/new/motd", "usr", "usr/bin", "usr/bin/same"];
    assert_eq!(paths, [&wanted[..], &["usr/bin/tool"]].concat());
    let tool = fs::metadata(place.root().join("usr/bin/tool")).unwrap();
    assert_eq!((tool.permissions().mode() & 0o7777, tool.mtime()), (0o4755, 1_700_000_000));
    assert_eq!(tool.nlink(), 2);
    assert_eq!(fs::read_link(place.root().join("bin")).unwrap(), Path::new("usr/bin"));
    assert_eq!(fs::read_to_string(place.root().join("etc/new/motd")).unwrap(), "hello");
}

/// The agent's unit has one that leaves nothing to others; containers have users of their own.
#[test]
fn the_umask_takes_nothing_away() {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let mut pipe = File::of_kind("run/pipe", EntryType::Fifo);
    pipe.mode = 0o666;
    let (place, _) = unpacked(&[vec![pipe, File::plain("etc/new/motd", "hello")]]);
    let modes = ["", "etc", "etc/new", "etc/new/motd", "run", "run/pipe"]
        .map(|path| fs::metadata(place.root().join(path)).unwrap().permissions().mode() & 0o7777);
    assert_eq!(modes.map(|mode| format!("{mode:o}")), ["755", "755", "755", "644", "755", "666"]);
}

#[test]
fn layers_are_laid_over_each_other_with_deletions() {
    let below = vec![
        File::plain("etc/gone", "1"),
        File::plain("etc/kept", "1"),
        File::plain("var/cache/a", "1"),
        File::plain("var/cache/sub/b", "1"),
        File::plain("opt", "a file"),
        File::plain("srv/data", "1"),
    ];
    let above = vec![
        // What a layer has itself is not deleted by it, wherever its marks stand.
        File::plain("var/cache/c", "2"),
        File::plain("etc/gone2", "2"),
        File::plain("etc/.wh.gone", ""),
        File::plain("etc/.wh.gone2", ""),
        File::plain("var/cache/.wh..wh..opq", ""),
        File::plain("opt/tool", "2"),
        File::plain(".wh.srv", ""),
        File::plain("nowhere/.wh.x", ""),
        File::plain(".wh..wh.plnk", ""),
    ];
    let above: Vec<_> = [vec![File::folder("opt")], above].concat();
    let (place, paths) = unpacked(&[below, above]);
    let wanted = ["etc", "etc/gone2", "etc/kept", "opt", "opt/tool", "var", "var/cache"];
    assert_eq!(paths, [&wanted[..], &["var/cache/c"]].concat());
    assert_eq!(fs::read_to_string(place.root().join("etc/gone2")).unwrap(), "2");
}

#[test]
fn a_file_of_a_higher_layer_replaces_and_does_not_change_its_other_names() {
    let below = vec![File::plain("a", "below"), File::hard_link("b", "a"), File::link("c", "a")];
    let above = vec![File::plain("a", "above"), File::plain("c", "no link")];
    let (place, _) = unpacked(&[below, above]);
    let read = |name| fs::read_to_string(place.root().join(name)).unwrap();
    assert_eq!((&*read("a"), &*read("b"), &*read("c")), ("above", "below", "no link"));
}

#[test]
fn links_lead_where_they_would_in_a_container() {
    let (place, paths) = unpacked(&[
        vec![File::folder("usr/lib"), File::link("lib", "/usr/lib"), File::link("up", "../../..")],
        vec![File::plain("lib/x.so", "so"), File::plain("up/secret", "of the image")],
    ]);
    assert_eq!(paths, ["lib", "secret", "up", "usr", "usr/lib", "usr/lib/x.so"]);
    assert_eq!(fs::read_to_string(place.root().join("secret")).unwrap(), "of the image");
}

#[test]
fn a_link_to_the_host_is_a_link_within_the_image() {
    let place = Place::new();
    let outside = place.0.path().display().to_string();
    let files = vec![File::link("out", &outside), File::plain("out/secret", "attack")];
    // The folder is not there in the image, and a link is no place for one.
    let fault = place.unpack(&image(&[files]), &Bounds::default()).unwrap_err();
    assert!(matches!(fault, Fault::Invalid(_)), "{fault:?}");
    place.check_untouched(false);
    let secret = place.0.path().join("secret").display().to_string();
    let files = vec![File::link("s", &secret), File::hard_link("h", "s"), File::plain("s", "mine")];
    place.unpack(&image(&[files]), &Bounds::default()).unwrap().folder.keep();
    place.check_untouched(true);
}

#[test]
fn paths_out_of_the_image_are_refused() {
    check_refused(vec![File::plain("../secret", "attack")], "leads out");
    check_refused(vec![File::plain("a/../../secret", "attack")], "leads out");
    check_refused(vec![File::hard_link("h", "../secret")], "leads out");
    check_refused(vec![File::plain("../.wh.secret", "")], "leads out");
    check_refused(vec![File::plain("a/.wh...", "")], "deletes no file");
    check_refused(vec![File::plain("a/.wh..", "")], "deletes no file");
    check_refused(vec![File::plain(".wh.", "")], "deletes no file");
    check_refused(vec![File::hard_link("h", "/etc/passwd")], "no file of the image");
    check_refused(vec![File::folder("d"), File::hard_link("h", "d")], "no file of the image");
    check_refused(vec![File::link("self", "self"), File::plain("self/x", "")], "circle");
    check_refused(vec![File::plain("f", ""), File::plain("f/x", "")], "no folder");
    check_refused(vec![File::link("l", "")], "links to nothing");
    check_refused(vec![File::plain(".", "x")], "root is no folder");
    let (_, paths) = unpacked(&[vec![File::plain("/abs/./file", "")]]);
    assert_eq!(paths, ["abs", "abs/file"]);
}

#[test]
fn deletions_do_not_leave_the_image() {
    let place = Place::new();
    let outside = place.0.path().display().to_string();
    let below = vec![File::link("out", &outside), File::link("up", "..")];
    let above = vec![
        File::plain("out/.wh.secret", ""),
        File::plain("up/.wh.secret", ""),
        File::plain("up/.wh..wh..opq", ""),
    ];
    place.unpack(&image(&[below, above]), &Bounds::default()).unwrap().folder.keep();
    place.check_untouched(true);
    assert_eq!(paths(&place.root()), Vec::<String>::new());
}

#[test]
fn devices_and_attributes_for_overlays_are_left_out() {
    let mut marked = File::plain("marked", "x");
    marked.attributes = vec![
        ("SCHILY.xattr.trusted.overlay.redirect".to_owned(), b"/etc".to_vec()),
        ("SCHILY.xattr.user.overlay.opaque".to_owned(), b"y".to_vec()),
        ("SCHILY.xattr.user.note".to_owned(), b"kept".to_vec()),
    ];
    let (place, paths) = unpacked(&[vec![
        File::of_kind("dev/sda", EntryType::Block),
        File::of_kind("dev/null", EntryType::Char),
        File::of_kind("run/pipe", EntryType::Fifo),
        marked,
    ]]);
    assert_eq!(paths, ["marked", "run", "run/pipe"]);
    let mut names = [0; 256];
    let listed = rustix::fs::llistxattr(place.root().join("marked"), &mut names[..]).unwrap();
    let names = String::from_utf8_lossy(&names[..listed]);
    assert!(!names.contains("overlay"), "{names}");
}

#[test]
fn bounds_hold() {
    let small = Bounds { entries: 3, bytes: 64 * 1024, depth: 4, path_bytes: 40 };
    let many = (0..4).map(|number| File::plain(&format!("f{number}"), "")).collect::<Vec<_>>();
    check_refused_within(std::slice::from_ref(&many), &small, "more than 3 files");
    let (one, two) = many.split_at(2);
    check_refused_within(&[one.to_vec(), two.to_vec()], &small, "more than 3 files");
    let large = |name| vec![File::plain(name, &"x".repeat(60 * 1024))];
    // What is told is what the layers before have left of it.
    check_refused_within(&[large("a"), large("b")], &small, "it holds more than");
    check_refused_within(&[vec![File::plain("a/b/c/d/e", "")]], &small, "too many folders");
    check_refused_within(&[vec![File::plain(&"x".repeat(41), "")]], &small, "too long a path");
    // Links make the path short, and the folder deep all the same.
    let climb = vec![File::folder("a/b/c/d"), File::link("l", "a/b/c/d"), File::folder("l/e")];
    check_refused_within(&[climb], &small, "too many folders");
}

#[test]
fn headers_that_would_fill_the_memory_are_refused() {
    let mut file = File::plain("x", "");
    file.attributes = vec![("SCHILY.xattr.user.big".to_owned(), vec![7; 2 << 20])];
    check_refused(vec![file], "too long");
}

#[test]
fn what_damaged_blobs_hold_is_not_written() {
    let layers = [layer(&[File::plain("a", "b")])];
    let good = layout(&[config(&here(), &layers)], &layers, gzip);
    for at in 1..good.0.len() {
        let mut damaged = good.clone();
        damaged.0[at].1.push(b' ');
        if damaged.0[at].0 == "index.json" {
            damaged.0[at].1[0] = b'[';
        }
        let place = Place::new();
        let fault = place.unpack(&damaged, &Bounds::default()).unwrap_err();
        assert!(matches!(fault, Fault::Invalid(_)), "{}: {fault:?}", damaged.0[at].0);
        place.check_untouched(false);
    }
    // The layer is what its descriptor says, and not what the configuration does.
    let other = [layer(&[File::plain("a", "c")])];
    let place = Place::new();
    let fault =
        place.unpack(&layout(&[config(&here(), &other)], &layers, gzip), &Bounds::default());
    assert!(fault.unwrap_err().to_string().contains("its content has the sha256"));
}

#[test]
fn layers_come_plain_and_packed_in_layouts_and_docker_archives() {
    let layers = [layer(&[File::plain("a", "1")]), layer(&[File::plain("b", "2")])];
    let config = config(&here(), &layers);
    let one = [config.clone()];
    for members in [
        layout(&one, &layers, <[u8]>::to_vec),
        layout(&one, &layers, gzip),
        layout(&one, &layers, zstd),
        docker(&config, &layers),
    ] {
        let place = Place::new();
        let unpacked = place.unpack(&members, &Bounds::default()).unwrap();
        assert_eq!(paths(&place.root()), ["a", "b"]);
        let runtime = json!(unpacked.runtime);
        assert_eq!(runtime["entrypoint"], json!(["/bin/server"]));
        assert_eq!(runtime["exposed_ports"], json!(["443/tcp", "80/tcp"]));
        assert_eq!(
            (&runtime["user"], &runtime["stop_signal"]),
            (&json!("www:www"), &json!("SIGQUIT"))
        );
        assert_eq!(unpacked.size_bytes, 2);
        drop(unpacked);
        place.check_untouched(false);
    }
}

#[test]
fn the_image_for_this_node_is_chosen() {
    let layers = [layer(&[File::plain("a", "1")])];
    let (mine, other) = (config(&here(), &layers), config("s390x", &layers));
    let unpack = |configs: &[Value]| {
        Place::new().unpack(&layout(configs, &layers, gzip), &Bounds::default()).map(drop)
    };
    unpack(&[other.clone(), mine.clone()]).unwrap();
    assert!(matches!(unpack(&[other]), Err(Fault::Unsupported(_))));
    let mut second = mine.clone();
    second["config"]["User"] = json!("other");
    let fault = unpack(&[mine, second]).unwrap_err();
    assert!(fault.to_string().contains("holds 2 images"), "{fault}");
}

#[test]
fn what_is_no_image_is_refused() {
    let refused = |members: &Members| {
        let fault = Place::new().unpack(members, &Bounds::default()).unwrap_err();
        assert!(matches!(fault, Fault::Invalid(_)), "{fault:?}");
        fault.to_string()
    };
    assert!(refused(&Members::default()).contains("neither"));
    let twice = Members(vec![("a".to_owned(), vec![]), ("./a".to_owned(), vec![])]);
    assert!(refused(&twice).contains("two members"));
    let layers = [layer(&[])];
    let mut bad = config(&here(), &layers);
    bad["config"]["Env"] = json!(["NOVALUE"]);
    assert!(refused(&layout(&[bad.clone()], &layers, gzip)).contains("NAME=value"));
    bad["config"]["Env"] = json!(vec!["A=1"; 2000]);
    assert!(refused(&docker(&bad, &layers)).contains("more than 1024"));
    let mut fewer = config(&here(), &layers);
    fewer["rootfs"]["diff_ids"] = json!([]);
    assert!(refused(&docker(&fewer, &layers)).contains("1 layers"));
}

#[tokio::test]
async fn a_dropped_attempt_leaves_nothing() {
    let place = Place::new();
    let files: Vec<_> = (0..2000).map(|n| File::plain(&format!("f{n}"), "x")).collect();
    let archive = place.0.path().join("archive");
    image(&[files]).write(&archive);
    let cancelled = CancellationToken::new();
    cancelled.cancel();
    let given_up = super::unpack(&archive, &place.root(), cancelled, &|_| ()).await;
    assert!(matches!(given_up, Err(Fault::Stopped)), "{given_up:?}");
    assert!(!place.root().exists());
    let unpacked = super::unpack(&archive, &place.root(), CancellationToken::new(), &|_| ()).await;
    assert_eq!(unpacked.unwrap().size_bytes, 2000);
    assert!(!place.root().exists(), "it was kept by nobody");
}
