//! What is said of an image that is made of a VM.

use muster_shared::ids::ImageUuid;
use serde_json::{Value, json};

use super::{Make, TaskContext, TaskFailure};
use crate::drivers::images::publish::TASK_TAG;
use crate::vm_record::disks::numbered;
use crate::vms::{VmRecord, payload};

/// Members that an image has from the one that the VM was made from, unless it has its own.
const INHERITED: &[&str] = &[
    "type",
    "os",
    "requirements",
    "cpu_type",
    "users",
    "billing_tags",
    "traits",
    "generate_passwords",
    "inherited_directories",
];

impl Make {
    /// What is published, but for what its file is.
    pub(super) fn manifest_of(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
        origin: Option<&Value>,
        kind: &str,
    ) -> Result<(ImageUuid, Value), TaskFailure> {
        let mut manifest = self.manifest.clone();
        let image: ImageUuid = match manifest.get("uuid").filter(|uuid| !uuid.is_null()) {
            None => ctx.drivers.entropy.uuid().into(),
            Some(uuid) => uuid
                .as_str()
                .and_then(|uuid| uuid.parse().ok())
                .ok_or_else(|| TaskFailure::bad_param("manifest.uuid", "must be a UUID"))?,
        };
        for name in INHERITED {
            if let Some(value) = origin.and_then(|origin| origin.get(*name)) {
                manifest.entry(*name).or_insert_with(|| value.clone());
            }
        }
        for name in ["disk_driver", "nic_driver"] {
            if let Some(value) = record.text(name) {
                manifest.entry(name).or_insert_with(|| json!(value));
            }
        }
        manifest.entry("type").or_insert(json!(kind));
        manifest.entry("os").or_insert(json!("linux"));
        manifest.insert("v".to_owned(), json!(2));
        manifest.insert("uuid".to_owned(), json!(image));
        // A full image builds on nothing.
        for name in ["origin", "state", "published_at", "image_size"] {
            manifest.shift_remove(name);
        }
        match manifest.entry("tags").or_insert(json!({})) {
            Value::Object(tags) => {
                tags.insert(TASK_TAG.to_owned(), json!(ctx.task_id.as_str()));
            }
            _ => return Err(TaskFailure::bad_param("manifest.tags", "must be an object")),
        }
        Ok((image, Value::Object(manifest)))
    }
}

/// The number of the disk from which the VM boots, or of its first.
pub(super) fn boot_disk(record: &VmRecord) -> Option<u32> {
    let disks = || {
        numbered(record.list("disks"))
            .filter(|(_, disk)| !disk.as_object().is_some_and(payload::is_cdrom))
    };
    let boots = disks().find(|(_, disk)| disk.get("boot") == Some(&json!(true)));
    boots.or_else(|| disks().next()).map(|(number, _)| number)
}

/// What the VM was made from.
pub(super) fn boot_image(record: &VmRecord) -> Option<ImageUuid> {
    let number = boot_disk(record)?;
    let (_, disk) = numbered(record.list("disks")).find(|(own, _)| *own == number)?;
    payload::image_of(disk)
}
