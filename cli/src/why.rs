//! `muster why`: explains a task, a VM, a server or a ticket.

use clap::ValueEnum;

use crate::client::Client;
use crate::output::Output;
use crate::{CliError, pick};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster why task 3fa9c1d2-…       why it is not done
  muster why vm web1               what it is waiting for, and where it is
  muster why server cn1            why it gets no machines
  muster why ticket 9b1c55f0-…     who has the turn, and whether holders wait in a circle")]
pub(crate) struct Args {
    /// What kind of thing.
    kind: Kind,
    /// Its id or name.
    id: String,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Task,
    Vm,
    Server,
    Ticket,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let path = match args.kind {
        Kind::Task => format!("/why/task/{}", args.id),
        Kind::Ticket => format!("/why/ticket/{}", args.id),
        Kind::Vm => {
            format!("/why/vm/{}", pick::vm(client, &args.id).await?.vm.uuid)
        }
        Kind::Server => {
            format!("/why/server/{}", pick::server(client, &args.id).await?.record.uuid)
        }
    };
    output.object(&client.get(&path, &[]).await?)
}
