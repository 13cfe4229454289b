//! The operator's command line: one file per subcommand, over the coordinator's HTTP API.
//!
//! A subcommand is an `Args` struct (its help text is its documentation) and an `async fn run`;
//! it prints through [`output`] and fails with a [`CliError`], which knows its exit code.
#![forbid(unsafe_code)]

mod allocate;
mod allocate_offline;
mod allocation;
mod answer;
mod boot;
mod boot_get;
mod capacity;
mod cell;
mod client;
mod completion;
mod confirm;
mod console;
mod context;
mod coordinator;
mod document;
mod documentation;
mod duration;
mod error;
mod escape;
mod events;
mod image;
mod image_create;
mod image_export;
mod image_get;
mod image_import;
mod image_source;
mod job;
mod known;
mod logs;
mod man;
mod names;
mod output;
mod package;
mod page;
mod patience;
mod pick;
mod plain;
mod rates;
mod refusal;
mod server;
mod server_change;
mod server_execute;
mod server_get;
mod server_images;
mod server_orphans;
mod silence;
mod spec_file;
mod table;
mod task;
mod task_get;
mod terminal;
mod ticket;
mod ticket_get;
mod vm;
mod vm_act;
mod vm_cp;
mod vm_create;
mod vm_edit;
mod vm_exec;
mod vm_export;
mod vm_export_spec;
mod vm_get;
mod vm_import;
mod vm_info;
mod vm_list;
mod vm_login;
mod vm_screenshot;
mod vm_select;
mod vm_snapshot;
mod vm_top;
mod vm_update;
mod wait;
mod why;
mod wrap;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use documentation::page;
pub use error::CliError;

use client::Client;
use output::Output;

/// Exit codes, for scripts; part of the help.
const AFTER_HELP: &str = "\
Examples:
  muster server list                     all nodes
  muster image import guest.qcow2.gz --manifest manifest.json
  muster vm create --image muster-guest --ram 256 --alias web1
  muster vm console web1                 Ctrl-] detaches
  muster why web1                        what it is waiting for, what failed last

Objects are identified by uuid, by the beginning or end of a uuid (4 characters or more), or by
name: a VM's alias, a server's hostname, an image's or a package's name.

Exit codes: 0 success · 1 other failure · 2 wrong usage · 3 not found · 4 the task failed ·
5 coordinator unreachable · 6 refused by the coordinator · 7 timed out · 130 interrupted (accepted
work continues)

With -o json, jsonl or yaml, errors are one line of JSON on stderr: {\"error\": {\"kind\", \"code\",
\"message\", \"exit_code\", …}}";

/// Operates a Muster datacentre: nodes, VMs, images, tasks.
#[derive(Debug, Parser)]
#[command(name = "muster", version, after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    connection: Connection,

    /// Output format.
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value_t,
        env = "MUSTER_OUTPUT",
        hide_env_values = true
    )]
    output: output::Format,

    #[command(subcommand)]
    command: Command,
}

/// How to reach the coordinator.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Connection")]
struct Connection {
    /// Coordinator: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/PATH` [default: from the
    /// current context, else http://127.0.0.1:8480].
    #[arg(long, global = true, env = "MUSTER_URL", hide_env_values = true)]
    url: Option<String>,

    /// Context to use instead of the current one; see `muster context --help`.
    #[arg(
        long,
        global = true,
        env = "MUSTER_CONTEXT",
        hide_env_values = true,
        value_name = "NAME"
    )]
    context: Option<String>,

    /// CA certificate (PEM) to verify the coordinator with, instead of the system's.
    #[arg(long, global = true, env = "MUSTER_CA", hide_env_values = true, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// Client certificate (PEM).
    #[arg(long, global = true, env = "MUSTER_CERT", hide_env_values = true, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// Key (PEM) of the client certificate.
    #[arg(long, global = true, env = "MUSTER_KEY", hide_env_values = true, value_name = "FILE")]
    key: Option<PathBuf>,

    /// Ticket for changes, which are refused unless it is active.
    #[arg(long, global = true, env = "MUSTER_TICKET", hide_env_values = true, value_name = "UUID")]
    ticket: Option<uuid::Uuid>,
}

