//! Finds the thing an argument names: by uuid, beginning of a uuid, or name.

use serde_json::Value;
use uuid::Uuid;

use crate::CliError;
use crate::client::Client;

/// Fewest characters of an abbreviated uuid.
const MIN_PREFIX: usize = 4;

/// A VM from the fleet index.
pub(crate) async fn vm(client: &Client, name: &str) -> Result<Value, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/vms/{name}"), &[]).await;
    }
    let all = client.get_all("/vms", &[], "uuid").await?;
    one("VM", name, &all, |vm| vec![text(&vm["alias"])]).cloned()
}

/// A server.
pub(crate) async fn server(client: &Client, name: &str) -> Result<Value, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/servers/{name}"), &[]).await;
    }
    let all = client.get("/servers", &[]).await?;
    let found = one("server", name, &all, |server| vec![text(&server["hostname"])])?;
    client.get(&format!("/servers/{}", text(&found["uuid"])), &[]).await
}

/// An image; by name the newest version, or `NAME@VERSION`.
pub(crate) async fn image(client: &Client, name: &str) -> Result<Value, CliError> {
    if name.parse::<Uuid>().is_ok() {
        return client.get(&format!("/images/{name}"), &[]).await;
    }
    let mut all = client.get("/images", &[]).await?;
    if let Some(newest) = newest_of(&mut all, name) {
        return Ok(newest);
    }
    let versioned = |image: &Value| format!("{}@{}", text(&image["name"]), text(&image["version"]));
    one("image", name, &all, |image| vec![versioned(image)]).cloned()
}

fn newest_of(images: &mut Value, name: &str) -> Option<Value> {
    let images = images.as_array_mut()?;
    let mut same: Vec<_> = images.iter().filter(|image| image["name"] == name).collect();
    same.sort_by_key(|image| text(&image["published_at"]));
    same.last().map(|image| (*image).clone())
}

/// A member `uuid` as text.
pub(crate) fn uuid(value: &Value) -> Result<&str, CliError> {
    value["uuid"].as_str().ok_or_else(|| CliError::Server {
        status: 200,
        message: "a record without a uuid".to_owned(),
    })
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn one<'a>(
    kind: &str,
    name: &str,
    all: &'a Value,
    names: impl Fn(&Value) -> Vec<String>,
) -> Result<&'a Value, CliError> {
    let all: Vec<&Value> = all.as_array().into_iter().flatten().collect();
    let named: Vec<_> = all.iter().filter(|it| names(it).iter().any(|n| n == name)).collect();
    let begun = || {
        let long = name.len() >= MIN_PREFIX;
        all.iter().filter(move |it| long && text(&it["uuid"]).starts_with(name)).collect()
    };
    let found: Vec<_> = if named.is_empty() { begun() } else { named };
    match found.as_slice() {
        [only] => Ok(only),
        [] => Err(CliError::NotFound(format!("no {kind} is named {name:?}"))),
        several => {
            let uuids: Vec<_> = several.iter().map(|it| text(&it["uuid"])).collect();
            let message = format!("{name:?} fits several: {}; use the uuid", uuids.join(", "));
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
        let all = json!([
            { "uuid": "aaaa1111-0000", "alias": "web" },
            { "uuid": "aaaa2222-0000", "alias": "db" },
            { "uuid": "bbbb3333-0000", "alias": "db" },
            { "uuid": "cccc4444-0000", "alias": "aaaa2" },
        ]);
        let found = one("VM", name, &all, |vm| vec![text(&vm["alias"])]);
        let found = found.map(|vm| text(&vm["uuid"])).map_err(|error| error.exit_code());
        assert_eq!(found.as_deref(), wanted.as_ref().copied(), "{name}");
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
        let mut images = json!([
            { "uuid": "1", "name": "guest", "published_at": "2026-02-01T00:00:00.000Z" },
            { "uuid": "2", "name": "guest", "published_at": "2026-03-01T00:00:00.000Z" },
            { "uuid": "3", "name": "other", "published_at": "2026-04-01T00:00:00.000Z" },
        ]);
        assert_eq!(newest_of(&mut images, "guest").unwrap()["uuid"], "2");
        assert_eq!(newest_of(&mut images, "none"), None);
    }
}
