//! `muster server`: compute nodes.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Subcommand;
use muster_shared::api::job::JobStarted;
use muster_shared::api::server::{Server, ServerStatus};
use serde_json::{Number, Value, json};

use crate::answer::Answer;
use crate::cell::{Cell, Tone};
use crate::client::Client;
use crate::output::{Item, Output, compact};
use crate::server_change::NODE;
use crate::table::{Column, ListArgs};
use crate::{
    CliError, job, pick, server_change, server_execute, server_get, server_images, server_orphans,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Lists the nodes.
    List {
        /// Only those with this status.
        #[arg(long, value_name = "STATUS", value_parser = ["running", "unknown", "rebooting"])]
        status: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Restarts a node.
    Reboot {
        #[arg(help = NODE)]
        server: String,
        /// Waits for running tasks to finish and starts no new ones.
        #[arg(long)]
        drain: bool,
        #[command(flatten)]
        wait: JobWait,
    },
    /// Prepares a new node for VMs.
    Setup {
        #[arg(help = NODE)]
        server: String,
        /// New hostname for the node.
        #[arg(long)]
        hostname: Option<String>,
        #[command(flatten)]
        wait: JobWait,
    },
    /// Changes a node's settings: reservation, traits, rack, comments.
    Update(server_change::Update),
    /// Stops a node from accepting work; running tasks continue.
    Pause {
        #[arg(help = NODE)]
        server: String,
    },
    /// Lets a node accept work again.
    Resume {
        #[arg(help = NODE)]
        server: String,
    },
    /// Collects a node's sysinfo again, e.g. after a change of its hardware.
    Refresh {
        #[arg(help = NODE)]
        server: String,
    },
    /// Runs a script on a node, if that is allowed.
    Execute(server_execute::Execute),
    /// Changes the NIC tags of a node's interfaces.
    Nics(server_change::Nics),
    /// Wipes a node that has no VMs.
    FactoryReset(server_change::FactoryReset),
    /// Deletes the records of a node and its VMs; the node itself is not touched.
    Delete(server_change::Delete),
    /// Images on a node, and what uses them.
    #[command(subcommand)]
    Images(server_images::Args),
    /// Guests, disks and records on a node that belong to no known VM.
    #[command(subcommand)]
    Orphans(server_orphans::Args),
    /// Shows a node: capacity, free resources, problems and VMs.
    Get {
        #[arg(help = NODE)]
        server: String,
    },
}

/// Whether and how long to wait for the job.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct JobWait {
    /// Returns once the job is accepted; see `muster job wait`.
    #[arg(long)]
    no_wait: bool,
    /// Maximum wait in seconds. The job continues after that.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, conflicts_with = "no_wait")]
    timeout: u64,
}

impl JobWait {
    /// `None`: there was nothing to do.
    pub(crate) async fn follow(
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
        Args::List { status, list } => {
            let extras = "status,memory,disk,vms,capacity,sysinfo,muster".to_owned();
            output
                .list(&list, async || {
                    let query = [("extras", extras.clone())];
                    let mut servers: Vec<Answer<Server>> = client.get("/servers", &query).await?;
                    if let Some(status) = &status {
                        servers.retain(|server| server.status.as_str() == status);
                    }
                    Ok(servers)
                })
                .await
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
        Args::Update(args) => server_change::update(client, output, args).await,
        Args::Pause { server } => server_change::pause(client, output, &server, false).await,
        Args::Resume { server } => server_change::pause(client, output, &server, true).await,
        Args::Refresh { server } => {
            let server = pick::server(client, &server).await?;
            let (uuid, name) = (server.record.uuid, &server.record.hostname);
            let path = format!("/servers/{uuid}/sysinfo-refresh");
            client.post::<Value>(&path, &json!({})).await?;
            output.done(&format!("refresh {name}: done"), &json!({ "uuid": uuid }))
        }
        Args::Execute(args) => server_execute::run(client, output, args).await,
        Args::Nics(args) => server_change::nics(client, output, args).await,
        Args::FactoryReset(args) => server_change::factory_reset(client, output, args).await,
        Args::Delete(args) => server_change::delete(client, output, args).await,
        Args::Images(args) => server_images::run(client, output, args).await,
        Args::Orphans(args) => server_orphans::run(client, output, args).await,
        Args::Get { server } => server_get::run(client, output, &server).await,
    }
}

impl Item for Answer<Server> {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("ID", |server: &Self| Cell::id(&server.record.uuid)),
        Column::new("NAME", |server: &Self| Cell::text(&server.record.hostname)).cut(),
        Column::new("STATUS", |server: &Self| status(server)),
        Column::new("VMS", |server: &Self| Cell::of(&server.vms.as_ref().map_or(0, BTreeMap::len))),
        Column::new("CPUS", |server: &Self| Cell::of(&sysinfo(server, "CPU Total Cores"))).spare(6),
        Column::new("LOAD", |server: &Self| load(server)).spare(7),
        Column::new("RAM", |server: &Self| Cell::bytes(size(server.memory.memory_total_bytes)))
            .spare(4),
        Column::new("RAM LEFT", |server: &Self| left(server.unreserved_ram.as_ref())).spare(1),
        Column::new("DISK LEFT", |server: &Self| left(server.unreserved_disk.as_ref())).spare(2),
        Column::new("ACCEL", |server: &Self| accel(server)).spare(3),
        Column::new("DEGRADED", |server: &Self| degraded_count(server)).spare(5),
        Column::new("UP", |server: &Self| {
            let age = Cell::since(server.record.last_boot.as_deref());
            Cell { text: age.text.replace(" ago", ""), ..age }
        })
        .spare(8),
        Column::new("VERSION", |server: &Self| Cell::of(&muster(server, "agent_version"))).spare(9),
        Column::new("HEARD", |server: &Self| {
            Cell::since(server.last_heartbeat.as_ref().and_then(Option::as_deref))
        })
        .wide(),
        Column::new("SETUP", |server: &Self| Cell::of(&server.record.setup)).wide(),
        Column::new("RESERVED", |server: &Self| Cell::of(&server.record.reserved)).wide(),
        Column::new("RAM FREE", |server: &Self| {
            Cell::bytes(size(server.memory.memory_available_bytes))
        })
        .wide(),
        Column::new("PLATFORM", |server: &Self| Cell::of(&server.record.current_platform)).wide(),
    ];

