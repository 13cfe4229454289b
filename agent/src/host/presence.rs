//! Notices that a folder in use is lost: removed, moved away, unmounted, or another one in its
//! place. What is open in it can be written as before, and is gone with the process.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;

use super::folder_watch::FolderWatch;

/// The kernel tells of changes in the folder, not of those above it: those are looked for.
const LOOK_PERIOD: Duration = Duration::from_secs(60);
/// The same where the kernel has no watch left to give.
const LOOK_PERIOD_UNTOLD: Duration = Duration::from_secs(5);
/// What happens to files that must stay.
const LOSSES: AddWatchFlags = AddWatchFlags::IN_DELETE
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF);

/// A folder with files in it that must stay what they are.
#[derive(Debug)]
pub struct Presence {
    parts: Vec<(PathBuf, FileId)>,
    changes: Option<FolderWatch>,
}

/// Device and inode: what a file is, whatever its name.
type FileId = (u64, u64);

impl Presence {
    /// Of a folder and these files and folders in it, which are all there now.
    ///
    /// # Errors
    /// One of them is not there.
    pub fn of(folder: &Path, names: &[&str]) -> io::Result<Self> {
        let paths = names.iter().map(|name| folder.join(name));
        let paths = std::iter::once(folder.to_owned()).chain(paths);
        let part = |path: PathBuf| {
            let found = std::fs::symlink_metadata(&path)?;
            Ok::<_, io::Error>((path, (found.dev(), found.ino())))
        };
        let parts = paths.map(part).collect::<Result<_, _>>()?;
        let changes = FolderWatch::of(folder, LOSSES).inspect_err(|error| {
            tracing::warn!(%error, folder = %folder.display(), "the kernel does not watch a folder");
        });
        Ok(Self { parts, changes: changes.ok() })
    }

    /// Returns once one of them is lost, with its path.
    pub async fn lost(&self) -> &Path {
        loop {
            if let Some(lost) = self.look().await {
                return lost;
            }
            let Some(changes) = &self.changes else {
                tokio::time::sleep(LOOK_PERIOD_UNTOLD).await;
                continue;
            };
            // Told, or over time: it is looked at in both cases.
            if let Ok(Err(error)) = tokio::time::timeout(LOOK_PERIOD, changes.changed()).await {
                tracing::warn!(%error, "the kernel does not tell what changes in a folder");
                tokio::time::sleep(LOOK_PERIOD_UNTOLD).await;
            }
        }
    }

    async fn look(&self) -> Option<&Path> {
        for (path, id) in &self.parts {
            match tokio::fs::symlink_metadata(path).await {
                Ok(found) if (found.dev(), found.ino()) == *id => {}
                Ok(_) => return Some(path),
                Err(error) if is_absence(&error) => return Some(path),
                // A disk that fails is no folder that is gone: whoever writes there finds out.
                Err(error) => tracing::warn!(%error, path = %path.display(), "cannot look at it"),
            }
        }
        None
    }
}

fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far less than the pauses between looks.
    const SOON: Duration = Duration::from_secs(3);

    fn folder() -> (tempfile::TempDir, PathBuf) {
        let around = tempfile::tempdir().unwrap();
        let folder = around.path().join("data");
        std::fs::create_dir_all(folder.join("journal")).unwrap();
        std::fs::write(folder.join("lock"), "").unwrap();
        (around, folder)
    }

    async fn lost_by(change: impl FnOnce(&Path)) -> Option<PathBuf> {
        let (_around, folder) = folder();
        let presence = Presence::of(&folder, &["lock", "journal"]).unwrap();
        let mut lost = std::pin::pin!(presence.lost());
        assert!(futures_util::poll!(lost.as_mut()).is_pending());
        let wait = async {
            change(&folder);
            lost.await.strip_prefix(&folder).unwrap().to_owned()
        };
        tokio::time::timeout(SOON, wait).await.ok()
    }

    #[tokio::test]
    async fn a_folder_that_is_removed_or_moved_away_is_noticed_at_once() {
        let removed = lost_by(|folder| std::fs::remove_dir_all(folder).unwrap());
        // Which of its parts is missed first depends on which was looked at last.
        assert!(removed.await.is_some());
        let moved =
            lost_by(|folder| std::fs::rename(folder, folder.with_extension("old")).unwrap());
        assert!(moved.await.is_some());
        let emptied = lost_by(|folder| std::fs::remove_file(folder.join("lock")).unwrap());
        assert_eq!(emptied.await, Some(PathBuf::from("lock")));
        let replaced = lost_by(|folder| {
            let journal = folder.join("journal");
            std::fs::rename(&journal, folder.join("old")).unwrap();
            std::fs::create_dir(journal).unwrap();
        });
        assert_eq!(replaced.await, Some(PathBuf::from("journal")));
    }

    #[tokio::test]
    async fn what_else_happens_in_a_folder_is_no_loss() {
        let (_around, folder) = folder();
        let presence = Presence::of(&folder, &["lock", "journal"]).unwrap();
        let mut lost = std::pin::pin!(presence.lost());
        assert!(futures_util::poll!(lost.as_mut()).is_pending());
        for round in 0..100 {
            std::fs::write(folder.join("new"), round.to_string()).unwrap();
            std::fs::rename(folder.join("new"), folder.join("document")).unwrap();
            std::fs::remove_file(folder.join("document")).unwrap();
        }
        let waited = tokio::time::timeout(Duration::from_millis(200), lost);
        assert!(waited.await.is_err());
    }

    /// Nothing is told of what happens above the folder.
    #[tokio::test(start_paused = true)]
    async fn a_folder_that_moved_with_its_parent_is_found_missing() {
        let (around, folder) = folder();
        let presence = Presence::of(&folder, &["lock"]).unwrap();
        let parent = around.path().with_extension("moved");
        std::fs::rename(around.path(), &parent).unwrap();
        let lost = tokio::time::timeout(2 * LOOK_PERIOD, presence.lost()).await;
        assert_eq!(lost.unwrap(), folder);
        std::fs::rename(&parent, around.path()).unwrap();
    }
}
