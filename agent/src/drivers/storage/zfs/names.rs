//! How datasets of VMs and images are called. Pure.

use muster_shared::ids::{ImageUuid, VmUuid};

use crate::drivers::storage::Role;

/// The dataset of what the agent keeps in a pool beside VMs and images.
const OWN: &str = "muster";
/// Below it: what was destroyed while something had it open.
const GOING: &str = "going";
/// After the name of a volume that was put aside.
const ASIDE: &str = "-reprovisioning-root";
/// After the name of a volume that is not whole yet.
const PARTIAL: &str = "-partial";
/// The file system of a container's root folder.
const ROOT: &str = "root";
/// The volume of what firmware keeps.
const FIRMWARE: &str = "firmware";
/// The snapshot of an image that disks and roots are clones of.
const FINAL: &str = "final";

/// The names in one pool.
#[derive(Clone, Debug)]
pub struct Names {
    pool: String,
}

/// What a volume of a VM is by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) vm: VmUuid,
    pub(super) role: Role,
    pub(super) state: State,
}

/// Whether a volume is in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    InPlace,
    /// Put aside for another one.
    Aside,
    /// Its content is still being written.
    Partial,
}

impl Names {
    /// In the pool of this name.
    #[must_use]
    pub fn new(pool: &str) -> Self {
        Self { pool: pool.to_owned() }
    }

    /// The dataset that holds all of a VM.
    #[must_use]
    pub fn of_vm(&self, vm: VmUuid) -> String {
        format!("{}/{vm}", self.pool)
    }

    pub(super) fn volume(&self, place: Place) -> String {
        let name = match place.role {
            Role::Disk(index) => format!("disk{index}"),
            Role::Firmware => FIRMWARE.to_owned(),
            Role::Root => ROOT.to_owned(),
        };
        let state = match place.state {
            State::InPlace => "",
            State::Aside => ASIDE,
            State::Partial => PARTIAL,
        };
        format!("{}/{}/{name}{state}", self.pool, place.vm)
    }

    /// The disk with this index, in its place.
    pub(super) fn disk(&self, vm: VmUuid, index: u32) -> String {
        self.volume(Place { vm, role: Role::Disk(index), state: State::InPlace })
    }

    /// The root folder of a container, in its place.
    pub(super) fn container_root(&self, vm: VmUuid) -> String {
        self.volume(Place { vm, role: Role::Root, state: State::InPlace })
    }

    /// An image's volume, or its file system if it is one of containers.
    #[must_use]
    pub fn image(&self, image: ImageUuid) -> String {
        format!("{}/{image}", self.pool)
    }

    /// The same, while its content is being written.
    #[must_use]
    pub fn partial_image(&self, image: ImageUuid) -> String {
        format!("{}/{image}{PARTIAL}", self.pool)
    }

    /// What disks and roots are clones of.
    #[must_use]
    pub fn final_snapshot(&self, image: ImageUuid) -> String {
        Self::final_of(&self.image(image))
    }

    /// The same of what is to be an image.
    #[must_use]
    pub fn final_of(volume: &str) -> String {
        snapshot(volume, FINAL)
    }

    pub(super) fn own(&self) -> String {
        format!("{}/{OWN}", self.pool)
    }

    pub(super) fn going(&self) -> String {
        format!("{}/{GOING}", self.own())
    }

    /// The place of a dataset that is a volume of a VM by its name.
    pub(super) fn place(&self, dataset: &str) -> Option<Place> {
        let (vm, name) = self.inside(dataset)?.split_once('/')?;
        let vm = vm.parse().ok()?;
        let (name, state) = match (name.strip_suffix(ASIDE), name.strip_suffix(PARTIAL)) {
            (Some(name), _) => (name, State::Aside),
            (_, Some(name)) => (name, State::Partial),
            (None, None) => (name, State::InPlace),
        };
        let role = match name.strip_prefix("disk") {
            Some(index) => Role::Disk(index.parse().ok()?),
            None if name == FIRMWARE => Role::Firmware,
            None if name == ROOT => Role::Root,
            None => return None,
        };
        let place = Place { vm, role, state };
        // One spelling of each.
        (self.volume(place) == dataset).then_some(place)
    }

    /// The image that a dataset is by its name.
    pub(crate) fn image_of(&self, dataset: &str) -> Option<ImageUuid> {
        let image = self.inside(dataset)?.parse().ok()?;
        (self.image(image) == dataset).then_some(image)
    }

    /// The image that a volume with this property `origin` is a clone of.
    pub(super) fn image_of_origin(&self, origin: &str) -> Option<ImageUuid> {
        let (dataset, name) = origin.split_once('@')?;
        self.image_of(dataset).filter(|_| name == FINAL)
    }

    fn inside<'a>(&self, dataset: &'a str) -> Option<&'a str> {
        dataset.strip_prefix(&self.pool)?.strip_prefix('/')
    }
}

/// The name of a snapshot of a dataset.
pub(super) fn snapshot(dataset: &str, name: &str) -> String {
    format!("{dataset}@{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "aaaaaaaa-0000-4000-8000-000000000001";

    #[test]
    fn volumes_are_known_by_their_names_alone() {
        let (names, vm) = (Names::new("zones"), UUID.parse().unwrap());
        for role in [Role::Firmware, Role::Root, Role::Disk(0), Role::Disk(12)] {
            for state in [State::InPlace, State::Aside, State::Partial] {
                let place = Place { vm, role, state };
                assert_eq!(names.place(&names.volume(place)), Some(place));
            }
        }
        assert_eq!(names.disk(vm, 3), format!("zones/{UUID}/disk3"));
        assert_eq!(names.container_root(vm), format!("zones/{UUID}/root"));
        for other in [
            format!("zones/{UUID}"),
            format!("zones/{UUID}/data"),
            format!("zones/{UUID}/disk"),
            format!("zones/{UUID}/disk01"),
            format!("zones/{UUID}/disk+1"),
            format!("zones/{UUID}/disk1/x"),
            format!("zones/{UUID}/root/x"),
            format!("zones/{UUID}/disk1@a"),
            format!("zones/{}/disk1", UUID.to_uppercase()),
            format!("zonesx/{UUID}/disk1"),
            "zones/var/disk1".to_owned(),
        ] {
            assert_eq!(names.place(&other), None, "{other}");
        }
    }

    #[test]
    fn images_are_known_by_what_disks_are_clones_of() {
        let (names, image) = (Names::new("zones"), UUID.parse().unwrap());
        assert_eq!(names.image_of_origin(&names.final_snapshot(image)), Some(image));
        let others = ["-", "", "zones/x@final", &format!("zones/{UUID}/disk0@vmsnap-a")];
        for other in others.into_iter().chain([&*format!("zones/{UUID}@other")]) {
            assert_eq!(names.image_of_origin(other), None, "{other}");
        }
        assert_eq!(names.image_of(&names.partial_image(image)), None);
    }
}
