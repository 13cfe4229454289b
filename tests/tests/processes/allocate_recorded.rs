//! The recorded cases of the reference through the sockets of real coordinators.
//!
//! A coordinator shows its servers in uuid order, so a case is compared three times: with the
//! answer that the reference gave over HTTP, with what its library left step by step as far as
//! the order of servers doesn't matter, and, exactly and to the last reason, with the offline tool
//! on the same servers in the same order (the tool itself is compared with the library elsewhere).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use muster_tests::binary;
use muster_tests::daemon::Coordinator;
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use serde_json::{Map, Value, json};

const EXAMPLES: &str = include_str!("../../data/designation-examples.jsonl");

/// Cases that HTTP can't load, and why.
const NOT_LOADABLE: &[(&str, &str)] = &[
    ("a000", BARE_TICKET),
    ("a021", OWN_RATIOS),
    ("a022", BARE_TICKET),
    ("a024", BARE_TICKET),
    ("a030", BARE_TICKET),
    ("c003", OWN_RATIOS),
    ("c004", OWN_RATIOS),
];
const BARE_TICKET: &str = "a ticket without `extra`: over HTTP every ticket has one";
const OWN_RATIOS: &str = "a server's own overprovisioning ratios: no record over HTTP keeps them";

/// Coordinators at a time.
const AT_ONCE: usize = 2;
/// Steps from which on the order of servers matters.
const ORDERED: &[&str] =
    &["Score ", "Increase ", "Filter out the largest", "Separate ", "Sort ", "Random "];

/// The step that fails for want of a VM's volumes.
const VOLUMES: &str = "Servers containing VMs required for volumesfrom";

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value[name].as_array().map_or(&[], Vec::as_slice)
}

/// All recorded lines, found by type and id.
struct Recorded {
    lines: BTreeMap<(String, String), Value>,
    cases: Vec<Value>,
}

impl Recorded {
    fn read() -> Self {
        let line = |line: &str| serde_json::from_str(line).expect("the file is JSON");
        let (cases, others): (Vec<Value>, Vec<Value>) =
            EXAMPLES.lines().map(line).partition(|line: &Value| line["type"] == "case");
        let key = |line: &Value| (text(line, "type").to_owned(), text(line, "id").to_owned());
        Self { lines: others.into_iter().map(|line| (key(&line), line)).collect(), cases }
    }

    fn find(&self, kind: &str, case: &Value) -> &Value {
        &self.lines[&(kind.to_owned(), text(case, kind).to_owned())]
    }

    /// Why a case can't be loaded.
    fn obstacle(&self, case: &Value) -> Option<&'static str> {
        let config = self.find("config", case);
        let runs = |name: &str| config["allocationDescription"].to_string().contains(name);
        let own = config["changeDefaults"]["disable_override_overprovisioning"] == "true";
        let bare = |ticket: &Value| {
            let open = matches!(text(ticket, "status"), "active" | "queued");
            open && ticket["action"] == "provision" && ticket["extra"].is_null()
        };
        let bare = list(self.find("dc", case), "tickets").iter().any(bare);
        let invalid = case["expect"].is_null();
        let counts = runs("calculate-ticketed-vms") && case["kind"] == "allocate";
        match () {
            () if invalid => None,
            () if bare && counts => Some(BARE_TICKET),
            () if own || !runs("override-overprovisioning") => Some(OWN_RATIOS),
            () => None,
        }
    }
}

/// A recorded server as HTTP can make it: what is no text, number or flag there, is none here.
fn over_http(server: &Value) -> Value {
    let mut server = server.clone();
    // Whoever is not told to be free gets no VMs, in both worlds.
    if !server["reserved"].is_boolean() {
        (server["reserved"], server["setup"]) = (json!(true), json!(false));
    }
    // More than the whole memory kept free: the same.
    if server["reservation_ratio"].as_f64().is_some_and(|ratio| ratio > 1.0) {
        (server["reservation_ratio"], server["setup"]) = (json!(1), json!(false));
    }
    if !server["traits"].is_object() {
        server["traits"] = json!({});
    }
    match text(&server, "status") {
        "running" => {}
        "rebooting" => server["transitional_status"] = json!("rebooting"),
        _ => server["status"] = json!("unknown"),
    }
    let object = server.as_object_mut().expect("a server is an object");
    object.remove("overprovision_ratios");
    let vms = object["vms"].as_object().cloned().unwrap_or_default();
    let sorted: BTreeMap<String, Value> = vms
        .into_iter()
        .map(|(uuid, mut vm)| {
            // Over HTTP a part of a GiB counts as one.
            vm["quota"] = json!(vm["quota"].as_f64().unwrap_or_default().ceil());
            (uuid, vm)
        })
        .collect();
    object.insert("vms".to_owned(), json!(sorted));
    server
}

