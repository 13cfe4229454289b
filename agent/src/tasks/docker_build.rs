//! `docker_build`: builds an image of containers from files that a client sends, or from a container that is
//! stopped (`commit`), for that client, which connects to the port in the answer.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use muster_shared::ids::{ImageUuid, VmUuid};
use muster_shared::lenient;
use muster_shared::wire::Code;
use serde_json::{Map, Value, json};
use url::Url;

use super::container;
use super::machine::{self, refuse};
use super::machine_create_image::snapshot_name;
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Need, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::builder::dockerfile;
use crate::drivers::storage::Role;
use crate::sessions::build::{self, From, Order, Uses};

const OPERATION: &str = "docker_build";
const LIMIT: Duration = Duration::from_secs(90);
/// Time in which the client has to connect, each time.
const CONNECT: Duration = Duration::from_secs(60);
const DOCKER_BUILD: Queue =
    Queue { name: "docker_build_task", max_concurrent: 2, max_wait: Duration::from_secs(600) };
/// Most members of a list or a map, and bytes of a text.
const MAX_MEMBERS: usize = 1024;
const MAX_TEXT_BYTES: usize = 4096;

/// The kind; parameters `uuid`, `payload`.
#[derive(Debug)]
pub struct DockerBuild;

impl Handler for DockerBuild {
    // What a session leaves behind is noted in the folder of its build, and not in a journal.
    fn kind(&self) -> Kind {
        Kind::query("docker_build", DOCKER_BUILD, LIMIT)
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Builder)
    }

    fn example(&self) -> Params {
        let mut params = machine::example();
        let payload = json!({
            "command": "build", "account_uuid": "6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01",
        });
        params.insert("payload".to_owned(), payload);
        params
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let vm = machine::vm(params)?;
        let payload = params.get("payload").and_then(Value::as_object);
        let payload =
            payload.ok_or_else(|| TaskFailure::bad_param("payload", "must be an object"))?;
        let payload = Payload(payload);
        let command = payload.text("command")?.unwrap_or_default();
        let (wanted, locks) = match command.as_str() {
            "build" => (payload.context()?, Vec::new()),
            "commit" => (payload.container()?, vec![Lock::Vm(vm)]),
            _ => return Err(bad("command", "must be build or commit")),
        };
        // Kept for existing clients: a build from nothing needs no image for it.
        payload.uuid("scratchImageUuid")?;
        payload.flag("nocache")?;
        let job = Open {
            vm,
            wanted,
            args: payload.map("buildargs")?,
            labels: payload.map("labels")?,
            url: payload.url("imgapi_url")?,
            manifest: payload.manifest()?,
        };
        Ok(Plan::of(locks, job, STEPS))
    }
}

fn bad(name: &str, problem: &str) -> TaskFailure {
    TaskFailure::bad_param(&format!("payload.{name}"), problem)
}

/// What is wanted, before it is read.
struct Payload<'a>(&'a Map<String, Value>);

