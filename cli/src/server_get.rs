//! `muster server get`: a node as people want to see it.

use std::collections::BTreeSet;

use muster_shared::api::server::{Server, ServerStatus};
use serde_json::Value;

use crate::CliError;
use crate::answer::Answer;
use crate::cell::{Cell, Tone};
use crate::client::Client;
use crate::output::{Output, compact, shown};
use crate::page::{Page, when};
use crate::pick;
use crate::server::{accel, degraded, left, load, muster, size, status, sysinfo};

/// Machines that are named.
const MOST_VMS: usize = 20;

pub(crate) async fn run(client: &Client, output: &Output, name: &str) -> Result<(), CliError> {
    let uuid = pick::server(client, name).await?.record.uuid;
    // A server alone is not shown with what its agent remarks.
    let query = [("uuids", uuid.to_string()), ("extras", "all,muster".to_owned())];
    let mut found: Vec<Answer<Server>> = client.get("/servers", &query).await?;
    let server = found.pop().ok_or_else(|| CliError::NotFound(format!("{name} is gone")))?;
    if output.is_json() {
        return output.object(server.json());
    }
    let why: Value = client.get(&format!("/why/server/{uuid}"), &[]).await?;
    let names = pick::aliases(client).await?;
    page(&server, &why, &|vm| names.get(vm).cloned()).print()
}

fn page(server: &Server, why: &Value, alias: &dyn Fn(&str) -> Option<String>) -> Page {
    let record = &server.record;
    let since = why["since"].as_str().map(|since| format!(" since {}", when(since)));
    let mut page = Page::new(format!(
        "{} is {}{}",
        record.hostname,
        status(server).text,
        since.unwrap_or_default()
    ));
    let heard = server.last_heartbeat.as_ref().and_then(Option::as_deref);
    page.group("Server")
        .line("Id", record.uuid.to_string())
        .maybe("Heard", heard.map(when))
        .maybe("Waits for", why["waiting_for"].as_str())
        .maybe("Started", record.last_boot.as_deref().filter(|at| !at.is_empty()).map(when))
        .line("Set up", yes_or_no(record.setup))
        .line("Accepts VMs", if record.reserved { "no, it is reserved" } else { "yes" })
        .maybe("Agent", muster(server, "agent_version").as_str())
        .maybe("System", record.system_type.as_ref())
        .maybe("Networks", networks(server))
        .maybe("Rack", Some(&record.rack_identifier).filter(|rack| !rack.is_empty()))
        .maybe("Comments", Some(&record.comments).filter(|text| !text.is_empty()));
    if !record.traits.is_empty() {
        page.line("Traits", shown(&record.traits));
    }
    room(&mut page, server);
    page.group("Degraded");
    for (number, what) in degraded(server).iter().enumerate() {
        page.line(&format!("{}", number + 1), what);
    }
    page.group("VMs");
    let vms = server.vms.iter().flatten();
    for (uuid, vm) in vms.clone().take(MOST_VMS) {
        let uuid = uuid.to_string();
        let name = alias(&uuid).unwrap_or_else(|| Cell::id(&uuid).text);
        let state = vm.state.clone().unwrap_or_default();
        let shown = if server.status == ServerStatus::Running {
            state
        } else {
            format!("unknown ({state})")
        };
        page.line(&name, shown);
    }
    let more = vms.count().saturating_sub(MOST_VMS);
    if more > 0 {
        page.line("…", format!("and {more} more"));
    }
    let name = &record.hostname;
    page.next(format!("muster vm list --server {name}"));
    page.next(format!("muster task list --server {name}"));
    if server.status != ServerStatus::Running {
        page.next(format!("muster why server {name}"));
    }
    page
}

/// The networks that machines on it can be connected to.
fn networks(server: &Server) -> Option<String> {
    let links = sysinfo(server, "Network Interfaces");
    let links = links.as_object().into_iter().flatten().map(|(_, link)| link);
    let names = links.filter_map(|link| link["NIC Names"].as_array()).flatten();
    let names: BTreeSet<&str> = names.filter_map(Value::as_str).collect();
    (!names.is_empty()).then(|| Vec::from_iter(names).join(", "))
}

/// What it has, and what of that may still be promised.
fn room(page: &mut Page, server: &Server) {
    let left_of = |left: Cell| match left.tone {
        Tone::Faint => String::new(),
        _ => format!(", {} unallocated", left.text),
    };
    let memory = Cell::bytes(size(server.memory.memory_total_bytes)).text;
    let free = Cell::bytes(size(server.memory.memory_available_bytes)).text;
    let disk = Cell::bytes(size(server.disk.disk_pool_size_bytes)).text;
    let cpu =
        server.unreserved_cpu.as_ref().map(|left| format!(", {left} % of a core unallocated"));
    page.group("Room")
        .line(
            "CPUs",
            format!(
                "{}, load {}{}",
                compact(&sysinfo(server, "CPU Total Cores")),
                load(server).text,
                cpu.unwrap_or_default()
            ),
        )
        .line(
            "Memory",
            format!("{memory}, {free} free now{}", left_of(left(server.unreserved_ram.as_ref()))),
        )
        .line("Disk", format!("{disk}{}", left_of(left(server.unreserved_disk.as_ref()))))
        .line("Guests run by", accel(server).text);
}

fn yes_or_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_is_told_with_what_is_wrong_and_what_is_left() {
        let server = json!({
            "uuid": uuid::Uuid::nil(), "hostname": "cn1", "status": "unknown", "setup": true,
            "reserved": true, "unreserved_ram": 2048, "memory_total_bytes": 8_589_934_592_u64,
            "sysinfo": { "CPU Total Cores": 4,
                         "Network Interfaces": { "eth0": { "NIC Names": ["external", "admin"] },
                                                 "eth1": { "NIC Names": ["admin"] } },
                         "Muster": { "accel": "tcg", "degraded": ["KVM: cannot be used"] } },
            "vms": { "00000000-0000-0000-0000-000000000001":
                     { "uuid": "00000000-0000-0000-0000-000000000001", "state": "running" } },
        });
        let server: Server = serde_json::from_value(server).unwrap();
        let why =
            json!({ "since": "2026-05-01T10:00:00.000Z", "waiting_for": "its agent to connect" });
        let text = page(&server, &why, &|_| Some("web1".to_owned())).text(None);
        assert!(text.starts_with("cn1 is unknown since "), "{text}");
        for part in [
            "its agent to connect",
            "no, it is reserved",
            "admin, external\n",
            "8 GiB, - free now, 2 GiB unallocated",
            "KVM: cannot be used",
            "web1  unknown (running)",
            "muster why server cn1",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
