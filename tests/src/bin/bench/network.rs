//! What NICs on bridges cost, beside user-mode networks, in a network namespace of its own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::wait::wait_for;
use muster_tests::{guest, own_network};
use serde_json::{Value, json};

use super::foundation::{bare_starts, creates};
use super::{ms, now, row};

/// TCG guests on two busy cores.
const BOOT: Duration = Duration::from_secs(90);
/// What a guest hands out, MiB.
const LARGE_MIB: u32 = 48;
/// On loopback, where the user-mode network leads to the guest.
const PUBLISHED: u16 = 18_080;

#[expect(clippy::disallowed_methods, reason = "a network namespace is that of a thread")]
pub(crate) fn run() {
    let thread = std::thread::spawn(|| {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().expect("a runtime").block_on(measure());
    });
    thread.join().expect("it was measured");
}

async fn measure() {
    if !own_network::enter() {
        return;
    }
    own_network::add_bridge("one", &["10.77.0.1/24"]);
    let coordinator = Coordinator::start();
    let client = Client::pooled(coordinator.client().base());
    let settings = [r#"network.server_tags=["one"]"#];
    let agent = Agent::with(&[&coordinator.agent_url()], &settings, &[]);
    agent.wait_allocatable(&client).await;
    let image = guest::import(&client).await;
    let path = format!("/servers/{}/vms", agent.server_uuid);
    for (name, nic, goal) in
        [("user-mode network", user(), "-"), ("tap, filter, uid and limits", bridged(), "60 ms")]
    {
        let created = creates(&client, &path, &path, |vm| payload(vm, &image, &nic)).await;
        let bare = bare_starts(&agent, &image).await;
        let overhead = ms(created.saturating_sub(bare));
        row(&format!("VM create overhead, {name}"), &overhead, goal);
    }
    for (name, nic, address) in [
        ("user-mode network", user(), format!("127.0.0.1:{PUBLISHED}")),
        ("tap", bridged(), "10.77.0.11:80".to_owned()),
    ] {
        let vm = fresh_uuid();
        let task = client.post(&path, &payload(&vm, &image, &nic)).await.expect(200)["id"].clone();
        client.complete_task(task.as_str().expect("an id"), 240).await;
        let rate = throughput(&address).await;
        row(&format!("guest to host, {name}"), &format!("{rate:.0} Mbit/s"), "-");
        let task = client.delete(&format!("{path}/{vm}")).await.expect(200)["id"].clone();
        client.complete_task(task.as_str().expect("an id"), 60).await;
    }
}

fn user() -> Value {
    json!({ "nic_tag": "elsewhere", "primary": true })
}

fn bridged() -> Value {
    json!({
        "nic_tag": "one", "primary": true, "ips": ["10.77.0.11/24"], "gateways": ["10.77.0.1"],
    })
}

fn payload(vm: &str, image: &str, nic: &Value) -> Value {
    let script = format!(
        "#!/bin/sh\n\
         dd if=/dev/zero of=/run/large bs=1M count={LARGE_MIB} && mv /run/large /www/large\n"
    );
    let mut payload = json!({
        "uuid": vm, "brand": "kvm", "ram": 192, "vcpus": 1, "quota": 1, "alias": format!("vm-{vm}"),
        "image": { "uuid": image, "files": [{ "compression": "none" }] },
        "disks": [{ "image_uuid": image, "boot": true, "model": "virtio" }],
        "owner_uuid": fresh_uuid(), "nics": [nic],
        "customer_metadata": { "user-script": script },
    });
    if nic["nic_tag"] != "one" {
        payload["internal_metadata"] =
            json!({ "muster:hostfwd": format!("tcp:127.0.0.1:{PUBLISHED}-:80") });
    }
    payload
}

/// Mbit/s of one TCP connection that fetches all that the guest hands out.
async fn throughput(address: &str) -> f64 {
    let wanted = f64::from(LARGE_MIB) * 1024.0 * 1024.0;
    let mut rate = 0.0;
    wait_for("the guest hands out its file", BOOT, || {
        let (bytes, took) = fetch(address).unwrap_or_default();
        rate = bytes * 8.0 / took.as_secs_f64().max(0.001) / 1e6;
        let whole = bytes > wanted;
        async move { if whole { Ok(()) } else { Err(format!("{bytes} bytes")) } }
    })
    .await;
    rate
}

fn fetch(address: &str) -> std::io::Result<(f64, Duration)> {
    let mut stream = TcpStream::connect_timeout(
        &address.parse().map_err(std::io::Error::other)?,
        Duration::from_secs(5),
    )?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"GET /large HTTP/1.0\r\n\r\n")?;
    let start = now();
    let (mut bytes, mut buffer) = (0.0, vec![0; 1 << 18]);
    loop {
        let read = stream.read(&mut buffer)?;
        if read == 0 {
            return Ok((bytes, start.elapsed()));
        }
        bytes += f64::from(u32::try_from(read).unwrap_or(u32::MAX));
    }
}
