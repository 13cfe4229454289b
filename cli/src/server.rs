//! `muster server`: compute nodes.

use std::time::Duration;

use clap::Subcommand;
use serde_json::{Value, json};

use crate::client::Client;
use crate::output::{Output, member, mib};
use crate::{CliError, job, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the nodes.
    List {
        /// Only those with this status.
        #[arg(long, value_name = "STATUS", value_parser = ["running", "unknown", "rebooting"])]
        status: Option<String>,
    },
    /// Restarts a node.
    Reboot {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// Waits until the node's tasks have ended, and lets none begin.
        #[arg(long)]
        drain: bool,
        #[command(flatten)]
        wait: JobWait,
    },
    /// Makes a new node ready for VMs.
    Setup {
        /// Uuid, its beginning, or hostname.
        server: String,
        /// The node's name from now on.
        #[arg(long)]
        hostname: Option<String>,
        #[command(flatten)]
        wait: JobWait,
    },
    /// Shows a node's whole record.
    Get {
        /// Uuid, its beginning, or hostname.
        server: String,
    },
}

/// Whether and how long to wait for the job.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct JobWait {
    /// Return once the job is accepted; `muster job wait` waits later.
    #[arg(long)]
    no_wait: bool,
    /// Longest wait, seconds. The job goes on after it.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, conflicts_with = "no_wait")]
    timeout: u64,
}

impl JobWait {
    async fn follow(self, client: &Client, output: &Output, answer: Value) -> Result<(), CliError> {
        let Some(uuid) = answer["job_uuid"].as_str().map(str::to_owned) else {
            return output.done("nothing to do", &answer);
        };
        if self.no_wait {
            return output
                .done(&format!("job {uuid}: accepted; `muster job wait {uuid}`"), &answer);
        }
        let job = job::finished(client, &uuid, Duration::from_secs(self.timeout)).await?;
        output.done(&format!("job {uuid}: succeeded"), &job)
    }
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
        Args::Reboot { server, drain, wait } => {
            let server = pick::server(client, &server).await?;
            let path = format!("/servers/{}/reboot", pick::uuid(&server)?);
            let answer = client.post(&path, &json!({ "drain": drain })).await?;
            wait.follow(client, output, answer).await
        }
        Args::Setup { server, hostname, wait } => {
            let server = pick::server(client, &server).await?;
            let path = format!("/servers/{}/setup", pick::uuid(&server)?);
            let mut body = json!({});
            if let Some(hostname) = hostname {
                body["hostname"] = json!(hostname);
            }
            let answer = client.put(&path, &body).await?;
            wait.follow(client, output, answer).await
        }
        Args::Get { server } => {
            let found: Value = pick::server(client, &server).await?;
            output.object(&found)
        }
    }
}
