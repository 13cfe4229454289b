//! `muster server`: compute nodes.

use clap::Subcommand;
use serde_json::Value;

use crate::client::Client;
use crate::output::{Output, member, mib};
use crate::{CliError, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the nodes.
    List {
        /// Only those with this status.
        #[arg(long, value_name = "STATUS", value_parser = ["running", "unknown", "rebooting"])]
        status: Option<String>,
    },
    /// Shows a node's whole record.
    Get {
        /// Uuid, its beginning, or hostname.
        server: String,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { status } => {
            let query = [("extras", "status,memory,vms".to_owned())];
            let mut servers = client.get("/servers", &query).await?;
            if let (Some(status), Some(list)) = (status, servers.as_array_mut()) {
                list.retain(|server| server["status"] == *status);
            }
            output.list(
                &servers,
                &[
                    ("UUID", member!("uuid")),
                    ("HOSTNAME", member!("hostname")),
                    ("STATUS", member!("status")),
                    ("SETUP", member!("setup")),
                    ("VMS", |server| server["vms"].as_object().map_or(0, |v| v.len()).to_string()),
                    ("MIB", |server| mib(&server["memory_total_bytes"])),
                    ("FREE", |server| mib(&server["memory_available_bytes"])),
                ],
            )
        }
        Args::Get { server } => {
            let found: Value = pick::server(client, &server).await?;
            output.object(&found)
        }
    }
}
