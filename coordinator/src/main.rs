//! The coordinator's daemon: arguments, configuration, doors, signals and exit codes.
#![forbid(unsafe_code)]

mod store_command;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;
use muster_coordinator::app::Parts;
use muster_coordinator::config::{Config, ENVIRONMENT_PREFIX, StoreConfig, sapi};
use muster_coordinator::store::KvStore;
use muster_coordinator::{Coordinator, Running, StartError, blobs};
use muster_shared::clock::{Clock as _, SystemClock};
use muster_shared::config::{ConfigCommand, EXIT_CONFIG, EXIT_FAILED, Loaded, Sources};
use muster_shared::entropy::{Entropy as _, SeededEntropy};
use muster_shared::error_chain::Chain;
use muster_shared::folders::{check_own, make_private};
use muster_shared::huge_pages;
use muster_shared::kv::{Engine, KvError, open_as};
use muster_shared::telemetry::{self, LogControl};
use muster_shared::threads::OsThreads;
use muster_shared::tls;
use muster_shared::units::MIB;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use self::store_command::StoreCommand;

/// Requests are many small allocations on several threads; with the C library's allocator these are
/// a fifth of the time that a task takes.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

const EXAMPLES: &str = "\
Examples:
  muster-coordinator --data-dir ./data
      Serve the API on 127.0.0.1:8480; `curl 127.0.0.1:8480/ping` answers.
  muster-coordinator --listen 127.0.0.1:0 --data-dir ./data
      Take any free port; the line `ready ADDR:PORT` on stdout names it.
  muster-coordinator --config coordinator.toml --set log.filter=debug
      Read a file, change one key.
  muster-coordinator config check --config coordinator.toml
      Say whether it could start with that file; `config show` prints every key and its source.

Every key can also be an environment variable: MUSTER_COORDINATOR__API__DRAIN_MS is api.drain_ms.
Off this machine (not loopback, not a unix socket) the API needs TLS (tls.certificate, tls.key), or
security.allow_plaintext with the networks that may be served without.

SIGHUP changes nothing: the configuration is read at the start.

Exit status: 0 after SIGTERM or SIGINT, 64 for a bad configuration, 70 when its disk or one of its
own parts failed (start it again), 1 for anything else. Of `store`: 0 for a sound store, 3 for a
damaged one, 1 if it can't be read. Of `config`: 0 for a valid configuration, else 64.";

/// Tasks that a thread runs before it looks for what came in meanwhile: beside many that have much
/// to send, whoever asks something small is seen soon.
const TASKS_BETWEEN_LOOKS: u32 = 16;

/// A part without which nothing works has failed; the log says which and why.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the store or a background job failed, see the log")]
struct Failed;

/// Runs a datacentre of compute nodes: serves the CNAPI-compatible API, keeps track of which
/// servers are alive, places virtual machines and hands tasks to the servers' agents.
#[derive(Debug, Parser)]
#[command(name = "muster-coordinator", version, after_help = EXAMPLES)]
struct Args {
    /// Where the API is served: IP:PORT or unix:/PATH [default: 127.0.0.1:8480]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// Folder of everything that is stored [default: /var/lib/muster-coordinator]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// TOML file; docs/configuration.md explains every key
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
    /// Sets one key, e.g. api.drain_ms=1000; may be repeated
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    set: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Works on configurations, without starting anything.
    #[command(subcommand)]
    Config(ConfigArgs),
    /// Works on the store of a coordinator that does not run.
    #[command(subcommand)]
    Store(StoreCommand),
}

#[derive(Debug, Subcommand)]
enum ConfigArgs {
    #[command(flatten)]
    Look(ConfigCommand),
    /// Prints the configuration that SAPI metadata of the reference's service `cnapi` stands for.
    ImportSapi {
        /// JSON: a service, a list of one, or its metadata; standard input if it is `-`.
        file: PathBuf,
    },
}

/// Prints what SAPI metadata stands for.
fn import_sapi(file: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", file.display());
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()).map_err(failed)?,
        _ => std::fs::read_to_string(file).map_err(failed)?,
    };
    let document = serde_json::from_str(&text);
    let document = document.map_err(|error| format!("{} is not JSON: {error}", file.display()))?;
    let page = sapi::import(&document).map_err(|error| error.to_string())?;
    std::io::stdout().write_all(page.as_bytes()).map_err(|error| format!("print: {error}"))
}

