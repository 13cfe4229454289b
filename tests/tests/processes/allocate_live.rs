//! Wishes to be near to or far from other machines, on live agents with real machines: by alias,
//! by tag, by docker id, and for their volumes.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::guest;
use muster_tests::http::{Answer, Client};
use muster_tests::wait::wait_for;
use serde_json::{Value, json};

/// A TCG guest on two busy cores.
const CREATE_S: u64 = 300;

/// One owner's machines, each on a server of its own.
struct Fleet {
    client: Client,
    owner: String,
    /// Alias, server, machine.
    placed: Vec<(&'static str, String, String)>,
}

/// A docker id begins with the digits of its machine's uuid.
fn docker_id(vm: &str) -> String {
    format!("{:0<64}", vm.replace('-', ""))
}

impl Fleet {
    /// Creates machines one after the other: an owner's machines are spread as long as there are
    /// servers without one.
    async fn create(client: Client, image: &str) -> Self {
        let mut fleet = Self { client, owner: fresh_uuid(), placed: Vec::new() };
        for (alias, role) in [("web1", "web"), ("db1", "db"), ("web2", "web")] {
            let vm = fresh_uuid();
            let body = json!({
                "uuid": vm, "image_uuid": image, "brand": "kvm", "ram": 192, "vcpus": 1,
                "cpu_cap": 100, "quota": 1, "alias": alias, "owner_uuid": fleet.owner,
                "tags": { "role": role, "docker:label:tier": format!("{role}-tier") },
                "internal_metadata": { "docker:id": docker_id(&vm) },
            });
            let placed = fleet.client.post("/vms", &body).await.expect(202);
            let task = placed["id"].as_str().expect("an id");
            fleet.client.complete_task(task, CREATE_S).await;
            let server = placed["server_uuid"].as_str().expect("a server").to_owned();
            fleet.placed.push((alias, server, vm));
        }
        fleet
    }

    fn server(&self, alias: &str) -> &str {
        &self.of(alias).1
    }

    fn vm(&self, alias: &str) -> &str {
        &self.of(alias).2
    }

    fn of(&self, alias: &str) -> &(&'static str, String, String) {
        self.placed.iter().find(|(known, ..)| *known == alias).expect("it was created")
    }

    fn body(&self) -> Value {
        json!({
            "vm": { "vm_uuid": fresh_uuid(), "owner_uuid": self.owner, "ram": 64,
                    "brand": "joyent-minimal", "cpu_cap": 50, "quota": 1 },
            "image": {}, "nic_tags": [],
            "package": { "max_physical_memory": 64, "cpu_cap": 50, "quota": 1024 },
        })
    }

    async fn ask(&self, body: &Value) -> Answer {
        self.client.post("/allocate?reserve=false&least_changes=false", body).await
    }

    /// Where a machine with such wishes goes: `(key, operator, value, kind, soft)` each.
    async fn wished(&self, wishes: &[(&str, &str, &str, &str, bool)]) -> Answer {
        let mut body = self.body();
        let wish = |(key, operator, value, kind, soft): &(&str, &str, &str, &str, bool)| {
            json!({ "key": key, "operator": operator, "value": value, "valueType": kind,
                    "isSoft": soft })
        };
        body["vm"]["affinity"] = wishes.iter().map(wish).collect();
        self.ask(&body).await
    }

    async fn check(&self, wishes: &[(&str, &str, &str, &str, bool)], servers: &[&str]) {
        // Servers are shuffled, so one right answer could be chance.
        for _ in 0..5 {
            let answer = self.wished(wishes).await;
            let text = answer.text.clone();
            let chosen = answer.expect(200)["server"]["uuid"].as_str().expect("a uuid").to_owned();
            let wanted: Vec<&str> = servers.iter().map(|alias| self.server(alias)).collect();
            assert!(wanted.contains(&chosen.as_str()), "{wishes:?}: {text}");
        }
    }

    async fn check_refused(&self, wishes: &[(&str, &str, &str, &str, bool)], why: &str) {
        let answer = self.wished(wishes).await.expect(409);
        assert_eq!(answer["code"], "NoAllocatableServersError");
        let message = answer["message"].as_str().expect("a message");
        assert_eq!(message, format!("No compute resources available: {why}"));
    }

