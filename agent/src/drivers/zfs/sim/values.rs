//! Properties of simulated datasets, as the programs print them.

use super::super::{Dataset, Kind, Properties, Snapshot, is_user_property};
use super::tree::{Node, SETTABLE, Taken, Tree};

/// In use by a dataset that holds nothing, bytes.
const EMPTY_BYTES: u64 = 24 * 1024;

/// Properties that are sizes.
const SIZES: [&str; 5] = ["quota", "refquota", "reservation", "refreservation", "recordsize"];

/// A number of bytes, exact or as people read it.
pub(super) fn bytes(count: u64, parseable: bool) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    if parseable {
        return count.to_string();
    }
    let unit = (count.max(1).ilog2() / 10).min(6);
    let whole = 1_u64 << (unit * 10);
    let name = UNITS.get(usize::try_from(unit).unwrap_or(0)).unwrap_or(&"B");
    if count.is_multiple_of(whole) {
        return format!("{}{name}", count / whole);
    }
    let tenths = u128::from(count) * 10 / u128::from(whole);
    format!("{}.{}{name}", tenths / 10, tenths % 10)
}

impl Tree {
    /// A property of a dataset; `None` where it does not apply.
    pub(super) fn value(
        &self,
        name: &Dataset,
        node: &Node,
        property: &str,
        parseable: bool,
    ) -> Option<String> {
        let show = |count| Some(bytes(count, parseable));
        let volume = match node.kind {
            Kind::Volume { size_bytes, .. } => Some(size_bytes),
            Kind::Filesystem => None,
        };
        let content = EMPTY_BYTES + u64::try_from(node.content.len()).unwrap_or(u64::MAX);
        match property {
            "name" => Some(name.to_string()),
            "type" => Some(if volume.is_some() { "volume" } else { "filesystem" }.to_owned()),
            "used" if name.is_pool() => show(self.used(name.pool()) + EMPTY_BYTES),
            "used" | "usedbydataset" | "refer" | "referenced" => show(content),
            "avail" | "available" => {
                let size = self.pools.get(name.pool()).map_or(0, |pool| pool.size_bytes);
                show(size.saturating_sub(self.used(name.pool())))
            }
            "origin" => node.origin.as_ref().map(Snapshot::to_string),
            "guid" | "createtxg" | "creation" => Some(node.guid.to_string()),
            "volsize" => volume.and_then(show),
            "receive_resume_token" => {
                let token = |(guid, got): &(u64, Vec<u8>)| format!("1-{guid:x}-{:x}", got.len());
                node.partial.as_ref().map(token)
            }
            "mounted" => volume.is_none().then(|| "yes".to_owned()),
            "mountpoint" => match (volume, self.inherited(name, "mountpoint")) {
                (Some(_), _) => None,
                (None, Some((of, path))) if of != *name => {
                    Some(format!("{path}{}", &name.as_str()[of.as_str().len()..]))
                }
                (None, Some((_, path))) => Some(path),
                (None, None) => Some(format!("/{name}")),
            },
            "encryption" => {
                Some(self.inherited(name, property).map_or("off".to_owned(), |(_, set)| set))
            }
            "canmount" => {
                Some(node.local.get(property).cloned().unwrap_or_else(|| "on".to_owned()))
            }
            _ => self.inherited(name, property).map(|(_, set)| match set.parse() {
                Ok(count) if SIZES.contains(&property) => bytes(count, parseable),
                _ => set,
            }),
        }
    }

    /// A property that was set here or above, and where.
    fn inherited(&self, name: &Dataset, property: &str) -> Option<(Dataset, String)> {
        // What is a limit of one dataset is none of those below it.
        let own = ["quota", "refquota", "reservation", "refreservation", "volsize"];
        let mut at = Some(name.clone());
        while let Some(here) = at {
            if let Some(set) = self.nodes.get(&here).and_then(|node| node.local.get(property)) {
                return Some((here, set.clone()));
            }
            at = here.parent().filter(|_| !own.contains(&property));
        }
        None
    }

    /// A property of a snapshot; `None` where it does not apply.
    pub(super) fn value_of_taken(
        &self,
        name: &Snapshot,
        taken: &Taken,
        property: &str,
        parseable: bool,
    ) -> Option<String> {
        let content = u64::try_from(taken.content.len()).unwrap_or(u64::MAX);
        match property {
            "name" => Some(name.to_string()),
            "type" => Some("snapshot".to_owned()),
            "used" => Some(bytes(0, parseable)),
            "refer" | "referenced" => Some(bytes(EMPTY_BYTES + content, parseable)),
            "guid" | "createtxg" | "creation" => Some(taken.guid.to_string()),
            "userrefs" => Some(taken.holds.len().to_string()),
            "volsize" => taken.volume_bytes.map(|size| bytes(size, parseable)),
            "clones" => {
                let clones = self.clones(name);
                Some(clones.iter().map(Dataset::as_str).collect::<Vec<_>>().join(","))
            }
            _ if is_user_property(property) => {
                let inherited = || self.inherited(name.dataset(), property).map(|(_, set)| set);
                taken.local.get(property).cloned().or_else(inherited)
            }
            _ => None,
        }
    }
}

/// What there is to tell of something, without names of users' making.
pub(super) const ALL: &[&str] = &[
    "type",
    "creation",
    "used",
    "available",
    "referenced",
    "mounted",
    "origin",
    "guid",
    "createtxg",
    "userrefs",
    "volsize",
];

/// Names for `all`: those, what can be set, and what users made up for it.
pub(super) fn all(local: &Properties) -> Vec<String> {
    let fixed = ALL.iter().chain(SETTABLE).map(|name| (*name).to_owned());
    let mut names: Vec<_> = fixed.chain(local.keys().cloned()).collect();
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_look_as_zfs_writes_them() {
        let shown = |count| bytes(count, false);
        assert_eq!((&*shown(0), &*shown(1023), &*shown(1024)), ("0B", "1023B", "1K"));
        assert_eq!((&*shown(1536), &*shown(1_288_490_188)), ("1.5K", "1.1G"));
        assert_eq!(bytes(1536, true), "1536");
    }
}
