//! No circles between modules: of two that use each other, neither can be understood, tested or
//! changed without the other.

mod modules;

use std::collections::BTreeSet;

use modules::{Arrows, Sources, circles, grouped};
use muster_tests::repository;

/// Fails on a circle with a module that is not in `allowed`, and on a module in `allowed` that is
/// in none: the list may only become shorter.
#[track_caller]
fn check(name: &str, arrows: &Arrows, allowed: &[&str]) {
    let circles = circles(arrows);
    let count: usize = arrows.values().map(BTreeSet::len).sum();
    println!("{name}: {} modules, {count} arrows, {} circles", arrows.len(), circles.len());
    for circle in &circles {
        let names: Vec<&str> = circle.iter().map(String::as_str).collect();
        println!("  circle of {}: {}", circle.len(), names.join(", "));
        for from in circle {
            let within: Vec<&str> = arrows[from].intersection(circle).map(String::as_str).collect();
            println!("    {from} -> {}", within.join(", "));
        }
    }
    let found: BTreeSet<&str> = circles.iter().flatten().map(String::as_str).collect();
    let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
    let new: Vec<_> = found.difference(&allowed).collect();
    assert!(new.is_empty(), "{name}: new in a circle: {new:?}");
    let gone: Vec<_> = allowed.difference(&found).collect();
    assert!(gone.is_empty(), "{name}: no longer in a circle, take them off the list: {gone:?}");
}

fn sources(of: &str) -> Arrows {
    Sources::read(&repository().join(of).join("src/lib.rs")).arrows()
}

/// The crate's modules at its root, each with all that is in it.
fn rooms(arrows: &Arrows) -> Arrows {
    grouped(arrows, |module| {
        let room = module.split("::").next()?;
        (!room.is_empty()).then(|| room.to_owned())
    })
}

/// The modules right below one, each with all that is in it, and the file of the one itself.
fn below(arrows: &Arrows, parent: &str) -> Arrows {
    grouped(arrows, |module| {
        if module == parent {
            return Some(format!("({parent})"));
        }
        let child = module.strip_prefix(parent)?.strip_prefix("::")?;
        child.split("::").next().map(str::to_owned)
    })
}

#[test]
fn the_allocators_files_are_free_of_circles() {
    check("alloc", &sources("alloc"), &[]);
}

#[test]
fn the_coordinators_rooms_are_free_of_circles() {
    check("coordinator", &rooms(&sources("coordinator")), &[]);
}

#[test]
fn the_applications_modules_are_free_of_circles() {
    check("coordinator::app", &below(&sources("coordinator"), "app"), &[]);
}

#[test]
fn the_agents_rooms_are_free_of_circles() {
    check("agent", &rooms(&sources("agent")), &[]);
}