    async fn strict_wishes(&self) {
        for (key, operator, value, kind, servers) in [
            ("instance", "==", "db1", "exact", &["db1"][..]),
            ("container", "==", "web*", "glob", &["web1", "web2"]),
            ("instance", "!=", "web*", "glob", &["db1"]),
            ("instance", "==", "/^d.1$/", "re", &["db1"]),
            ("instance", "!=", "/^web[12]$/", "re", &["db1"]),
            ("role", "==", "db", "exact", &["db1"]),
            ("role", "!=", "web", "exact", &["db1"]),
            ("role", "!=", "/^d/", "re", &["web1", "web2"]),
            ("tier", "==", "db-*", "glob", &["db1"]),
        ] {
            if operator == "==" && servers.len() > 1 {
                // Near to all of them, which are on two servers.
                let answer = self.wished(&[(key, operator, value, kind, false)]).await;
                assert_eq!(answer.status, 409, "{}", answer.text);
                continue;
            }
            self.check(&[(key, operator, value, kind, false)], servers).await;
        }
        let id = docker_id(self.vm("web2"));
        self.check(&[("instance", "==", &id, "exact", false)], &["web2"]).await;
        self.check(&[("instance", "==", &id[..12], "exact", false)], &["web2"]).await;
        self.check(&[("instance", "==", self.vm("web1"), "exact", false)], &["web1"]).await;
        let both = [
            ("role", "==", "web", "exact", true),
            ("instance", "!=", "web1", "exact", false),
            ("instance", "!=", "db1", "exact", false),
        ];
        self.check(&both, &["web2"]).await;
        let missing =
            "no active containers found matching \"nope\" for affinity \"instance==nope\"";
        self.check_refused(&[("instance", "==", "nope", "exact", false)], missing).await;
        let missing = "no active containers found matching tag \"role=nope\" for affinity \
            \"role==nope\"";
        self.check_refused(&[("role", "==", "nope", "exact", false)], missing).await;
        let everywhere = "servers with requested hard locality considered";
        let far = [("role", "!=", "*", "glob", false)];
        self.check_refused(&far, &format!("no {everywhere}")).await;
    }

    async fn soft_wishes(&self) {
        let all = &["web1", "db1", "web2"][..];
        for (key, operator, value, kind, servers) in [
            ("instance", "==", "db1", "exact", &["db1"][..]),
            ("instance", "==", "web*", "glob", &["web1", "web2"]),
            ("role", "!=", "web", "exact", &["db1"]),
            ("role", "==", "web", "exact", &["web1", "web2"]),
            ("instance", "==", "nope", "exact", all),
            ("role", "!=", "*", "glob", all),
        ] {
            self.check(&[(key, operator, value, kind, true)], servers).await;
        }
    }

    async fn volumes(&self) {
        let mut body = self.body();
        body["vm"]["docker"] = json!(true);
        let mut from = |vms: &[&str]| {
            let vms = json!(vms).to_string();
            body["vm"]["internal_metadata"] = json!({ "docker:volumesfrom": vms });
            body.clone()
        };
        for alias in ["web1", "db1", "web2"] {
            let answer = self.ask(&from(&[self.vm(alias)])).await.expect(200);
            assert_eq!(answer["server"]["uuid"], self.server(alias), "{alias}");
        }
        for vms in
            [vec![self.vm("web1"), self.vm("db1")], vec!["5ebce4a1-b202-4047-a70b-dbb0768088ac"]]
        {
            let answer = self.ask(&from(&vms)).await.expect(409);
            assert_eq!(answer["code"], "VolumeServerNoResourcesError", "{answer}");
        }
    }
}

#[tokio::test]
async fn affinity_and_volumes_find_machines_on_live_agents() {
    let coordinator = Coordinator::start();
    let client = coordinator.client();
    let agents: Vec<Agent> = (0..3).map(|_| Agent::start(&coordinator.agent_url())).collect();
    for agent in &agents {
        agent.wait_allocatable(&client).await;
    }
    let image = guest::import(&client).await;
    let mut fleet = Fleet::create(client, &image).await;
    let servers: BTreeSet<&String> = fleet.placed.iter().map(|(_, server, _)| server).collect();
    assert_eq!(servers.len(), 3, "an owner's machines are spread");
    for (alias, server, vm) in &fleet.placed {
        wait_for("a report shows the machine", Duration::from_secs(60), || async {
            let shown = fleet.client.get(&format!("/vms/{vm}")).await;
            let there = shown.json["alias"] == *alias && shown.json["server_uuid"] == **server;
            if there { Ok(()) } else { Err(shown.text) }
        })
        .await;
    }
    fleet.strict_wishes().await;
    fleet.soft_wishes().await;
    fleet.volumes().await;

    // Nobody is near to or far from the machines of others.
    let owner = std::mem::replace(&mut fleet.owner, fresh_uuid());
    let missing = "no active containers found matching \"db1\" for affinity \"instance==db1\"";
    fleet.check_refused(&[("instance", "==", "db1", "exact", false)], missing).await;
    fleet.owner = owner;
    // The index follows: a machine that is gone is near to nothing.
    let path = format!("/servers/{}/vms/{}", fleet.server("db1"), fleet.vm("db1"));
    let task = fleet.client.delete(&path).await.expect(200);
    fleet.client.complete_task(task["id"].as_str().expect("an id"), CREATE_S).await;
    wait_for("a report shows it gone", Duration::from_secs(60), || async {
        let answer = fleet.wished(&[("instance", "==", "db1", "exact", false)]).await;
        if answer.status == 409 { Ok(()) } else { Err(answer.text) }
    })
    .await;
    fleet.check_refused(&[("instance", "==", "db1", "exact", false)], missing).await;
    fleet.check(&[("role", "!=", "web", "exact", false)], &["db1"]).await;
}
