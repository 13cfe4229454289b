//! Building an image for a client that comes twice: first with the archive of the files to build from, then
//! for the lines of JSON that say what becomes of it. A commit begins with the second.
//!
//! Lines have a `type`: `message`, `stdout`, `build_finished` (of a commit `commit_finished`), to which the
//! client answers with `{"type":"callback","messageId":…}`, with an `error` if it does not want the image;
//! and at last `end`, with an `error` if there is none. A client that leaves ends the build.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ImageUuid, TaskId, VmUuid};
use muster_shared::wire::Code;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::utf8::Utf8;
use super::{Door, HALF_CLOSED_LOOK, Peer};
use crate::drivers::DriverError;
use crate::drivers::builder::{Build, Published, Recipe, dockerfile};
use crate::drivers::images::manifest::Compression;
use crate::drivers::images::publish::{Publication, TASK_TAG};
use crate::drivers::images::{Images, VolumeSource, origin_of};
use crate::drivers::storage::{Role, Storage};

/// Longest build, from the first connection on.
const LIMIT: Duration = Duration::from_secs(3600);
/// Time without a byte after which the files of a client are not waited for any more, and its answers.
const SILENCE: Duration = Duration::from_secs(60);
/// Longest line of a client, bytes.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Pieces of output that wait for the client.
const MAX_PIECES: usize = 16;
/// How the file of the image is packed.
const COMPRESSION: (&str, Compression) = ("gzip", Compression::Gzip);
/// The name of the image that a commit begins with.
const COMMITTED: &str = "committed";

/// What is built, and what becomes of it.
#[derive(Debug)]
pub struct Order {
    /// Whose build it is.
    pub task: TaskId,
    /// From what.
    pub from: From,
    /// Values of `ARG`s.
    pub args: BTreeMap<String, String>,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
    /// The repository; the first one of the agent's own without.
    pub url: Option<Url>,
    /// What the image's manifest has beside its file.
    pub manifest: serde_json::Map<String, Value>,
    /// The image that is made.
    pub image: ImageUuid,
}

/// From what an image is built.
#[derive(Debug)]
pub enum From {
    /// The files that a client sends.
    Context {
        /// The path of the Dockerfile among them.
        dockerfile: String,
        /// Images by the names that the client has for them.
        named: BTreeMap<String, ImageUuid>,
    },
    /// A container that is stopped.
    Container {
        /// It.
        vm: VmUuid,
        /// The name of a snapshot of it.
        snapshot: String,
        /// Instructions that change how it is run.
        changes: Vec<String>,
    },
}

/// What a build uses of the node.
#[derive(Clone, Debug)]
pub struct Uses {
    /// Images.
    pub images: Arc<dyn Images>,
    /// Containers that are committed.
    pub storage: Arc<dyn Storage>,
}

#[derive(Debug, Deserialize)]
struct Said {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default, rename = "messageId")]
    message_id: Option<u64>,
    #[serde(default)]
    error: Option<Value>,
}

/// What the client has answered, once: nothing, or why it does not want the image.
type Answer = oneshot::Sender<Option<String>>;

/// What serves a build, as [`Sessions::open_door`](super::Sessions::open_door) wants it.
pub fn serve_later(
    order: &Arc<Order>,
    build: &Arc<Build>,
    uses: &Uses,
) -> impl FnOnce(Door) -> BoxFuture<'static, ()> + Send + use<> {
    let (order, build, uses) = (order.clone(), build.clone(), uses.clone());
    move |door| Box::pin(async move { serve(door, &order, &build, &uses).await })
}

/// Serves a build from its client's first connection to the last line, and leaves nothing of it but the
/// image.
async fn serve(door: Door, order: &Order, build: &Build, uses: &Uses) {
    let served = tokio::time::timeout(LIMIT, session(door, order, build, uses)).await;
    let wanted = match served {
        Ok(Ok(wanted)) => wanted,
        Ok(Err(error)) => {
            tracing::debug!(task_id = %order.task, %error, "a build was cut");
            false
        }
        Err(_) => {
            tracing::info!(task_id = %order.task, "a build took too long");
            false
        }
    };
    if let Err(error) = end(order, build, uses, wanted).await {
        let error = Chain(&error).to_string();
        tracing::warn!(task_id = %order.task, error, "something of a build stays until the agent starts again");
    }
}

/// Takes everything away; the image stays if somebody wants it.
///
/// # Errors
/// The host or the repository failed; the next start of the agent tries again.
pub async fn end(
    order: &Order,
    build: &Build,
    uses: &Uses,
    wanted: bool,
) -> Result<(), DriverError> {
    if !wanted && build.published().await.is_some() {
        uses.images.withdraw(&order.task, order.url.as_ref(), order.image).await?;
    }
    uses.images.drop_packed(&order.task).await?;
    if let From::Container { vm, snapshot, .. } = &order.from {
        uses.storage.delete_snapshot(*vm, snapshot, &[Role::Root]).await?;
    }
    build.end().await
}

