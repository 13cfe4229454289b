//! What must hold at the end of a run, when everything works again and nothing is asked any more.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use super::Sim;
use super::ask::Ask;
use super::client::Patience;
use super::invariants::{self, Verdict, Violation};

/// Tries of [`Sim::check_quiet`].
const QUIET_TRIES: usize = 5;
/// How long the coordinator may take for a request when all is well.
const ANSWER: Duration = Duration::from_secs(5);

impl Sim {
    /// Nothing is asked and nothing changes: soon nothing may be written any more. Hosts that are
    /// slow may still start guests, and a job may still wait for a drain, so there are a few tries.
    ///
    /// # Errors
    /// Who wrote.
    pub fn check_quiet(&mut self, settle: Duration, quiet: Duration) -> Verdict {
        let mut found = self.is_quiet(settle, quiet)?;
        for _ in 1..QUIET_TRIES {
            if found.is_none() || self.witness.model().drains() {
                return Ok(());
            }
            found = self.is_quiet(settle, quiet)?;
        }
        found.map_or(Ok(()), |detail| Err(Violation::new("quiet-fleet-writes-nothing", detail)))
    }

    /// What was written after a while; `None`: nothing.
    fn is_quiet(&mut self, settle: Duration, quiet: Duration) -> Result<Option<String>, Violation> {
        self.run_for(settle)?;
        let written = |sim: &Self| {
            let agents = sim.agents.iter().map(|agent| agent.kv.written());
            (sim.coordinator.kv.written(), agents.collect::<Vec<_>>())
        };
        let (before, revisions) = (written(self), self.witness.model().revisions());
        self.run_for(quiet)?;
        let after = written(self);
        let changed = self.witness.model().changed_since(&revisions);
        Ok((before != after).then(|| format!("{before:?} → {after:?}: {changed:?}")))
    }

    /// The answer to a request when all is well.
    ///
    /// # Errors
    /// There is none.
    pub fn answer(&mut self, ask: Ask) -> Result<Value, Violation> {
        let shown = format!("{ask:?}");
        let refused = |detail: &str| Violation::new("api-answers", format!("{shown}: {detail}"));
        let number = self.ask(ask, Patience::Endless);
        let number = number.ok_or_else(|| refused("there is no coordinator"))?;
        let end = self.now + ANSWER;
        loop {
            match self.client.take_reply(number) {
                Some((200, body)) => return Ok(body),
                Some((status, body)) => return Err(refused(&format!("{status} {body}"))),
                None if self.now > end => return Err(refused("no answer")),
                None => self.tick()?,
            }
        }
    }

    /// The VM index of the coordinator agrees with the hosts.
    ///
    /// # Errors
    /// Where they differ.
    pub fn check_index(&mut self) -> Verdict {
        let listed = self.answer(Ask::Get("/vms?limit=1000".to_owned()))?;
        let listed = listed.as_array().into_iter().flatten().filter_map(|vm| {
            let part = |name: &str| vm.get(name).and_then(Value::as_str).map(str::to_owned);
            Some((part("uuid")?, part("server_uuid")?, part("state")?))
        });
        let listed: BTreeSet<_> = listed.collect();
        let hosts = self.agents.iter().flat_map(|agent| {
            let running = agent.guests.running();
            let server = agent.server.to_string();
            agent.records.records().into_iter().map(move |(vm, record)| {
                let state = match record.importing {
                    Some(_) => "provisioning",
                    None if running.contains_key(&vm) => "running",
                    None => "stopped",
                };
                (vm.to_string(), server.clone(), state.to_owned())
            })
        });
        let hosts: BTreeSet<_> = hosts.collect();
        let more: Vec<_> = listed.difference(&hosts).collect();
        let less: Vec<_> = hosts.difference(&listed).collect();
        if more.is_empty() && less.is_empty() {
            return Ok(());
        }
        let detail = format!("listed, but not on hosts: {more:?}; not listed: {less:?}");
        Err(Violation::new("index-is-what-hosts-have", detail))
    }

    /// Every promise of room was kept or has ended: what is free is what VMs leave.
    ///
    /// # Errors
    /// Where room is lost.
    pub fn check_room(&mut self) -> Verdict {
        const PLANNED_MIB: u64 = 1024;
        let plan = self.answer(Ask::Plan(PLANNED_MIB))?;
        for agent in &self.agents {
            let taken: u64 = invariants::taken_mib(agent).values().sum();
            let free = invariants::usable_mib(agent).saturating_sub(taken) / PLANNED_MIB;
            let server = agent.server.to_string();
            let found = plan["servers"].as_array().into_iter().flatten();
            let found = found.into_iter().find(|one| one["server_uuid"] == server.as_str());
            let fits = found.and_then(|one| one["fits"].as_u64());
            if fits != Some(free) {
                let detail = format!("{server}: {fits:?} fit instead of {free}: {found:?}");
                return Err(Violation::new("room-returns", detail));
            }
        }
        Ok(())
    }
}
