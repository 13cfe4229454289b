//! Building images with the machine's buildah, over the ports that a coordinator answers with: what comes
//! out runs as a container, and nothing else is left, whoever goes away in the middle.

use std::time::Duration;

use muster_tests::container;
use muster_tests::daemon::{Agent, Coordinator, fresh_uuid};
use muster_tests::http::Client;
use muster_tests::own_network;
use muster_tests::wait::wait_for;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(120);
/// A program that goes on until somebody ends it, and says when it began.
const ENDLESS: &str = "FROM scratch\nCOPY busybox /bin/sh\nRUN echo begun; while :; do :; done\n";

struct World {
    coordinator: Coordinator,
    client: Client,
    agent: Agent,
    vm: String,
    image: String,
    /// Prefix of everything host-wide.
    instance: String,
}

/// What a file of a context is called, and holds.
type File<'a> = (&'a str, &'a [u8]);

fn busybox() -> Vec<u8> {
    let path = ["/bin/busybox", "/usr/bin/busybox"];
    path.iter().find_map(|path| std::fs::read(path).ok()).expect("it is installed")
}

fn archive(files: &[File<'_>]) -> Vec<u8> {
    archive_with(files, &[])
}

/// With links, by name and where they lead.
fn archive_with(files: &[File<'_>], links: &[(&str, &std::path::Path)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_uid(1000);
        header.set_gid(1000);
        header.set_mtime(0);
        header.set_size(u64::try_from(content.len()).expect("it is short"));
        header.as_gnu_mut().expect("it is one").name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, *content).expect("memory");
    }
    for (name, to) in links {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_mode(0o777);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(0);
        header.set_size(0);
        tar.append_link(&mut header, name, to).expect("memory");
    }
    tar.into_inner().expect("memory")
}

impl World {
    /// A container that is stopped; `None`: nothing can be built here, which was said.
    async fn new() -> Option<Self> {
        let has = |program: &str| std::path::Path::new("/usr/bin").join(program).exists();
        if let Some(missing) = ["buildah", "bwrap"].into_iter().find(|program| !has(program)) {
            println!("SKIPPED: {missing} is not installed");
            return None;
        }
        if !container::can_run() || !own_network::enter() {
            return None;
        }
        let coordinator = Coordinator::start();
        let client = coordinator.client();
        let instance = format!("b{}", &fresh_uuid()[..6]);
        let named = format!("instance={instance}");
        let agent = Agent::with(&[&coordinator.agent_url()], &[&named], &[]);
        agent.wait_allocatable(&client).await;
        let config = json!({ "Entrypoint": ["/bin/sh", "-c"], "Env": ["COLOUR=blue"] });
        let image = container::import(&client, &config).await;
        let world = Self { coordinator, client, agent, vm: fresh_uuid(), image, instance };
        world.create(&world.vm, &world.image, "echo made > /tmp/made; exit 0").await;
        Some(world)
    }

    async fn create(&self, vm: &str, image: &str, script: &str) {
        let payload = json!({
            "uuid": vm, "brand": "joyent-minimal", "ram": 512, "alias": &vm[..8],
            "image_uuid": image, "image": { "uuid": image, "files": [{ "compression": "none" }] },
            "owner_uuid": fresh_uuid(), "nics": [],
            "internal_metadata": { "docker:cmd": json!([script]).to_string() },
        });
        let path = format!("/servers/{}/vms", self.agent.server_uuid);
        let made = self.client.post(&path, &payload).await.expect(200);
        self.client.complete_task(made["id"].as_str().expect("a task"), 120).await;
    }

    async fn stopped(&self, vm: &str) -> Value {
        let path = format!("/servers/{}/vms/{vm}", self.agent.server_uuid);
        wait_for("the container ends", LONG, || async {
            let vm = self.client.get(&path).await.expect(200);
            if vm["state"] == "stopped" { Ok(vm) } else { Err(vm.to_string()) }
        })
        .await
    }

    async fn open(&self, more: &Value) -> u16 {
        let mut payload = json!({ "command": "build", "account_uuid": fresh_uuid() });
        let more = more.as_object().expect("an object").clone();
        payload.as_object_mut().expect("an object").extend(more);
        let path = format!("/servers/{}/vms/{}/docker-build", self.agent.server_uuid, self.vm);
        let opened = self.client.post(&path, &json!({ "payload": payload })).await.expect(200);
        u16::try_from(opened["port"].as_u64().expect("a port")).expect("a port")
    }

