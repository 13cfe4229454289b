//! `zfs`: how far the agent may go in the node's ZFS.

use std::path::PathBuf;

use muster_shared::config::{Check, Problems};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::drivers::zfs::Dataset;

/// The program that links `libzfs_core`.
const HELPER: &str = "muster-zfs";
/// Where the packages put it.
const HELPER_FOLDER: &str = "/usr/lib/muster";

/// ZFS, where the node has it.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct ZfsSection {
    /// Datasets that coordinators may look at and change with all below them, e.g. `["zones"]`. Unset:
    /// the pools named in `pool` and `pools`.
    pub roots: Vec<String>,
    /// The program that does atomic operations through `libzfs_core`. Unset: `muster-zfs` beside the
    /// agent's own program or in `/usr/lib/muster`; where there is none the programs of ZFS do it.
    #[schema(value_type = Option<String>)]
    pub helper: Option<PathBuf>,
}

impl Check for ZfsSection {
    fn check(&self, problems: &mut Problems) {
        for root in &self.roots {
            if let Err(bad) = root.parse::<Dataset>() {
                problems.add("roots", bad.to_string());
            }
        }
        let absolute = self.helper.as_ref().is_none_or(|path| path.is_absolute());
        problems.require(absolute, "helper", "must be a path that begins with a slash");
    }
}

impl ZfsSection {
    /// The datasets that are the agent's, of the pools that it has.
    #[must_use]
    pub fn delegated<'a>(&self, pools: impl Iterator<Item = &'a String>) -> Vec<Dataset> {
        let parsed = |name: &String| name.parse().ok();
        if self.roots.is_empty() {
            return pools.filter_map(parsed).collect();
        }
        self.roots.iter().filter_map(parsed).collect()
    }

    /// Where `muster-zfs` is.
    #[must_use]
    pub fn helper(&self) -> Option<PathBuf> {
        if let Some(path) = &self.helper {
            return Some(path.clone());
        }
        let own = std::env::current_exe().ok();
        let beside = own.and_then(|own| own.parent().map(|folder| folder.join(HELPER)));
        let packaged = PathBuf::from(HELPER_FOLDER).join(HELPER);
        beside.into_iter().chain([packaged]).find(|path| path.is_file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_roots_the_agents_pools_are_its_own() {
        let pools = ["zones".to_owned(), "fast".to_owned()];
        let of = |section: &ZfsSection| {
            let roots = section.delegated(pools.iter());
            roots.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(of(&ZfsSection::default()), ["zones", "fast"]);
        let roots = vec!["tank/muster".to_owned()];
        assert_eq!(of(&ZfsSection { roots, ..ZfsSection::default() }), ["tank/muster"]);
    }
}