/// Whether there is an image that somebody wants.
async fn session(door: Door, order: &Order, build: &Build, uses: &Uses) -> io::Result<bool> {
    let mut received = Ok(());
    if matches!(order.from, From::Context { .. }) {
        let Some(first) = door.next().await else { return Ok(false) };
        received = receive(first, build).await;
    }
    let Some(Peer { reader, writer }) = door.next().await else { return Ok(false) };
    drop(door);
    let lines = Lines(Arc::new(Mutex::new((writer, 0))));
    let (answer, answered) = oneshot::channel();
    let work = async {
        let command = order.command();
        lines.message(&format!("Starting {command}")).await?;
        let done = match received {
            Ok(()) => make(order, build, uses, &lines).await,
            Err(error) => Err(error),
        };
        let wanted = match done {
            Ok(digest) => offer(order, build, &lines, &digest, answered).await?,
            Err(error) => Err(told(&error)),
        };
        let mut last = json!({ "type": "end" });
        if let Err(error) = &wanted {
            tracing::info!(task_id = %order.task, "a build made no image");
            last["error"] = json!(error);
        }
        lines.send(last).await?;
        lines.0.lock().await.0.shutdown().await?;
        Ok(wanted.is_ok())
    };
    tokio::select! {
        done = work => done,
        gone = listen(reader, &lines, answer) => gone.map(|()| false),
    }
}

/// What a client is told of a failure: its own faults whole, those of the host without their cause.
fn told(error: &DriverError) -> String {
    if matches!(error, DriverError::Failed { .. }) {
        tracing::warn!(error = %Chain(error), "the host failed a build");
        return format!("{error}: the host failed, the agent's log has the cause");
    }
    error.to_string()
}

/// Takes the files that a client sends until it closes its sending half.
async fn receive(peer: Peer, build: &Build) -> Result<(), DriverError> {
    let failed = |error: io::Error| DriverError::failed("receive what is to be built", error);
    let (early, stream) = peer.into_blocking().map_err(failed)?;
    stream.set_read_timeout(Some(SILENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(SILENCE)).map_err(failed)?;
    let from = stream.try_clone().map_err(failed)?;
    // Ends the thread at once when this is dropped.
    let mut cut = Cut(stream);
    build.unpack(io::Read::chain(io::Cursor::new(early), from)).await?;
    let line = json!({ "type": "message", "message": "Context received", "messageId": 0 });
    // Nothing depends on whether the client waits for it.
    if let Err(error) = cut.0.write_all(format!("{line}\n").as_bytes()) {
        tracing::debug!(%error, "a client does not wait until its files are there");
    }
    Ok(())
}

/// A connection that is closed when it goes out of scope, whoever else holds it.
struct Cut(TcpStream);

impl Drop for Cut {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown(Shutdown::Both) {
            tracing::debug!(%error, "a connection was closed already");
        }
    }
}

/// Builds and publishes; returns the digest of the image.
async fn make(
    order: &Order,
    build: &Build,
    uses: &Uses,
    lines: &Lines,
) -> Result<String, DriverError> {
    let text = match &order.from {
        From::Context { dockerfile, named } => {
            context(order, build, uses, dockerfile, named).await?
        }
        From::Container { vm, snapshot, changes } => {
            commit(build, uses, *vm, snapshot, changes).await?
        }
    };
    let pairs = |map: &BTreeMap<String, String>| {
        map.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    };
    let recipe = Recipe { text, args: pairs(&order.args), labels: pairs(&order.labels) };
    let (told, printed) = mpsc::channel(MAX_PIECES);
    let built = async {
        let built = build.run(&recipe, &told).await;
        drop(told);
        built
    };
    let (digest, shown) = tokio::join!(built, lines.show(printed));
    let digest = digest?;
    shown.map_err(|error| DriverError::failed("tell a client of its build", error))?;
    publish(order, build, uses, &digest).await?;
    Ok(digest)
}

/// Brings the images here that a Dockerfile begins with; returns its text.
async fn context(
    order: &Order,
    build: &Build,
    uses: &Uses,
    path: &str,
    named: &BTreeMap<String, ImageUuid>,
) -> Result<String, DriverError> {
    let refused = |text: String| DriverError::refused(Code::InvalidParameters, text);
    let text = build.dockerfile(path).await?;
    let bases = dockerfile::bases(&text, &order.args);
    for name in bases.map_err(|problem| refused(format!("{path}: {problem}")))? {
        let image = named.get(&name).copied().or_else(|| name.parse().ok()).ok_or_else(|| {
            refused(format!("{path}: {name:?} is no image's uuid, nor one of allDockerImages"))
        })?;
        uses.images.ensure(image, &|_| {}, &CancellationToken::new()).await?;
        uses.images.note_use(image).await?;
        let found = uses.images.container(image).await?;
        let found =
            found.ok_or_else(|| refused(format!("{path}: image {image} is none of containers")))?;
        build.add_base(&name, &found.root, &found.runtime).await?;
    }
    Ok(text)
}

