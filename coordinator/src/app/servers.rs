//! Servers: list, get, update, delete, and the views of a record.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_shared::api::server::{Server, ServerRecord};
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use serde_json::Number;

use super::boot::Boot;
use super::context::Context;
use super::error::AppError;
use super::expected::Expected;
use super::fields::Extras;
use super::fleet::{Entry, Fleet};
use super::keys;
use super::nodes::Nodes;
use super::placement::Placement;
use super::platforms::PlatformCatalog;
use super::roster::Roster;
use super::server_view::{number, ratios_shown, server_view};
use super::tasks::Tasks;
use super::tickets::Tickets;
use crate::alloc::Unreserved;
use crate::roster::Standing;
use crate::store::{Expect, MAX_COMMIT_WRITES, Write};

/// Most servers in one answer.
pub(super) const MAX_LIMIT: usize = 1_000;

/// Which servers; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct ServerFilter {
    /// Only these.
    pub uuids: Option<BTreeSet<ServerUuid>>,
    /// Set up, or not.
    pub setup: Option<bool>,
    /// Headnodes, or none; a server of which it is not known is neither.
    pub headnode: Option<bool>,
    /// Reserved ones, or none.
    pub reserved: Option<bool>,
    /// Those that get VMs last, or none.
    pub reservoir: Option<bool>,
    /// The server of this name.
    pub hostname: Option<String>,
    /// At most this many.
    pub limit: Option<usize>,
    /// After skipping this many.
    pub offset: usize,
}

impl ServerFilter {
    fn fits(&self, server: ServerUuid, record: &ServerRecord) -> bool {
        let is = |wanted: Option<bool>, have: bool| wanted.is_none_or(|wanted| wanted == have);
        self.uuids.as_ref().is_none_or(|uuids| uuids.contains(&server))
            && is(self.setup, record.setup)
            && self.headnode.is_none_or(|wanted| record.headnode == Some(wanted))
            && is(self.reserved, record.reserved)
            && is(self.reservoir, record.reservoir)
            && self.hostname.as_ref().is_none_or(|name| record.hostname == *name)
    }
}

/// Servers as clients see them.
#[derive(Debug)]
pub struct Servers {
    pub(super) ctx: Arc<Context>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) roster: Arc<Roster>,
    pub(super) placement: Arc<Placement>,
    pub(super) boot: Arc<Boot>,
    pub(super) platforms: Arc<PlatformCatalog>,
    pub(super) tasks: Arc<Tasks>,
    pub(super) tickets: Arc<Tickets>,
    pub(super) nodes: Arc<Nodes>,
}

impl Servers {
    /// Servers in uuid order.
    #[must_use]
    pub fn list(&self, filter: &ServerFilter, extras: Extras) -> Vec<Server> {
        let limit = filter.limit.unwrap_or(MAX_LIMIT).min(MAX_LIMIT);
        let mut skip = filter.offset;
        let mut chosen = Vec::new();
        self.fleet.for_each(|server, entry| {
            let fits = entry.record.as_ref().is_some_and(|r| filter.fits(server, &r.value));
            if !fits || chosen.len() == limit {
                return;
            }
            if skip > 0 {
                skip -= 1;
                return;
            }
            chosen.push((server, entry.clone()));
        });
        let view = |(server, entry)| self.view(server, &entry, extras);
        chosen.into_iter().filter_map(view).collect()
    }

    /// One server.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`].
    pub fn get(&self, server: ServerUuid, extras: Extras) -> Result<Server, AppError> {
        let view = self.fleet.get(server).and_then(|e| self.view(server, &e, extras));
        view.ok_or(AppError::ServerNotFound(server))
    }

    fn view(&self, server: ServerUuid, entry: &Entry, extras: Extras) -> Option<Server> {
        let mut view = server_view(entry, extras)?;
        if extras.last_heartbeat {
            view.last_heartbeat = Some(self.last_heartbeat(server));
        }
        if extras.capacity {
            let left = self.placement.capacity_of(server, entry);
            let unreserved =
                |of: fn(&Unreserved) -> f64| left.as_ref().and_then(|left| number(of(left)));
            // The reference gives them only to servers whose capacity it computes.
            let ratios = || ratios_shown(&self.ctx.config.allocation.ratios());
            view.overprovision_ratios = left.as_ref().map(|_| ratios());
            view.unreserved_cpu = unreserved(|left| left.cpu);
            view.unreserved_ram = unreserved(|left| left.ram);
            view.unreserved_disk = unreserved(|left| left.disk);
            view.score = Some(Number::from(0));
        }
        Some(view)
    }

    /// When a server that is alive was last heard.
    fn last_heartbeat(&self, server: ServerUuid) -> Option<String> {
        let now = self.ctx.parts.clock.monotonic();
        let roster = self.roster.lock();
        let standing = roster.standing(server, now)?;
        let alive = matches!(standing, Standing::Alive | Standing::Suspect);
        roster.last_heartbeat(server).filter(|_| alive).map(iso)
    }

    /// Removes a server's records; its open tasks end. The node is not touched, and a live agent
    /// registers again.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Changed`], [`AppError::Store`],
    /// [`AppError::Busy`] after many lost races.
    pub async fn delete(&self, server: ServerUuid, expected: &Expected) -> Result<(), AppError> {
        let record = self.fleet.erase_record(server, expected).await?;
        self.fleet.forget_reported(server);
        let vms: Vec<_> = self.fleet.reported_vms(server).into_iter().collect();
        for batch in vms.chunks(MAX_COMMIT_WRITES) {
            let writes =
                batch.iter().map(|vm| Write::delete(keys::vm(server, *vm), Expect::Any)).collect();
            self.ctx.feed.commit(writes).await?;
        }
        self.boot.drop_modules(record.boot.boot_modules.as_ref()).await;
        self.tasks.end_all_of(server).await;
        tracing::info!(server_uuid = %server, "server deleted");
        Ok(())
    }
}
