//! Whatever a layer holds, it stays in its folder.

use std::fs;

use proptest::prelude::*;
use tar::EntryType;
use tokio_util::sync::CancellationToken;

use super::samples::{File, config, gzip, here, layer, layout};
use super::unpack_here;
use crate::drivers::untar::{Bounds, Fault};

fn part() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "a",
        "b",
        "c",
        "..",
        ".",
        "",
        "secret",
        ".wh.a",
        ".wh.b",
        ".wh.secret",
        ".wh..wh..opq",
        ".wh...",
        "proc",
        "\u{fffd}",
    ])
}

fn path() -> impl Strategy<Value = String> {
    (any::<bool>(), prop::collection::vec(part(), 1..5))
        .prop_map(|(slash, parts)| format!("{}{}", if slash { "/" } else { "" }, parts.join("/")))
}

fn file() -> impl Strategy<Value = File> {
    let kind = prop::sample::select(vec![
        EntryType::Regular,
        EntryType::Regular,
        EntryType::Directory,
        EntryType::Symlink,
        EntryType::Symlink,
        EntryType::Link,
        EntryType::Fifo,
        EntryType::Char,
    ]);
    (path(), kind, path(), 0..0o7777_u32).prop_map(|(name, kind, link, mode)| {
        let mut file = File::of_kind(&name, kind);
        file.mode = mode;
        if kind == EntryType::Regular {
            file.content = b"attack".to_vec();
        }
        if matches!(kind, EntryType::Symlink | EntryType::Link) {
            file.link = link.into_bytes();
        }
        file
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn layers_do_not_reach_out_of_their_folder(
        layers in prop::collection::vec(prop::collection::vec(file(), 0..12), 1..4),
    ) {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join("secret"), "of the host").unwrap();
        let archive = place.path().join("archive");
        let layers: Vec<_> = layers.iter().map(|files| layer(files)).collect();
        layout(&[config(&here(), &layers)], &layers, gzip).write(&archive);
        let root = place.path().join("root");
        let stop = CancellationToken::new();
        match unpack_here(&archive, &root, &Bounds::default(), &stop, &|_| ()) {
            Ok(unpacked) => drop(unpacked),
            Err(Fault::Invalid(_)) => {}
            Err(fault) => panic!("{fault:?}"),
        }
        prop_assert_eq!(fs::read(place.path().join("secret")).unwrap(), b"of the host");
        prop_assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }

    #[test]
    fn no_bytes_are_more_than_refused(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let place = tempfile::tempdir().unwrap();
        let archive = place.path().join("archive");
        let layers = [bytes];
        layout(&[config(&here(), &layers)], &layers, <[u8]>::to_vec).write(&archive);
        let root = place.path().join("root");
        let stop = CancellationToken::new();
        if let Err(fault) = unpack_here(&archive, &root, &Bounds::default(), &stop, &|_| ()) {
            prop_assert!(matches!(fault, Fault::Invalid(_)), "{:?}", fault);
        }
        prop_assert!(!root.exists());
    }
}