/// The status report of a server.
fn report(server: &Value) -> Value {
    let members = server.as_object().expect("a server is an object").iter();
    let disk = members.filter_map(|(name, value)| Some((name.strip_prefix("disk_")?, value)));
    let disk: Map<String, Value> = disk.map(|(name, v)| (name.to_owned(), v.clone())).collect();
    let (mut vms, mut index) = (Map::new(), Map::new());
    for (uuid, vm) in server["vms"].as_object().into_iter().flatten() {
        let mut status = vm.clone();
        (status["zone_state"], status["last_modified"]) = (vm["state"].clone(), json!(""));
        vms.insert(uuid.clone(), status);
        let tags = vm.get("tags").cloned().unwrap_or_else(|| json!({}));
        index.insert(uuid.clone(), json!({ "alias": vm.get("alias"), "tags": tags }));
    }
    let mut memory = json!({ "arcsize_bytes": 0 });
    for (from, to) in
        [("memory_available_bytes", "availrmem_bytes"), ("memory_total_bytes", "total_bytes")]
    {
        if !server[from].is_null() {
            memory[to] = server[from].clone();
        }
    }
    json!({ "vms": vms, "vm_index": index, "diskinfo": disk, "meminfo": memory })
}

/// Registers a server.
async fn register(client: &Client, server: &Value) {
    let path = format!("/servers/{}", text(server, "uuid"));
    let mut sysinfo = server["sysinfo"].clone();
    let boot: jiff::Timestamp = text(server, "last_boot").parse().expect("a time");
    for (name, value) in [
        ("UUID", server["uuid"].clone()),
        ("Hostname", server["hostname"].clone()),
        ("Setup", server["setup"].clone()),
        ("Boot Time", json!(boot.as_second().to_string())),
        ("Boot Parameters", json!({ "headnode": server["headnode"].to_string() })),
    ] {
        sysinfo[name] = value;
    }
    client.post(&format!("{path}/sysinfo"), &json!({ "sysinfo": sysinfo })).await.expect(200);
}

/// Sets a registered server's record and reports its state.
async fn load(client: &Client, server: &Value) {
    let path = format!("/servers/{}", text(server, "uuid"));
    let mut changes = Map::new();
    for name in [
        "datacenter",
        "next_reboot",
        "rack_identifier",
        "reservation_ratio",
        "reserved",
        "reservoir",
        "setup",
        "traits",
        "transitional_status",
    ] {
        if let Some(value) = server.get(name) {
            changes.insert(name.to_owned(), value.clone());
        }
    }
    client.post(&path, &Value::Object(changes)).await.expect(204);
    client.post(&format!("{path}/events/status"), &report(server)).await.expect(204);
    if server["status"] != "running" {
        // Its only heartbeat; the others are never expected to send one.
        client.post(&format!("{path}/events/heartbeat"), &json!({})).await.expect(204);
    }
}

async fn open(client: &Client, ticket: &Value) {
    if !matches!(text(ticket, "status"), "active" | "queued") || ticket["extra"].is_null() {
        return;
    }
    let mut body = Map::new();
    for name in ["scope", "id", "action", "extra"] {
        body.insert(name.to_owned(), ticket[name].clone());
    }
    body.insert("expires_at".to_owned(), json!("3000"));
    let path = format!("/servers/{}/tickets", text(ticket, "server_uuid"));
    client.post(&path, &Value::Object(body)).await.expect(202);
}

