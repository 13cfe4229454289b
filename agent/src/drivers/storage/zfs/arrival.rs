//! When it is worth another look for a name that udev is about to make.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::AddWatchFlags;

use crate::host::FolderWatch;

/// Longest time between two looks: a name that is there may become another device's, and the kernel may
/// have no watch to give.
const PERIOD: Duration = Duration::from_millis(50);

/// A watch of the folder that a name will be in, or of the nearest one that is there already.
#[derive(Debug, Default)]
pub(super) struct Arrival {
    watched: Option<(PathBuf, FolderWatch)>,
}

impl Arrival {
    /// From now on [`Self::news`] tells of this name, also of what came between two calls.
    pub(super) fn watch_for(&mut self, path: &Path) {
        // A folder may be made while the one above it is not yet watched.
        while let Some(folder) = path.ancestors().skip(1).find(|folder| folder.is_dir()) {
            if self.watched.as_ref().is_some_and(|(watched, _)| watched == folder) {
                return;
            }
            // udev makes a name under another and moves it.
            let events = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
            let watch = FolderWatch::of(folder, events).ok();
            self.watched = watch.map(|watch| (folder.to_owned(), watch));
            if self.watched.is_none() {
                return;
            }
        }
    }

    /// Waits until something came, or for as long as one should at most.
    pub(super) async fn news(&self) {
        let came = async {
            match &self.watched {
                Some((_, watch)) if watch.changed().await.is_ok() => {}
                _ => std::future::pending().await,
            }
        };
        // That nothing came is no reason not to look.
        drop(tokio::time::timeout(PERIOD, came).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn told(arrival: &Arrival) {
        let (_, watch) = arrival.watched.as_ref().unwrap();
        watch.changed().await.unwrap();
    }

    #[tokio::test]
    async fn a_name_in_folders_that_are_made_for_it_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("zones").join("vm").join("disk0");
        let mut arrival = Arrival::default();
        arrival.watch_for(&path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        told(&arrival).await;
        let elsewhere = folder.path().join("disk0");
        std::os::unix::fs::symlink("/dev/null", &elsewhere).unwrap();
        arrival.watch_for(&path);
        std::fs::rename(&elsewhere, &path).unwrap();
        told(&arrival).await;
    }

    #[tokio::test]
    async fn what_came_between_two_looks_is_told_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk0");
        let mut arrival = Arrival::default();
        arrival.watch_for(&path);
        std::fs::write(&path, "").unwrap();
        told(&arrival).await;
    }
}
