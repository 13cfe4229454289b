//! Every input of the corpora, and some that are near them, are read without breaking a promise.
//! `make fuzz` looks further; what it finds goes into the corpora.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::path::Path;

use muster_tests::fuzz::mutate::Mutator;
use muster_tests::fuzz::{TARGETS, corpus};
use muster_tests::repository;

/// Inputs near those of the corpus, of each target; `MUSTER_FUZZ_INPUTS` for another number.
fn nearby() -> usize {
    std::env::var("MUSTER_FUZZ_INPUTS").map_or(1_000, |text| text.parse().expect("a number"))
}

/// Runs a target on its corpus and beyond. An input that breaks something is kept in
/// `target/fuzz/` and named.
fn check(name: &str) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("it is a target");
    let inputs = corpus::inputs(target);
    for input in &inputs {
        let read = std::panic::catch_unwind(AssertUnwindSafe(|| (target.run)(&input.bytes)));
        assert!(read.is_ok(), "{}: see above", input.path.display());
    }
    let corpus = inputs.into_iter().map(|input| input.bytes).collect();
    let mut mutator = Mutator::new(1, corpus, target.max_bytes);
    for number in 0..nearby() {
        let input = mutator.next_input();
        if std::panic::catch_unwind(AssertUnwindSafe(|| (target.run)(&input))).is_err() {
            let kept = repository().join(format!("target/fuzz/{name}-{number}"));
            std::fs::create_dir_all(kept.parent().expect("it is in a folder")).expect("a folder");
            std::fs::write(&kept, &input).expect("the input is kept");
            panic!(
                "{}: see above; copy it to {}/found-…",
                kept.display(),
                corpus::folder(target).display()
            );
        }
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! { allocate archive config export guest_agent http image_manifest lldp mdata payload qcow2 wire }

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("an entry").path();
        path.file_stem().expect("a name").to_string_lossy().into_owned()
    };
    entries.map(name).collect()
}

#[test]
fn every_target_has_a_program_a_corpus_and_a_test() {
    let known: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(TESTED.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>(), known);
    assert_eq!(names(&repository().join("fuzz/fuzz_targets")), known);
    assert_eq!(names(&repository().join("tests/corpora")), known);
}
