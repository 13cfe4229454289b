use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::*;
use crate::node::Drivers;
use crate::tasks::machine_tests::{Host, one_vm, uuid};

struct Guest {
    port: BufReader<DuplexStream>,
    requests: u32,
}

impl Guest {
    /// The guest's end, once the server has opened the other one.
    async fn of(host: &Host) -> Self {
        loop {
            if let Some(port) = host.guests.metadata_port(uuid()) {
                return Self { port: BufReader::new(port), requests: 0 };
            }
            tokio::task::yield_now().await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn says(&mut self, line: &str) -> String {
        self.port.write_all(format!("{line}\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        self.port.read_line(&mut answer).await.unwrap();
        answer.trim_end().to_owned()
    }

    /// Word and content of the answer.
    async fn asks(&mut self, command: &str) -> (String, String) {
        self.requests += 1;
        let body = format!("{:08x} {command}", self.requests);
        let sum = crc32fast::hash(body.as_bytes());
        let answer = self.says(&format!("V2 {} {sum:08x} {body}", body.len())).await;
        let words: Vec<&str> = answer.split(' ').collect();
        assert_eq!(words[3], format!("{:08x}", self.requests), "{answer}");
        let content = words.get(5).map(|text| BASE64_STANDARD.decode(text).unwrap());
        (words[4].to_owned(), String::from_utf8(content.unwrap_or_default()).unwrap())
    }

    async fn get(&mut self, key: &str) -> (String, String) {
        self.asks(&format!("GET {}", BASE64_STANDARD.encode(key))).await
    }

    async fn put(&mut self, key: &str, value: &str) -> String {
        let pair = [key, value].map(|text| BASE64_STANDARD.encode(text)).join(" ");
        self.asks(&format!("PUT {}", BASE64_STANDARD.encode(pair))).await.0
    }
}

async fn served(host: &Host) -> (Arc<Drivers>, CancellationToken) {
    let drivers = one_vm(host).await;
    let stop = CancellationToken::new();
    let server = MetadataServer::new(drivers.clone(), TaskTracker::new(), stop.clone());
    tokio::spawn(server.run());
    (drivers, stop)
}

#[tokio::test(start_paused = true)]
async fn a_guest_reads_and_changes_its_record_while_it_runs() {
    let host = Host::new();
    let (drivers, _stop) = served(&host).await;
    let mut guest = Guest::of(&host).await;
    assert_eq!(guest.says("").await, "invalid command");
    assert_eq!(guest.says("NEGOTIATE V2").await, "V2_OK");
    assert_eq!(guest.get("color").await.0, "NOTFOUND");
    let blue = json!({ "color": "blue" });
    let change = |vm: &mut VmRecord| {
        vm.properties.insert("customer_metadata".to_owned(), blue.clone());
    };
    drivers.vms.update(uuid(), change).await.unwrap();
    assert_eq!(guest.get("color").await, ("SUCCESS".to_owned(), "blue".to_owned()));
    assert_eq!(guest.get("sdc:uuid").await.1, uuid().to_string());
    assert_eq!(guest.put("made", "inside").await, "SUCCESS");
    assert_eq!(guest.put("sdc:uuid", "x").await, "FAILURE");
    assert_eq!(guest.asks("KEYS").await.1, "color\nmade");
    let recorded = drivers.vms.get(uuid()).unwrap();
    assert_eq!(recorded.customer_metadata("made"), Some(&json!("inside")));
    let delete = format!("DELETE {}", BASE64_STANDARD.encode("color"));
    assert_eq!(guest.asks(&delete).await.0, "SUCCESS");
    assert_eq!(guest.asks(&delete).await.0, "NOTFOUND");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_changes_all_the_time_is_slowed_down() {
    let host = Host::new();
    let (drivers, _stop) = served(&host).await;
    let mut guest = Guest::of(&host).await;
    let begun = drivers.clock.monotonic();
    for number in 0..CHANGES_AT_ONCE + 30 {
        assert_eq!(guest.put("n", &number.to_string()).await, "SUCCESS");
    }
    assert!(drivers.clock.monotonic() - begun >= CHANGE_PERIOD * 28);
    // Reading is not.
    let begun = drivers.clock.monotonic();
    for _ in 0..200 {
        guest.get("n").await;
    }
    assert!(drivers.clock.monotonic() - begun < CHANGE_PERIOD);
}

#[tokio::test(start_paused = true)]
async fn a_guest_is_served_again_after_its_port_closed_or_its_process_ended() {
    let host = Host::new();
    let (drivers, _stop) = served(&host).await;
    drop(Guest::of(&host).await);
    let mut guest = Guest::of(&host).await;
    assert_eq!(guest.says("NEGOTIATE V2").await, "V2_OK");
    // As its hypervisor does when it ends.
    drop(guest);
    host.guests.exit(uuid(), 0);
    drivers.vms.observe_all(drivers.compute.as_ref()).await;
    tokio::time::sleep(MAX_PAUSE).await;
    let record = drivers.vms.get(uuid()).unwrap();
    let none = crate::drivers::compute::Resources::default();
    drivers.compute.start(&record, &none).await.unwrap();
    drivers.vms.observe_all(drivers.compute.as_ref()).await;
    let mut guest = Guest::of(&host).await;
    assert_eq!(guest.says("NEGOTIATE V2").await, "V2_OK");
}
