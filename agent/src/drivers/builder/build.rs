//! One build: its folder, and the programs that work in it, one after the other.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use muster_shared::ids::{TaskId, VmUuid};
use muster_shared::wire::Code;
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Mutex, mpsc};

use super::base::Layout;
use super::context::{self, MAX_DOCKERFILE_BYTES};
use super::note::{Note, Published};
use super::sandbox::{ETC, HOME, Running, Sandbox};
use super::{BUILDAH, dockerfile};
use crate::drivers::images::RuntimeConfig;
use crate::drivers::images::pack::{DiskBytes, DiskSource};
use crate::drivers::trees::{archive_here, beside};
use crate::drivers::{DriverError, files, storage, untar};

/// Space that a build leaves free where it works, bytes.
const RESERVE_BYTES: u64 = 256 * 1024 * 1024;
/// How often the free space is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Of what a program complains, so much is kept for its error, bytes.
const TAIL_BYTES: usize = 2048;
const PIECE_BYTES: usize = 16 * 1024;
const FILE_PIECE_BYTES: usize = 256 * 1024;
/// Paths in the folder of a build.
const CONTEXT: &str = "context";
const DOCKERFILE: &str = "Dockerfile";
const IGNORED: &str = "ignored";
const DIGEST: &str = "digest";
const RESULT: &str = "image.tar";
/// Files of `/etc` that the programs need, and that leave nothing to the host's settings.
const ETC_FILES: [(&str, &str); 6] = [
    ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
    ("group", "root:x:0:\n"),
    ("containers.conf", ""),
    ("registries.conf", ""),
    ("storage.conf", "[storage]\ndriver = \"vfs\"\n"),
    ("policy.json", "{\"default\":[{\"type\":\"insecureAcceptAnything\"}]}\n"),
];

/// Where what programs print goes.
pub type Told = mpsc::Sender<Vec<u8>>;

/// What is to be built.
#[derive(Clone, Default)]
pub struct Recipe {
    /// The Dockerfile.
    pub text: String,
    /// Values of its `ARG`s.
    pub args: Vec<(String, String)>,
    /// Labels of the image.
    pub labels: Vec<(String, String)>,
}

/// Without what a client wants built.
impl fmt::Debug for Recipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recipe").finish_non_exhaustive()
    }
}

/// A build. Dropped, its programs are killed; its folder goes with [`Build::end`], or with the next
/// start of the agent.
#[derive(Debug)]
pub struct Build {
    folder: PathBuf,
    sandbox: Sandbox,
    note: Mutex<Note>,
}