/// Takes a container as what is begun with; returns the instructions for the rest.
async fn commit(
    build: &Build,
    uses: &Uses,
    vm: VmUuid,
    snapshot: &str,
    changes: &[String],
) -> Result<String, DriverError> {
    let gone = || DriverError::failed("read the files of a container", "its root is gone");
    let origin = uses.storage.root(vm).await?.ok_or_else(gone)?;
    let found = uses.images.container(origin).await?.ok_or_else(gone)?;
    uses.storage.pack_root(vm, snapshot, &found.root).await?;
    let storage = uses.storage.as_ref();
    let mut layer = VolumeSource::new(storage, vm, Role::Root, snapshot.to_owned(), &|_| {});
    build.add_layer(COMMITTED, &mut layer, &found.runtime).await?;
    Ok(format!("FROM {COMMITTED}\n{}\n", changes.join("\n")))
}

async fn publish(
    order: &Order,
    build: &Build,
    uses: &Uses,
    digest: &str,
) -> Result<(), DriverError> {
    let (word, compression) = COMPRESSION;
    let packed = uses.images.pack(&order.task, compression, &mut build.result().await?).await?;
    let mut manifest = Value::Object(order.manifest.clone());
    manifest["files"] = json!([{ "format": "docker-archive" }]);
    manifest["tags"] = json!({ TASK_TAG: order.task.as_str(), "docker:id": digest });
    debug_assert!(origin_of(&manifest).is_none(), "a built image is whole");
    let url = order.url.as_ref().map(Url::to_string);
    build.note(Some(Published { url, image: order.image })).await?;
    let compression = word.to_owned();
    let (url, image) = (order.url.clone(), order.image);
    let what = Publication { url, image, manifest, compression, packed };
    uses.images.publish(&order.task, &what).await.map(drop)
}

/// Tells the client of its image and waits until it has said what it thinks of it. One that leaves without
/// a word has it.
async fn offer(
    order: &Order,
    build: &Build,
    lines: &Lines,
    digest: &str,
    answered: oneshot::Receiver<Option<String>>,
) -> io::Result<Result<(), String>> {
    let kind = format!("{}_finished", order.command());
    lines
        .send(json!({ "type": kind, "finalImageDigest": digest, "image_uuid": order.image }))
        .await?;
    // From here on it is the client's.
    let kept = |error: DriverError| io::Error::other(Chain(&error).to_string());
    build.note(None).await.map_err(kept)?;
    match tokio::time::timeout(SILENCE, answered).await {
        Ok(Ok(Some(error))) => {
            let url = order.url.as_ref().map(Url::to_string);
            build.note(Some(Published { url, image: order.image })).await.map_err(kept)?;
            Ok(Err(error))
        }
        Ok(Ok(None) | Err(_)) | Err(_) => Ok(Ok(())),
    }
}

impl Order {
    fn command(&self) -> &'static str {
        match self.from {
            From::Context { .. } => "build",
            From::Container { .. } => "commit",
        }
    }
}

/// Where lines go to the client, each with a number.
#[derive(Clone, Debug)]
struct Lines(Arc<Mutex<(OwnedWriteHalf, u64)>>);

impl Lines {
    async fn send(&self, mut line: Value) -> io::Result<()> {
        let (writer, count) = &mut *self.0.lock().await;
        line["messageId"] = json!(*count);
        *count += 1;
        let text = format!("{line}\n");
        tokio::time::timeout(SILENCE, writer.write_all(text.as_bytes())).await?
    }

    async fn message(&self, text: &str) -> io::Result<()> {
        self.send(json!({ "type": "message", "message": text })).await
    }

    /// Sends what is printed, as it comes.
    async fn show(&self, mut printed: mpsc::Receiver<Vec<u8>>) -> io::Result<()> {
        let mut utf8 = Utf8::default();
        while let Some(piece) = printed.recv().await {
            let text = utf8.add(&piece);
            if !text.is_empty() {
                self.send(json!({ "type": "stdout", "message": text })).await?;
            }
        }
        Ok(())
    }
}

/// Hears what the client says until it leaves. One that has only closed its sending half still listens: it
/// gets an empty message now and then, which shows when it does not.
async fn listen(
    reader: impl tokio::io::AsyncRead + Unpin,
    told: &Lines,
    answer: Answer,
) -> io::Result<()> {
    let mut answer = Some(answer);
    let mut lines = FramedRead::new(reader, LinesCodec::new_with_max_length(MAX_LINE_BYTES));
    while let Some(line) = lines.next().await {
        let line = line.map_err(io::Error::other)?;
        let said: Said = match serde_json::from_str(&line) {
            Ok(said) => said,
            Err(error) => {
                tracing::debug!(%error, "a client of a build says what is no JSON");
                continue;
            }
        };
        if said.kind == "callback"
            && said.message_id.is_some()
            && let Some(answer) = answer.take()
        {
            let error = said.error.filter(|error| !error.is_null());
            let error = error.map(|it| it.as_str().map_or_else(|| it.to_string(), str::to_owned));
            // Nobody waits for it any more.
            let _late = answer.send(error);
        }
    }
    // Nobody will answer.
    drop(answer);
    loop {
        tokio::time::sleep(HALF_CLOSED_LOOK).await;
        told.message("").await?;
    }
}
