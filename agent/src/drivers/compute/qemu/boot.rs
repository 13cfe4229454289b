//! What a guest starts from: the order of its devices, and another one for a single boot.

use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};

use super::drives;
use super::nics::device_id;
use super::qmp::{Qmp, QmpError};
use crate::drivers::network::numbers;
use crate::vm_record::{VmRecord, disks};

/// Longest wait until the hypervisor has taken a new place in the order.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(5);
/// The order of a VM that wants none.
const DEFAULT: &str = "cd";
/// Places between two letters: room for all devices of a kind.
const PER_LETTER: usize = 100;

/// The property `boot`: `order=` and `once=`, letters as vmadm has them (`c` disk, `d` CD, `n`
/// network).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BootOrder<'a> {
    order: &'a str,
    once: Option<char>,
}

impl<'a> BootOrder<'a> {
    pub(super) fn of(vm: &'a VmRecord) -> Self {
        let wanted = vm.text("boot").unwrap_or_default();
        let option = |name: &str| wanted.split(',').find_map(|option| option.strip_prefix(name));
        let once = option("once=").and_then(|letters| letters.chars().next());
        Self { order: option("order=").unwrap_or(DEFAULT), once }
    }

    /// A device's place in the first boot, the lowest first; `None`: it is not booted from.
    pub(super) fn first(&self, letter: char, device: usize) -> Option<usize> {
        if self.once == Some(letter) {
            return Some(device);
        }
        self.lasting(letter, device)
    }

    /// A device's place in every later boot.
    fn lasting(&self, letter: char, device: usize) -> Option<usize> {
        self.order.find(letter).map(|position| (position + 1) * PER_LETTER + device)
    }

    /// Has the hypervisor go by the lasting order from the second boot on: what it tells the
    /// firmware is written anew at each restart. Its guest must not run yet.
    ///
    /// # Errors
    /// The hypervisor refused.
    pub(super) async fn set_second_boot(
        &self,
        qmp: &Arc<Qmp>,
        vm: &VmRecord,
    ) -> Result<(), QmpError> {
        let Some(once) = self.once else { return Ok(()) };
        let changed = devices(vm).into_iter().filter(|device| device.letter == once);
        for device in changed {
            let place = self.lasting(device.letter, device.number);
            let index = place.and_then(|place| i32::try_from(place).ok()).unwrap_or(-1);
            let command = SetProperty {
                path: format!("/machine/peripheral/{}", device.id),
                property: "bootindex",
                value: json!(index),
            };
            qmp.send(command, LIMIT).await?;
        }
        Ok(())
    }
}

/// A device of the command line that can be booted from, see [`super::argv`].
#[derive(Debug)]
struct Device {
    id: String,
    letter: char,
    number: usize,
}

/// A disk's letter, and its place among those.
pub(super) fn disk_place(disk: &Value, number: u32) -> (char, usize) {
    let letter = if is_cdrom(disk) { 'd' } else { 'c' };
    let place = usize::try_from(number).unwrap_or(usize::MAX).saturating_add(1);
    // The one that is marked comes first.
    (letter, if disk["boot"] == true { 0 } else { place })
}

/// Whether a disk is a CD.
pub(super) fn is_cdrom(disk: &Value) -> bool {
    disk["media"] == "cdrom"
}

fn devices(vm: &VmRecord) -> Vec<Device> {
    let disks = disks::numbered(vm.list("disks")).map(|(number, disk)| {
        let (letter, place) = disk_place(disk, number);
        Device { id: drives::device_id(number), letter, number: place }
    });
    let nics = numbers(vm.list("nics")).into_iter().enumerate();
    let nics =
        nics.map(|(place, number)| Device { id: device_id(number), letter: 'n', number: place });
    disks.chain(nics).collect()
}

/// Sets a property of a device.
#[derive(Debug, Serialize)]
struct SetProperty {
    path: String,
    property: &'static str,
    value: Value,
}

impl qapi::Command for SetProperty {
    type Ok = Value;
    const NAME: &'static str = "qom-set";
    const ALLOW_OOB: bool = false;
}

impl qapi::qmp::QmpCommand for SetProperty {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vms::sim::record;

    fn vm(boot: &str) -> VmRecord {
        let mut vm = record(1);
        vm.properties.insert("boot".to_owned(), json!(boot));
        vm.properties.insert("nics".to_owned(), json!([{}]));
        vm.properties
            .insert("disks".to_owned(), json!([{ "boot": true }, {}, { "media": "cdrom" }]));
        vm
    }

    #[track_caller]
    fn check(boot: &str, first: &[&str], later: &[&str]) {
        let vm = vm(boot);
        let order = BootOrder::of(&vm);
        let sorted = |place: &dyn Fn(&Device) -> Option<usize>| {
            let mut placed: Vec<_> =
                devices(&vm).into_iter().filter_map(|d| Some((place(&d)?, d.id))).collect();
            placed.sort();
            let unique: std::collections::BTreeSet<_> = placed.iter().map(|(at, _)| *at).collect();
            assert_eq!(unique.len(), placed.len(), "{placed:?}");
            placed.into_iter().map(|(_, id)| id).collect::<Vec<_>>()
        };
        assert_eq!(sorted(&|d| order.first(d.letter, d.number)), first, "{boot}");
        assert_eq!(sorted(&|d| order.lasting(d.letter, d.number)), later, "{boot}");
    }

    #[test]
    fn one_boot_may_have_an_order_of_its_own() {
        let usual = ["disk0dev", "disk1dev", "disk2dev"];
        check("", &usual, &usual);
        check("order=cd", &usual, &usual);
        let cd_first = ["disk2dev", "disk0dev", "disk1dev"];
        check("order=dc", &cd_first, &cd_first);
        check("once=d", &cd_first, &usual);
        check("order=cd,once=d", &cd_first, &usual);
        check("order=c,once=n", &["nic0", "disk0dev", "disk1dev"], &["disk0dev", "disk1dev"]);
        check("order=n", &["nic0"], &["nic0"]);
    }
}
