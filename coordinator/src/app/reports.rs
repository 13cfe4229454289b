//! What servers report: sysinfo, VMs, figures, signs of life. Volatile figures stay in memory;
//! records are written only when they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::server::{ServerRecord, Sysinfo};
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire;
use muster_shared::wire::status::{Report, Status as WireStatus, VmReport};
use serde_json::Value;

use super::boot::Boot;
use super::context::Context;
use super::error::AppError;
use super::events::Events;
use super::expected::Expected;
use super::fields;
use super::fleet::{Claim, Fleet, SERVERS, ServerUsage, SysinfoRecord};
use super::keys;
use super::posted::Posted;
use super::roster::Roster;
use crate::agents::{Agents, address_of};
use crate::roster::{RosterRecord, Status, Via};
use crate::store::{Expect, Write};

/// Takes over what servers report.
#[derive(Debug)]
pub(crate) struct Reports {
    ctx: Arc<Context>,
    agents: Arc<Agents>,
    fleet: Arc<Fleet>,
    roster: Arc<Roster>,
    boot: Arc<Boot>,
    events: Arc<Events>,
}

impl Reports {
    pub(crate) fn new(
        ctx: Arc<Context>,
        agents: Arc<Agents>,
        fleet: Arc<Fleet>,
        roster: Arc<Roster>,
        boot: Arc<Boot>,
        events: Arc<Events>,
    ) -> Self {
        Self { ctx, agents, fleet, roster, boot, events }
    }

    /// A sysinfo frame.
    ///
    /// # Errors
    /// As [`Reports::register`].
    pub(crate) async fn sysinfo(
        &self,
        server: ServerUuid,
        frame: wire::Sysinfo,
    ) -> Result<(), AppError> {
        if let Some(sysinfo) = frame.sysinfo {
            self.store_sysinfo(server, sysinfo.into(), frame.hash, Via::Socket).await?;
        }
        match frame.agents {
            Some(agents) => self.set_agents(server, agents).await,
            None => Ok(()),
        }
    }

    /// Takes over the agents installed, if the server is registered.
    async fn set_agents(&self, server: ServerUuid, agents: Vec<Value>) -> Result<(), AppError> {
        let change = |record: &mut ServerRecord| record.agents = Some(agents.clone());
        match self.fleet.update_record(server, &Expected::ANY, change).await {
            Err(AppError::ServerNotFound(_)) => Ok(()),
            other => other,
        }
    }

    /// `POST /servers/:uuid/sysinfo`: registers a server or takes over its new sysinfo.
    ///
    /// # Errors
    /// [`AppError::InvalidArgument`] for a sysinfo of another server, [`AppError::Store`].
    pub(crate) async fn register(
        &self,
        server: ServerUuid,
        sysinfo: Object,
    ) -> Result<(), AppError> {
        self.store_sysinfo(server, sysinfo, String::new(), Via::Sysinfo).await
    }

    async fn store_sysinfo(
        &self,
        server: ServerUuid,
        sysinfo: Object,
        hash: String,
        via: Via,
    ) -> Result<(), AppError> {
        let facts: Sysinfo = sysinfo.read().unwrap_or_default();
        match facts.uuid {
            Some(uuid) if uuid == server => {}
            Some(_) => {
                return Err(AppError::InvalidArgument("Got sysinfo for wrong server".to_owned()));
            }
            None => return Err(AppError::InvalidArgument("Invalid server_uuid".to_owned())),
        }
        if via == Via::Sysinfo {
            // Before the store tells of the server: it would be taken for silent.
            self.roster.lock().registered(server, self.ctx.parts.clock.monotonic());
            self.roster.wake.notify_one();
        }
        let document = SysinfoRecord { sysinfo, hash };
        let attempt = || self.try_store_sysinfo(server, &document, &facts, via);
        self.ctx.retry(format!("server {server}"), attempt).await
    }

    async fn try_store_sysinfo(
        &self,
        server: ServerUuid,
        document: &SysinfoRecord,
        facts: &Sysinfo,
        via: Via,
    ) -> Result<(), AppError> {
        let entry = self.fleet.get(server).unwrap_or_default();
        let (record, created) = match &entry.record {
            Some(held) => {
                let mut record = (*held.value).clone();
                let booted = record.last_boot.clone();
                fields::derive(&mut record, facts);
                // A server that reboots is back when it runs and says it booted again.
                if record.last_boot != booted && entry.stored_status() == "running" {
                    record.transitional_status.take_if(|status| !status.is_empty());
                }
                (record, false)
            }
            None => {
                let now = self.ctx.parts.clock.wall();
                let dc = &self.ctx.config.datacenter;
                let mut record = fields::new_record(server, dc, facts, now);
                self.boot.inherit(&mut record.boot).await?;
                (record, true)
            }
        };
        let mut writes = Vec::new();
        let bytes = keys::encode(document);
        let sysinfo_changed = entry.sysinfo.as_ref().is_none_or(|held| held.value != bytes);
        if sysinfo_changed {
            writes.push(Write::put(keys::sysinfo(server), Expect::Any, bytes));
        }
        let record_changed = entry.record.as_ref().is_none_or(|held| *held.value != record);
        if record_changed {
            let expect = entry.record.as_ref().map_or(Expect::Absent, |h| Expect::At(h.revision));
            writes.push(SERVERS.put(server, expect, &record));
        }
        let roster = self.first_roster_record(via);
        if created && entry.roster.is_none() {
            let bytes = keys::encode(&roster);
            writes.push(Write::put(keys::roster(server), Expect::Absent, bytes));
        }
        if writes.is_empty() {
            return Ok(());
        }
        self.ctx.feed.commit(writes).await?;
        if created {
            tracing::info!(server_uuid = %server, "server registered");
            // Registered again on an old connection: deltas would not tell all. Without one, the
            // report comes with the connection.
            self.agents.send(server, Box::new(WireStatus { report: None })).ok();
        }
        Ok(())
    }

