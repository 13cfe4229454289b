//! What a guest agent says of its guest.

use std::collections::BTreeSet;
use std::net::IpAddr;

use muster_shared::wire::status::{GuestInfo, GuestInterface};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{ANSWER, Talk, TalkError, plain};

/// Longest text that is taken from a guest, characters.
const MAX_CHARS: usize = 128;
/// Most network interfaces, addresses of each, and users that are told of a guest.
const MAX_ITEMS: usize = 16;

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct HostName {
    host_name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Os {
    pretty_name: Option<String>,
    name: Option<String>,
    kernel_release: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Interface {
    name: String,
    hardware_address: Option<String>,
    #[serde(default)]
    ip_addresses: Vec<Address>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Address {
    ip_address: String,
}

#[derive(Deserialize)]
struct User {
    user: String,
}

/// Asks for all of it. What a guest agent does not know is left out.
pub(super) async fn gather(talk: &mut Talk) -> Result<GuestInfo, TalkError> {
    let version: Option<Version> = known(talk, "guest-info").await?;
    let host: Option<HostName> = known(talk, "guest-get-host-name").await?;
    let os: Option<Os> = known(talk, "guest-get-osinfo").await?;
    let interfaces: Option<Vec<Interface>> = known(talk, "guest-network-get-interfaces").await?;
    let users: Option<Vec<User>> = known(talk, "guest-get-users").await?;
    Ok(told(version, host, os, interfaces.unwrap_or_default(), users.unwrap_or_default()))
}

async fn known<T: DeserializeOwned>(
    talk: &mut Talk,
    command: &'static str,
) -> Result<Option<T>, TalkError> {
    match talk.ask(command, &json!({}), ANSWER).await {
        Ok(answer) => Ok(Some(answer)),
        // A whole line came, so the next question can be asked.
        Err(TalkError::Refused { .. } | TalkError::NotUnderstood(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn told(
    version: Option<Version>,
    host: Option<HostName>,
    os: Option<Os>,
    interfaces: Vec<Interface>,
    users: Vec<User>,
) -> GuestInfo {
    let text = |text: String| Some(plain(&text, MAX_CHARS)).filter(|text| !text.is_empty());
    let (os, kernel) =
        os.map_or((None, None), |os| (os.pretty_name.or(os.name), os.kernel_release));
    // Each once: who logs in twice is no second user.
    let users: BTreeSet<String> = users.into_iter().filter_map(|user| text(user.user)).collect();
    let interfaces = interfaces.into_iter().filter_map(|interface| {
        let addresses = interface.ip_addresses.iter();
        let addresses = addresses.filter_map(|address| address.ip_address.parse::<IpAddr>().ok());
        let ips: Vec<String> = addresses
            .filter(|address| !address.is_loopback())
            .map(|address| address.to_string())
            .take(MAX_ITEMS)
            .collect();
        let name = text(interface.name).filter(|name| name != "lo")?;
        let mac = interface.hardware_address.and_then(text).map(|mac| mac.to_ascii_lowercase());
        Some(GuestInterface { name, mac, ips })
    });
    GuestInfo {
        agent_version: version.and_then(|version| text(version.version)),
        hostname: host.and_then(|host| text(host.host_name)),
        os: os.and_then(text),
        kernel: kernel.and_then(text),
        interfaces: interfaces.take(MAX_ITEMS).collect(),
        users: users.into_iter().take(MAX_ITEMS).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_says_is_bounded_and_plain() {
        let interfaces = json!([
            { "name": "lo", "ip-addresses": [{ "ip-address": "127.0.0.1" }] },
            { "name": "eth0", "hardware-address": "02:00:00:00:00:AB", "ip-addresses": [
                { "ip-address": "10.0.0.5", "prefix": 24 }, { "ip-address": "fe80::1" },
                { "ip-address": "<script>" },
            ] },
        ]);
        let os = json!({ "pretty-name": format!("Debian\u{1b}[2J{}", "x".repeat(1000)), "id": "debian" });
        let users = json!([{ "user": "root" }, { "user": "root" }, { "user": "\n" }]);
        let info = told(
            None,
            serde_json::from_value(json!({ "host-name": "web" })).unwrap(),
            serde_json::from_value(os).unwrap(),
            serde_json::from_value(interfaces).unwrap(),
            serde_json::from_value(users).unwrap(),
        );
        assert_eq!(info.hostname.as_deref(), Some("web"));
        let os = info.os.unwrap();
        assert!(os.starts_with("Debian[2Jxx") && os.len() == MAX_CHARS, "{os}");
        assert_eq!(info.users, ["root"]);
        let eth0 = GuestInterface {
            name: "eth0".to_owned(),
            mac: Some("02:00:00:00:00:ab".to_owned()),
            ips: vec!["10.0.0.5".to_owned(), "fe80::1".to_owned()],
        };
        assert_eq!(info.interfaces, [eth0]);
        let many: Vec<User> = (0..100).map(|n| User { user: format!("u{n:02}") }).collect();
        assert_eq!(told(None, None, None, Vec::new(), many).users.len(), MAX_ITEMS);
    }
}