impl Payload<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name).filter(|value| !value.is_null())
    }

    fn text(&self, name: &str) -> Result<Option<String>, TaskFailure> {
        let fits = |text: &&str| text.len() <= MAX_TEXT_BYTES && !text.contains('\0');
        let problem = format!("must be a text of at most {MAX_TEXT_BYTES} bytes");
        self.get(name)
            .map(|value| value.as_str().filter(fits).map(str::to_owned))
            .map(|text| text.ok_or_else(|| bad(name, &problem)))
            .transpose()
    }

    fn uuid(&self, name: &str) -> Result<Option<ImageUuid>, TaskFailure> {
        let text = self.text(name)?;
        text.map(|text| text.parse().map_err(|_| bad(name, "must be a UUID"))).transpose()
    }

    fn flag(&self, name: &str) -> Result<(), TaskFailure> {
        // Docker's clients send numbers as text.
        let is_one = |value: &Value| {
            lenient::flag(value).is_some() || matches!(value.as_str(), Some("0" | "1" | ""))
        };
        match self.get(name) {
            Some(value) if !is_one(value) && !matches!(value.as_u64(), Some(0 | 1)) => {
                Err(bad(name, "must be true or false"))
            }
            _ => Ok(()),
        }
    }

    fn url(&self, name: &str) -> Result<Option<Url>, TaskFailure> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        let url = text.parse::<Url>().ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        url.map(Some).ok_or_else(|| bad(name, "must be the URL of a repository"))
    }

    /// An object of texts, or JSON of one, as docker's clients have it.
    fn map(&self, name: &str) -> Result<BTreeMap<String, String>, TaskFailure> {
        let problem = "must be an object of texts, without = in their names";
        let parsed = match self.get(name) {
            None => return Ok(BTreeMap::new()),
            Some(Value::String(text)) if text.is_empty() => return Ok(BTreeMap::new()),
            Some(Value::String(text)) => serde_json::from_str(text).unwrap_or_default(),
            Some(other) => other.clone(),
        };
        let Value::Object(members) = parsed else { return Err(bad(name, problem)) };
        if members.len() > MAX_MEMBERS {
            return Err(bad(name, &format!("must have at most {MAX_MEMBERS} members")));
        }
        let fits = |text: &str| text.len() <= MAX_TEXT_BYTES && !text.contains('\0');
        let read = members.into_iter().map(|(key, value)| {
            let value = value.as_str().filter(|value| fits(value)).map(str::to_owned);
            let key = Some(key).filter(|key| fits(key) && !key.is_empty() && !key.contains('='));
            key.zip(value).ok_or_else(|| bad(name, problem))
        });
        read.collect()
    }

    fn list(&self, name: &str) -> Result<Vec<Value>, TaskFailure> {
        match self.get(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) if list.len() <= MAX_MEMBERS => Ok(list.clone()),
            Some(_) => Err(bad(name, &format!("must be a list of at most {MAX_MEMBERS} members"))),
        }
    }

    fn context(&self) -> Result<Wanted, TaskFailure> {
        let dockerfile = self.text("dockerfile")?.filter(|path| !path.is_empty());
        let dockerfile = dockerfile.unwrap_or_else(|| "Dockerfile".to_owned());
        if dockerfile.split('/').any(|part| part == "..") {
            return Err(bad("dockerfile", "must be a path without `..`"));
        }
        let mut named = BTreeMap::new();
        for image in self.list("allDockerImages")? {
            let problem = "must have image_uuid, a UUID, and may have name, a text";
            let uuid = image.get("image_uuid").and_then(Value::as_str);
            let uuid: ImageUuid = uuid
                .and_then(|uuid| uuid.parse().ok())
                .ok_or_else(|| bad("allDockerImages", problem))?;
            match image.get("name") {
                None | Some(Value::Null) => {}
                Some(Value::String(name)) if dockerfile::reference(name).is_some() => {
                    named.insert(name.clone(), uuid);
                }
                Some(_) => return Err(bad("allDockerImages", problem)),
            }
        }
        Ok(Wanted::Context { dockerfile, named })
    }

    fn container(&self) -> Result<Wanted, TaskFailure> {
        let changes = self.list("changes")?.into_iter().map(|change| {
            let change = change.as_str().unwrap_or_default().to_owned();
            let checked = dockerfile::check_change(&change);
            checked.map(|()| change).map_err(|problem| bad("changes", &problem))
        });
        let changes = changes.collect::<Result<_, _>>()?;
        let image = match self.get("fromImg") {
            None => None,
            Some(image) => {
                let uuid = image.get("image_uuid").and_then(Value::as_str);
                let uuid = uuid.and_then(|uuid| uuid.parse::<ImageUuid>().ok());
                Some(uuid.ok_or_else(|| bad("fromImg", "must have image_uuid, a UUID"))?)
            }
        };
        Ok(Wanted::Container { image, changes })
    }

    /// What the image is called, and whose it is.
    fn manifest(&self) -> Result<Map<String, Value>, TaskFailure> {
        let owner = self.uuid("account_uuid")?;
        let owner = owner.ok_or_else(|| bad("account_uuid", "must be a UUID"))?;
        let tag = self.text("tag")?.or(self.text("t")?).unwrap_or_default();
        let (name, version) = match tag.rsplit_once(':') {
            Some((name, version)) if !version.contains('/') => (name, version),
            _ => (tag.as_str(), "latest"),
        };
        let mut manifest = Map::new();
        let name = if name.is_empty() { "docker-build" } else { name };
        for (member, value) in [
            ("v", json!(2)),
            ("name", json!(name)),
            ("version", json!(version)),
            ("owner", json!(owner)),
            ("type", json!("docker")),
            ("os", json!("linux")),
        ] {
            manifest.insert(member.to_owned(), value);
        }
        let described = [self.text("comment")?, self.text("author")?];
        let described = described.into_iter().flatten().filter(|text| !text.is_empty());
        let described: Vec<_> = described.collect();
        if !described.is_empty() {
            manifest.insert("description".to_owned(), json!(described.join(", by ")));
        }
        Ok(manifest)
    }
}

const STEPS: &[Row<Open>] = steps![("open", 100, open)];

/// From what is built.
#[derive(Debug)]
enum Wanted {
    Context {
        dockerfile: String,
        named: BTreeMap<String, ImageUuid>,
    },
    /// The VM itself; `image` is what the client takes for its image.
    Container {
        image: Option<ImageUuid>,
        changes: Vec<String>,
    },
}

#[derive(Debug)]
struct Open {
    vm: VmUuid,
    wanted: Wanted,
    args: BTreeMap<String, String>,
    labels: BTreeMap<String, String>,
    url: Option<Url>,
    manifest: Map<String, Value>,
}