impl Args {
    /// Whether programs read what is printed.
    #[must_use]
    pub fn is_for_programs(&self) -> bool {
        Output::new(self.output).is_json()
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compute nodes.
    #[command(subcommand)]
    Server(server::Args),
    /// Virtual machines.
    #[command(subcommand)]
    Vm(vm::Args),
    /// Images to create VMs from.
    #[command(subcommand)]
    Image(image::Args),
    /// Packages: named VM sizes.
    #[command(subcommand)]
    Package(package::Args),
    /// Tasks: pending, running and finished operations.
    #[command(subcommand)]
    Task(task::Args),
    /// Tickets: take turns on a shared resource.
    #[command(subcommand)]
    Ticket(ticket::Args),
    /// Jobs: multi-step operations on one server, such as setup and reboot.
    #[command(subcommand)]
    Job(job::Args),
    /// Platforms and boot parameters of servers.
    #[command(subcommand)]
    Boot(boot::Args),
    /// Health and log level of the coordinator.
    #[command(subcommand)]
    Coordinator(coordinator::Args),
    /// Streams events: state changes, tasks, progress.
    Events(events::Args),
    /// Shows recent log lines of agents and coordinators.
    Logs(logs::Args),
    /// Shows live CPU, memory, disk and network use of nodes and VMs, busiest first.
    Top(vm_top::Args),
    /// Shows where a VM would be placed, and why; creates nothing.
    Allocate(allocate::Args),
    /// Past placement decisions: list, explain, replay.
    #[command(subcommand)]
    Allocation(allocation::Args),
    /// Shows how many more VMs of a given size fit, and what would be left unused.
    Capacity(capacity::Args),
    /// Explains what a task, VM, server, ticket, job or decision is waiting for, and what happened
    /// to it.
    Why(why::Args),
    /// Named coordinators: addresses and certificates.
    #[command(subcommand)]
    Context(context::Args),
    /// Prints the completion script for a shell.
    Completion(completion::Args),
    /// Prints the completions for a command line.
    #[command(hide = true)]
    Names(names::Args),
    /// Writes the man pages.
    Man(man::Args),
}

/// Says what is wrong with the arguments, or the help that was asked for; returns the exit code.
#[must_use]
pub fn report_usage(error: &clap::Error) -> u8 {
    if error.use_stderr() {
        output::warn(error.render().to_string().trim_end());
    } else if error.print().is_err() {
        // Nobody reads it.
        return 0;
    }
    u8::try_from(error.exit_code()).unwrap_or(1)
}

/// Runs the command.
///
/// # Errors
/// [`CliError`], to be reported and turned into the exit code.
pub async fn run(args: Args) -> Result<(), CliError> {
    let output = Output::new(args.output);
    if let Command::Completion(args) = args.command {
        return completion::run(&args);
    }
    if let Command::Allocate(args) = &args.command
        && args.offline.offline
    {
        return allocate_offline::run(&args.offline);
    }
    let mut connection = args.connection;
    match args.command {
        Command::Context(args) => return context::run(&connection, &output, args).await,
        Command::Names(args) => return names::run(&connection, &args).await,
        Command::Man(args) => return man::run(&output, &args),
        _ => {}
    }
    context::apply(&mut connection)?;
    let client = Client::new(&connection)?;
    match args.command {
        Command::Server(args) => server::run(&client, &output, args).await,
        Command::Vm(args) => vm::run(&client, &output, args).await,
        Command::Image(args) => image::run(&client, &output, args).await,
        Command::Package(args) => package::run(&client, &output, args).await,
        Command::Task(args) => task::run(&client, &output, args).await,
        Command::Ticket(args) => ticket::run(&client, &output, args).await,
        Command::Job(args) => job::run(&client, &output, args).await,
        Command::Boot(args) => boot::run(&client, &output, args).await,
        Command::Coordinator(args) => coordinator::run(&client, &output, args).await,
        Command::Events(args) => events::run(&client, &output, args).await,
        Command::Logs(args) => logs::run(&client, &output, args).await,
        Command::Top(args) => vm_top::run(&client, &output, args, true).await,
        Command::Allocate(args) => allocate::run(&client, &output, args).await,
        Command::Allocation(args) => allocation::run(&client, &output, args).await,
        Command::Capacity(args) => capacity::run(&client, &output, args).await,
        Command::Why(args) => why::run(&client, &output, args).await,
        // What needs no coordinator is done above.
        Command::Context(_) | Command::Names(_) | Command::Man(_) | Command::Completion(_) => {
            Ok(())
        }
    }
}
