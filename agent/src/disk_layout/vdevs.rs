//! How the disks that store are arranged.

use std::ops::RangeInclusive;

use super::capacity::Megabytes;
use super::{Device, Layout, LayoutError, Vdev};

/// Disks of a mirror, where nobody asks for another number.
const MIRROR_WIDTH: usize = 2;
/// So many disks have one that stands by, in pools of mirrors.
const MIRRORED_PER_SPARE: usize = 16;
/// Most that stand by without being asked for.
const MAX_SPARES: usize = 2;

/// Virtual devices, what stands by, and what they store together.
type Arranged = (Vec<Vdev>, Vec<Device>, Megabytes);

/// Arranges disks, which are in the order of their sizes. The largest ones stand by: they can stand in
/// for every other.
pub(super) fn arrange(
    layout: Layout,
    disks: Vec<Device>,
    spares: Option<usize>,
    width: Option<usize>,
) -> Result<Arranged, LayoutError> {
    let (width, spares) = match layout {
        Layout::Single => return single(disks, spares),
        Layout::Mirror => mirror(disks.len(), spares, width)?,
        Layout::Raidz1 | Layout::Raidz2 | Layout::Raidz3 => {
            raidz(layout, disks.len(), spares, width)?
        }
    };
    let mut storing = disks;
    let spares = storing.split_off(storing.len() - spares);
    // What is left over of the disks is less than a virtual device, and stays unused.
    let groups = storing.chunks_exact(width);
    let storing_of_group = width - redundant(layout, width);
    let capacity = |group: &[Device]| {
        group.first().map_or(Megabytes::default(), |first| first.size.times(storing_of_group))
    };
    let all = groups.clone().map(capacity).fold(Megabytes::default(), Megabytes::plus);
    let vdev = |group: &[Device]| Vdev::Group {
        kind: layout.as_str().to_owned(),
        devices: group.to_vec(),
    };
    Ok((groups.map(vdev).collect(), spares, all))
}

/// Disks of a virtual device whose content the others have as well.
fn redundant(layout: Layout, width: usize) -> usize {
    match layout {
        Layout::Single => 0,
        Layout::Mirror => width - 1,
        Layout::Raidz1 => 1,
        Layout::Raidz2 => 2,
        Layout::Raidz3 => 3,
    }
}

fn single(disks: Vec<Device>, spares: Option<usize>) -> Result<Arranged, LayoutError> {
    if spares.is_some_and(|spares| spares > 0) {
        return Err(LayoutError::SparesOfSingle);
    }
    let disk = disks.into_iter().next().ok_or(LayoutError::NoDisks)?;
    let capacity = disk.size;
    Ok((vec![Vdev::Single(disk)], Vec::new(), capacity))
}

/// Width and spares of mirrors.
fn mirror(
    disks: usize,
    spares: Option<usize>,
    wanted: Option<usize>,
) -> Result<(usize, usize), LayoutError> {
    if disks < 2 {
        return Err(LayoutError::NoMirror);
    }
    let width = wanted.unwrap_or(MIRROR_WIDTH);
    if !(2..=disks).contains(&width) {
        return Err(LayoutError::BadWidth { layout: Layout::Mirror, disks, width });
    }
    match spares {
        Some(spares) if spares > disks - width => Err(LayoutError::TooManySpares(spares)),
        Some(spares) => Ok((width, spares)),
        None if wanted.is_some() => Ok((width, disks % width)),
        None if disks == 2 || disks == 4 => Ok((width, 0)),
        None => {
            let spares = disks.div_ceil(MIRRORED_PER_SPARE);
            Ok((width, spares + (disks - spares) % width))
        }
    }
}

/// Width and spares of groups with parity.
fn raidz(
    layout: Layout,
    disks: usize,
    spares: Option<usize>,
    wanted: Option<usize>,
) -> Result<(usize, usize), LayoutError> {
    let (widths, disks_per_spare) = widths(layout, disks);
    let none = |spares| LayoutError::NoWidth { layout, disks, spares };
    if let Some(width) = wanted {
        if !(*widths.start()..=disks).contains(&width) {
            return Err(LayoutError::BadWidth { layout, disks, width });
        }
        let standing_by = spares.unwrap_or(disks % width);
        return match disks.checked_sub(standing_by) {
            Some(left) if left >= width => Ok((width, standing_by)),
            _ => Err(none(standing_by)),
        };
    }
    let mut standing_by = spares.unwrap_or_else(|| (disks / disks_per_spare).min(MAX_SPARES));
    while let Some(left) = disks.checked_sub(standing_by).filter(|left| left >= widths.start()) {
        if let Some(width) = widths.clone().find(|width| left % width == 0) {
            return Ok((width, standing_by));
        }
        if spares.is_some() {
            break;
        }
        standing_by += 1;
    }
    Err(none(spares.unwrap_or(standing_by)))
}

/// Widths that a group may have, and how many disks have one that stands by.
fn widths(layout: Layout, disks: usize) -> (RangeInclusive<usize>, usize) {
    match (layout, disks) {
        (Layout::Raidz2, 5 | 6) | (Layout::Raidz3, 7 | 8) => (disks..=disks, usize::MAX),
        (Layout::Raidz2, _) => (7..=12, 12),
        (Layout::Raidz3, _) => (9..=20, 15),
        _ => (3..=6, 7),
    }
}
