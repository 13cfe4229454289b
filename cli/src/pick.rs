//! Finds the thing an argument names: by uuid, beginning or end of a uuid, or name.

use std::collections::BTreeMap;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use muster_shared::api::allocation::Decision;
use muster_shared::api::image::Manifest;
use muster_shared::api::job::Job;
use muster_shared::api::package::Package;
use muster_shared::api::server::Server;
use muster_shared::api::task::Task;
use muster_shared::api::ticket::Ticket;
use muster_shared::api::vm::FleetVm;
use serde::Deserialize;
use uuid::Uuid;

use crate::CliError;
use crate::answer::Answer;
use crate::client::Client;
use crate::error::MIN_PREFIX;

/// Waitlists that are asked for at a time.
const AT_ONCE: usize = 16;

/// A VM from the fleet index.
pub(crate) async fn vm(client: &Client, name: &str) -> Result<Answer<FleetVm>, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/vms/{name}"), &[]).await;
    }
    let all = client.get_all("/vms", &[], vm_uuid).await?;
    one("vm", name, all, vm_uuid, vm_alias)
}

/// The id of a VM in a list.
pub(crate) fn vm_uuid(vm: &Answer<FleetVm>) -> String {
    vm.vm.uuid.to_string()
}

/// What people call it.
pub(crate) fn vm_alias(vm: &Answer<FleetVm>) -> Option<String> {
    vm.index.alias.clone()
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

/// The names of all servers, by uuid.
pub(crate) async fn hostnames(client: &Client) -> Result<BTreeMap<String, String>, CliError> {
    #[derive(Deserialize)]
    struct Named {
        uuid: String,
        #[serde(default)]
        hostname: String,
    }
    let fields = [("fields", "uuid,hostname".to_owned())];
    let servers: Vec<Named> = client.get("/servers", &fields).await?;
    let named = servers.into_iter().filter(|server| !server.hostname.is_empty());
    Ok(named.map(|server| (server.uuid, server.hostname)).collect())
}

/// The aliases of all VMs that have one, by uuid.
pub(crate) async fn aliases(client: &Client) -> Result<BTreeMap<String, String>, CliError> {
    let all = client.get_all("/vms", &[], vm_uuid).await?;
    let named = |vm: Answer<FleetVm>| Some((vm_uuid(&vm), vm.index.alias.clone()?));
    Ok(all.into_iter().filter_map(named).collect())
}

/// The id of a task, from its beginning.
pub(crate) async fn task(client: &Client, id: &str) -> Result<String, CliError> {
    let all = || async {
        let tasks: Vec<Answer<Task>> =
            client.get_all("/tasks", &[], |task: &Answer<Task>| task.id.to_string()).await?;
        Ok(tasks.iter().map(|task| task.id.to_string()).collect())
    };
    begun("task", id, all).await
}

/// The id of a job, from its beginning.
pub(crate) async fn job(client: &Client, id: &str) -> Result<String, CliError> {
    let all = || async {
        let jobs: Vec<Answer<Job>> = client.get("/jobs", &[("limit", "1000".to_owned())]).await?;
        Ok(jobs.iter().map(|job| job.uuid.to_string()).collect())
    };
    begun("job", id, all).await
}

/// The id of a ticket, from its beginning; of whatever waitlist.
pub(crate) async fn ticket(client: &Client, id: &str) -> Result<String, CliError> {
    let all = || async {
        let servers = hostnames(client).await?.into_keys();
        let waitlists = servers.chain(["default".to_owned()]);
        let tickets = stream::iter(waitlists.map(|server| waitlist(client, server)));
        let lists: Vec<Vec<String>> = tickets.buffer_unordered(AT_ONCE).try_collect().await?;
        Ok(lists.concat())
    };
    begun("ticket", id, all).await
}

/// The ids of the tickets in a server's waitlist, as many as there are in a page.
async fn waitlist(client: &Client, server: String) -> Result<Vec<String>, CliError> {
    let path = format!("/servers/{server}/tickets");
    let tickets: Vec<Answer<Ticket>> = client.get(&path, &[("limit", "1000".to_owned())]).await?;
    Ok(tickets.iter().map(|ticket| ticket.uuid.to_string()).collect())
}

/// The id of a decision of the allocator, from its beginning.
pub(crate) async fn allocation(client: &Client, id: &str) -> Result<String, CliError> {
    let all = || async {
        let query = [("limit", "1000".to_owned())];
        let decisions: Vec<Answer<Decision>> = client.get("/allocations", &query).await?;
        Ok(decisions.iter().map(|decision| decision.id.to_string()).collect())
    };
    begun("allocation", id, all).await
}

/// An id that stands in full is taken as it is; else the only one of `all` that begins so.
async fn begun<F>(kind: &str, id: &str, all: impl FnOnce() -> F) -> Result<String, CliError>
where
    F: Future<Output = Result<Vec<String>, CliError>>,
{
    if id.parse::<Uuid>().is_ok() {
        return Ok(id.to_owned());
    }
    one(kind, id, all().await?, String::clone, |_| None)
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
    one("image", name, all, |image| image.uuid.to_string(), versioned)
}

/// The one image that this can mean; of several with a name none is chosen.
pub(crate) async fn only_image(client: &Client, name: &str) -> Result<Answer<Manifest>, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return image(client, name).await;
    }
    let all: Vec<Answer<Manifest>> = client.get("/images", &[("state", "all".to_owned())]).await?;
    let uuid = |image: &Answer<Manifest>| image.uuid.to_string();
    if all.iter().any(|image| image.name == name) {
        return one("image", name, all, uuid, |image| Some(image.name.clone()));
    }
    one("image", name, all, uuid, versioned)
}

