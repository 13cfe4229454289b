//! Roots that are shown under ids of their container's own. What lies in `upper` has the ids that the
//! container knows, as the image has: snapshots, copies and images are none the wiser.
//!
//! While a root is put together its own folder is shown on `own` in it, and its image on `image`, both under
//! the container's ids; the overlay over these keeps both, and they are gone when it is there. What an agent
//! leaves that ended in between goes before anything else happens in the folder.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use muster_shared::folders::make_private;

use super::{FileStorage, PARTS, ROOTS, files};
use crate::drivers::untar::Fault;
use crate::drivers::{DriverError, trees};
use crate::host::idmap::{self, IdRange, UserNamespace};
use crate::host::mounts::{self, Overlay};

const OWN: &str = "own";
const IMAGE: &str = "image";
/// The folder of the root that is only tried.
const PROBE: &str = ".probe";

/// Takes away all that may be mounted in the folder of a root.
pub(super) fn unmount(folder: &Path) -> io::Result<()> {
    for name in ["root", OWN, IMAGE] {
        mounts::unmount(&folder.join(name))?;
    }
    Ok(())
}

/// Puts a root together.
pub(super) async fn show(
    folder: &Path,
    image_root: &Path,
    ids: IdRange,
) -> Result<(), DriverError> {
    let (folder, image_root) = (folder.to_owned(), image_root.to_owned());
    let show = move |_: &_| {
        let shown = show_here(&folder, &image_root, ids);
        shown.map_err(|e| Fault::Host(files::failed("mount", &folder, e)))
    };
    trees::beside("mount a root folder", (), show).await
}

fn show_here(folder: &Path, image_root: &Path, ids: IdRange) -> io::Result<()> {
    unmount(folder)?;
    let [own, image] = [OWN, IMAGE].map(|name| folder.join(name));
    for place in [&own, &image] {
        make_private(place)?;
    }
    let namespace = UserNamespace::make(ids)?;
    let [upper, work, root] = PARTS;
    let (upper, work, root) = (own.join(upper), own.join(work), folder.join(root));
    let lower = image.clone();
    let shown = idmap::show(folder, &own, &namespace, false)
        .and_then(|()| idmap::show(image_root, &image, &namespace, true))
        .and_then(|()| {
            // The overlay makes what it needs for itself as whoever mounts it: the host's root is nobody
            // in there.
            idmap::as_root_of(ids, move || {
                Overlay { lower: &lower, upper: &upper, work: &work }.mount(&root)
            })
        });
    let hidden = mounts::unmount(&own).and(mounts::unmount(&image));
    shown.and(hidden)
}

impl FileStorage {
    /// Shows a root of nothing, once.
    pub(super) async fn cant_map(&self, ids: IdRange) -> Result<(), DriverError> {
        let mut maps_ids = self.maps_ids.lock().await;
        if *maps_ids {
            return Ok(());
        }
        let folder = self.config.storage_dir.join(ROOTS).join(PROBE);
        let image = folder.join("of");
        for part in PARTS.map(|part| folder.join(part)).iter().chain([&image]) {
            files::make_folder(part).await?;
        }
        let shown = match show(&folder, &image, ids).await {
            Ok(()) => write_probe(&folder, ids).await,
            failed => failed,
        };
        unmount(&folder).map_err(|e| files::failed("unmount", &folder, e))?;
        files::remove_folder(&folder).await?;
        *maps_ids = shown.is_ok();
        shown
    }
}

/// One that the kernel can't write to is mounted all the same.
async fn write_probe(folder: &Path, ids: IdRange) -> Result<(), DriverError> {
    let [upper, _, root] = PARTS.map(|part| folder.join(part));
    let (shown, written) = (root.join("file"), upper.join("file"));
    let write = move |_: &_| {
        let failed = |e| Fault::Host(files::failed("write to", &shown, e));
        let file = shown.clone();
        idmap::as_root_of(ids, move || std::fs::write(file, "")).map_err(failed)?;
        let owners = [&shown, &written].map(|path| Ok(std::fs::metadata(path)?.uid()));
        match owners {
            [Ok(outside), Ok(0)] if outside == ids.first => Ok(()),
            [Err(error), _] | [_, Err(error)] => Err(failed(error)),
            _ => Err(failed(io::Error::other("its owner is not what it is to be"))),
        }
    };
    trees::beside("write to a root folder", (), write).await
}
