//! Which images the disks here are based on: as their files name them, since that is what a guest
//! reads. The stamp beside a disk counts only where its file is damaged.

use std::io;
use std::path::{Path, PathBuf};

use muster_shared::ids::{ImageUuid, VmUuid};
use tokio::fs;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use super::{FileStorage, files, qcow2, stamp};
use crate::drivers::DriverError;
use crate::drivers::storage::Bases;

impl FileStorage {
    pub(super) async fn find_bases(&self) -> Result<Bases, DriverError> {
        // A disk that is put aside or brought back meanwhile could be missed under both names.
        let _still = self.names.write().await;
        let mut found = Bases::new();
        for folder in files::list(&self.vols).await? {
            let vm = folder.file_name().and_then(|name| name.to_str()?.parse::<VmUuid>().ok());
            let Some(vm) = vm else { continue };
            for path in files::list(&folder).await? {
                if is_disk(&path)
                    && let Some(image) = base_of(&path).await?
                {
                    *found.entry(image).or_default().entry(vm).or_default() += 1;
                }
            }
        }
        self.add_roots(&mut found).await?;
        Ok(found)
    }
}

/// Disks in use and those put aside.
fn is_disk(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let disk = name.strip_prefix("disk").or_else(|| name.strip_prefix("stash"));
    disk.and_then(|rest| rest.strip_suffix(".qcow2"))
        .is_some_and(|index| index.parse::<u32>().is_ok())
}

/// The image that the disk at `path` is based on.
///
/// # Errors
/// It could not be told; to take it for none could cost the disk its content.
async fn base_of(path: &Path) -> Result<Option<ImageUuid>, DriverError> {
    let damaged = match named_base(path).await {
        Ok(None) => return Ok(None),
        Ok(Some(base)) => match base.file_stem().and_then(|stem| stem.to_str()?.parse().ok()) {
            Some(image) => return Ok(Some(image)),
            None => format!("it names {}, which is not an image", base.display()),
        },
        // It was destroyed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => error.to_string(),
    };
    match stamp(path).await? {
        Some(stamp) => Ok(stamp.image_uuid),
        None => {
            let action = format!("tell which image {} is based on", path.display());
            Err(DriverError::failed(action, damaged))
        }
    }
}

/// The backing file that a qcow2 file names.
async fn named_base(path: &Path) -> io::Result<Option<PathBuf>> {
    let unusable = |problem: qcow2::BadHeader| io::Error::other(problem);
    let mut file = fs::File::open(path).await?;
    let mut start = vec![0; qcow2::HEADER_BYTES];
    file.read_exact(&mut start).await?;
    let Some(name) = qcow2::base_name(&start).map_err(unusable)? else { return Ok(None) };
    file.seek(io::SeekFrom::Start(name.offset_bytes)).await?;
    let mut text = vec![0; name.length_bytes];
    file.read_exact(&mut text).await?;
    let text = String::from_utf8(text).map_err(io::Error::other)?;
    Ok(Some(PathBuf::from(text)))
}
