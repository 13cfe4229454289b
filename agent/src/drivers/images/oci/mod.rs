//! Images of containers: the one file that a repository has becomes the root folder of containers.
//!
//! The file is an OCI image layout or a docker archive, both as tar. It is read where it lies; only
//! what the layers hold is written. Archives are taken for hostile: names are resolved by the kernel
//! within the root folder (`openat2`), everything is counted against [`Bounds`], each layer is read
//! once for its checksums before anything of it is written, and what would reach beyond the folder is
//! refused. Device nodes are left out, as are attributes that mean something to an overlay. Modes are
//! kept as they are, with set-user-id bits: nobody but root gets into the folder of images.

mod archive;
mod config;
mod layer;
mod layout;

#[cfg(test)]
mod property_tests;
#[cfg(test)]
pub(super) mod samples;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use tokio_util::sync::CancellationToken;

use self::archive::Archive;
use self::layer::Unpacking;
use super::RuntimeConfig;
use crate::drivers::DriverError;
use crate::drivers::untar::{self, Bounds, Fault, Tree};

/// What was unpacked.
#[derive(Debug)]
pub(super) struct Unpacked {
    /// How containers of it are run.
    pub(super) runtime: RuntimeConfig,
    /// Bytes written.
    pub(super) size_bytes: u64,
    /// The folder; removed unless it is kept.
    pub(super) folder: Scratch,
}

/// Unpacks the archive `from` to the new folder `root`; durable, but for the folder's own name, when
/// it returns. A failed or dropped attempt leaves no folder. `stop` is looked at between files; `progress` gets
/// 0 to 100.
///
/// # Errors
/// [`Fault`].
pub(super) async fn unpack(
    from: &Path,
    root: &Path,
    stop: CancellationToken,
    progress: &(dyn Fn(u8) + Send + Sync),
) -> Result<Unpacked, Fault> {
    // Dropped with the future: the thread ends soon, and removes its folder itself.
    let stop = stop.child_token();
    let _stops_thread = stop.clone().drop_guard();
    let (told, mut shown) = tokio::sync::watch::channel(0);
    let (from, root) = (from.to_owned(), root.to_owned());
    #[expect(clippy::disallowed_methods, reason = "this is behind the driver of images")]
    let mut thread = tokio::task::spawn_blocking(move || {
        let told = |percent| {
            told.send_replace(percent);
        };
        unpack_here(&from, &root, &Bounds::default(), &stop, &told)
    });
    loop {
        tokio::select! {
            done = &mut thread => {
                let failed = |error| DriverError::failed("unpack an image", error);
                return done.map_err(failed)?;
            }
            Ok(()) = shown.changed() => progress(*shown.borrow_and_update()),
        }
    }
}

/// A fault for whoever wanted the image.
pub(super) fn refusal(image: ImageUuid, fault: Fault) -> DriverError {
    let refused = |code, problem: &str| {
        DriverError::refused(code, format!("the file of image {image}: {problem}"))
    };
    match fault {
        Fault::Invalid(problem) => refused(Code::ImageInvalid, &problem),
        Fault::Unsupported(problem) => refused(Code::NotSupported, &problem),
        Fault::Stopped => super::cancelled(image),
        Fault::Host(error) => error,
    }
}

/// [`unpack`] on this thread, of so many bytes at most.
pub(super) fn unpack_within(from: &Path, root: &Path, most_bytes: u64) -> Result<u64, Fault> {
    let bounds = Bounds { bytes: most_bytes, ..Bounds::default() };
    let unpacked = unpack_here(from, root, &bounds, &CancellationToken::new(), &|_| {})?;
    unpacked.folder.keep();
    Ok(unpacked.size_bytes)
}

/// [`unpack`] on this thread.
fn unpack_here(
    from: &Path,
    root: &Path,
    bounds: &Bounds,
    stop: &CancellationToken,
    progress: &dyn Fn(u8),
) -> Result<Unpacked, Fault> {
    let archive = Archive::open(from)?;
    let image = layout::read(&archive)?;
    let scratch = Scratch::make(root)?;
    let tree = Tree::open(root, bounds.clone())?;
    tree.describe_root()?;
    let mut unpacking = Unpacking::new(tree, root, bounds, stop);
    let count = image.layers.len().max(1);
    for (done, layer) in image.layers.iter().enumerate() {
        progress(u8::try_from(done * 100 / count).unwrap_or(100));
        unpacking.add(&archive, layer)?;
    }
    let size_bytes = unpacking.finish()?;
    Ok(Unpacked { runtime: image.runtime, size_bytes, folder: scratch })
}

/// A folder that is removed unless it is kept.
#[derive(Debug)]
pub(super) struct Scratch(Option<PathBuf>);

impl Scratch {
    fn make(path: &Path) -> Result<Self, Fault> {
        use std::os::unix::fs::DirBuilderExt as _;
        let made = std::fs::DirBuilder::new().mode(0o755).create(path);
        made.map_err(|error| untar::host("create", path, error))?;
        Ok(Self(Some(path.to_owned())))
    }

    /// It has another name now, or was removed.
    pub(super) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let Some(path) = &self.0 else { return };
        if let Err(error) = std::fs::remove_dir_all(path) {
            tracing::warn!(path = %path.display(), %error, "what was unpacked stays");
        }
    }
}
