//! `muster vm`: virtual machines.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::Client;
use crate::output::{Output, member};
use crate::wait::WaitArgs;
use crate::{CliError, console, pick, vm_create};

const MACHINE: &str = "Uuid, its beginning, or alias";

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
    /// Shows a machine's record.
    Get {
        #[arg(help = MACHINE)]
        vm: String,
    },
    /// Starts a stopped machine.
    Start(Action),
    /// Asks the guest to shut down; ends it if it does not.
    Stop(Action),
    /// Shuts the guest down and starts it again.
    Reboot(Action),
    /// Ends a machine at once, as if its power were cut.
    Kill(Action),
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

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::Create(args) => vm_create::run(client, output, *args).await,
        Args::List { server, state, alias } => list(client, output, server, state, alias).await,
        Args::Get { vm } => output.object(&pick::vm(client, &vm).await?),
        Args::Start(action) => act(client, output, action, "start").await,
        Args::Stop(action) => act(client, output, action, "stop").await,
        Args::Reboot(action) => act(client, output, action, "reboot").await,
        Args::Kill(action) => act(client, output, action, "kill").await,
        Args::Delete(action) => act(client, output, action, "delete").await,
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
        Some(name) => Some(pick::uuid(&pick::server(client, &name).await?)?.to_owned()),
        None => None,
    };
    let filters = [("server_uuid", server), ("state", state), ("alias", alias)];
    let query: Vec<_> = filters.into_iter().filter_map(|(k, v)| Some((k, v?))).collect();
    let vms = client.get_all("/vms", &query, "uuid").await?;
    output.list(
        &vms,
        &[
            ("UUID", member!("uuid")),
            ("ALIAS", member!("alias")),
            ("STATE", member!("state")),
            ("MIB", memory),
            ("BRAND", member!("brand")),
            ("SERVER", member!("server_uuid")),
        ],
    )
}

fn memory(vm: &Value) -> String {
    let of = |name: &str| vm[name].as_u64().map(|mib| mib.to_string());
    of("ram").or_else(|| of("max_physical_memory")).unwrap_or_else(|| "-".to_owned())
}

/// Runs one of the actions that make a task on the machine's node.
async fn act(
    client: &Client,
    output: &Output,
    Action { vm, wait }: Action,
    action: &str,
) -> Result<(), CliError> {
    let found = pick::vm(client, &vm).await?;
    let uuid = pick::uuid(&found)?;
    let Some(server) = found["server_uuid"].as_str() else {
        return Err(CliError::NotFound(format!("VM {uuid} is on no server")));
    };
    let path = format!("/servers/{server}/vms/{uuid}");
    let answer = match action {
        "delete" => client.delete(&path).await?,
        other => client.post(&format!("{path}/{other}"), &json!({})).await?,
    };
    let title = format!("{action} {vm}");
    let sentence = match wait.follow(client, &title, &answer).await? {
        Some(_) => format!("{title}: done"),
        None => format!("{title}: task {}", crate::output::compact(&answer["id"])),
    };
    output.done(&sentence, &json!({ "vm_uuid": uuid, "server_uuid": server, "id": answer["id"] }))
}
