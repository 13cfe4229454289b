//! What VMs use. Servers tell it with every periodic report; it is kept in memory only. Who wants
//! to know it now has the agents asked.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use muster_shared::api::Object;
use muster_shared::api::usage::FleetVmUsage;
use muster_shared::ids::{ServerUuid, VmUuid};
use muster_shared::wire::status::VmReport;
use muster_shared::wire::usage::{UsageAnswer, Usages};
use serde::Deserialize as _;
use tokio::sync::Semaphore;

use super::context::Context;
use super::fleet::{Entry, Fleet, ServerUsage};
use super::vms::MAX_LIMIT;
use crate::agents::{Agents, Query};

/// The kind of task that tells it.
const TASK: &str = "vms_usage";
/// Longest wait for one agent.
const AGENT_LIMIT: Duration = Duration::from_secs(3);
/// Longest wait for all agents that one request has asked.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// Most agents that one request has asked; of the others it shows what they told last.
const MAX_ASKED: usize = 256;
/// Agents that are asked at the same time, by all requests.
const AT_ONCE: usize = 64;

/// Which VMs.
#[derive(Clone, Debug, Default)]
pub struct UsageFilter {
    /// On this server.
    pub server: Option<ServerUuid>,
    /// After this VM.
    pub marker: Option<VmUuid>,
    /// At most this many.
    pub limit: Option<usize>,
    /// Figures that are older are asked for.
    pub max_age: Option<Duration>,
}

/// What VMs use; see the module.
#[derive(Debug)]
pub(crate) struct VmUsages {
    ctx: Arc<Context>,
    agents: Arc<Agents>,
    fleet: Arc<Fleet>,
    asking: Semaphore,
}

impl VmUsages {
    pub(super) fn new(ctx: Arc<Context>, agents: Arc<Agents>, fleet: Arc<Fleet>) -> Self {
        Self { ctx, agents, fleet, asking: Semaphore::new(AT_ONCE) }
    }

    /// VMs in uuid order, with what they use.
    pub(crate) async fn list(&self, filter: &UsageFilter, req_id: &str) -> Vec<FleetVmUsage> {
        if let Some(max_age) = filter.max_age {
            self.refresh(filter, max_age, req_id).await;
        }
        let now = self.ctx.now();
        let mut found = Vec::new();
        self.each(filter, |vm, server, entry, report| {
            found.push(view(vm, server, entry, report, now))
        });
        found
    }

    /// Looks at the VMs of one page.
    fn each(
        &self,
        filter: &UsageFilter,
        mut look: impl FnMut(VmUuid, ServerUuid, &Entry, &VmReport),
    ) {
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        let mut seen = 0;
        self.fleet.for_each_vm(filter.marker, |vm, server, entry, report| {
            if filter.server.is_none_or(|wanted| wanted == server) {
                look(vm, server, entry, report);
                seen += 1;
            }
            seen < limit
        });
    }

    /// Asks the agents of one page whose figures are too old. Of those that do not answer, or can't
    /// tell, the old ones stay, with their age.
    async fn refresh(&self, filter: &UsageFilter, max_age: Duration, req_id: &str) {
        let now = self.ctx.now();
        let is_old = |entry: &Entry| {
            entry.usage.as_ref().is_none_or(|usage| now.saturating_sub(usage.at) > max_age)
        };
        let mut old = BTreeSet::new();
        self.each(filter, |_, server, entry, _| {
            if is_old(entry) {
                old.insert(server);
            }
        });
        let askable = |server: &ServerUuid| {
            self.agents.is_connected(*server) && self.agents.supports(*server, TASK)
        };
        let asked = old.into_iter().filter(askable).take(MAX_ASKED);
        let asked = futures_util::stream::iter(asked)
            .for_each_concurrent(AT_ONCE, |server| self.ask(server, req_id));
        if tokio::time::timeout(REQUEST_LIMIT, asked).await.is_err() {
            tracing::debug!(req_id, "not all agents said in time what their VMs use");
        }
    }

    async fn ask(&self, server: ServerUuid, req_id: &str) {
        let Ok(_permit) = self.asking.acquire().await else { return };
        let query = Query::new(server, TASK, Object::new(), req_id, AGENT_LIMIT);
        let answer = match self.agents.query(query, None).await {
            Ok(answer) => UsageAnswer::deserialize(answer).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match answer {
            Ok(UsageAnswer { usage, .. }) => self.keep(server, usage),
            Err(error) => {
                tracing::debug!(server_uuid = %server, error, "it is not known what VMs use");
            }
        }
    }

    /// Takes over what a server says.
    fn keep(&self, server: ServerUuid, vms: Usages) {
        let usage = ServerUsage { at: self.ctx.now(), vms };
        self.fleet.note(server, |entry| entry.usage = Some(Arc::new(usage)));
    }
}

fn view(
    uuid: VmUuid,
    server: ServerUuid,
    entry: &Entry,
    report: &VmReport,
    now: Duration,
) -> FleetVmUsage {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let latest = entry.usage.as_ref();
    let age = latest.map(|latest| now.saturating_sub(latest.at).as_millis());
    FleetVmUsage {
        uuid,
        alias: report.index.alias.clone(),
        state: known(&report.vm.state),
        max_physical_memory: Some(report.vm.max_physical_memory).filter(|mib| *mib > 0),
        vcpus: report.index.vcpus,
        server_uuid: server,
        hostname: entry.record.as_ref().and_then(|record| known(&record.value.hostname)),
        server_status: entry.heard(),
        usage: latest.and_then(|latest| latest.vms.get(&uuid)).cloned(),
        age_ms: age.map(|ms| u64::try_from(ms).unwrap_or(u64::MAX)),
    }
}
