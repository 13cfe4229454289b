//! The agent's daemon: arguments, configuration, signals and exit codes.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use muster_agent::config::{Config, CoordinatorConfig, ENVIRONMENT_PREFIX};
use muster_agent::debug_http::{self, Local};
use muster_agent::drivers::compute::{oci, qemu};
use muster_agent::host::memory;
use muster_agent::legacy::{LegacyListener, Poster};
use muster_agent::startup::{self, Folders};
use muster_agent::tasks::HANDLERS;
use muster_agent::tasks::registry::Registry;
use muster_agent::{Agent, Running, early_command, shutdown_command, sysinfo_command};
use muster_shared::clock::SystemClock;
use muster_shared::config::{
    ConfigCommand, EXIT_CONFIG, EXIT_FAILED, ListenAddress, Loaded, Sources,
};
use muster_shared::entropy::{Entropy as _, SeededEntropy, SharedEntropy};
use muster_shared::error_chain::Chain;
use muster_shared::telemetry::{self, LogControl};
use muster_shared::tls::{self, TlsError};
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

const EXAMPLES: &str = "\
Examples:
  muster-agent --coordinator ws://127.0.0.1:8480 --data-dir ./agent
      Serve a coordinator on this machine; `curl 127.0.0.1:5309/ping` answers.
  muster-agent --coordinator ws://127.0.0.1:8480 --data-dir ./a2 --listen 127.0.0.1:0 \\
      --server-uuid 564dfd8e-…
      A second agent on one machine, as another server.
  muster-agent fault-points --task machine_create
      Where a test can have the agent killed, with MUSTER_FAULT=<point>:kill.
  muster-agent config check --config /etc/muster/agent.toml
      Say whether it could start with that file; `config show` prints every key and its source.
  muster-agent --data-dir ./agent sysinfo -p
      What that agent tells of the node, for a shell; -f collects it anew.

Every key can also be an environment variable: MUSTER_AGENT__COMPUTE__ACCEL is compute.accel.

Exit status: 0 after SIGTERM or SIGINT (guests go on), 64 for a bad configuration, 70 when the disk
of its journal failed or its data folder is gone (start it again), 1 for anything else.";

/// Nothing can be recorded any more.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the task journal failed, see the log")]
struct JournalFailed;

/// What was noted is gone, and what would be noted is lost.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the data folder is lost: {0} is gone")]
struct DataLost(String);

/// Tasks that run get so long to end before the agent stops; the others go on at the next start.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time to tell coordinators, and for a step that runs, before the agent ends without its data.
const FAREWELL: Duration = Duration::from_secs(1);
/// An engine or a link that has not moved for so long is stuck.
const STUCK: Duration = Duration::from_secs(10);
/// How often the process looks at itself.
const LOOK: Duration = Duration::from_secs(5);

/// Runs the virtual machines of one compute node: owns its VMs, disks and images, does what
/// coordinators ask, and tells them how it is.
#[derive(Debug, Parser)]
#[command(name = "muster-agent", version, after_help = EXAMPLES)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// A coordinator's URL, e.g. ws://10.0.0.2:8480; may be repeated
    #[arg(long, value_name = "URL")]
    coordinator: Vec<String>,
    /// Folder of everything that is stored [default: /var/lib/muster-agent]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// Folder of sockets, with a short path [default: made from the data folder]
    #[arg(long, value_name = "DIR", global = true)]
    run_dir: Option<PathBuf>,
    /// The server this agent speaks for [default: the firmware's UUID]
    #[arg(long, value_name = "UUID")]
    server_uuid: Option<String>,
    /// Where the local HTTP is served [default: 127.0.0.1:5309]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<String>,
    /// TOML file; docs/configuration.md explains every key
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Sets one key, e.g. compute.accel=tcg; may be repeated
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    set: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Looks at the configuration, without starting anything.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Prints the points at which a test can have the agent killed, as a JSON array.
    FaultPoints {
        /// Only those of this task.
        #[arg(long)]
        task: Option<String>,
    },
    /// Prints what the agent that runs here tells of the node, as JSON; name its folder with
    /// --run-dir or --data-dir before.
    Sysinfo {
        /// Collects it anew.
        #[arg(short, long)]
        force: bool,
        /// Prints lines KEY='value' for a shell.
        #[arg(short, long)]
        parsable: bool,
    },
    /// Shuts all guests of this node down, with or without its agent: the last in the order of
    /// `muster:boot_priority` first, each within its `muster:shutdown_timeout` (both in
    /// internal_metadata), then by force. Guests with autoboot start again with the host.
    ShutdownGuests {
        /// Longest time of a guest that has none of its own.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        timeout: u64,
        /// Does nothing unless the host itself is going down; for its service manager.
        #[arg(long)]
        only_with_host: bool,
    },
    /// Carries out a factory reset that was asked for; for the boot, before pools are mounted and the
    /// agent starts.
    Early,
    /// Watches over one container, beside the agent, which starts it.
    #[command(hide = true)]
    ContainerMonitor {
        /// The container's bundle.
        folder: PathBuf,
    },
    /// Empties the logs of guests that grew too long and keeps their end, as the agent does while it
    /// runs; for a timer, since guests print on without their agent.
    TrimLogs,
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
    if let Some(Command::FaultPoints { task }) = &args.command {
        return fault_points(task.as_deref());
    }
    if let Some(Command::ContainerMonitor { folder }) = &args.command {
        return container_monitor(folder);
    }
    let command = args.command.take();
    let configured = match command {
        Some(Command::Config(command)) => look(args, command).map(|()| None),
        _ => configure(args, command.is_none()).map(Some),
    };
    let (config, log) = match configured {
        Ok(Some(configured)) => configured,
        Ok(None) => return ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-agent: {error}");
            return EXIT_CONFIG.into();
        }
    };
    let done = match command {
        Some(Command::Sysinfo { force, parsable }) => print_sysinfo(&config, force, parsable),
        Some(Command::ShutdownGuests { timeout, only_with_host }) => {
            let timeout = Duration::from_secs(timeout);
            shutdown_guests(&config, shutdown_command::Options { timeout, only_with_host })
        }
        Some(Command::Early) => early(&config),
        Some(Command::TrimLogs) => qemu::trim_logs(&config.data_dir)
            .with_context(|| format!("look for guests in {}", config.data_dir.display())),
        Some(
            Command::FaultPoints { .. } | Command::ContainerMonitor { .. } | Command::Config(_),
        )
        | None => run(&config, &log),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("muster-agent: {error:#}");
            exit_code(&error)
        }
    }
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(|cause| cause.is::<TlsError>()) {
        EXIT_CONFIG.into()
    } else if error.is::<JournalFailed>() || error.is::<DataLost>() {
        EXIT_FAILED.into()
    } else {
        ExitCode::FAILURE
    }
}

