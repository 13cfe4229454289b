//! The calls of `libzfs_core`.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;

use muster_zfs_helper::{Call, Outcome};
use nvpair::{NvData, NvList};
use zfs_core::{DataSetType, Defer, Error, ErrorList, Zfs};

use super::Library;

/// Longest name of a dataset with its end, as `lzc_promote` wants room for.
const NAME_BYTES: usize = 256;

/// No such file or directory, as the library says of what is not there.
const ENOENT: i32 = 2;
/// Try again: what is asked here can't be told.
const EAGAIN: i32 = 11;
/// Says how large a volume, or the volume of a snapshot, is.
const VOLUME_SIZE: &str =
    "arguments = ...; local size = zfs.get_prop(arguments[\"name\"], \"volsize\"); return size";
/// The most that the kernel gives a program that reads one property; its own default.
const INSTRUCTIONS: u64 = 10_000_000;
const MEMORY_BYTES: u64 = 10 << 20;

/// The library, opened when it is first needed: the kernel's module may come later.
#[derive(Debug, Default)]
struct Opened(Option<Zfs>);

pub(super) fn open() -> Box<dyn Library> {
    Box::new(Opened::default())
}

impl Library for Opened {
    fn call(&mut self, call: &Call) -> Outcome {
        if self.0.is_none() {
            match Zfs::new() {
                Ok(zfs) => self.0 = Some(zfs),
                Err(error) => {
                    let reason = format!("libzfs_core can't be used: {error}");
                    return Outcome::Unavailable { reason };
                }
            }
        }
        match &self.0 {
            Some(zfs) => done(zfs, call),
            None => Outcome::Unavailable { reason: "libzfs_core is not open".to_owned() },
        }
    }
}

fn done(zfs: &Zfs, call: &Call) -> Outcome {
    match call {
        Call::Hello => Outcome::Done,
        Call::Create { dataset, properties, numbers } => with(properties, numbers, |properties| {
            one(zfs.create(dataset.as_str(), DataSetType::Zfs, properties))
        }),
        Call::Clone { from, to, properties, numbers } => with(properties, numbers, |properties| {
            one(zfs.clone_dataset(to.as_str(), from.as_str(), properties))
        }),
        Call::Promote { dataset } => {
            let mut conflict = [0; NAME_BYTES];
            one(zfs.promote(dataset.as_str(), &mut conflict))
        }
        Call::Destroy { dataset } => one(zfs.destroy(dataset.as_str())),
        Call::Snapshot { snapshots, properties } => {
            with(properties, &BTreeMap::new(), |properties| {
                let names_of = names(snapshots);
                let mut names = NvList::new();
                for name in names_of {
                    if let Err(error) = names.insert(name, &()) {
                        return failed(&error);
                    }
                }
                match zfs.snapshot_raw(&names, properties) {
                    Ok(()) => Outcome::Done,
                    Err(Ok(error)) => failed(&error),
                    Err(Err(list)) => of_list(&list.into()),
                }
            })
        }
        Call::DestroySnapshots { snapshots, deferred } => {
            let defer = if *deferred { Defer::Yes } else { Defer::No };
            // The number is that of one of them; which one it was is not told if it was all.
            one(zfs.destroy_snaps(names(snapshots), defer).map_err(|(error, _)| error))
        }
        Call::Rollback { dataset, snapshot } => {
            one(zfs.rollback_to(dataset.as_str(), snapshot.as_str()))
        }
        Call::Hold { tag, snapshots } => {
            let holds: Vec<_> = names(snapshots).map(|name| (name, tag.as_str())).collect();
            match several(zfs.hold(&holds, None)) {
                // What is not there is passed over, which the library tells nobody.
                Outcome::Done => all_there(zfs, snapshots),
                failed => failed,
            }
        }
        Call::Release { tag, snapshots } => {
            let held: Vec<_> = names(snapshots).map(|name| (name, [tag.as_str()])).collect();
            several(zfs.release(&held))
        }
        Call::Exists { name } => exists(zfs, name),
        Call::VolumeSize { pool, name } => volume_size(zfs, pool, name),
    }
}