    fn id(&self) -> String {
        self.record.uuid.to_string()
    }

    fn name(&self) -> String {
        self.record.hostname.clone()
    }

    fn json(&self) -> &Value {
        Answer::json(self)
    }
}

pub(crate) fn size(bytes: Option<i64>) -> Option<u64> {
    bytes.and_then(|bytes| u64::try_from(bytes).ok())
}

/// What there is left to be promised, MiB.
pub(crate) fn left(mib: Option<&Number>) -> Cell {
    let Some(mib) = mib.and_then(Number::as_f64) else { return Cell::dash() };
    let bytes = mib * 1024.0 * 1024.0;
    let tone = if mib > 0.0 { Tone::Plain } else { Tone::Bad };
    Cell { rank: Some(mib), right: true, tone, ..Cell::text(crate::cell::size(bytes)) }
}

pub(crate) fn status(server: &Server) -> Cell {
    match (server.status, server.record.setup) {
        (ServerStatus::Running, false) => Cell::text("not set up").tone(Tone::Busy),
        (status, _) => Cell::state(status.as_str()),
    }
}

/// A key of the node's description of itself.
pub(crate) fn sysinfo(server: &Server, key: &str) -> Value {
    server.sysinfo.as_ref().and_then(|sysinfo| sysinfo.get(key)).cloned().unwrap_or_default()
}

pub(crate) fn muster(server: &Server, key: &str) -> Value {
    sysinfo(server, "Muster")[key].clone()
}

/// What runs the guests' CPUs; emulation is slow, and worth a look.
pub(crate) fn accel(server: &Server) -> Cell {
    let accel = muster(server, "accel");
    let slow = accel == "tcg";
    Cell::of(&accel).tone(if slow { Tone::Busy } else { Tone::Plain })
}

/// What does not work as it should there.
pub(crate) fn degraded(server: &Server) -> Vec<String> {
    let all = muster(server, "degraded");
    all.as_array().into_iter().flatten().map(compact).collect()
}

/// How many things that are; `muster server get` names them.
fn degraded_count(server: &Server) -> Cell {
    let count = degraded(server).len();
    let tone = if count == 0 { Tone::Faint } else { Tone::Busy };
    Cell::of(&count).tone(tone)
}

/// Processes that run or want to, on average over the last minute.
pub(crate) fn load(server: &Server) -> Cell {
    let load = server.muster.as_ref().map(|muster| muster["load"][0].clone());
    match load.as_ref().and_then(Value::as_f64) {
        Some(load) => Cell { rank: Some(load), right: true, ..Cell::text(format!("{load:.1}")) },
        None => Cell::dash(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn server(members: &Value) -> Answer<Server> {
        let mut server = json!({
            "uuid": uuid::Uuid::nil(), "hostname": "cn1", "status": "running", "setup": true,
            "sysinfo": { "Muster": { "accel": "tcg", "degraded": ["KVM: no", "no cgroups"] } },
            "muster": { "load": [1.25, 1, 1] },
        });
        server.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        serde_json::from_value(server).unwrap()
    }

    #[test]
    fn a_server_is_told_with_its_load_and_how_much_is_wrong() {
        let server = server(&json!({}));
        assert_eq!((load(&server).text.as_str(), accel(&server).tone), ("1.2", Tone::Busy));
        assert_eq!((degraded_count(&server).text.as_str(), degraded(&server).len()), ("2", 2));
        let fresh = super::tests::server(&json!({ "sysinfo": {}, "muster": null }));
        assert_eq!((load(&fresh).text.as_str(), degraded_count(&fresh).text.as_str()), ("-", "0"));
    }
}
