//! Which disks of a server become which parts of its pool: the rules by which SmartOS lays out pools, so
//! that a server gets the same pool under either. Pure.
//!
//! Disks of a kind are put together ([`buckets`]), the kinds get their roles ([`roles`]), and the disks
//! that store are arranged in virtual devices ([`vdevs`]).

mod buckets;
mod capacity;
pub mod inventory;
pub mod plan;
mod roles;
mod vdevs;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use self::capacity::Megabytes;
use self::roles::Roles;

/// A disk of a server, as it is found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Disk {
    /// What it is called, e.g. `sda`.
    pub name: String,
    /// Who made it.
    pub vendor: String,
    /// What it is.
    pub product: String,
    /// How it is connected, e.g. `sata`; disks of different kinds are not mixed.
    pub kind: String,
    /// Its size, bytes.
    pub bytes: u64,
    /// It has no parts that turn.
    pub solid_state: bool,
    /// It can be taken out while the server runs, as a memory stick.
    pub removable: bool,
    /// Something on it is in use.
    pub mounted: bool,
}

/// How the disks that store are arranged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// One disk.
    Single,
    /// Each disk has copies.
    Mirror,
    /// One disk of each group may fail.
    Raidz1,
    /// Two may.
    Raidz2,
    /// Three may.
    Raidz3,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Single, Self::Mirror, Self::Raidz1, Self::Raidz2, Self::Raidz3];

    /// As `zpool create` has it; `single` has no word there.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Mirror => "mirror",
            Self::Raidz1 => "raidz1",
            Self::Raidz2 => "raidz2",
            Self::Raidz3 => "raidz3",
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Layout {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let found = Self::ALL.into_iter().find(|layout| layout.as_str() == text);
        found.ok_or_else(|| LayoutError::Unknown(text.to_owned()))
    }
}

/// What somebody asks for; the rest follows from the disks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// `None`: by the number and the kind of the disks.
    pub layout: Option<Layout>,
    /// Disks that stand by.
    pub spares: Option<usize>,
    /// Disks of each virtual device.
    pub width: Option<usize>,
    /// Whether fast disks that are left cache.
    pub cache: bool,
    /// Names of disks that are left alone, in any case of letters.
    pub exclude: Vec<String>,
}

/// Why there is no layout, in the words that operators of SmartOS know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// There is no such layout.
    #[error("unknown layout {0}")]
    Unknown(String),
    /// No disk may be used.
    #[error("no primary storage disks available")]
    NoDisks,
    /// Too few are left to store.
    #[error("too many spares ({0}) for this disk configuration")]
    TooManySpares(usize),
    /// A number is left that can't be divided.
    #[error("invalid number of spares ({0}) for this disk configuration")]
    InvalidSpares(usize),
    /// A single disk has no use for them.
    #[error("spares are not allowed for a single disk pool")]
    SparesOfSingle,
    /// There is one only.
    #[error("at least 2 disks are required for mirroring")]
    NoMirror,
    /// No width divides the disks.
    #[error("no acceptable {layout} layout is possible with {disks} disks and {spares} spare(s)")]
    NoWidth {
        /// The layout.
        layout: Layout,
        /// Disks that store, with the spares.
        disks: usize,
        /// Those of them that stand by.
        spares: usize,
    },
    /// The width that was asked for does not fit.
    #[error("a width of {width} is not possible for {layout} with {disks} disks")]
    BadWidth {
        /// The layout.
        layout: Layout,
        /// Disks that store, with the spares.
        disks: usize,
        /// What was asked for.
        width: usize,
    },
}

/// A disk in a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// What it is called.
    pub name: String,
    /// Who made it.
    pub vid: String,
    /// What it is.
    pub pid: String,
    /// Its size, rounded as disks are sold.
    pub size: Megabytes,
    /// It has no parts that turn.
    pub solid_state: bool,
}

/// A part of a pool that stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Vdev {
    /// Disks that stand in for each other.
    Group {
        /// `mirror`, `raidz1`, `raidz2` or `raidz3`.
        #[serde(rename = "type")]
        kind: String,
        /// Its disks.
        devices: Vec<Device>,
    },
    /// A disk alone.
    Single(Device),
}

