//! Finds the thing an argument names: by uuid, beginning of a uuid, or name.

use muster_shared::api::image::Manifest;
use muster_shared::api::server::Server;
use muster_shared::api::vm::FleetVm;
use uuid::Uuid;

use crate::CliError;
use crate::answer::Answer;
use crate::client::Client;

/// Fewest characters of an abbreviated uuid.
const MIN_PREFIX: usize = 4;

/// A VM from the fleet index.
pub(crate) async fn vm(client: &Client, name: &str) -> Result<Answer<FleetVm>, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/vms/{name}"), &[]).await;
    }
    let all = client.get_all("/vms", &[], vm_uuid).await?;
    one("VM", name, all, vm_uuid, |vm| vm.index.alias.clone())
}

/// The id of a VM in a list.
pub(crate) fn vm_uuid(vm: &Answer<FleetVm>) -> String {
    vm.vm.uuid.to_string()
}

/// A server.
pub(crate) async fn server(client: &Client, name: &str) -> Result<Answer<Server>, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/servers/{name}"), &[]).await;
    }
    let all: Vec<Answer<Server>> = client.get("/servers", &[]).await?;
    let uuid = |server: &Answer<Server>| server.record.uuid.to_string();
    let found = one("server", name, all, uuid, |server| Some(server.record.hostname.clone()))?;
    client.get(&format!("/servers/{}", found.record.uuid), &[]).await
}

/// An image; by name the newest version, or `NAME@VERSION`.
pub(crate) async fn image(client: &Client, name: &str) -> Result<Answer<Manifest>, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/images/{name}"), &[]).await;
    }
    let all: Vec<Answer<Manifest>> = client.get("/images", &[]).await?;
    if let Some(newest) = newest_of(&all, name) {
        return Ok(newest.clone());
    }
    let versioned = |image: &Answer<Manifest>| Some(format!("{}@{}", image.name, image.version));
    one("image", name, all, |image| image.uuid.to_string(), versioned)
}

fn newest_of<'a>(images: &'a [Answer<Manifest>], name: &str) -> Option<&'a Answer<Manifest>> {
    // The last of equal ones.
    images.iter().filter(|image| image.name == name).max_by_key(|image| &image.published_at)
}

fn one<T>(
    kind: &str,
    wanted: &str,
    all: Vec<T>,
    uuid: impl Fn(&T) -> String,
    name: impl Fn(&T) -> Option<String>,
) -> Result<T, CliError> {
    let is_named = |it: &T| name(it).as_deref() == Some(wanted);
    let is_begun = |it: &T| wanted.len() >= MIN_PREFIX && uuid(it).starts_with(wanted);
    let by_name = all.iter().any(is_named);
    let fits = |it: &T| if by_name { is_named(it) } else { is_begun(it) };
    let mut found: Vec<T> = all.into_iter().filter(fits).collect();
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(CliError::NotFound(format!("no {kind} is named {wanted:?}"))),
        (Some(last), false) => {
            let uuids: Vec<_> = found.iter().chain([&last]).map(uuid).collect();
            let message = format!("{wanted:?} fits several: {}; use the uuid", uuids.join(", "));
            Err(CliError::Usage(message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(name: &str, wanted: Result<&str, u8>) {
        let all = vec![
            ("aaaa1111-0000", "web"),
            ("aaaa2222-0000", "db"),
            ("bbbb3333-0000", "db"),
            ("cccc4444-0000", "aaaa2"),
        ];
        let found = one("VM", name, all, |vm| vm.0.to_owned(), |vm| Some(vm.1.to_owned()));
        let found = found.map(|vm| vm.0).map_err(|error| error.exit_code());
        assert_eq!(found, wanted, "{name}");
    }

    #[test]
    fn names_come_before_beginnings_and_must_be_unique() {
        check("web", Ok("aaaa1111-0000"));
        check("bbbb", Ok("bbbb3333-0000"));
        check("aaaa2", Ok("cccc4444-0000"));
        check("db", Err(2));
        check("aaaa", Err(2));
        check("bbb", Err(3));
        check("gone", Err(3));
    }

    #[test]
    fn newest_image_of_a_name() {
        let image = |n: u8, name: &str, published_at: &str| {
            let image = json!({
                "v": 2, "uuid": Uuid::from_u128(n.into()), "name": name, "version": "1",
                "type": "zvol", "os": "linux", "state": "active", "published_at": published_at,
            });
            serde_json::from_value::<Answer<Manifest>>(image).unwrap()
        };
        let images = [
            image(1, "guest", "2026-02-01T00:00:00.000Z"),
            image(2, "guest", "2026-03-01T00:00:00.000Z"),
            image(3, "other", "2026-04-01T00:00:00.000Z"),
        ];
        assert_eq!(newest_of(&images, "guest").unwrap().uuid, images[1].uuid);
        assert!(newest_of(&images, "none").is_none());
    }
}