fn container_monitor(folder: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(oci::monitor(folder))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn fault_points(task: Option<&str>) -> ExitCode {
    let registry = Registry::new(HANDLERS);
    if let Some(unknown) = task.filter(|task| registry.get(task).is_none()) {
        eprintln!("muster-agent: there is no task {unknown:?}");
        return EXIT_CONFIG.into();
    }
    println!("{}", serde_json::json!(registry.fault_points(task)));
    ExitCode::SUCCESS
}

fn print_sysinfo(config: &Config, force: bool, parsable: bool) -> anyhow::Result<()> {
    let text = sysinfo_command::run(&config.run_folder(), force, parsable)?;
    std::io::stdout().write_all(text.as_bytes()).context("write to stdout")
}

fn shutdown_guests(config: &Config, options: shutdown_command::Options) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let (data_dir, run_dir) = (&config.data_dir, config.run_folder());
    let say = |line: String| eprintln!("muster-agent: {line}");
    let ended = shutdown_command::run(data_dir, &run_dir, options, say);
    let ended = runtime.context("start the runtime")?.block_on(ended)?;
    anyhow::ensure!(ended, "some guests still run");
    Ok(())
}

fn early(config: &Config) -> anyhow::Result<()> {
    let folders = Folders::open(config)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let say = |line: String| eprintln!("muster-agent: {line}");
    let done = async {
        let host = startup::early_host(config, &folders).await?;
        early_command::run(&folders, host.as_ref(), say).await
    };
    runtime.context("start the runtime")?.block_on(done)
}

/// Reads and checks the configuration and starts logging; nothing is opened or bound.
fn configure(args: Args, serves: bool) -> Result<(Config, LogControl), String> {
    let config = load(args)?.config;
    let (instance, clock) = (SeededEntropy::from_os().uuid(), Arc::new(SystemClock::new()));
    let log = telemetry::start(&config.log, instance, clock).map_err(|error| error.to_string())?;
    for warning in config.warnings().iter().filter(|_| serves) {
        tracing::warn!("{warning}");
    }
    Ok((config, log))
}

/// Prints what `config check` and `config show` say.
fn look(args: Args, command: ConfigCommand) -> Result<(), String> {
    let Loaded { config, settings } = load(args)?;
    if matches!(command, ConfigCommand::Check) {
        let CoordinatorConfig { urls, ca, .. } = &config.coordinator;
        let identity = config.coordinator.identity();
        // Without TLS nothing needs an authority.
        if identity.is_some() || ca.is_some() || urls.iter().any(|url| url.starts_with("wss:")) {
            tls::client(ca.as_deref(), identity.as_ref())
                .map_err(|error| format!("configuration: coordinator: {}", Chain(&error)))?;
        }
    }
    let page = command.page(&settings, &config.warnings());
    std::io::stdout().write_all(page.as_bytes()).map_err(|error| format!("print: {error}"))
}

