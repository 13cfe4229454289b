//! Opens the object store that holds images and other large things.

use std::path::Path;
use std::sync::Arc;

use muster_shared::folders::make_private;
use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use url::Url;

/// Folders below the blobs folder that are searched for partial files; names have three parts.
const MAX_DEPTH: usize = 8;

/// The object store can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum BlobsError {
    /// The folder can't be made.
    #[error("create the blobs folder {path}")]
    Create {
        /// The folder.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The store refuses its settings.
    #[error("open the object store {url}")]
    Open {
        /// Its URL.
        url: String,
        /// Why.
        #[source]
        source: object_store::Error,
    },
    /// The URL is of no known kind.
    #[error("{0} is neither `file:///FOLDER` nor `s3://BUCKET/PREFIX`")]
    Unknown(String),
}

/// Opens the store that `url` names; without one, the folder `default`.
///
/// Files are synced before a write counts as done. A folder must not be in use by another process:
/// what interrupted uploads left in it is removed.
///
/// # Errors
/// [`BlobsError`].
pub fn open(url: Option<&str>, default: &Path) -> Result<Arc<dyn ObjectStore>, BlobsError> {
    let Some(text) = url else { return open_folder(default) };
    let unknown = || BlobsError::Unknown(text.to_owned());
    let url = Url::parse(text).map_err(|_| unknown())?;
    match url.scheme() {
        "file" => match url.to_file_path() {
            Ok(path) => open_folder(&path),
            Err(()) => Err(unknown()),
        },
        "s3" => {
            let failed = |source| BlobsError::Open { url: url.to_string(), source };
            let store = AmazonS3Builder::from_env().with_url(url.as_str()).build();
            let store = store.map_err(failed)?;
            let prefix = object_store::path::Path::from_url_path(url.path())
                .map_err(|error| failed(error.into()))?;
            Ok(Arc::new(PrefixStore::new(store, prefix)))
        }
        _ => Err(unknown()),
    }
}

fn open_folder(path: &Path) -> Result<Arc<dyn ObjectStore>, BlobsError> {
    let name = || path.display().to_string();
    make_private(path).map_err(|source| BlobsError::Create { path: name(), source })?;
    remove_partial(path, 0);
    let store = LocalFileSystem::new_with_prefix(path)
        .map_err(|source| BlobsError::Open { url: name(), source })?;
    Ok(Arc::new(store.with_fsync(true)))
}

/// Removes what uploads left that a crash cut off. The object store writes an object to
/// `NAME#NUMBER` first and never lists or finds such files again.
fn remove_partial(folder: &Path, depth: usize) {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, folder = %folder.display(), "cannot look for partial files");
            return;
        }
    };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if depth < MAX_DEPTH {
                remove_partial(&path, depth + 1);
            }
        } else if is_partial(&entry.file_name().to_string_lossy())
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove a partial file");
        }
    }
}

fn is_partial(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt as _;

    use super::*;

    #[tokio::test]
    async fn a_folder_and_its_url_are_the_same_store() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("blobs");
        let key = object_store::path::Path::from("images/x");
        open(None, &folder).unwrap().put(&key, "content".into()).await.unwrap();
        let url = Url::from_file_path(&folder).unwrap();
        let again = open(Some(url.as_str()), Path::new("/nonexistent")).unwrap();
        assert_eq!(again.get(&key).await.unwrap().bytes().await.unwrap(), "content");
    }

    #[test]
    fn partial_files_of_a_crash_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("images/u");
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["file-1", "file-2#1", "file#x"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        open(None, dir.path()).unwrap();
        let mut left: Vec<_> =
            std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["file#x", "file-1"]);
    }

    #[test]
    fn other_schemes_are_refused() {
        for url in ["ftp://x/", "no url"] {
            assert!(matches!(open(Some(url), Path::new("/")), Err(BlobsError::Unknown(_))));
        }
    }
}
