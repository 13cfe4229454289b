//! What a server boots with, and which platforms there are, for people.

use std::collections::BTreeMap;

use muster_shared::api::Object;
use muster_shared::api::boot::{BootModule, BootParams, PlatformOs, ShownPlatform};
use serde_json::{Value, json};

use crate::CliError;
use crate::answer::Answer;
use crate::cell::{Cell, size};
use crate::client::Client;
use crate::output::{Item, Output, compact};
use crate::page::Page;
use crate::table::{Column, ListArgs};

/// Shows the boot parameters at `path`; they are those of the server `name`, or nobody's yet.
pub(crate) async fn params(
    client: &Client,
    output: &Output,
    path: &str,
    name: Option<&str>,
) -> Result<(), CliError> {
    let params: Answer<BootParams> = client.get(path, &[]).await?;
    if output.is_json() { output.object(params.json()) } else { page(&params, name).print() }
}

fn page(params: &BootParams, name: Option<&str>) -> Page {
    let platform = params.platform.as_deref().filter(|platform| !platform.is_empty());
    let mut page = Page::new(match (name, platform) {
        (Some(name), Some(platform)) => format!("{name} boots platform {platform} next"),
        (Some(name), None) => format!("no platform is set for the next boot of {name}"),
        (None, Some(platform)) => format!("new servers boot platform {platform}"),
        (None, None) => "no platform is set for new servers".to_owned(),
    });
    page.group("Console")
        .maybe("Default", params.default_console.as_ref())
        .maybe("Serial device", params.serial.as_ref());
    members(page.group("Kernel arguments"), &params.kernel_args);
    members(page.group("Kernel flags"), &params.kernel_flags);
    page.group("Files for the boot loader");
    for module in params.boot_modules.iter().flatten() {
        page.line(&module.path, size(bytes(module)));
    }
    page.next("muster boot platforms");
    page.next(format!("muster boot set {} --platform PLATFORM", name.unwrap_or("default")));
    page
}

fn members(page: &mut Page, object: &Object) {
    for (name, value) in object {
        page.line(name, compact(value));
    }
}

/// Size of the file that a module's base64 stands for.
fn bytes(module: &BootModule) -> f64 {
    let text = module.content.trim_end_matches('=');
    // Bounded by what the API accepts.
    f64::from(u32::try_from(text.len() / 4 * 3 + text.len() % 4 * 3 / 4).unwrap_or(u32::MAX))
}

/// A platform that servers can boot.
struct Platform {
    name: String,
    shown: ShownPlatform,
    json: Value,
}

/// Lists the platforms, the newest first.
pub(crate) async fn platforms(
    client: &Client,
    output: &Output,
    args: &ListArgs,
) -> Result<(), CliError> {
    output
        .list(args, async || {
            let query = [("os", "true".to_owned())];
            let all: BTreeMap<String, ShownPlatform> = client.get("/platforms", &query).await?;
            Ok(all.into_iter().rev().map(Platform::new).collect())
        })
        .await
}

impl Platform {
    fn new((name, shown): (String, ShownPlatform)) -> Self {
        let json = json!({ "platform": name, "os": shown.os, "latest": shown.latest });
        Self { name, shown, json }
    }
}

impl Item for Platform {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("PLATFORM", |platform: &Self| Cell::text(&platform.name)),
        Column::new("OS", |platform: &Self| {
            Cell::maybe(platform.shown.os.map(|os| match os {
                PlatformOs::Linux => "linux",
                PlatformOs::SmartOs => "smartos",
            }))
        }),
        Column::new("NOTE", |platform: &Self| {
            Cell::text(if platform.shown.latest { "latest" } else { "" })
        }),
    ];

    fn id(&self) -> String {
        self.name.clone()
    }

    fn json(&self) -> &Value {
        &self.json
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(params: &Value, name: Option<&str>) -> String {
        page(&serde_json::from_value(params.clone()).unwrap(), name).text(Some(80))
    }

    #[test]
    fn the_next_boot_is_told_first() {
        let params = json!({
            "platform": "20260101T000000Z", "kernel_args": { "a": "b", "smt_enabled": true },
            "kernel_flags": { "-k": "" }, "serial": "ttyb", "default_console": "serial",
            "boot_modules": [{ "path": "etc/motd", "content": "aGVsbG8=" }],
        });
        let shown = text(&params, Some("cn1"));
        assert!(shown.starts_with("cn1 boots platform 20260101T000000Z next\n"), "{shown}");
        assert!(
            shown.contains("Kernel arguments\n  a            b\n  smt_enabled  true\n"),
            "{shown}"
        );
        assert!(shown.contains("Files for the boot loader\n  etc/motd  5 B\n"), "{shown}");
        assert!(shown.ends_with("muster boot set cn1 --platform PLATFORM"), "{shown}");
        let none = json!({ "kernel_args": {}, "kernel_flags": {} });
        let shown = text(&none, None);
        assert!(shown.starts_with("no platform is set for new servers\n\nNext\n"), "{shown}");
        assert!(shown.ends_with("muster boot set default --platform PLATFORM"), "{shown}");
    }

    #[test]
    fn sizes_of_files_are_those_of_what_their_text_stands_for() {
        for (content, size) in [("", 0.0), ("aA==", 1.0), ("aGU=", 2.0), ("aGVs", 3.0)] {
            let module = json!({ "path": "x", "content": content });
            let module: BootModule = serde_json::from_value(module).unwrap();
            assert!((bytes(&module) - size).abs() < f64::EPSILON, "{content}");
        }
    }

    #[test]
    fn a_platform_has_its_name_in_what_programs_read() {
        let shown = serde_json::from_value(json!({ "latest": true, "os": "linux" })).unwrap();
        let platform = Platform::new(("20260101T000000Z".to_owned(), shown));
        let want = json!({ "platform": "20260101T000000Z", "os": "linux", "latest": true });
        assert_eq!(
            (Item::id(&platform).as_str(), Item::json(&platform)),
            ("20260101T000000Z", &want)
        );
    }
}