impl Vdev {
    /// Its disks.
    #[must_use]
    pub fn devices(&self) -> &[Device] {
        match self {
            Self::Group { devices, .. } => devices,
            Self::Single(device) => std::slice::from_ref(device),
        }
    }
}

/// A pool that is to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolLayout {
    /// What stores.
    pub vdevs: Vec<Vdev>,
    /// What stands by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<Device>,
    /// What keeps writes until they are stored, striped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub logs: Vec<Device>,
    /// What keeps copies of what is read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache: Vec<Device>,
    /// What it can store.
    pub capacity: Megabytes,
}

impl PoolLayout {
    /// Every disk in it.
    pub fn devices(&self) -> impl Iterator<Item = &Device> {
        let storing = self.vdevs.iter().flat_map(Vdev::devices);
        storing.chain(&self.spares).chain(&self.logs).chain(&self.cache)
    }
}

/// The pool that these disks make.
///
/// # Errors
/// [`LayoutError`].
pub fn lay_out(disks: &[Disk], wishes: &Wishes) -> Result<PoolLayout, LayoutError> {
    let excluded =
        |disk: &Disk| wishes.exclude.iter().any(|name| name.eq_ignore_ascii_case(&disk.name));
    let eligible = disks.iter().filter(|disk| !disk.removable && !disk.mounted && !excluded(disk));
    let sized = eligible.map(|disk| (disk, Megabytes::rounded(disk.bytes)));
    let sized = sized.filter(|(_, size)| !size.is_zero());
    let Roles { storage, logs, cache } = roles::assign(buckets::of(sized), wishes.cache);
    let first = storage.first().ok_or(LayoutError::NoDisks)?;
    check_spares(storage.len(), wishes.spares)?;
    let layout = wishes.layout.unwrap_or_else(|| automatic(first, storage.len(), wishes));
    let (vdevs, spares, capacity) = vdevs::arrange(layout, storage, wishes.spares, wishes.width)?;
    Ok(PoolLayout { vdevs, spares, logs, cache, capacity })
}

/// Numbers of disks that no layout divides.
const INDIVISIBLE: [usize; 13] = [17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67];

fn check_spares(storage: usize, spares: Option<usize>) -> Result<(), LayoutError> {
    let Some(spares) = spares else { return Ok(()) };
    let left = storage.saturating_sub(spares);
    if spares > 0 && left < 2 {
        return Err(LayoutError::TooManySpares(spares));
    }
    if INDIVISIBLE.contains(&left) {
        return Err(LayoutError::InvalidSpares(spares));
    }
    Ok(())
}

/// Disks above this size take long to be rebuilt.
const LARGE: Megabytes = Megabytes::of_gb(1500);

/// The layout where nobody asks for one; `first` is the smallest disk that stores.
fn automatic(first: &Device, storage: usize, wishes: &Wishes) -> Layout {
    let disks = storage - wishes.spares.unwrap_or(0).min(storage);
    let (solid_state, explicit) = (first.solid_state, wishes.spares.is_some());
    match disks {
        0 | 1 => return Layout::Single,
        2 => return Layout::Mirror,
        3 | 4 => return Layout::Raidz1,
        5 | 6 if solid_state || explicit => return Layout::Raidz1,
        5 | 6 => return Layout::Raidz2,
        _ => {}
    }
    if let Some(width) = wishes.width {
        return match width {
            0..=2 => Layout::Mirror,
            3..=6 => Layout::Raidz1,
            7..=12 => Layout::Raidz2,
            _ => Layout::Raidz3,
        };
    }
    if disks > 16 || disks > 7 && first.size > LARGE {
        let divides = |width: usize| disks.is_multiple_of(width);
        return match disks {
            _ if !explicit || (7..=12).any(divides) => Layout::Raidz2,
            13 => Layout::Raidz3,
            _ => Layout::Raidz1,
        };
    }
    match disks {
        0..=11 if solid_state => Layout::Raidz2,
        _ if disks.is_multiple_of(2) || !explicit => Layout::Mirror,
        15 => Layout::Raidz1,
        13 => Layout::Raidz3,
        _ => Layout::Raidz2,
    }
}

#[cfg(test)]
mod tests;