    async fn connect(port: u16) -> TcpStream {
        TcpStream::connect(("127.0.0.1", port)).await.expect("somebody listens")
    }

    /// Sends a context and goes on with the lines.
    async fn begin(&self, more: &Value, context: &[u8]) -> Session {
        let port = self.open(more).await;
        let mut first = Self::connect(port).await;
        // One that is refused may be closed before it is sent.
        let _refused = first.write_all(context).await;
        let _refused = first.shutdown().await;
        let mut answer = String::new();
        let _reset = timeout(LONG, first.read_to_string(&mut answer)).await.expect("it ends");
        Session(BufReader::new(Self::connect(port).await).lines())
    }

    /// Builds from these files; all lines.
    async fn build(&self, more: &Value, files: &[File<'_>]) -> Vec<Value> {
        self.begin(more, &archive(files)).await.heard_out(None).await
    }

    /// Nothing of a build is left on the node, or soon will not be.
    async fn is_clean(&self) {
        let (data, groups) = (self.agent.data_dir(), format!("{}-builds", self.instance));
        wait_for("builds leave nothing", LONG, || async {
            let mut left: Vec<String> = ["builds", "images"]
                .into_iter()
                .flat_map(|folder| std::fs::read_dir(data.join(folder)).expect("a folder"))
                .map(|entry| entry.expect("an entry").path().display().to_string())
                .filter(|path| path.contains("/builds/") || path.contains("packed-"))
                .collect();
            let groups = container::control_groups(std::path::Path::new(&groups));
            left.extend(groups.iter().map(|path| path.display().to_string()));
            left.extend(sandboxes(&data).iter().map(|pid| format!("process {pid}")));
            if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
        })
        .await;
    }

    async fn images(&self) -> Vec<Value> {
        let all = self.client.get("/images?state=all").await.expect(200);
        all.as_array().expect("a list").clone()
    }
}

/// Processes that work for a build below this folder.
fn sandboxes(data: &std::path::Path) -> Vec<u32> {
    muster_tests::process::with_command(&data.join("builds").display().to_string())
}

struct Session(Lines<BufReader<TcpStream>>);

impl Session {
    async fn next(&mut self) -> Option<Value> {
        let line = timeout(LONG, self.0.next_line()).await.expect("a line comes");
        line.expect("it holds").map(|line| line.parse().expect("JSON"))
    }

    async fn until(&mut self, wanted: &str) -> Value {
        loop {
            let line = self.next().await.expect("it goes on");
            if line["message"].as_str().is_some_and(|text| text.contains(wanted)) {
                return line;
            }
            assert_ne!(line["type"], "end", "{line}");
        }
    }