fn main() -> ExitCode {
    let mut args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // An error here means that stderr is gone, and with it the way to say so.
            drop(error.print());
            return if error.use_stderr() { EXIT_CONFIG.into() } else { ExitCode::SUCCESS };
        }
    };
    let store_command = match args.command.take() {
        Some(Command::Config(ConfigArgs::ImportSapi { file })) => {
            return configured(import_sapi(&file));
        }
        Some(Command::Config(ConfigArgs::Look(command))) => {
            return configured(look(args, command));
        }
        Some(Command::Store(command)) => Some(command),
        None => None,
    };
    let (config, log) = match configure(args) {
        Ok(configured) => configured,
        Err(error) => {
            eprintln!("muster-coordinator: {error}");
            return EXIT_CONFIG.into();
        }
    };
    let done = match store_command {
        Some(command) => store_command::run(&command, &config),
        None => run(&config, log).map(|()| ExitCode::SUCCESS),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("muster-coordinator: {error:#}");
            exit_code(&error)
        }
    }
}

/// The exit code of what only looks at configurations.
fn configured(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-coordinator: {error}");
            EXIT_CONFIG.into()
        }
    }
}

/// Prints what `config check` and `config show` say.
fn look(args: Args, command: ConfigCommand) -> Result<(), String> {
    let Loaded { config, settings } = load(args)?;
    if let (ConfigCommand::Check, Some(identity)) = (command, config.tls.identity()) {
        tls::server(&identity, &config.tls.client_auth())
            .map_err(|error| format!("configuration: tls: {}", Chain(&error)))?;
    }
    let page = command.page(&settings, &config.warnings());
    std::io::stdout().write_all(page.as_bytes()).map_err(|error| format!("print: {error}"))
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if matches!(error.downcast_ref::<StartError>(), Some(StartError::Tls(_))) {
        EXIT_CONFIG.into()
    } else if error.is::<Failed>() {
        EXIT_FAILED.into()
    } else {
        ExitCode::FAILURE
    }
}

/// Reads and checks the configuration and starts logging; nothing is opened or bound.
fn configure(args: Args) -> Result<(Config, LogControl), String> {
    let Loaded { mut config, .. } = load(args)?;
    let (instance, clock) = (SeededEntropy::from_os().uuid(), Arc::new(SystemClock::new()));
    let log = telemetry::start(&config.log, instance, clock).map_err(|error| error.to_string())?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    if let Some(former) = config.former_data_dir(Path::exists) {
        tracing::warn!(
            data_dir = %former.display(),
            "this is where earlier versions kept everything; set data_dir, or stop and move it to {}",
            config.data_dir.display()
        );
        config.data_dir = former;
    }
    Ok((config, log))
}

fn load(args: Args) -> Result<Loaded<Config>, String> {
    let sources = Sources::new(ENVIRONMENT_PREFIX)
        .file(args.config.as_deref())
        .process_environment()
        .set(args.set)
        .flag("listen", "--listen", args.listen)
        .flag("data_dir", "--data-dir", args.data_dir);
    sources.load_with_settings().map_err(|error| error.to_string())
}

fn run(config: &Config, log: LogControl) -> anyhow::Result<()> {
    let data = &config.data_dir;
    make_private(data).with_context(|| format!("create {}", data.display()))?;
    // Who can write there can have files overwritten through links.
    check_own(data).with_context(|| format!("use the data folder {}", data.display()))?;
    let _lock = lock(data)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .event_interval(TASKS_BETWEEN_LOOKS)
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(config, log))
}

/// Only one coordinator may use a data folder; the kernel frees the lock when the process ends.
fn lock(data: &Path) -> anyhow::Result<Flock<File>> {
    let path = data.join("lock");
    let file = File::options().create(true).truncate(false).write(true).open(&path);
    let file = file.with_context(|| format!("open {}", path.display()))?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        Errno::EWOULDBLOCK => {
            anyhow::anyhow!("another coordinator uses the data folder {}", data.display())
        }
        errno => anyhow::anyhow!("lock {}: {}", path.display(), errno.desc()),
    })
}