/// `lzc_exists` says "no" as well when it can't tell; what is asked about bookmarks says which.
fn exists(zfs: &Zfs, name: &str) -> Outcome {
    if zfs.exists(name) {
        return Outcome::Done;
    }
    let (dataset, snapshot) = name.split_once('@').map_or((name, None), |(d, s)| (d, Some(s)));
    match zfs.get_bookmarks_raw(dataset, &NvList::new()) {
        // Its dataset is there, or is now.
        Ok(_) if snapshot.is_some() => Outcome::Failed { errno: EAGAIN, of: BTreeMap::new() },
        Ok(_) => Outcome::Done,
        Err(error) => failed(&error),
    }
}

fn volume_size(zfs: &Zfs, pool: &str, name: &str) -> Outcome {
    let mut arguments = NvList::new();
    if let Err(error) = arguments.insert("name", name) {
        return failed(&error);
    }
    match zfs.channel_program_nosync(pool, VOLUME_SIZE, INSTRUCTIONS, MEMORY_BYTES, &arguments) {
        Ok(told) => match told.lookup("return").map(|told| told.data()) {
            Ok(NvData::Int64(bytes)) => Outcome::Size { bytes: bytes.cast_unsigned() },
            _ => Outcome::Failed { errno: EAGAIN, of: BTreeMap::new() },
        },
        Err(error) => failed(&error),
    }
}

/// Fails with those of these snapshots that are not there.
fn all_there(zfs: &Zfs, snapshots: &[String]) -> Outcome {
    let missing = snapshots.iter().filter(|name| !zfs.exists(name.as_str()));
    let of: BTreeMap<_, _> = missing.map(|name| (name.clone(), ENOENT)).collect();
    if of.is_empty() { Outcome::Done } else { Outcome::Failed { errno: ENOENT, of } }
}

fn with(
    properties: &BTreeMap<String, String>,
    numbers: &BTreeMap<String, u64>,
    call: impl FnOnce(&mut NvList) -> Outcome,
) -> Outcome {
    let mut list = NvList::new();
    for (name, value) in properties {
        if let Err(error) = list.insert(name.as_str(), value.as_str()) {
            return failed(&error);
        }
    }
    for (name, value) in numbers {
        if let Err(error) = insert_number(&mut list, name, *value) {
            return failed(&error);
        }
    }
    call(&mut list)
}

#[expect(unsafe_code, reason = "the crate has no insert of this type")]
fn insert_number(list: &mut NvList, name: &str, value: u64) -> io::Result<()> {
    let name = CString::new(name)?;
    // SAFETY: list and name are there until the call ends, which copies the name.
    match unsafe { nvpair_sys::nvlist_add_uint64(list.as_mut_ptr(), name.as_ptr(), value) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn failed(error: &io::Error) -> Outcome {
    let errno = error.raw_os_error().unwrap_or(0);
    Outcome::Failed { errno, of: BTreeMap::new() }
}

fn one(result: io::Result<()>) -> Outcome {
    result.map_or_else(|error| failed(&error), |()| Outcome::Done)
}

fn several(result: Result<(), Error>) -> Outcome {
    match result {
        Ok(()) => Outcome::Done,
        Err(Error::Io { source }) => failed(&source),
        Err(Error::List { source }) => of_list(&source),
    }
}

fn of_list(list: &ErrorList) -> Outcome {
    let number = |(name, error): (&CStr, io::Error)| {
        (name.to_string_lossy().into_owned(), error.raw_os_error().unwrap_or(0))
    };
    let of: BTreeMap<_, _> = list.iter().map(number).collect();
    Outcome::Failed { errno: of.values().next().copied().unwrap_or(0), of }
}

fn names(snapshots: &[String]) -> impl Iterator<Item = &str> {
    snapshots.iter().map(String::as_str)
}