    /// Answers when the image is there, with this complaint; all lines.
    async fn heard_out(mut self, complaint: Option<&str>) -> Vec<Value> {
        let mut lines = Vec::new();
        while let Some(line) = self.next().await {
            let kind = line["type"].as_str().unwrap_or_default();
            if kind.ends_with("_finished") {
                let mut answer = json!({ "type": "callback", "messageId": line["messageId"] });
                if let Some(complaint) = complaint {
                    answer["error"] = json!(complaint);
                }
                let answer = format!("{answer}\n");
                self.0.get_mut().write_all(answer.as_bytes()).await.expect("it listens");
            }
            lines.push(line);
        }
        lines
    }
}

fn printed(lines: &[Value]) -> String {
    let of_it = lines.iter().filter(|line| line["type"] == "stdout");
    of_it.filter_map(|line| line["message"].as_str()).collect()
}

fn failure(lines: &[Value]) -> String {
    let last = lines.last().expect("a line");
    assert_eq!(last["type"], "end", "{lines:?}");
    last["error"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn an_image_is_built_from_nothing_and_runs() {
    let Some(world) = World::new().await else { return };
    let dockerfile = "FROM scratch\nARG WORD\nCOPY busybox /bin/sh\nCOPY note* /\n\
        RUN echo \"said $WORD\" > /said; ls -l /note; cat /proc/net/dev | wc -l\n\
        ENV COLOUR=green\nENTRYPOINT [\"/bin/sh\", \"-c\"]\n";
    let more = json!({
        "dockerfile": "in/Dockerfile", "buildargs": "{\"WORD\":\"hello\"}", "tag": "team/web:3",
        "labels": { "tier": "one" }, "scratchImageUuid": fresh_uuid(), "nocache": true,
    });
    let files: [File<'_>; 3] =
        [("in/Dockerfile", dockerfile.as_bytes()), ("busybox", &busybox()), ("note", b"a note\n")];
    let lines = world.build(&more, &files).await;
    assert_eq!(failure(&lines), "", "{lines:#?}");
    // COPY makes files of root, and there is no network but the loopback one.
    let text = printed(&lines);
    assert!(text.contains("root") || text.contains(" 0 "), "{text}");
    assert!(text.contains("\n3\n"), "{text}");
    let made = lines.iter().find(|line| line["type"] == "build_finished").expect("one");
    assert!(made["finalImageDigest"].as_str().is_some_and(|it| it.starts_with("sha256:")));
    let image = made["image_uuid"].as_str().expect("an image");
    let manifest = world.client.get(&format!("/images/{image}")).await.expect(200);
    assert_eq!(manifest["name"], "team/web", "{manifest:#}");
    assert_eq!((&manifest["version"], &manifest["state"]), (&json!("3"), &json!("active")));
    assert_eq!(manifest["files"][0]["format"], "docker-archive");
    world.is_clean().await;

    let vm = fresh_uuid();
    let check = "[ \"$(cat /said)\" = 'said hello' ] && [ $COLOUR = green ] && exit 5";
    world.create(&vm, image, check).await;
    assert_eq!(world.stopped(&vm).await["exit_status"], 5);
}

#[tokio::test]
async fn an_image_is_built_on_another_and_by_its_name() {
    let Some(world) = World::new().await else { return };
    let dockerfile = format!(
        "FROM base:1 AS one\nRUN echo built > /built; id -u > /who; chown 7:8 /built\n\
         FROM {}\nCOPY --from=one /built /who /\nENV MORE=red\nCMD [\"exit 3\"]\n",
        world.image
    );
    let named = json!([{ "image_uuid": world.image, "name": "base:1" }]);
    let lines = world
        .build(&json!({ "allDockerImages": named }), &[("Dockerfile", dockerfile.as_bytes())])
        .await;
    assert_eq!(failure(&lines), "", "{lines:#?}");
    let made = lines.iter().find(|line| line["type"] == "build_finished").expect("one");
    let image = made["image_uuid"].as_str().expect("an image");
    let vm = fresh_uuid();
    let check = "[ $(cat /built) = built ] && [ $COLOUR$MORE = bluered ] && [ -e /www/index.html ] \
        && exit 6";
    world.create(&vm, image, check).await;
    assert_eq!(world.stopped(&vm).await["exit_status"], 6);
    world.is_clean().await;

    // Whoever does not want it in the end does not have it.
    let count = world.images().await.len();
    let context = archive(&[("Dockerfile", b"FROM scratch\nENV A=b\n")]);
    let session = world.begin(&json!({}), &context).await;
    let lines = session.heard_out(Some("no room for it")).await;
    assert_eq!(failure(&lines), "no room for it");
    world.is_clean().await;
    assert_eq!(world.images().await.len(), count);
}

#[tokio::test]
async fn what_can_not_be_built_is_refused_with_its_reason() {
    let Some(world) = World::new().await else { return };
    let before = world.images().await.len();
    let busybox = busybox();
    let secret = world.agent.data_dir().join("secret");
    std::fs::write(&secret, "a secret of the host\n").expect("a file");
    let build = async |more: Value, context: Vec<u8>, wanted: &str| {
        let lines = world.begin(&more, &context).await.heard_out(None).await;
        let failure = failure(&lines);
        assert!(failure.contains(wanted), "{wanted}: {lines:#?}");
        assert!(!printed(&lines).contains("a secret"), "{lines:#?}");
    };
    let plain =
        |dockerfile: &str| archive(&[("Dockerfile", dockerfile.as_bytes()), ("sh", &busybox)]);
    build(json!({}), plain("FROM scratch\nFLY away\n"), "FLY").await;
    build(json!({}), plain("FROM scratch\nCOPY sh /bin/sh\nRUN exit 9\n"), "9").await;
    build(json!({}), plain("FROM alpine:3\n"), "\"alpine:3\" is no image's uuid").await;
    build(json!({}), plain(&format!("FROM {}\n", fresh_uuid())), "was not found").await;
    build(json!({ "dockerfile": "none" }), plain("FROM scratch\n"), "there is no \"none\"").await;
    build(json!({}), b"no archive, however long".repeat(100), "the context").await;
    let outside = "../../../../../../../../../../../../tmp/muster-attacked";
    build(json!({}), archive(&[(outside, b"attack")]), "leads out").await;
    assert!(!std::path::Path::new("/tmp/muster-attacked").exists());

    // Links to files of the host lead to nothing, wherever a Dockerfile uses them.
    let links = [("link", secret.as_path()), ("Linked", secret.as_path())];
    let with = |dockerfile: &str| archive_with(&[("Dockerfile", dockerfile.as_bytes())], &links);
    build(json!({ "dockerfile": "Linked" }), with("FROM scratch\n"), "is a link").await;
    // Usually that there is no such file; but its process that copies may have ended before it is told.
    let at_the_link = "building at STEP \"COPY link /got\": reading \"/build/context/link\"";
    build(json!({}), with("FROM scratch\nCOPY link /got\nADD Linked /\n"), at_the_link).await;

    let script = format!(
        "FROM scratch\nCOPY sh /bin/sh\nRUN ls {0} || cat /proc/1/root{0} || exit 8\n",
        secret.display()
    );
    build(json!({}), plain(&script), "8").await;
    world.is_clean().await;
    assert_eq!(world.images().await.len(), before);
    let refused = json!({ "payload": { "command": "build" } });
    let path = format!("/servers/{}/vms/{}/docker-build", world.agent.server_uuid, world.vm);
    let refused = world.client.post(&path, &refused).await;
    assert!(refused.text.contains("payload.account_uuid"), "{}", refused.text);
}

#[tokio::test]
async fn a_build_ends_with_its_client_and_with_its_agent() {
    let Some(mut world) = World::new().await else { return };
    let before = world.images().await.len();
    let context = archive(&[("Dockerfile", ENDLESS.as_bytes()), ("busybox", &busybox())]);
    let mut session = world.begin(&json!({}), &context).await;
    session.until("begun").await;
    assert!(!sandboxes(&world.agent.data_dir()).is_empty(), "it runs");
    drop(session);
    world.is_clean().await;

    // One that only says nothing more still listens.
    let mut session = world.begin(&json!({}), &context).await;
    session.0.get_mut().get_mut().shutdown().await.expect("it listens");
    session.until("begun").await;
    // The message that shows that it does.
    while session.next().await.expect("it goes on")["message"] != "" {}
    drop(session);
    world.is_clean().await;

    let mut session = world.begin(&json!({}), &context).await;
    session.until("begun").await;
    world.agent.kill9();
    wait_for("all of it ends with the agent", LONG, || async {
        let left = sandboxes(&world.agent.data_dir());
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    })
    .await;
    world.agent.restart();
    world.agent.wait_allocatable(&world.client).await;
    world.is_clean().await;
    assert_eq!(world.images().await.len(), before);
    drop(world.coordinator);
}

#[tokio::test]
async fn a_stopped_container_is_committed() {
    let Some(world) = World::new().await else { return };
    world.stopped(&world.vm).await;
    let more = json!({
        "command": "commit", "fromImg": { "image_uuid": world.image }, "tag": "made:2",
        "changes": ["ENV SIZE=large", "LABEL a=b"], "comment": "as it was", "author": "me",
    });
    let port = world.open(&more).await;
    let session = Session(BufReader::new(World::connect(port).await).lines());
    let lines = session.heard_out(None).await;
    assert_eq!(failure(&lines), "", "{lines:#?}");
    let made = lines.iter().find(|line| line["type"] == "commit_finished").expect("one");
    let image = made["image_uuid"].as_str().expect("an image");
    let vm = fresh_uuid();
    let check = "[ $(cat /tmp/made) = made ] && [ $SIZE$COLOUR = largeblue ] && exit 4";
    world.create(&vm, image, check).await;
    assert_eq!(world.stopped(&vm).await["exit_status"], 4);
    world.is_clean().await;
    let snapshots = world.agent.data_dir().join("roots").join(&world.vm).join("snapshots");
    let left = std::fs::read_dir(snapshots).map_or(0, Iterator::count);
    assert_eq!(left, 0, "the snapshot stays");
}