impl Build {
    pub(super) async fn begin(
        task: &TaskId,
        folder: &Path,
        sandbox: Sandbox,
    ) -> Result<Self, DriverError> {
        let made = tokio::fs::DirBuilder::new().mode(0o700).create(folder).await;
        made.map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => {
                let text = format!("task {task} has begun a build already");
                DriverError::refused(Code::DatasetExists, text)
            }
            _ => files::failed("create", folder, error),
        })?;
        let note = Note { task: task.clone(), process: None, published: None, snapshot: None };
        note.write(folder).await?;
        for name in [ETC, CONTEXT, "tmp"] {
            files::make_folder(&folder.join(name)).await?;
        }
        for (name, content) in ETC_FILES {
            write(&folder.join(ETC).join(name), content).await?;
        }
        write(&folder.join(IGNORED), "").await?;
        Ok(Self { folder: folder.to_owned(), sandbox, note: Mutex::new(note) })
    }

    /// Unpacks what a client sends as the files to build from.
    ///
    /// # Errors
    /// `InvalidParameters`: it is no archive, or one that leads outside; `StoreFull`.
    pub async fn unpack(&self, from: impl Read + Send + 'static) -> Result<(), DriverError> {
        let folder = self.folder.join(CONTEXT);
        self.aside(move || context::unpack(from, &folder)).await
    }

    /// The Dockerfile at this path among the files. What it ignores is noted.
    ///
    /// # Errors
    /// `InvalidParameters`: there is none that can be one.
    pub async fn dockerfile(&self, path: &str) -> Result<String, DriverError> {
        let (folder, name) = (self.folder.join(CONTEXT), path.to_owned());
        let (text, ignored) = self
            .aside(move || {
                let text = context::read(&folder, &name, MAX_DOCKERFILE_BYTES)?;
                let ignored = context::read(&folder, ".dockerignore", MAX_DOCKERFILE_BYTES)?;
                Ok((text, ignored))
            })
            .await?;
        let missing = || refused(format!("there is no {path:?} in the context"));
        let text = String::from_utf8(text.ok_or_else(missing)?);
        let text = text.map_err(|_| refused(format!("{path:?} is no text")))?;
        if let Some(ignored) = ignored {
            write(&self.folder.join(IGNORED), ignored).await?;
        }
        Ok(text)
    }

    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, untar::Fault> + Send + 'static,
    ) -> Result<T, DriverError> {
        #[expect(clippy::disallowed_methods, reason = "a client and the disk are waited for")]
        let done = tokio::task::spawn_blocking(work).await;
        let done = done.map_err(|error| DriverError::failed("read what is to be built", error))?;
        done.map_err(context::refusal)
    }

    /// Makes an image known to the build under a name; its files are those of a folder.
    ///
    /// # Errors
    /// `InvalidParameters`: no image can have the name; or the host failed.
    pub async fn add_base(
        &self,
        name: &str,
        root: &Path,
        runtime: &RuntimeConfig,
    ) -> Result<(), DriverError> {
        let reference = reference(name)?;
        let layout = Layout::make(self.layout_folder()).await?;
        let (to, from) = (layout.layer(), root.to_owned());
        let archived = beside("pack an image", (), move |stop| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let opened = rustix::fs::open(&from, flags, Mode::empty());
            let opened = opened.map_err(|error| untar::host("open", &from, error.into()))?;
            archive_here(std::os::fd::AsFd::as_fd(&opened), &to, stop)
        });
        let archived = archived.await?;
        layout.finish(archived.size_bytes, &archived.sha256, runtime).await?;
        self.take_in(&reference).await
    }

    /// As [`Build::add_base`], of a layer as it comes.
    ///
    /// # Errors
    /// As there; `StoreFull`.
    pub async fn add_layer(
        &self,
        name: &str,
        layer: &mut dyn DiskSource,
        runtime: &RuntimeConfig,
    ) -> Result<(), DriverError> {
        let reference = reference(name)?;
        let layout = Layout::make(self.layout_folder()).await?;
        let path = layout.layer();
        let failed = |error| files::failed("write", &path, error);
        let mut file = tokio::fs::File::create(&path).await.map_err(failed)?;
        let (mut sum, mut size_bytes) = (Sha256::new(), 0_u64);
        while let Some(bytes) = layer.next().await? {
            self.check_room().await?;
            let (data, mut zeros) = match bytes {
                DiskBytes::Data(data) => (data, 0),
                DiskBytes::Zeros(count) => (Vec::new(), count),
            };
            sum.update(&data);
            file.write_all(&data).await.map_err(failed)?;
            size_bytes += u64::try_from(data.len()).unwrap_or(u64::MAX) + zeros;
            while zeros > 0 {
                let length = usize::try_from(zeros).unwrap_or(usize::MAX).min(PIECE_BYTES);
                let piece = &[0; PIECE_BYTES][..length];
                sum.update(piece);
                file.write_all(piece).await.map_err(failed)?;
                zeros -= u64::try_from(length).unwrap_or(zeros);
            }
        }
        file.flush().await.map_err(failed)?;
        layout.finish(size_bytes, &hex::encode(sum.finalize()), runtime).await?;
        self.take_in(&reference).await
    }

    fn layout_folder(&self) -> PathBuf {
        self.folder.join("base")
    }

    async fn take_in(&self, reference: &str) -> Result<(), DriverError> {
        let from = format!("oci:{HOME}/base");
        let words = ["pull", "--quiet", "--signature-policy", "/etc/policy.json", &from];
        let id = self.program(&words, None).await?;
        self.program(&["tag", id.trim(), reference], None).await?;
        files::remove_folder(&self.layout_folder()).await
    }

    /// Builds, and packs the image as a `docker-archive`; returns its digest, `sha256:…`. What is printed
    /// meanwhile goes to `told`.
    ///
    /// # Errors
    /// `InvalidParameters`: it does not build, for this reason; `StoreFull`.
    pub async fn run(&self, recipe: &Recipe, told: &Told) -> Result<String, DriverError> {
        write(&self.folder.join(DOCKERFILE), &recipe.text).await?;
        let at = |name: &str| format!("{HOME}/{name}");
        let mut words: Vec<String> = ["bud", "--signature-policy", "/etc/policy.json"]
            .into_iter()
            // Nothing is fetched, and whoever is in a layer can't leave it.
            .chain(["--isolation", "chroot", "--pull-never", "--cap-drop", "CAP_SYS_CHROOT"])
            .chain(["--format", "docker"])
            .map(str::to_owned)
            .collect();
        for (option, value) in
            [("--iidfile", at(DIGEST)), ("--file", at(DOCKERFILE)), ("--ignorefile", at(IGNORED))]
        {
            words.extend([option.to_owned(), value]);
        }
        words.extend(recipe.args.iter().map(|(name, value)| format!("--build-arg={name}={value}")));
        words.extend(recipe.labels.iter().map(|(name, value)| format!("--label={name}={value}")));
        words.push(at(CONTEXT));
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.program(&words, Some(told)).await?;
        let digest = files::read(&self.folder.join(DIGEST)).await?.unwrap_or_default();
        let digest = String::from_utf8_lossy(&digest).trim().to_owned();
        let to = format!("docker-archive:{}", at(RESULT));
        let words = ["push", "--quiet", "--signature-policy", "/etc/policy.json", &digest, &to];
        self.program(&words, None).await?;
        Ok(digest)
    }

    /// The image's file, once it was built.
    ///
    /// # Errors
    /// It can't be opened.
    pub async fn result(&self) -> Result<impl DiskSource + use<>, DriverError> {
        let path = self.folder.join(RESULT);
        let opened = tokio::fs::File::open(&path).await;
        Ok(ResultFile(opened.map_err(|error| files::failed("open", &path, error))?))
    }

    /// Notes that an image is about to be published, or that it is nobody's to take back any more.
    ///
    /// # Errors
    /// The host failed.
    pub async fn note(&self, published: Option<Published>) -> Result<(), DriverError> {
        let mut note = self.note.lock().await;
        note.published = published;
        note.write(&self.folder).await
    }

    /// What was noted last.
    pub async fn published(&self) -> Option<Published> {
        self.note.lock().await.published.clone()
    }

    /// Notes that a snapshot is about to be taken for it.
    ///
    /// # Errors
    /// The host failed.
    pub async fn note_snapshot(&self, vm: VmUuid, name: &str) -> Result<(), DriverError> {
        let mut note = self.note.lock().await;
        note.snapshot = Some((vm, name.to_owned()));
        note.write(&self.folder).await
    }

    /// Removes all that is left of it.
    ///
    /// # Errors
    /// The host failed.
    pub async fn end(&self) -> Result<(), DriverError> {
        self.sandbox.groups.end().await?;
        files::remove_folder(&self.folder).await
    }

    async fn check_room(&self) -> Result<(), DriverError> {
        let free_bytes = files::space_beside(&self.folder).await?.available_bytes;
        if free_bytes >= RESERVE_BYTES {
            return Ok(());
        }
        Err(storage::store_full(format!(
            "a build leaves {RESERVE_BYTES} bytes free, and there are {free_bytes}"
        )))
    }

    /// Runs a command of `buildah` to its end; returns the last of what it printed.
    async fn program(&self, words: &[&str], told: Option<&Told>) -> Result<String, DriverError> {
        self.check_room().await?;
        let mut argv: Vec<String> =
            [BUILDAH, "--storage-driver", "vfs", "--root"].into_iter().map(str::to_owned).collect();
        argv.push(format!("{HOME}/storage"));
        let global = ["--runroot", "/run/storage", "--registries-conf", "/etc/registries.conf"];
        argv.extend(global.iter().chain(words).map(|&word| word.to_owned()));
        let started = self.sandbox.start(&argv, async |process| {
            let mut note = self.note.lock().await;
            note.process = Some(process);
            note.write(&self.folder).await
        });
        let mut running: Running<'_> = started.await?;
        let out = forward(running.child.take_stdout(), told);
        let complaints = forward(running.child.take_stderr(), told);
        let ended = async {
            let (printed, complaints) = tokio::join!(out, complaints);
            running.wait().await.map(|exit| (exit, printed, complaints))
        };
        let full = async {
            loop {
                tokio::time::sleep(LOOK).await;
                if let Err(full) = self.check_room().await {
                    return full;
                }
            }
        };
        let (exit, printed, complaints) = tokio::select! {
            ended = ended => ended?,
            full = full => return Err(full),
        };
        if exit.success() {
            return Ok(String::from_utf8_lossy(&printed).into_owned());
        }
        let said = String::from_utf8_lossy(&complaints);
        let said = said.trim().lines().last().unwrap_or("it said nothing");
        Err(refused(format!("{} of {BUILDAH}: {exit}: {said}", words[0])))
    }
}

