//! `muster vm`: virtual machines.

use clap::{Subcommand, ValueEnum};
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::{ServerUuid, VmUuid};
use serde_json::{Value, json};

use crate::client::Client;
use crate::output::{Output, member};
use crate::wait::WaitArgs;
use crate::{CliError, console, pick, vm_create, vm_screenshot, vm_snapshot, vm_top, vm_update};

pub(crate) const MACHINE: &str = "Uuid, its beginning, or alias";

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Places and creates a machine.
    Create(Box<vm_create::Args>),
    /// Lists the machines of all nodes, also of those that are away.
    List {
        /// Only machines on this server.
        #[arg(long)]
        server: Option<String>,
        /// Only machines in this state.
        #[arg(long)]
        state: Option<String>,
        /// Only machines with this alias.
        #[arg(long)]
        alias: Option<String>,
    },
    /// Shows what machines use: CPU, memory, disks, network, the busiest first.
    Top(vm_top::Args),
    /// Shows a machine's record.
    Get {
        #[arg(help = MACHINE)]
        vm: String,
    },
    /// Starts a stopped machine.
    Start(Start),
    /// Asks the guest to shut down; ends it if it does not.
    Stop(Action),
    /// Shuts the guest down and starts it again.
    Reboot(Action),
    /// Ends a machine at once, as if its power were cut.
    Kill(Action),
    /// Changes a machine's properties, tags or metadata.
    Update(Box<vm_update::Update>),
    /// Replaces a machine's boot disk by one made from another image.
    Reprovision(vm_update::Reprovision),
    /// Takes, lists and deletes snapshots, and goes back to them.
    #[command(subcommand)]
    Snapshot(vm_snapshot::Args),
    /// Takes a picture of what a machine's display shows.
    Screenshot(vm_screenshot::Args),
    /// Destroys a machine and its disks.
    Delete(Action),
    /// Attaches to a machine's serial console; `~.` at the start of a line leaves it.
    Console(console::Args),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Action {
    #[arg(help = MACHINE)]
    vm: String,
    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    #[command(flatten)]
    action: Action,

    /// Boots from this kind of device, this time only.
    #[arg(long, value_enum, value_name = "DEVICE")]
    boot_once: Option<BootDevice>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum BootDevice {
    Disk,
    Cdrom,
    Network,
}

impl BootDevice {
    fn letter(self) -> &'static str {
        match self {
            Self::Disk => "c",
            Self::Cdrom => "d",
            Self::Network => "n",
        }
    }
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::Create(args) => vm_create::run(client, output, *args).await,
        Args::List { server, state, alias } => list(client, output, server, state, alias).await,
        Args::Top(args) => vm_top::run(client, output, args).await,
        Args::Get { vm } => output.object(pick::vm(client, &vm).await?.json()),
        Args::Start(Start { action, boot_once }) => {
            let once = boot_once.map(|device| json!({ "once": device.letter() }));
            act(client, output, action, "start", once.unwrap_or(json!({}))).await
        }
        Args::Stop(action) => act(client, output, action, "stop", json!({})).await,
        Args::Reboot(action) => act(client, output, action, "reboot", json!({})).await,
        Args::Kill(action) => act(client, output, action, "kill", json!({})).await,
        Args::Delete(action) => act(client, output, action, "delete", json!({})).await,
        Args::Update(args) => vm_update::run(client, output, *args).await,
        Args::Reprovision(args) => vm_update::reprovision(client, output, args).await,
        Args::Snapshot(args) => vm_snapshot::run(client, output, args).await,
        Args::Screenshot(args) => vm_screenshot::run(client, output, args).await,
        Args::Console(args) => console::run(client, args).await,
    }
}

async fn list(
    client: &Client,
    output: &Output,
    server: Option<String>,
    state: Option<String>,
    alias: Option<String>,
) -> Result<(), CliError> {
    let server = match server {
        Some(name) => Some(pick::server(client, &name).await?.record.uuid.to_string()),
        None => None,
    };
    let filters = [("server_uuid", server), ("state", state), ("alias", alias)];
    let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
    let vms = client.get_all("/vms", &query, pick::vm_uuid).await?;
    output.list(
        &vms,
        &[
            ("UUID", member!(vm.uuid)),
            ("ALIAS", member!(index.alias)),
            ("STATE", member!(vm.state)),
            ("MIB", member!(vm.max_physical_memory)),
            ("BRAND", member!(vm.brand)),
            ("SERVER", member!(server_uuid)),
        ],
    )
}

/// A machine and the node it is on.
#[derive(Debug)]
pub(crate) struct Target {
    uuid: VmUuid,
    server: ServerUuid,
}

impl Target {
    /// Finds a machine by uuid, its beginning, or alias.
    pub(crate) async fn find(client: &Client, name: &str) -> Result<Self, CliError> {
        let found = pick::vm(client, name).await?;
        Ok(Self { uuid: found.vm.uuid, server: found.server_uuid })
    }

    /// The path of the machine on its node, and more.
    pub(crate) fn path(&self, more: &str) -> String {
        format!("/servers/{}/vms/{}{more}", self.server, self.uuid)
    }

    /// Waits for the task that an answer names, and says how it ended.
    pub(crate) async fn follow(
        &self,
        client: &Client,
        output: &Output,
        wait: WaitArgs,
        title: &str,
        started: &TaskStarted,
    ) -> Result<(), CliError> {
        let (vm, server) = (&self.uuid, &self.server);
        let object = json!({ "vm_uuid": vm, "server_uuid": server, "id": started.id });
        wait.follow_and_say(client, output, title, started, &object).await
    }
}

/// Runs one of the actions that make a task on the machine's node.
async fn act(
    client: &Client,
    output: &Output,
    Action { vm, wait }: Action,
    action: &str,
    body: Value,
) -> Result<(), CliError> {
    let target = Target::find(client, &vm).await?;
    let answer = match action {
        "delete" => client.delete(&target.path("")).await?,
        other => client.post(&target.path(&format!("/{other}")), &body).await?,
    };
    target.follow(client, output, wait, &format!("{action} {vm}"), &answer).await
}
