//! How many more of a VM fit, and what is left over then: for planners.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::allocate::{Options, Order, allocate};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::promises::Extra;
use crate::request::Request;
use crate::server::{Server, Unreserved};
use crate::server_name::ServerName;
use crate::snapshot::Snapshot;

/// Most copies that are looked for on one server.
const MAX_COPIES: u32 = 4096;

/// What one server still holds of a VM.
#[derive(Clone, Debug, Serialize)]
pub struct Fit {
    /// The server.
    pub server_uuid: ServerName,
    /// How many copies fit.
    pub fits: u32,
    /// The algorithm that refuses the next copy.
    pub limited_by: Option<&'static str>,
    /// Why, in the words of the steps.
    pub reason: Option<Value>,
    /// What is left now.
    #[serde(serialize_with = "unreserved")]
    pub unreserved: Unreserved,
    /// What would be left once all copies are there: stranded, as far as this VM goes.
    #[serde(serialize_with = "unreserved")]
    pub stranded: Unreserved,
}

fn unreserved<S: serde::Serializer>(left: &Unreserved, serializer: S) -> Result<S::Ok, S::Error> {
    left.to_json().serialize(serializer)
}

/// A fleet of one server on which all that is promised is there.
pub(crate) fn alone(server: &Server, config: &Config) -> Fleet {
    let mut fleet = Fleet::new(config);
    fleet.insert(server.settled());
    fleet
}

/// The VM of which many are to fit.
#[derive(Clone, Copy, Debug)]
pub struct Fitted<'a> {
    /// How it is asked for.
    pub request: &'a Request,
    /// What each takes of its server.
    pub extra: &'a Extra,
}

/// How many more of the request's VM a server holds by itself; `None` for an unknown server.
/// Wishes about other servers (near, far, volumes) don't matter here.
#[must_use]
pub fn fit(
    snapshot: &Snapshot,
    server_uuid: &ServerName,
    Fitted { request, extra }: Fitted<'_>,
    config: &Config,
) -> Option<Fit> {
    let server = snapshot.server(snapshot.slot_of(server_uuid)?);
    let mut trial = Trial { server, config, request, extra: Arc::new(extra.clone()) };
    let (mut most, mut too_many) = (0, 1);
    // Doubling, then halving: the number of copies that fit is found in few steps.
    while too_many <= MAX_COPIES && trial.holds(too_many) {
        (most, too_many) = (too_many, too_many * 2);
    }
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if trial.holds(middle) { most = middle } else { too_many = middle }
    }
    let mut full = trial.with(most);
    let snapshot_full = full.snapshot();
    let refused = allocate(&snapshot_full, request, config, &options());
    let last = refused.steps.len().checked_sub(1).filter(|_| refused.server.is_none());
    Some(Fit {
        server_uuid: server_uuid.clone(),
        fits: most,
        limited_by: last.and_then(|last| refused.steps[last].algorithm()),
        reason: last.and_then(|last| refused.reasons(last).get(&server_uuid.to_string()).cloned()),
        unreserved: snapshot.unreserved(server_uuid)?,
        stranded: snapshot_full.unreserved(server_uuid)?,
    })
}

fn options() -> Options {
    Options { order: Order::Arrival, only_ready: true, ..Options::default() }
}

struct Trial<'a> {
    server: &'a Server,
    config: &'a Config,
    request: &'a Request,
    extra: Arc<Extra>,
}

impl Trial<'_> {
    fn with(&self, copies: u32) -> Fleet {
        let mut fleet = alone(self.server, self.config);
        // No real VM has such a uuid.
        let vms = (1..=copies).map(|n| Uuid::from_u64_pair(u64::MAX, u64::from(n)));
        fleet.reserve_all(vms, &self.server.name, &self.extra);
        fleet
    }

    /// Whether so many copies fit: whether one more fits beside all but one of them.
    fn holds(&mut self, copies: u32) -> bool {
        if self.server.promised.bare {
            return false;
        }
        let snapshot = self.with(copies - 1).snapshot();
        allocate(&snapshot, self.request, self.config, &options()).server.is_some()
    }
}