/// Hands on what a program prints, and returns the end of it.
async fn forward(from: Option<impl AsyncRead + Unpin>, told: Option<&Told>) -> Vec<u8> {
    let mut tail = Vec::new();
    let Some(mut from) = from else { return tail };
    let mut buffer = vec![0; PIECE_BYTES];
    // A pipe that breaks has no more to say, like one that ends.
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        tail.extend_from_slice(&buffer[..read]);
        tail.drain(..tail.len().saturating_sub(TAIL_BYTES));
        if let Some(told) = told {
            // Without a client it goes on to its end all the same, unless somebody drops it.
            let _gone = told.send(buffer[..read].to_vec()).await;
        }
    }
    tail
}

fn reference(name: &str) -> Result<String, DriverError> {
    dockerfile::reference(name).ok_or_else(|| refused(format!("no image can be called {name:?}")))
}

fn refused(text: String) -> DriverError {
    DriverError::refused(Code::InvalidParameters, text)
}

async fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), DriverError> {
    let written = tokio::fs::write(path, content).await;
    written.map_err(|error| files::failed("write", path, error))
}

/// The file of an image that was built.
struct ResultFile(tokio::fs::File);

#[async_trait]
impl DiskSource for ResultFile {
    async fn next(&mut self) -> Result<Option<DiskBytes>, DriverError> {
        let mut piece = vec![0; FILE_PIECE_BYTES];
        let read = self.0.read(&mut piece).await;
        let read =
            read.map_err(|error| DriverError::failed("read an image that was built", error))?;
        piece.truncate(read);
        Ok((read > 0).then_some(DiskBytes::Data(piece)))
    }
}