/// All that names stand for, each once; nothing is to be begun unless all are found, or, with
/// `if_exists`, names of none are left out.
pub(crate) async fn each<T, I: PartialEq>(
    names: &[String],
    if_exists: bool,
    id: impl Fn(&T) -> I,
    find: impl AsyncFn(&str) -> Result<T, CliError>,
) -> Result<Vec<T>, CliError> {
    let mut all: Vec<T> = Vec::new();
    for name in names {
        match find(name).await {
            Ok(found) if all.iter().any(|known| id(known) == id(&found)) => {}
            Ok(found) => all.push(found),
            Err(CliError::NotFound(_)) if if_exists => {}
            Err(other) => return Err(other),
        }
    }
    Ok(all)
}

/// A package.
pub(crate) async fn package(client: &Client, name: &str) -> Result<Answer<Package>, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/packages/{name}"), &[]).await;
    }
    let all: Vec<Answer<Package>> = client.get("/packages", &[]).await?;
    let uuid = |package: &Answer<Package>| package.uuid.to_string();
    one("package", name, all, uuid, |package| Some(package.name.clone()))
}

fn versioned(image: &Answer<Manifest>) -> Option<String> {
    Some(format!("{}@{}", image.name, image.version))
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
    let is_begun = |it: &T| {
        let id = uuid(it);
        wanted.len() >= MIN_PREFIX && (id.starts_with(wanted) || id.ends_with(wanted))
    };
    let by_name = all.iter().any(is_named);
    let fits = |it: &T| if by_name { is_named(it) } else { is_begun(it) };
    let mut found: Vec<T> = all.into_iter().filter(fits).collect();
    match (found.pop(), found.is_empty()) {
        (Some(only), true) => Ok(only),
        (None, _) => Err(CliError::no_such(kind, wanted)),
        (Some(last), false) => {
            let shown = |it: &T| match name(it) {
                Some(name) => format!("{name} ({})", uuid(it)),
                None => uuid(it),
            };
            let all: Vec<_> = found.iter().chain([&last]).map(shown).collect();
            let message = format!("{wanted:?} is ambiguous: it can mean {}", all.join(" or "));
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
        check("3-0000", Ok("bbbb3333-0000"));
        check("0000", Err(2));
        check("gone", Err(3));
    }

    #[test]
    fn all_that_a_name_can_mean_are_named() {
        let twice = vec![("aaaa1111", "db"), ("bbbb2222", "db")];
        let error = one("vm", "db", twice, |vm| vm.0.to_owned(), |vm| Some(vm.1.to_owned()));
        let text = error.unwrap_err().to_string();
        assert!(text.contains("db (aaaa1111) or db (bbbb2222)"), "{text}");
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