fn load(args: Args) -> Result<Loaded<Config>, String> {
    let urls = (!args.coordinator.is_empty()).then_some(args.coordinator);
    let sources = Sources::new(ENVIRONMENT_PREFIX)
        .file(args.config.as_deref())
        .process_environment()
        .set(args.set)
        .flag("coordinator.urls", "--coordinator", urls)
        .flag("data_dir", "--data-dir", args.data_dir)
        .flag("run_dir", "--run-dir", args.run_dir)
        .flag("server_uuid", "--server-uuid", args.server_uuid)
        .flag("listen", "--listen", args.listen);
    sources.load_with_settings().map_err(|error| error.to_string())
}

fn run(config: &Config, log: &LogControl) -> anyhow::Result<()> {
    muster_shared::tls::install_provider();
    let folders = Folders::open(config)?;
    memory::share_heap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(serve(config, &folders, log));
    // A task that was given up may be in the middle of a blocking call.
    runtime.shutdown_timeout(Duration::from_secs(1));
    served
}

async fn serve(config: &Config, folders: &Folders, log: &LogControl) -> anyhow::Result<()> {
    // Taken first, so that a signal during the start is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let mut hangup = signal(SignalKind::hangup()).context("listen for SIGHUP")?;
    let listeners = debug_http::Listeners::bind(&config.listen, &folders.run.join("agent.sock"))
        .await
        .context("serve the local HTTP")?;
    let address = listeners.address().context("read the local HTTP's address")?;
    let legacy = match &config.legacy.listen {
        Some(ListenAddress::Tcp(address)) => {
            let networks = config.legacy.networks.clone();
            let bound = LegacyListener::bind(*address, networks).await;
            Some(bound.context("serve the routes of the original agent")?)
        }
        _ => None,
    };
    // What the sysinfo tells a CNAPI to call.
    let called = legacy.as_ref().map(LegacyListener::address).transpose();
    let called = called.context("read the address of legacy.listen")?;
    let listen = ListenAddress::Tcp(called.unwrap_or(address));
    let (agent, parts) = startup::open(config, folders, &listen, log.ring().clone()).await?;
    let data = folders.presence()?;
    let (clock, entropy, report) =
        (parts.clock.clone(), parts.entropy.clone(), parts.drivers.report.clone());
    tracing::info!(
        server_uuid = %agent.server_uuid, boot_id = agent.boot_id, data_dir = %folders.data.display(),
        run_dir = %folders.run.display(), coordinators = agent.coordinators.len(), "starting"
    );
    let stop = CancellationToken::new();
    let running = Arc::new(Agent::start(agent, parts).await?);
    let token = debug_http::make_token(&folders.data.join("local.token"), &entropy)?;
    let local = Arc::new(Local::new(running.clone(), clock, token));
    if let Some(legacy) = legacy {
        tokio::spawn(legacy.serve(local.clone(), stop.clone()));
    }
    report_to_cnapi(config, &running, &entropy, &stop)?;
    let http = tokio::spawn(listeners.serve(local, stop.clone()));
    announce(address)?;
    tokio::spawn(memory::keep_small());

    let broken = running.broken();
    let mut lost = pin!(data.lost());
    let mut look = tokio::time::interval(LOOK);
    let outcome = loop {
        tokio::select! {
            biased;
            _ = terminate.recv() => break Ok(()),
            _ = interrupt.recv() => break Ok(()),
            () = broken.cancelled() => break Err(JournalFailed.into()),
            lost = &mut lost => {
                let lost = lost.display().to_string();
                running.lose_data(&lost);
                tokio::time::sleep(FAREWELL).await;
                break Err(DataLost(lost).into());
            }
            _ = hangup.recv() => report.poke_sysinfo(),
            _ = look.tick() => beat(&running),
        }
    };
    notify(&[NotifyState::Stopping]);
    tracing::info!("stopping");
    // Without its journal a task does not get any further.
    running.shut_down(if outcome.is_ok() { PATIENCE } else { FAREWELL }).await;
    stop.cancel();
    if tokio::time::timeout(Duration::from_secs(2), http).await.is_err() {
        tracing::warn!("the local HTTP did not stop");
    }
    tracing::info!("stopped");
    outcome
}

/// Registers with a CNAPI that takes reports by POST, if one is configured.
fn report_to_cnapi(
    config: &Config,
    running: &Running,
    entropy: &SharedEntropy,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let Some(url) = &config.legacy.cnapi_url else { return Ok(()) };
    let base = url.parse().context("read legacy.cnapi_url")?;
    let (feed, entropy) = (running.feed.clone(), entropy.clone());
    let poster = Poster::new(base, running.server_uuid, feed, entropy);
    tokio::spawn(poster.context("make an HTTP client")?.run(stop.clone()));
    Ok(())
}

/// Tells the service manager's watchdog that all is well, if it is.
fn beat(running: &Running) {
    if running.is_alive(STUCK) {
        notify(&[NotifyState::Watchdog]);
    } else {
        tracing::error!("a link or the engine is stuck");
    }
}

/// Says where the local HTTP is: one line on stdout, and to systemd.
fn announce(address: std::net::SocketAddr) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "ready {address}").context("write to stdout")?;
    stdout.flush().context("write to stdout")?;
    notify(&[NotifyState::Ready]);
    Ok(())
}

fn notify(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