impl Open {
    async fn open(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let drivers = &ctx.drivers;
        let record = machine::record(ctx, "vmadm.load", self.vm)?;
        if let Wanted::Container { image, .. } = &self.wanted {
            self.check_container(ctx, *image).await?;
        }
        let build = Arc::new(drivers.builder.begin(&ctx.task_id, &record).await?);
        let order = Arc::new(self.order(ctx));
        let uses = Uses { images: drivers.images.clone(), storage: drivers.storage.clone() };
        let opening = async {
            if let From::Container { vm, snapshot, .. } = &order.from {
                build.note_snapshot(*vm, snapshot).await?;
                drivers.storage.create_snapshot(*vm, snapshot, &[Role::Root]).await?;
            }
            let serving = build::serve_later(&order, &build, &uses);
            drivers.sessions.open_door(CONNECT, serving).await
        };
        match opening.await {
            Ok(opened) => ctx.finish_with(json!(opened)),
            Err(error) => {
                build::end(&order, &build, &uses, false).await?;
                return Err(error.into());
            }
        }
        Ok(())
    }

    async fn check_container(
        &self,
        ctx: &TaskContext,
        image: Option<ImageUuid>,
    ) -> Result<(), TaskFailure> {
        if machine::runs(ctx, self.vm).await? {
            let text = format!("{OPERATION}: VM {} is not stopped, cannot commit", self.vm);
            return Err(refuse(Code::VmNotStopped, text));
        }
        let origin = container::must_have_root(ctx, OPERATION, self.vm).await?;
        container::installed(ctx, OPERATION, origin).await?;
        match image {
            Some(image) if image != origin => {
                let problem = format!("the VM was made from image {origin}");
                Err(bad("fromImg", &problem))
            }
            _ => Ok(()),
        }
    }

    fn order(&self, ctx: &TaskContext) -> Order {
        let image = ImageUuid::from(ctx.drivers.entropy.uuid());
        let mut manifest = self.manifest.clone();
        manifest.insert("uuid".to_owned(), json!(image));
        let from = match &self.wanted {
            Wanted::Context { dockerfile, named } => {
                From::Context { dockerfile: dockerfile.clone(), named: named.clone() }
            }
            Wanted::Container { changes, .. } => From::Container {
                vm: self.vm,
                snapshot: snapshot_name(ctx),
                changes: changes.clone(),
            },
        };
        Order {
            task: ctx.task_id.clone(),
            from,
            args: self.args.clone(),
            labels: self.labels.clone(),
            url: self.url.clone(),
            manifest,
            image,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_refused(member: &str, value: Value) {
        let mut params = DockerBuild.example();
        params["payload"][member] = value;
        let failure = DockerBuild.plan(&params).map(drop).unwrap_err();
        assert_eq!(failure.details.unwrap()["field"], format!("payload.{member}"));
    }

    #[test]
    fn bad_parameters_are_refused_by_field() {
        DockerBuild.plan(&DockerBuild.example()).unwrap();
        check_refused("command", json!("run"));
        check_refused("account_uuid", Value::Null);
        check_refused("account_uuid", json!("x"));
        check_refused("imgapi_url", json!("file:///etc/passwd"));
        check_refused("scratchImageUuid", json!("x"));
        check_refused("dockerfile", json!("../../etc/passwd"));
        check_refused("dockerfile", json!(7));
        check_refused("buildargs", json!({ "a=b": "c" }));
        check_refused("buildargs", json!("no JSON"));
        check_refused("labels", json!({ "a": 7 }));
        check_refused("nocache", json!("perhaps"));
        check_refused("allDockerImages", json!([{ "image_uuid": "x" }]));
        let image = json!("6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01");
        check_refused("allDockerImages", json!([{ "image_uuid": image, "name": "--help" }]));
        let mut params = DockerBuild.example();
        params.insert("payload".to_owned(), json!([]));
        assert_eq!(DockerBuild.plan(&params).unwrap_err().details.unwrap()["field"], "payload");
    }

    #[test]
    fn a_commit_has_parameters_of_its_own() {
        let commit = |more: Value| {
            let mut params = DockerBuild.example();
            params["payload"]["command"] = json!("commit");
            let more = more.as_object().unwrap().clone();
            params["payload"].as_object_mut().unwrap().extend(more);
            DockerBuild.plan(&params).map(|plan| plan.locks)
        };
        assert_eq!(commit(json!({ "changes": ["CMD [\"a\"]"] })).unwrap().len(), 1);
        for (member, value) in
            [("changes", json!(["RUN x"])), ("changes", json!("CMD")), ("fromImg", json!({}))]
        {
            let failure = commit(json!({ member: value })).unwrap_err();
            assert_eq!(failure.details.unwrap()["field"], format!("payload.{member}"));
        }
    }
}
