//! Who this server is and what it was booted with.

use muster_shared::platform;
use serde_json::{Value, json};

use super::probe::Probe;
use super::{Group, Keys, SDC_VERSION, agents, keys};
use crate::drivers::DriverError;

pub(super) const GROUP: Group =
    Group { name: "system", collect: |probe| Box::pin(collect(probe)), unknown };

async fn collect(probe: &Probe) -> Result<Keys, DriverError> {
    let hostname = probe.text("proc/sys/kernel/hostname").await;
    let command_line = probe.text("proc/cmdline").await.unwrap_or_default();
    let os_release = probe.text("etc/os-release").await.unwrap_or_default();
    let boot_time = boot_time(&probe.needed("proc/stat").await?).map(|s| s.to_string());
    let mut found = unknown(probe);
    let mut set = |name: &str, value: Value| drop(found.insert(name.to_owned(), value));
    set("Hostname", json!(hostname.as_deref().unwrap_or("localhost")));
    set("Live Image", json!(platform::stamp(&os_release, &command_line)));
    set("Boot Time", json!(boot_time.unwrap_or_else(|| "0".to_owned())));
    set("Setup", json!(probe.setup_complete().await.to_string()));
    set("Boot Parameters", Value::Object(boot_parameters(&command_line)));
    Ok(found)
}

fn unknown(probe: &Probe) -> Keys {
    let config = &probe.config;
    let mut found = keys(json!({
        "UUID": config.server_uuid,
        "Hostname": "localhost",
        "System Type": "Linux",
        "Live Image": platform::BUILT,
        "Boot Time": "0",
        "SDC Version": SDC_VERSION,
        "SDC Agents": agents(&config.cn_agent_version),
        "Setup": "false",
        "Boot Parameters": {},
        "Admin NIC Tag": config.admin_nic_tag,
        "CN Agent Port": config.agent_port,
    }));
    let optional = [
        ("Datacenter Name", config.datacenter_name.as_ref().map(|name| json!(name))),
        ("DNS Domain", config.dns_domain.as_ref().map(|name| json!(name))),
        ("Headnode ID", config.headnode_id.map(|id| json!(id))),
        ("CN Agent IP", config.agent_ip.map(|ip| json!(ip))),
    ];
    for (name, value) in optional {
        found.extend(value.map(|value| (name.to_owned(), value)));
    }
    found
}

/// Seconds since the epoch from `/proc/stat`.
pub(super) fn boot_time(stat: &str) -> Option<i64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

/// The kernel's command line as SmartOS shows it: sanitised names, bare words as `"true"`, the
/// boot network as `admin_*`, nothing secret.
fn boot_parameters(command_line: &str) -> Keys {
    const SECRETS: [&str; 3] = ["password", "token", "secret"];
    let mut found = Keys::new();
    // What follows `--` is for init.
    for word in command_line.split_whitespace().take_while(|word| *word != "--") {
        let (name, value) = word.split_once('=').unwrap_or((word, "true"));
        let lower = name.to_ascii_lowercase();
        if SECRETS.iter().any(|secret| lower.contains(secret)) {
            continue;
        }
        match name {
            // ip=<client>:<server>:<gateway>:<netmask>:…
            "ip" if value.contains(':') => {
                let mut fields = value.split(':');
                let (client, netmask) = (fields.next(), fields.nth(2));
                for (name, field) in [("admin_ip", client), ("admin_netmask", netmask)] {
                    let field = field.filter(|field| !field.is_empty());
                    found.extend(field.map(|field| (name.to_owned(), json!(field))));
                }
            }
            // BOOTIF=01-aa-bb-cc-dd-ee-ff, 01 being the hardware type.
            "BOOTIF" => {
                let mac = value.strip_prefix("01-").unwrap_or(value).replace('-', ":");
                found.insert("admin_mac".to_owned(), json!(mac.to_ascii_lowercase()));
            }
            _ => {
                let sanitise = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
                let name: String = name.chars().map(sanitise).collect();
                found.insert(name, json!(value));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_parameters_are_sanitised_and_keep_no_secret() {
        let line = "quiet console=ttyS0 muster.headnode=true rd.password=x my_token=y \
                    ip=10.0.0.7::10.0.0.1:255.255.255.0:cn:eth0:off BOOTIF=01-AA-bb-cc-dd-ee-ff \
                    -- --token-file=z";
        let expected = json!({
            "quiet": "true", "console": "ttyS0", "muster_headnode": "true",
            "admin_ip": "10.0.0.7", "admin_netmask": "255.255.255.0",
            "admin_mac": "aa:bb:cc:dd:ee:ff",
        });
        assert_eq!(Value::Object(boot_parameters(line)), expected);
        assert!(boot_parameters("").is_empty());
    }

    #[test]
    fn the_boot_time_is_found() {
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\nprocesses 1\n"), Some(1_700_000_000));
        assert_eq!(boot_time("cpu"), None);
    }
}
