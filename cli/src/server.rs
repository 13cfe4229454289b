//! `muster server`: compute nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use muster_shared::api::job::JobStarted;
use muster_shared::api::server::Server;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::output::{Output, member, mib};
use crate::{CliError, job, pick, server_images, server_orphans};

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
    /// The images on a node, and who needs them.
    #[command(subcommand)]
    Images(server_images::Args),
    /// Guests, disks and records on a node that belong to none of its VMs.
    #[command(subcommand)]
    Orphans(server_orphans::Args),
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
    /// `None`: there was nothing to do.
    async fn follow(
        self,
        client: &Client,
        output: &Output,
        started: Option<Answer<JobStarted>>,
    ) -> Result<(), CliError> {
        let Some(started) = started else { return output.done("nothing to do", &Value::Null) };
        let uuid = started.job_uuid.to_string();
        if self.no_wait {
            let sentence = format!("job {uuid}: accepted; `muster job wait {uuid}`");
            return output.done(&sentence, started.json());
        }
        let job = job::finished(client, &uuid, Duration::from_secs(self.timeout)).await?;
        output.done(&format!("job {uuid}: succeeded"), job.json())
    }
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::List { status } => {
            let query = [("extras", "status,memory,vms".to_owned())];
            let mut servers: Vec<Answer<Server>> = client.get("/servers", &query).await?;
            if let Some(status) = status {
                servers.retain(|server| server.status.as_str() == status);
            }
            output.list(
                &servers,
                &[
                    ("UUID", member!(record.uuid)),
                    ("HOSTNAME", member!(record.hostname)),
                    ("STATUS", member!(status)),
                    ("SETUP", member!(record.setup)),
                    ("VMS", |server| server.vms.as_ref().map_or(0, BTreeMap::len).to_string()),
                    ("MIB", |server| mib(size(server.memory.memory_total_bytes))),
                    ("FREE", |server| mib(size(server.memory.memory_available_bytes))),
                ],
            )
        }
        Args::Reboot { server, drain, wait } => {
            let server = pick::server(client, &server).await?;
            let path = format!("/servers/{}/reboot", server.record.uuid);
            let answer = client.post(&path, &json!({ "drain": drain })).await?;
            wait.follow(client, output, answer).await
        }
        Args::Setup { server, hostname, wait } => {
            let server = pick::server(client, &server).await?;
            let path = format!("/servers/{}/setup", server.record.uuid);
            let mut body = json!({});
            if let Some(hostname) = hostname {
                body["hostname"] = json!(hostname);
            }
            let answer = client.put(&path, &body).await?;
            wait.follow(client, output, answer).await
        }
        Args::Images(args) => server_images::run(client, output, args).await,
        Args::Orphans(args) => server_orphans::run(client, output, args).await,
        Args::Get { server } => output.object(pick::server(client, &server).await?.json()),
    }
}

fn size(bytes: Option<i64>) -> Option<u64> {
    bytes.and_then(|bytes| u64::try_from(bytes).ok())
}