    /// A server that registers is running.
    fn first_roster_record(&self, via: Via) -> RosterRecord {
        let now = self.ctx.parts.clock.wall();
        RosterRecord {
            status: Status::Running,
            since: now,
            last_heartbeat: Some(now),
            via,
            authority: self.ctx.authority(),
            unknown: Object::new(),
        }
    }

    /// A checked report of a websocket agent: full reports replace, others change.
    pub(crate) fn status(&self, server: ServerUuid, report: Report) {
        self.ctx.counters.status_reports.inc();
        let at = self.ctx.now();
        let usage = report.usage.map(|vms| Arc::new(ServerUsage { at, vms }));
        let is_registered = self.fleet.report_registered(server, |entry| {
            if usage.is_some() {
                entry.usage = usage;
            }
            if let Some(memory) = &report.meminfo {
                entry.figures.set_memory(memory);
            }
            if let Some(disk) = &report.diskinfo {
                entry.figures.set_disk(disk);
            }
            entry.remarks = report.muster;
            entry.reported_at = report.timestamp;
        });
        if !is_registered {
            // It was deleted under its agent, which registers again when asked.
            let ask = wire::Sysinfo { sysinfo: None, agents: None, hash: String::new() };
            self.agents.send(server, ask).ok();
            // Nothing is kept of a server that has no record: anybody could fill the store. The
            // full report is asked for when it registers.
            return;
        }
        let mut changes = report.vms;
        if report.full {
            self.mark_missing(server, &mut changes);
        }
        if !changes.is_empty() {
            self.vms_changed(server, changes);
        }
    }

    /// `POST /servers/:uuid/events/status`: nothing is validated; what does not fit is left out.
    pub(crate) fn status_posted(&self, server: ServerUuid, body: &Object) {
        self.ctx.counters.status_reports.inc();
        let posted: Posted = body.read().unwrap_or_default();
        let changes = posted.reports();
        self.fleet.report(server, |entry| {
            if let Some(memory) = &posted.meminfo {
                entry.figures.set_memory_members(memory);
            }
            if let Some(disk) = &posted.diskinfo {
                entry.figures.set_disk_members(disk);
            }
            if let Some(remarks) = posted.muster {
                entry.remarks = remarks;
            }
        });
        if let Some(mut changes) = changes {
            self.fleet.share(server, &mut changes);
            self.mark_missing(server, &mut changes);
            self.vms_changed(server, changes);
        }
    }

    fn mark_missing(
        &self,
        server: ServerUuid,
        changes: &mut BTreeMap<VmUuid, Option<Arc<VmReport>>>,
    ) {
        for vm in self.fleet.reported_vms(server) {
            changes.entry(vm).or_insert(None);
        }
    }

    fn vms_changed(&self, server: ServerUuid, changes: BTreeMap<VmUuid, Option<Arc<VmReport>>>) {
        for claim in self.fleet.report_vms(server, changes) {
            let Claim { vm, by, home } = claim;
            tracing::error!(vm_uuid = %vm, server_uuid = %by, %home, "a server reports a VM of another one");
            self.ctx.counters.vm_claims.inc();
            self.events.claimed(claim);
        }
        self.fleet.vms_wake.notify_one();
    }

    /// A heartbeat over HTTP.
    pub(crate) fn heartbeat_posted(&self, server: ServerUuid) {
        let (now, wall) = (self.ctx.now(), self.ctx.wall());
        let mut roster = self.roster.lock();
        roster.posted(server, now);
        roster.beat(server, wall);
        drop(roster);
        self.roster.wake.notify_one();
        self.call_back(server);
    }

    /// Tasks of a server that POSTs go to where its sysinfo says, if that is allowed.
    fn call_back(&self, server: ServerUuid) {
        let networks = &self.ctx.config.legacy_networks;
        if networks.is_empty() {
            return;
        }
        let Some(address) = address_of(&self.fleet.sysinfo_of(server)) else { return };
        if networks.iter().any(|network| network.contains(&address.ip())) {
            self.agents.heard_of_legacy(server, address, self.fleet.cn_agent(server));
        }
    }
}