/// A coordinator under a case's policy that knows the case's servers.
async fn start(config: &Value, servers: &[Value], tickets: &[Value]) -> Coordinator {
    let mut settings = vec![
        format!("dapi.allocationDescription={}", config["allocationDescription"]),
        "api.validation_status=500".to_owned(),
        "allocator.host_os=reference".to_owned(),
        "allocation.shuffle=false".to_owned(),
        "roster.post_ms=1000".to_owned(),
    ];
    for (key, value) in config["changeDefaults"].as_object().into_iter().flatten() {
        settings.push(format!("dapi.changeDefaults.{key}={value}"));
    }
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    let coordinator = Coordinator::with_settings(&settings);
    let client = Client::pooled(coordinator.client().base());
    // One after the other: who lists VMs lists them in the order in which their servers came.
    for server in servers {
        register(&client, server).await;
    }
    // What becomes running loses a transitional status that was set before.
    wait_for("each server runs", Duration::from_secs(60), || async {
        let shown = client.get("/servers?fields=uuid,status").await.expect(200);
        let running = |shown: &&Value| shown["status"] == "running";
        let running = list(&json!({ "all": shown }), "all").iter().filter(running).count();
        if running == servers.len() { Ok(()) } else { Err(running) }
    })
    .await;
    for part in servers.chunks(16) {
        join_all(part.iter().map(|server| load(&client, server))).await;
    }
    for ticket in tickets {
        open(&client, ticket).await;
    }
    let vms = |of: &Value| of["vms"].as_object().map_or(0, Map::len);
    wait_for("each server has its status and its VMs", Duration::from_secs(60), || async {
        let shown = client.get("/servers?extras=vms").await.expect(200);
        let all = json!({ "all": shown });
        let right = |server: &Value, shown: &Value| {
            // A report counts once it is stored; posting it does not wait for that.
            server["status"] == shown["status"] && vms(&report(server)) == vms(shown)
        };
        let wrong: Vec<&Value> = list(&all, "all")
            .iter()
            .filter(|shown| {
                let server = servers.iter().find(|server| server["uuid"] == shown["uuid"]);
                server.is_none_or(|server| !right(server, shown))
            })
            .map(|shown| &shown["uuid"])
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(format!("not yet: {wrong:?}")) }
    })
    .await;
    coordinator
}

