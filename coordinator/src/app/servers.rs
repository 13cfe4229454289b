//! Servers: list, get, update, delete, and the views of a record.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::api::boot::BootModules;
use muster_shared::api::server::{Server, ServerRecord};
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use muster_shared::lenient::js_parse_int;
use serde_json::Number;

use super::allocate::{number, ratios_shown};
use super::error::AppError;
use super::expected::Expected;
use super::fields::{Extras, provisionable, shown_status};
use super::fleet::Entry;
use super::status::ATTEMPTS;
use super::tasks::is_conflict;
use super::{App, keys};
use crate::alloc::Unreserved;
use crate::roster::Standing;
use crate::store::{Expect, Write};

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

impl App {
    /// Servers in uuid order.
    #[must_use]
    pub fn server_list(&self, filter: &ServerFilter, extras: Extras) -> Vec<Server> {
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
        let view = |(server, entry)| self.server_view(server, &entry, extras);
        chosen.into_iter().filter_map(view).collect()
    }

    /// One server.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`].
    pub fn server_get(&self, server: ServerUuid, extras: Extras) -> Result<Server, AppError> {
        let view = self.fleet.get(server).and_then(|e| self.server_view(server, &e, extras));
        view.ok_or(AppError::ServerNotFound(server))
    }

    /// Version of a server's record, for `ETag`.
    #[must_use]
    pub fn server_version(&self, server: ServerUuid) -> Option<String> {
        self.fleet.with(server, |entry| entry.record.as_ref().map(|r| r.revision.to_string()))?
    }

    fn server_view(&self, server: ServerUuid, entry: &Entry, extras: Extras) -> Option<Server> {
        let held = entry.record.as_ref()?;
        let mut record = (*held.value).clone();
        record.unknown.clear();
        if !extras.agents {
            record.agents = None;
        }
        // Modules in a blob are only shown with the server alone.
        record.boot.boot_modules.take_if(|modules| matches!(modules, BootModules::Blob { .. }));
        let sysinfo = (extras.sysinfo || extras.memory).then(|| entry.sysinfo());
        let provisionable = extras.memory.then(|| {
            let mib = sysinfo.as_ref().and_then(|s| s.get("MiB of Memory").and_then(js_parse_int));
            let total = entry.figures.exact("memory_total_bytes");
            provisionable(&held.value, mib, total, entry.vms_mib())
        });
        let left = extras.capacity.then(|| self.capacity_of(server, entry)).flatten();
        let unreserved =
            |of: fn(&Unreserved) -> f64| left.as_ref().and_then(|left| number(of(left)));
        Some(Server {
            status: shown_status(entry.stored_status(), &record),
            record,
            last_heartbeat: extras.last_heartbeat.then(|| self.last_heartbeat(server, entry)),
            memory: if extras.memory { entry.figures.memory() } else { Default::default() },
            disk: if extras.disk { entry.figures.disk() } else { Default::default() },
            memory_provisionable_bytes: provisionable.flatten(),
            overprovision_ratios: extras.capacity.then(|| ratios_shown(&self.ratios())),
            unreserved_cpu: unreserved(|left| left.cpu),
            unreserved_ram: unreserved(|left| left.ram),
            unreserved_disk: unreserved(|left| left.disk),
            score: extras.capacity.then(|| Number::from(0)),
            vms: extras.vms.then(|| entry.cnapi_vms()),
            sysinfo: sysinfo.filter(|_| extras.sysinfo),
        })
    }

    /// When a server that is alive was last heard.
    fn last_heartbeat(&self, server: ServerUuid, entry: &Entry) -> Option<String> {
        let now = self.parts.clock.monotonic();
        let standing = self.roster.lock().standing(server, now)?;
        let alive = matches!(standing, Standing::Alive | Standing::Suspect);
        entry.last_heartbeat.filter(|_| alive).map(iso)
    }

    /// Changes a record; when nothing changes, nothing is written.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Changed`], [`AppError::Store`],
    /// [`AppError::Busy`] after many lost races.
    pub async fn server_update(
        &self,
        server: ServerUuid,
        expected: &Expected,
        change: impl Fn(&mut ServerRecord),
    ) -> Result<(), AppError> {
        let change = |record: &mut ServerRecord| {
            change(record);
            Ok(())
        };
        self.server_change(server, expected, change).await.map(drop)
    }

    /// Changes a record and returns it as it was.
    ///
    /// # Errors
    /// As [`App::server_update`]; what `change` returns.
    pub(super) async fn server_change(
        &self,
        server: ServerUuid,
        expected: &Expected,
        change: impl Fn(&mut ServerRecord) -> Result<(), AppError>,
    ) -> Result<Arc<ServerRecord>, AppError> {
        for _ in 0..ATTEMPTS {
            let held = self.fleet.get(server).and_then(|entry| entry.record);
            let held = held.ok_or(AppError::ServerNotFound(server))?;
            expected.check(held.revision)?;
            let mut record = (*held.value).clone();
            change(&mut record)?;
            if record == *held.value {
                return Ok(held.value);
            }
            let key = keys::server(server);
            let write = Write::put(key, Expect::At(held.revision), keys::encode(&record));
            match self.feed.commit(vec![write]).await {
                Ok(_) => return Ok(held.value),
                Err(error) if is_conflict(&error) => self.feed.catch_up().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(AppError::Busy(format!("server {server} changes too fast")))
    }

    /// Removes a server's records; its open tasks end. The node is not touched, and a live agent
    /// registers again.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Changed`], [`AppError::Store`],
    /// [`AppError::Busy`] after many lost races.
    pub async fn server_delete(
        self: &Arc<Self>,
        server: ServerUuid,
        expected: &Expected,
    ) -> Result<(), AppError> {
        let record = self.server_erase(server, expected).await?;
        self.fleet.forget_reported(server);
        let vms: Vec<_> = self.fleet.reported_vms(server).into_iter().collect();
        for batch in vms.chunks(crate::store::MAX_COMMIT_WRITES) {
            let writes =
                batch.iter().map(|vm| Write::delete(keys::vm(server, *vm), Expect::Any)).collect();
            self.feed.commit(writes).await?;
        }
        self.boot_drop(record.boot.boot_modules.as_ref()).await;
        self.tasks_of_deleted(server).await;
        tracing::info!(server_uuid = %server, "server deleted");
        Ok(())
    }

    async fn server_erase(
        &self,
        server: ServerUuid,
        expected: &Expected,
    ) -> Result<Arc<ServerRecord>, AppError> {
        for _ in 0..ATTEMPTS {
            let held = self.fleet.get(server).and_then(|entry| entry.record);
            let held = held.ok_or(AppError::ServerNotFound(server))?;
            expected.check(held.revision)?;
            let writes = vec![
                Write::delete(keys::server(server), Expect::At(held.revision)),
                Write::delete(keys::sysinfo(server), Expect::Any),
                Write::delete(keys::roster(server), Expect::Any),
                Write::delete(keys::figures(server), Expect::Any),
            ];
            match self.feed.commit(writes).await {
                Ok(_) => return Ok(held.value),
                Err(error) if is_conflict(&error) => self.feed.catch_up().await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(AppError::Busy(format!("server {server} changes too fast")))
    }

    /// A heartbeat over HTTP.
    pub fn heartbeat_posted(&self, server: ServerUuid) {
        let now: Timestamp = self.parts.clock.wall();
        self.roster.lock().posted(server, self.parts.clock.monotonic());
        self.fleet.note(server, |entry| entry.last_heartbeat = Some(now));
        self.roster.wake.notify_one();
    }
}
