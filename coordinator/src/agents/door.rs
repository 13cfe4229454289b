//! Who is let in: agents of this cluster, and of two that claim to be the same server the one that
//! is there.

use std::collections::BTreeMap;

use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use muster_shared::wire::{Hello, close};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use uuid::Uuid;

use super::registry::AgentInfo;
use super::session::Session;

/// Servers of which it is remembered that an agent was turned away.
const MAX_REMEMBERED: usize = 1_000;

/// Why an agent is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Another agent of this server is connected and heard.
    Duplicate,
    /// The agent works for another cluster.
    Foreign,
}

impl Reason {
    /// The close code.
    pub(super) fn close_code(self) -> u16 {
        match self {
            Self::Duplicate => close::DUPLICATE,
            Self::Foreign => close::FOREIGN,
        }
    }

    /// In plain words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Duplicate => "another agent of this server is connected",
            Self::Foreign => "it belongs to another cluster",
        }
    }
}

/// The last agent of a server that was not let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TurnedAway {
    /// Why.
    pub reason: Reason,
    /// Start of that agent.
    pub agent_instance_id: Uuid,
    /// Boot of its host.
    pub boot_id: String,
    /// When, ISO 8601.
    pub at: String,
    /// How often an agent of this server was turned away.
    pub times: u64,
}

/// Remembers who was turned away.
#[derive(Debug, Default)]
pub(super) struct Door {
    turned_away: Mutex<BTreeMap<ServerUuid, TurnedAway>>,
    duplicates: Counter,
    foreign: Counter,
}

impl Door {
    pub(super) fn total(&self, reason: Reason) -> &Counter {
        match reason {
            Reason::Duplicate => &self.duplicates,
            Reason::Foreign => &self.foreign,
        }
    }

    pub(super) fn turned_away(&self, server: ServerUuid) -> Option<TurnedAway> {
        self.turned_away.lock().get(&server).cloned()
    }

    fn remember(&self, server: ServerUuid, hello: &Hello, reason: Reason, at: String) {
        let mut all = self.turned_away.lock();
        let times = all.get(&server).map_or(0, |last| last.times) + 1;
        if times == 1 && all.len() >= MAX_REMEMBERED {
            let oldest = all.iter().min_by(|a, b| a.1.at.cmp(&b.1.at)).map(|(server, _)| *server);
            oldest.and_then(|oldest| all.remove(&oldest));
        }
        let (agent_instance_id, boot_id) = (hello.agent_instance_id, hello.boot_id.clone());
        all.insert(server, TurnedAway { reason, agent_instance_id, boot_id, at, times });
    }
}

/// Whether a hello comes from another machine than the connected agent: a start of the agent alone
/// changes its instance, a boot of the host both.
fn is_another(connected: &AgentInfo, hello: &Hello) -> bool {
    connected.agent_instance_id != hello.agent_instance_id && connected.boot_id != hello.boot_id
}

impl Session {
    /// Why this agent is not let in, if it is not; whoever operates this coordinator is told.
    pub(super) fn turns_away(&self, hello: &Hello) -> Option<Reason> {
        let reason = self.reason_against(hello)?;
        let Session { agents, server, .. } = self;
        agents.door.total(reason).inc();
        let at = iso(agents.parts.clock.wall());
        agents.door.remember(*server, hello, reason, at);
        Some(reason)
    }

    fn reason_against(&self, hello: &Hello) -> Option<Reason> {
        let Session { agents, incoming, server, .. } = self;
        if let (Some(theirs), Some(ours)) = (hello.cluster, incoming.cluster())
            && theirs != ours
        {
            tracing::warn!(server_uuid = %server, %theirs, %ours, "an agent of another cluster");
            return Some(Reason::Foreign);
        }
        let (connection, info) = agents.registry.connected(*server)?;
        // A host that was reset is back before its old connection is known to be dead; it dials
        // again and finds it gone.
        if !is_another(&info, hello) || !incoming.hears(*server, connection) {
            return None;
        }
        tracing::warn!(
            server_uuid = %server, boot_id = hello.boot_id, instance = %hello.agent_instance_id,
            connected_boot_id = info.boot_id, connected_instance = %info.agent_instance_id,
            "a second agent claims to be this server and is turned away"
        );
        Some(Reason::Duplicate)
    }
}