/// What the offline tool says about the same.
fn offline(config: &Value, servers: &[Value], tickets: &[Value], body: &Value) -> Value {
    let mut body = body.clone();
    let ready = |server: &&Value| server["setup"] == true && server["reserved"] == false;
    let asked: Option<BTreeSet<&str>> =
        body["servers"].as_array().map(|a| a.iter().filter_map(Value::as_str).collect());
    let ready: Vec<Value> = servers
        .iter()
        .filter(ready)
        .map(|server| server["uuid"].clone())
        .filter(|uuid| {
            asked.as_ref().is_none_or(|asked| asked.contains(uuid.as_str().expect("text")))
        })
        .collect();
    body["servers"] = json!(ready);
    let kept = |ticket: &&Value| !ticket["extra"].is_null();
    let tickets: Vec<&Value> = tickets.iter().filter(kept).collect();
    let mut config = config.clone();
    config["id"] = json!("c");
    let lines = [
        config,
        json!({ "type": "dc", "id": "d", "servers": servers, "tickets": tickets }),
        json!({ "type": "case", "kind": "allocate", "id": 0, "config": "c", "dc": "d",
            "request": { "method": "POST", "path": "/allocate", "body": body } }),
    ];
    let input: String = lines.iter().map(|line| format!("{line}\n")).collect();
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    let mut command = Command::new(binary("muster"));
    let command = command.args(["allocate", "--offline", "--jsonl"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the binary starts");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it is read");
    let output = child.wait_with_output().expect("it ends");
    serde_json::from_slice(&output.stdout).expect("one line of JSON")
}

/// A text in parts. VMs come in another order from a store: in lists, and the first that decides
/// about a server is another one.
fn parts(value: &Value) -> Vec<String> {
    let mut text = value.as_str().unwrap_or_default();
    if let Some((vm, rest)) = text.strip_prefix("VM ").and_then(|text| text.split_once(' '))
        && vm.len() == 36
    {
        text = rest;
    }
    let mut parts: Vec<String> = text.split([',', '=']).map(str::to_owned).collect();
    parts.sort();
    parts
}

/// Compares the steps with those of the library, as far as the order of servers does not matter.
/// Returns how many steps that was.
fn check_recorded_steps(id: &str, steps: &[Value], case: &Value, dc: &Value) -> usize {
    let servers = list(dc, "servers");
    let uuids = |places: &Value| -> BTreeSet<String> {
        let place = |place: &Value| usize::try_from(place.as_u64().expect("a place"));
        let places = places.as_array().into_iter().flatten();
        places.map(|p| text(&servers[place(p).expect("small")], "uuid").to_owned()).collect()
    };
    let candidates: BTreeSet<String> =
        list(&steps[0], "remaining").iter().map(|u| u.as_str().expect("text").to_owned()).collect();
    let recorded = list(&case["expect"], "steps");
    let mut compared = 0;
    for (got, want) in steps.iter().zip(recorded) {
        let title = text(want, "step");
        if ORDERED.iter().any(|start| title.starts_with(start)) {
            break;
        }
        assert_eq!(got["step"], want["step"], "case {id}");
        let left: BTreeSet<String> =
            list(got, "remaining").iter().map(|u| u.as_str().expect("text").to_owned()).collect();
        let wanted: BTreeSet<String> = &uuids(&want["remaining"]) & &candidates;
        assert_eq!(left, wanted, "case {id}: what remains after {title}");
        for (server, reason) in got["reasons"].as_object().into_iter().flatten() {
            let wanted = want["reasons"][server.as_str()].as_str().unwrap_or_default();
            let wanted = wanted.replace("offline", "unknown").replace("has undefined", "has {}");
            assert_eq!(parts(reason), parts(&json!(wanted)), "case {id}: {title}, {server}");
        }
        compared += 1;
    }
    compared
}

/// Puts one case to a coordinator; returns how many of its steps could be compared.
async fn check_case(
    client: &Client,
    config: &Value,
    dc: &Value,
    servers: &[Value],
    case: &Value,
) -> usize {
    let (id, want) = (text(case, "id"), &case["expect_http"]);
    let body = &case["request"]["body"];
    let status = want["status"].as_u64().expect("a status");
    if case["kind"] == "capacity" {
        let got = client.post("/capacity", body).await.expect(200);
        assert_eq!(got["capacities"], want["body"]["capacities"], "case {id}");
        return 0;
    }
    let path = "/allocate?reserve=false&least_changes=false&seed=42";
    let answer = client.post(path, body).await;
    assert_eq!(u64::from(answer.status.as_u16()), status, "case {id}: {}", answer.text);
    let got = answer.json;
    if want["body"]["errors"].is_array() {
        assert_eq!(got, want["body"], "case {id}");
        return 0;
    }
    let last = list(&got, "steps").last().map_or("", |step| text(step, "step"));
    if status == 409 && last == VOLUMES {
        // What the reference means to send, and a spelling keeps it from.
        assert_eq!(got["code"], "VolumeServerNoResourcesError", "case {id}");
    } else if status == 409 {
        assert_eq!(got["code"], want["body"]["code"], "case {id}");
        assert_eq!(parts(&got["message"]), parts(&want["body"]["message"]), "case {id}");
    } else {
        let acceptable = list(want, "acceptable");
        assert!(acceptable.contains(&got["server"]["uuid"]), "case {id}: {acceptable:?}");
    }
    let mut seeded = body.clone();
    seeded["seed"] = json!(42);
    let again = offline(config, servers, list(dc, "tickets"), &seeded);
    let shown = got["server"].get("uuid").cloned().unwrap_or_default();
    assert_eq!(shown, again["server"], "case {id}");
    if status == 200 {
        assert_eq!(got["server"]["score"], again["score"], "case {id}");
    }
    for (got, again) in list(&got, "steps").iter().zip(list(&again, "steps")) {
        assert_eq!(got.to_string(), again.to_string(), "case {id}");
    }
    assert_eq!(list(&got, "steps").len(), list(&again, "steps").len(), "case {id}");
    check_recorded_steps(id, list(&got, "steps"), case, dc)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_cases_pass_through_real_sockets() {
    let recorded = Recorded::read();
    let mut groups: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    let mut left_out: Vec<(&str, &str)> = Vec::new();
    for case in &recorded.cases {
        match recorded.obstacle(case) {
            Some(why) => left_out.push((text(case, "id"), why)),
            None => groups.entry((text(case, "dc"), text(case, "config"))).or_default().push(case),
        }
    }
    for (id, why) in &left_out {
        println!("not loadable over HTTP: {id}: {why}");
    }
    assert_eq!(left_out, NOT_LOADABLE);
    let run = |cases: Vec<Value>, config: Value, dc: Value| async move {
        let mut servers: Vec<Value> = list(&dc, "servers").iter().map(over_http).collect();
        servers.sort_by_key(|server| text(server, "uuid").to_owned());
        let coordinator = start(&config, &servers, list(&dc, "tickets")).await;
        let client = coordinator.client();
        let mut steps = 0;
        for case in &cases {
            steps += check_case(&client, &config, &dc, &servers, case).await;
        }
        (cases.len(), steps)
    };
    let all = groups.into_values().map(|cases| {
        let (config, dc) = (recorded.find("config", cases[0]), recorded.find("dc", cases[0]));
        let cases = cases.into_iter().cloned().collect();
        tokio::spawn(run(cases, config.clone(), dc.clone()))
    });
    let counts: Vec<_> = stream::iter(all).buffer_unordered(AT_ONCE).collect().await;
    let (mut cases, mut steps) = (0, 0);
    for count in counts {
        let (more_cases, more_steps) = count.expect("every case is as recorded");
        cases += more_cases;
        steps += more_steps;
    }
    println!("{cases} of {} cases, {steps} recorded steps", recorded.cases.len());
    assert_eq!(cases + NOT_LOADABLE.len(), 40);
    assert!(steps > 500, "only {steps} steps were compared with the library's");
}
