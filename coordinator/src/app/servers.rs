//! Servers: list, get, update, delete, and the views of a record.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use muster_shared::lenient::js_parse_int;
use serde_json::{Map, Value, json};

use super::allocate::{insert_unreserved, ratios_json};
use super::error::AppError;
use super::expected::Expected;
use super::fields::{Extras, STORED, provisionable, shown_status};
use super::fleet::Entry;
use super::status::ATTEMPTS;
use super::tasks::is_conflict;
use super::{App, keys};
use crate::roster::Standing;
use crate::store::{Expect, Write};

/// Most servers in one answer.
pub(super) const MAX_LIMIT: usize = 1_000;

/// Which servers; all that is given must fit.
#[derive(Clone, Debug, Default)]
pub struct ServerFilter {
    /// Only these.
    pub uuids: Option<BTreeSet<ServerUuid>>,
    /// Members that must have this value; a record that lacks one does not fit.
    pub equal: Vec<(&'static str, Value)>,
    /// At most this many.
    pub limit: Option<usize>,
    /// After skipping this many.
    pub offset: usize,
}

impl ServerFilter {
    fn fits(&self, server: ServerUuid, record: &Map<String, Value>) -> bool {
        self.uuids.as_ref().is_none_or(|uuids| uuids.contains(&server))
            && self.equal.iter().all(|(name, value)| record.get(*name) == Some(value))
    }
}

impl App {
    /// Servers in uuid order.
    #[must_use]
    pub fn server_list(&self, filter: &ServerFilter, extras: Extras) -> Vec<Map<String, Value>> {
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
        chosen.into_iter().map(|(server, entry)| self.server_view(server, &entry, extras)).collect()
    }

    /// One server.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`].
    pub fn server_get(
        &self,
        server: ServerUuid,
        extras: Extras,
    ) -> Result<Map<String, Value>, AppError> {
        let entry = self.fleet.get(server).filter(|entry| entry.record.is_some());
        let entry = entry.ok_or(AppError::ServerNotFound(server))?;
        Ok(self.server_view(server, &entry, extras))
    }

    /// Version of a server's record, for `ETag`.
    #[must_use]
    pub fn server_version(&self, server: ServerUuid) -> Option<String> {
        self.fleet.with(server, |entry| entry.record.as_ref().map(|r| r.revision.to_string()))?
    }

    fn server_view(&self, server: ServerUuid, entry: &Entry, extras: Extras) -> Map<String, Value> {
        let mut view = Map::new();
        let Some(record) = entry.record.as_ref().map(|held| &held.value) else { return view };
        for name in STORED.iter().filter(|name| extras.agents || **name != "agents") {
            if let Some(value) = record.get(*name) {
                // Modules in a blob are only shown with the server alone.
                if *name == "boot_modules" && value.is_object() {
                    continue;
                }
                view.insert((*name).to_owned(), value.clone());
            }
        }
        let mut set = |name: &str, value: Value| view.insert(name.to_owned(), value);
        set("status", json!(shown_status(entry.stored_status(), record)));
        if extras.last_heartbeat {
            set("last_heartbeat", json!(self.last_heartbeat(server, entry)));
        }
        if extras.memory {
            for (name, bytes) in entry.figures.with_prefix("memory_") {
                set(name, json!(bytes));
            }
        }
        if extras.disk {
            for (name, bytes) in entry.figures.with_prefix("disk_") {
                set(name, json!(bytes));
            }
        }
        let sysinfo = if extras.sysinfo || extras.memory { entry.sysinfo() } else { Map::new() };
        if extras.memory {
            let mib = sysinfo.get("MiB of Memory").and_then(js_parse_int);
            let total = entry.figures.exact("memory_total_bytes");
            if let Some(bytes) = provisionable(record, mib, total, entry.vms_mib()) {
                set("memory_provisionable_bytes", json!(bytes));
            }
        }
        if extras.capacity {
            set("overprovision_ratios", ratios_json(&self.ratios()));
            if let Some(left) = self.capacity_of(server, entry) {
                insert_unreserved(&mut view, left);
            }
            view.insert("score".to_owned(), json!(0));
        }
        if extras.vms {
            view.insert("vms".to_owned(), Value::Object(entry.cnapi_vms()));
        }
        if extras.sysinfo {
            view.insert("sysinfo".to_owned(), Value::Object(sysinfo));
        }
        view
    }

    /// When a server that is alive was last heard.
    fn last_heartbeat(&self, server: ServerUuid, entry: &Entry) -> Option<String> {
        let now = self.parts.clock.monotonic();
        let standing = self.roster.lock().standing(server, now)?;
        let alive = matches!(standing, Standing::Alive | Standing::Suspect);
        entry.last_heartbeat.filter(|_| alive).map(iso)
    }

    /// Changes members of a record; `None` removes one. Equal values cause no write.
    ///
    /// # Errors
    /// [`AppError::ServerNotFound`], [`AppError::Changed`], [`AppError::Store`],
    /// [`AppError::Busy`] after many lost races.
    pub async fn server_update(
        &self,
        server: ServerUuid,
        changes: &[(&str, Option<Value>)],
        expected: &Expected,
    ) -> Result<(), AppError> {
        let change = |record: &mut Map<String, Value>| {
            for (name, value) in changes {
                match value {
                    Some(value) => drop(record.insert((*name).to_owned(), value.clone())),
                    None => drop(record.remove(*name)),
                }
            }
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
        change: impl Fn(&mut Map<String, Value>) -> Result<(), AppError>,
    ) -> Result<Arc<Map<String, Value>>, AppError> {
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

    /// Sets one member, if the server is registered.
    pub(super) async fn server_set(
        &self,
        server: ServerUuid,
        name: &str,
        value: Value,
    ) -> Result<(), AppError> {
        match self.server_update(server, &[(name, Some(value))], &Expected::ANY).await {
            Err(AppError::ServerNotFound(_)) => Ok(()),
            other => other,
        }
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
        self.boot_drop(&record).await;
        self.tasks_of_deleted(server).await;
        tracing::info!(server_uuid = %server, "server deleted");
        Ok(())
    }

    async fn server_erase(
        &self,
        server: ServerUuid,
        expected: &Expected,
    ) -> Result<Arc<Map<String, Value>>, AppError> {
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
