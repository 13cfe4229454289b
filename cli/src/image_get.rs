//! `muster image get`: an image as people want to see it.

use muster_shared::api::image::{ImageState, Manifest};
use muster_shared::api::vm::FleetVm;
use muster_shared::vm::NOBODY;

use crate::CliError;
use crate::answer::Answer;
use crate::cell::Cell;
use crate::client::Client;
use crate::output::{Output, compact};
use crate::page::{Page, when};
use crate::pick;

/// Machines that are named.
const MOST_VMS: usize = 20;

pub(crate) async fn run(client: &Client, output: &Output, name: &str) -> Result<(), CliError> {
    let image = pick::image(client, name).await?;
    if output.is_json() {
        return output.object(image.json());
    }
    let uuid = image.uuid.to_string();
    let vms: Vec<Answer<FleetVm>> = client.get_all("/vms", &[], pick::vm_uuid).await?;
    let of_image = vms.iter().filter(|vm| vm.index.image_uuid.as_ref() == Some(&uuid));
    let names = of_image.map(|vm| match &vm.index.alias {
        Some(alias) => alias.clone(),
        None => Cell::id(&vm.vm.uuid).text,
    });
    page(&image, &names.collect::<Vec<_>>()).print()
}

fn page(image: &Manifest, vms: &[String]) -> Page {
    let name = format!("{}@{}", image.name, image.version);
    let state = match (image.disabled, image.state) {
        (Some(true), _) => "disabled: no VM can be created from it",
        (_, ImageState::Active) => "active",
        (_, ImageState::Unactivated) => "not usable: its import is unfinished",
    };
    let mut page = Page::new(format!("{name} is {state}"));
    page.group("Image")
        .line("Id", image.uuid.to_string())
        .line("System", &image.os)
        .line("Type", &image.kind)
        .maybe("Published", image.published_at.as_deref().map(when))
        .maybe("Owner", image.owner.as_ref().filter(|owner| *owner != NOBODY));
    for (member, value) in &image.others {
        let value = compact(value);
        page.line(member, value);
    }
    page.group("File");
    if let Some(file) = image.files.first() {
        page.line("Size", Cell::bytes(file.size).text)
            .maybe("Format", file.format.as_ref())
            .maybe("Compression", file.compression.as_ref())
            .maybe("SHA-256", file.sha256.as_ref())
            .maybe("SHA-1", file.sha1.as_ref());
    }
    page.group("VMs created from it");
    if !vms.is_empty() {
        let more = vms.len().saturating_sub(MOST_VMS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let named: Vec<&str> = vms.iter().take(MOST_VMS).map(String::as_str).collect();
        page.line(&vms.len().to_string(), format!("{}{more}", named.join(", ")));
    }
    match image.state {
        ImageState::Active => page.next(format!("muster vm create --image {name}")),
        ImageState::Unactivated => page.next(format!("muster image delete {}", image.uuid)),
    };
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_is_told_with_its_file_and_its_machines() {
        let image = |state: &str| -> Manifest {
            serde_json::from_value(json!({
                "v": 2, "uuid": uuid::Uuid::nil(), "name": "debian", "version": "12",
                "type": "zvol", "os": "linux", "state": state, "description": "stable",
                "files": [{ "size": 1_073_741_824, "compression": "xz", "sha256": "abc" }],
            }))
            .unwrap()
        };
        let text = page(&image("active"), &["web1".to_owned(), "db1".to_owned()]).text(None);
        assert!(text.starts_with("debian@12 is active\n"), "{text}");
        for part in ["1 GiB", "xz", "abc", "stable", "2  web1, db1", "vm create --image debian@12"]
        {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = page(&image("unactivated"), &[]).text(None);
        assert!(text.contains("not usable") && text.contains("muster image delete"), "{text}");
    }
}
