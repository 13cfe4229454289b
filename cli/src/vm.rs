//! `muster vm`: virtual machines. The subcommands that only act on machines are in `vm_act`.

use clap::Subcommand;
use muster_shared::api::task::TaskStarted;
use muster_shared::api::vm::FleetVm;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::vm::SpecFile;
use serde_json::{Value, json};

use crate::cell::Cell;
use crate::client::Client;
use crate::output::{Output, write_out};
use crate::wait::WaitArgs;
use crate::{
    CliError, console, pick, vm_act, vm_cp, vm_create, vm_edit, vm_exec, vm_export, vm_export_spec,
    vm_get, vm_import, vm_info, vm_list, vm_login, vm_screenshot, vm_snapshot, vm_top, vm_update,
};

pub(crate) const MACHINE: &str = "Uuid, its beginning, or alias";

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Creates a VM on the best server.
    Create(Box<vm_create::Args>),
    /// Lists VMs on all servers, including offline ones.
    List(vm_list::Args),
    /// Shows live CPU, memory, disk and network use of VMs, busiest first.
    Top(vm_top::Args),
    /// Shows a VM: state, sizes, disks, network interfaces, metadata, snapshots.
    Get {
        #[arg(help = MACHINE)]
        vm: String,
    },
    /// Starts VMs.
    Start(vm_act::Start),
    /// Shuts guests down; powers off those that do not react in time.
    Stop(vm_act::Halt),
    /// Shuts guests down and starts them again.
    Reboot(vm_act::Halt),
    /// Powers VMs off at once, as if the plug were pulled.
    Kill(vm_act::Kill),
    /// Opens a VM's spec file in an editor and applies the changes.
    Edit(vm_edit::Args),
    /// Writes a VM with the content of its disks to a file.
    Export(vm_export::Args),
    /// Makes a VM from a file that `vm export` wrote.
    Import(vm_import::Args),
    /// Prints a spec file that creates a VM like this one.
    ExportSpec {
        #[arg(help = MACHINE)]
        vm: String,
    },
    /// Prints the JSON schema of spec files, for editors and validators.
    Schema,
    /// Changes a VM's properties, tags or metadata.
    Update(Box<vm_update::Update>),
    /// Replaces a VM's boot disk with a fresh one from an image.
    Reprovision(vm_update::Reprovision),
    /// Creates, lists, deletes and rolls back to snapshots.
    #[command(subcommand)]
    Snapshot(vm_snapshot::Args),
    /// Runs a command in a VM's guest.
    Exec(vm_exec::Args),
    /// Copies a file into a VM's guest, or out of it.
    Cp(vm_cp::Args),
    /// Sets the password or the SSH keys of a user in a VM's guest.
    SetLogin(vm_login::Args),
    /// Takes a screenshot of a VM's display.
    Screenshot(vm_screenshot::Args),
    /// Shows a VM's live state as the hypervisor reports it.
    Info(vm_info::Info),
    /// Shows a VM's hypervisor process.
    Proc {
        #[arg(help = MACHINE)]
        vm: String,
    },
    /// Opens a local port for a VNC viewer of a VM's display.
    Vnc(vm_info::Vnc),
    /// Destroys VMs and their disks.
    Delete(vm_act::Delete),
    /// Attaches to a VM's serial console; Ctrl-] detaches.
    Console(console::Args),
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::Create(args) => vm_create::run(client, output, *args).await,
        Args::List(args) => vm_list::run(client, output, args).await,
        Args::Top(args) => vm_top::run(client, output, args, false).await,
        Args::Get { vm } => vm_get::run(client, output, &vm).await,
        Args::Start(args) => vm_act::start(client, output, args).await,
        Args::Stop(args) => vm_act::stop(client, output, args).await,
        Args::Reboot(args) => vm_act::reboot(client, output, args).await,
        Args::Kill(args) => vm_act::kill(client, output, args).await,
        Args::Delete(args) => vm_act::delete(client, output, args).await,
        Args::Edit(args) => vm_edit::run(client, output, args).await,
        Args::Export(args) => vm_export::run(client, output, args).await,
        Args::Import(args) => vm_import::run(client, output, args).await,
        Args::ExportSpec { vm } => vm_export_spec::run(client, output, &vm).await,
        Args::Schema => write_out(&format!("{:#}", SpecFile::json_schema())),
        Args::Update(args) => vm_update::run(client, output, *args).await,
        Args::Reprovision(args) => vm_update::reprovision(client, output, args).await,
        Args::Snapshot(args) => vm_snapshot::run(client, output, args).await,
        Args::Exec(args) => vm_exec::run(client, output, args).await,
        Args::Cp(args) => vm_cp::run(client, output, args).await,
        Args::SetLogin(args) => vm_login::run(client, output, args).await,
        Args::Screenshot(args) => vm_screenshot::run(client, output, args).await,
        Args::Info(args) => vm_info::info(client, output, args).await,
        Args::Proc { vm } => vm_info::process(client, output, &vm).await,
        Args::Vnc(args) => vm_info::vnc(client, args).await,
        Args::Console(args) => console::run(client, args).await,
    }
}

/// A machine and the node it is on.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) uuid: VmUuid,
    pub(crate) owner: Option<String>,
    pub(crate) server: ServerUuid,
    pub(crate) state: Option<String>,
    alias: Option<String>,
}

impl Target {
    /// Finds a machine by uuid, its beginning, or alias.
    pub(crate) async fn find(client: &Client, name: &str) -> Result<Self, CliError> {
        Ok(Self::of(&*pick::vm(client, name).await?))
    }

    /// One that is found already.
    pub(crate) fn of(vm: &FleetVm) -> Self {
        Self {
            uuid: vm.vm.uuid,
            owner: vm.vm.owner_uuid.clone(),
            server: vm.server_uuid,
            state: vm.vm.state.clone(),
            alias: vm.index.alias.clone(),
        }
    }

    /// What people call it, and which one that is.
    pub(crate) fn shown(&self) -> String {
        let id = Cell::id(&self.uuid).text;
        self.alias.as_ref().map_or_else(|| self.uuid.to_string(), |alias| format!("{alias} ({id})"))
    }

    /// The path of the machine on its node, and more.
    pub(crate) fn path(&self, more: &str) -> String {
        format!("/servers/{}/vms/{}{more}", self.server, self.uuid)
    }

    /// For programs: the task that was started.
    pub(crate) fn object(&self, started: &TaskStarted) -> Value {
        json!({ "vm_uuid": self.uuid, "server_uuid": self.server, "id": started.id })
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
        wait.follow_and_say(client, output, title, started, &self.object(started)).await
    }
}
