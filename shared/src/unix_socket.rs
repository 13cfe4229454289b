//! Unix sockets to listen on: a socket that a dead process left is replaced, anything else at the
//! path stays.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tokio::net::{UnixListener, UnixStream};

/// Listens on the socket at `path`, whose permissions will be `mode`.
///
/// # Errors
/// `AddrInUse` when somebody listens there, `AlreadyExists` when the path is no socket, or the
/// system's error; what was there is untouched then.
pub async fn bind(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    make_room(path).await?;
    let listener = UnixListener::bind(path)?;
    let file = SocketFile { path: path.to_owned(), identity: identity(path)? };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok((listener, file))
}

/// Removes a socket that nobody answers on.
async fn make_room(path: &Path) -> io::Result<()> {
    // Not through links: what they point to is not ours.
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        let text = "something else than a socket is there";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    match UnixStream::connect(path).await {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Whoever can't be asked may be listening.
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(_) | Err(_) => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Device and inode.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// The file of a bound socket; removed when dropped, if it is still the same.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
}

impl SocketFile {
    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let own = identity(&self.path).is_ok_and(|found| found == self.identity);
        if own && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "cannot remove the socket");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODE: u32 = 0o660;

    #[track_caller]
    fn check_kept(path: &Path, error: &io::Error) {
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert!(fs::symlink_metadata(path).is_ok(), "{} is gone", path.display());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (file, inner) = (folder.path().join("plain"), folder.path().join("folder"));
        fs::write(&file, "precious").unwrap();
        fs::create_dir(&inner).unwrap();
        let (link, dangling) = (folder.path().join("link"), folder.path().join("dangling"));
        std::os::unix::fs::symlink(&file, &link).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", &dangling).unwrap();
        for path in [&file, &inner, &link, &dangling] {
            check_kept(path, &bind(path, MODE).await.unwrap_err());
        }
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    #[tokio::test]
    async fn a_link_to_a_dead_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, link) = (folder.path().join("socket"), folder.path().join("link"));
        drop(UnixListener::bind(&socket).unwrap());
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        check_kept(&link, &bind(&link, MODE).await.unwrap_err());
        assert!(socket.exists());
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // Dropping the listener alone leaves the file, as the death of its process does.
        drop(UnixListener::bind(&path).unwrap());
        let (_listener, file) = bind(&path, MODE).await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(bind(&path, MODE).await.unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert_eq!(file.path(), path);
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_took_the_place_of_the_socket_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let (_listener, file) = bind(&path, MODE).await.unwrap();
        fs::rename(&path, folder.path().join("aside")).unwrap();
        fs::write(&path, "new").unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }
}