async fn serve(config: &Config, log: LogControl) -> anyhow::Result<()> {
    // Taken first, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    // Its default would end the process without a drain.
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let store_tasks = TaskTracker::new();
    let parts = open_parts(config, &store_tasks).await?;
    let clock = parts.clock.clone();
    let running = Coordinator::start(config, parts, Some(log)).await?;
    announce(&running)?;
    let memory = async move { huge_pages::keep(&OsThreads, &*clock).await };
    let _memory = AbortOnDropHandle::new(tokio::spawn(memory));
    let watchdog = sd_notify::watchdog_enabled();
    let mut beat = tokio::time::interval(watchdog.map_or(Duration::from_hours(1), |w| w / 3));
    let failed = loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break false,
            _ = interrupt.recv() => break false,
            () = running.app.failed() => break true,
            _ = hangup.recv() => tracing::info!("SIGHUP changes nothing, restart to configure"),
            _ = beat.tick() => if watchdog.is_some() { notify(&[NotifyState::Watchdog]) },
        }
    };
    notify(&[NotifyState::Stopping]);
    tracing::info!(drain_ms = config.api.drain_ms, "stopping");
    let cut_off = running.stop().await;
    if cut_off > 0 {
        tracing::warn!(connections = cut_off, "stopped, some connections were cut off");
    } else {
        tracing::info!("stopped");
    }
    if failed { Err(Failed.into()) } else { Ok(()) }
}

async fn open_parts(config: &Config, tasks: &TaskTracker) -> anyhow::Result<Parts> {
    let data = &config.data_dir;
    let clock = Arc::new(SystemClock::new());
    let entropy = Arc::new(SeededEntropy::from_os());
    let threads = Arc::new(OsThreads);
    let StoreConfig { engine, cache_mib } = config.store;
    let folder = config.store_dir();
    check_not_lost(data, &folder)?;
    let opened = open_as(engine, &folder, cache_mib * MIB, threads.as_ref(), clock.wall()).await;
    let kv = opened.map_err(open_hint)?;
    let store = KvStore::open(kv, clock.clone(), tasks).await.context("read the store")?;
    // After the store: the name says that there is one.
    let instance = instance(data, &entropy)?;
    let blobs = blobs::open(config.blobs.url.as_deref(), &data.join("blobs"))?;
    Ok(Parts { clock, entropy, threads, store: Arc::new(store), blobs, instance })
}

/// Names the way out of a damaged store: what it held is not known anywhere else.
fn open_hint(error: KvError) -> anyhow::Error {
    let hint = match error.is_damage() {
        true => {
            "open the store (`muster-coordinator store verify` tells more; bring its folder back from \
             a backup, save what can be read with `muster-coordinator store restore`, or move the \
             data folder away to begin anew)"
        }
        false => "open the store",
    };
    anyhow::Error::new(error).context(hint)
}

/// Refuses to begin anew where a store was: one that was moved away or is not mounted would come back
/// to a coordinator that has given out its numbers a second time.
fn check_not_lost(data: &Path, folder: &Path) -> anyhow::Result<()> {
    let named = data.join(INSTANCE);
    if Engine::is_there(folder) || !named.exists() {
        return Ok(());
    }
    let (folder, named) = (folder.display(), named.display());
    anyhow::bail!(
        "there is no store in {folder}, but {named} is from a coordinator that had one: bring the \
         store's folder back (is its file system mounted?) or restore a backup; to begin anew without \
         its records, remove {named}"
    )
}

/// In the data folder: the coordinator's name.
const INSTANCE: &str = "instance";

/// This coordinator's name among its peers: made at its first start and kept.
fn instance(data: &Path, entropy: &SeededEntropy) -> anyhow::Result<String> {
    let path = data.join(INSTANCE);
    match std::fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => {
            let fits = text.trim().parse::<uuid::Uuid>().map(|uuid| uuid.to_string());
            return fits.with_context(|| {
                format!("read {}, which gets a new name if you remove it", path.display())
            });
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).with_context(|| format!("read {}", path.display())),
    }
    let instance = entropy.uuid().to_string();
    let write = || -> std::io::Result<()> {
        let partial = data.join("instance.new");
        let mut file = File::create(&partial)?;
        writeln!(file, "{instance}")?;
        file.sync_all()?;
        std::fs::rename(&partial, &path)?;
        File::open(data)?.sync_all()
    };
    write().with_context(|| format!("write {}", path.display()))?;
    Ok(instance)
}

/// Says where the API is: one line on stdout, and to systemd.
fn announce(running: &Running) -> anyhow::Result<()> {
    tracing::info!(address = %running.address, "serving the API");
    if let Some(address) = &running.metrics_address {
        tracing::info!(%address, "serving metrics");
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "ready {}", running.address).context("write to stdout")?;
    stdout.flush().context("write to stdout")?;
    notify(&[NotifyState::Ready]);
    Ok(())
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
