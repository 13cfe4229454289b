//! The recorded cases of the reference, on a coordinator that was told of their servers.

use muster_shared::api::server::ServerRecord;
use muster_shared::api::ticket::{QueueName, TicketServer};

use super::*;
use crate::alloc::{Config, HostOs, Order};
use crate::app::AllocationConfig;
use crate::app::tickets::TicketRequest;
use crate::roster;

const EXAMPLES: &str = include_str!("../../../../tests/data/designation-examples.jsonl");

/// What a status report of a recorded server says.
fn report_of(record: &Value) -> Value {
    let disk: Object = record
        .as_object()
        .unwrap()
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix("disk_")?.to_owned(), value.clone())))
        .collect();
    let mut vms = Object::new();
    let mut index = Object::new();
    for (uuid, vm) in record["vms"].as_object().unwrap() {
        let mut status = vm.clone();
        (status["zone_state"], status["last_modified"]) = (vm["state"].clone(), json!(""));
        vms.set(uuid, status);
        let tags = vm.get("tags").cloned().unwrap_or_else(|| json!({}));
        index.set(uuid, json!({ "alias": vm.get("alias"), "tags": tags }));
    }
    json!({
        "vms": vms, "vm_index": index, "diskinfo": disk,
        "meminfo": { "availrmem_bytes": record["memory_available_bytes"], "arcsize_bytes": 0,
            "total_bytes": record["memory_total_bytes"] },
    })
}

/// Registers a recorded server; what no agent or operator can say is put in its place.
async fn load(app: &Arc<App>, record: &Value) {
    let Ok(server) = record["uuid"].as_str().unwrap().parse::<ServerUuid>() else { return };
    let mut sysinfo = Object::of(&record["sysinfo"]);
    sysinfo.set("UUID", json!(server));
    app.reports.register(server, sysinfo).await.unwrap();
    app.reports.status_posted(server, &Object::of(&report_of(record)));
    while app.fleet.save_vms().await.unwrap() {}
    let mut plain = Object::of(record);
    plain.retain(|name, _| {
        !matches!(name, "vms" | "sysinfo" | "status")
            && !name.starts_with("disk_")
            && !name.starts_with("memory_")
    });
    app.fleet.update(server, |entry| {
        let held = entry.record.as_mut().unwrap();
        held.value = Arc::new(with_members(&held.value, plain));
        if record["status"] != "running" {
            entry.roster.as_mut().unwrap().value.status = roster::Status::Unknown;
        }
    });
}

/// A record with members that were recorded elsewhere. Some have types that no coordinator stores;
/// the allocator is told of them all the same.
fn with_members(record: &ServerRecord, members: Object) -> ServerRecord {
    let mut record = json!(record);
    let mut odd = Object::new();
    for (name, value) in members {
        let before = record.clone();
        record[&name] = value.clone();
        if serde_json::from_value::<ServerRecord>(record.clone()).is_err() {
            record = before;
            odd.set(name, value);
        }
    }
    let mut record: ServerRecord = serde_json::from_value(record).unwrap();
    record.unknown.extend(odd);
    record
}

async fn open(app: &Arc<App>, ticket: &Value) {
    let text = |name: &str| ticket[name].as_str().unwrap_or_default().to_owned();
    if !matches!(text("status").as_str(), "active" | "queued") {
        return;
    }
    let request = TicketRequest {
        queue: QueueName {
            server_uuid: TicketServer(text("server_uuid").parse().ok()),
            scope: text("scope"),
            id: text("id"),
        },
        expires_at: "3000".to_owned(),
        action: Some(text("action")),
        extra: Object::of(&ticket["extra"]),
        req_id: "r".to_owned(),
        client: None,
    };
    app.tickets.create(request).await.unwrap();
}

/// Tickets without `extra`, which the reference's own older versions left behind, can't be made
/// over HTTP; and a server's record keeps no overprovisioning ratios there.
fn is_loadable(case: &Value, dc: &Value) -> bool {
    let bare = |ticket: &Value| ticket.get("extra").is_none_or(Value::is_null);
    case.get("recent").is_none() && !dc["tickets"].as_array().unwrap().iter().any(bare)
}

/// What the case is answered with, and what it should be.
async fn compared(app: &Arc<App>, case: &Value) -> (Value, Vec<Value>) {
    let (want, body) = (&case["expect_http"], Object::of(&case["request"]["body"]));
    if case["kind"] == "capacity" {
        let capacity = app.placement.capacity(&body).await.unwrap();
        return (capacity["capacities"].clone(), vec![want["body"]["capacities"].clone()]);
    }
    let mut body = body;
    for (name, value) in [("reserve", json!(false)), ("least_changes", json!(false))] {
        body.set(name, value);
    }
    match app.placement.allocate(&body).await {
        Err(AppError::Invalid(errors)) => {
            let got = json!(errors[0]);
            (got, vec![want["body"]["errors"][0].clone()])
        }
        Err(error) => (json!(error.to_string()), vec![want["body"]["message"].clone()]),
        Ok(decided) => match decided.failure() {
            Some(error) => (json!(error.to_string()), vec![want["body"]["message"].clone()]),
            None => {
                let answer = serde_json::to_value(&decided).unwrap();
                let acceptable = want["acceptable"].as_array().cloned().unwrap_or_default();
                (answer["server"]["uuid"].clone(), acceptable)
            }
        },
    }
}

#[tokio::test(start_paused = true)]
async fn recorded_cases_are_decided_as_recorded() {
    let mut lines: BTreeMap<(String, String), Value> = BTreeMap::new();
    let (mut checked, mut wrong) = (0, Vec::new());
    for line in EXAMPLES.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        if line["type"] != "case" {
            lines.insert((text("type"), text("id")), line);
            continue;
        }
        let config = &lines[&("config".to_owned(), text("config"))];
        let dc = &lines[&("dc".to_owned(), text("dc"))];
        if !is_loadable(&line, dc) {
            continue;
        }
        let (expression, changes) = (&config["allocationDescription"], &config["changeDefaults"]);
        let policy = Arc::new(Config::new(expression, changes, HostOs::Reference).unwrap());
        let default = AllocationConfig::default();
        let allocation = AllocationConfig { policy, order: Order::Uuid, ..default };
        let app = Disk::new().start_with(AppConfig { allocation, ..AppConfig::default() }).await;
        for server in dc["servers"].as_array().unwrap() {
            load(&app, server).await;
        }
        for ticket in dc["tickets"].as_array().unwrap() {
            open(&app, ticket).await;
        }
        let (got, wanted) = compared(&app, &line).await;
        // VMs come in another order from a store.
        let parts = |value: &Value| {
            let text = value.as_str().unwrap_or_default();
            let mut parts: Vec<String> = text.split([',', '=']).map(str::to_owned).collect();
            parts.sort();
            parts
        };
        let same =
            |wanted: &Value| *wanted == got || (got.is_string() && parts(wanted) == parts(&got));
        if !wanted.iter().any(same) {
            wrong.push(json!({ "case": text("id"), "got": got, "wanted": wanted }));
        }
        checked += 1;
        app.shutdown().await;
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(checked >= 20, "only {checked} cases could be loaded");
}
