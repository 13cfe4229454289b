//! What a client changes of a server's record (CNAPI's ServerUpdate).

use std::time::Duration;

use jiff::Timestamp;
use muster_shared::api::Object;
use muster_shared::api::server::ServerRecord;
use muster_shared::clock::iso;
use muster_shared::ids::ServerUuid;
use serde::Deserialize;
use serde_json::{Number, Value};

use super::Caller;
use super::error::AppError;
use super::expected::Expected;
use super::servers::Servers;
use crate::agents::Query;

/// Longest wait for the agent that takes over ratios.
const AGENT_TIMEOUT: Duration = Duration::from_secs(60);
/// What there are ratios of.
const RATIOS: [&str; 5] = ["cpu", "ram", "disk", "io", "net"];

/// A change of a server's record; `None`: it stays as it is.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ServerUpdate {
    pub(crate) agents: Option<Vec<Value>>,
    pub(crate) boot_params: Option<Object>,
    /// Sent to the agent, not stored.
    pub(crate) overprovision_ratios: Option<Object>,
    pub(crate) traits: Option<Object>,
    pub(crate) boot_platform: Option<String>,
    pub(crate) comments: Option<String>,
    pub(crate) datacenter: Option<String>,
    pub(crate) default_console: Option<String>,
    pub(crate) next_reboot: Option<String>,
    pub(crate) rack_identifier: Option<String>,
    pub(crate) serial: Option<String>,
    /// Empty: none.
    pub(crate) transitional_status: Option<String>,
    pub(crate) reservation_ratio: Option<Number>,
    pub(crate) reserved: Option<bool>,
    pub(crate) reservoir: Option<bool>,
    pub(crate) setting_up: Option<bool>,
    pub(crate) setup: Option<bool>,
}

impl ServerUpdate {
    fn check(&self) -> Result<(), AppError> {
        let bad = |text: &str| Err(AppError::InvalidArgument(text.to_owned()));
        if self.next_reboot.as_deref().is_some_and(|text| !text.is_empty() && !is_iso(text)) {
            return bad("Invalid date for next_reboot; not an ISO date format");
        }
        if !matches!(self.transitional_status.as_deref(), None | Some("" | "rebooting")) {
            return bad("Invalid transitional_status");
        }
        let share = self.reservation_ratio.as_ref().map(|ratio| ratio.as_f64().unwrap_or(f64::NAN));
        if share.is_some_and(|share| !(0.0..=1.0).contains(&share)) {
            return Err(AppError::invalid("reservation_ratio", "value was not between 0 and 1"));
        }
        Ok(())
    }

    fn apply(&self, record: &mut ServerRecord) {
        replace_some(&mut record.agents, &self.agents);
        replace_some(&mut record.boot.boot_params, &self.boot_params);
        replace(&mut record.traits, &self.traits);
        replace_some(&mut record.boot.boot_platform, &self.boot_platform);
        replace(&mut record.comments, &self.comments);
        replace(&mut record.datacenter, &self.datacenter);
        replace_some(&mut record.boot.default_console, &self.default_console);
        replace_some(&mut record.next_reboot, &self.next_reboot);
        replace(&mut record.rack_identifier, &self.rack_identifier);
        replace_some(&mut record.boot.serial, &self.serial);
        replace_some(&mut record.transitional_status, &self.transitional_status);
        replace_some(&mut record.reservation_ratio, &self.reservation_ratio);
        replace(&mut record.reserved, &self.reserved);
        replace(&mut record.reservoir, &self.reservoir);
        replace_some(&mut record.setting_up, &self.setting_up);
        replace(&mut record.setup, &self.setup);
    }

    /// The ratios as the agent takes them: `cpu=4&ram=1`.
    fn ratios(&self) -> Result<Option<String>, AppError> {
        let Some(ratios) = &self.overprovision_ratios else { return Ok(None) };
        let bad =
            |what: &str, key: &str| AppError::InvalidArgument(format!("Invalid {what} {key}"));
        let mut pairs = Vec::new();
        for (key, value) in ratios {
            if !RATIOS.contains(&key.as_str()) {
                return Err(bad("key", key));
            }
            let number = value.as_f64().ok_or_else(|| bad("type for", key))?;
            if number < 0.0 {
                return Err(bad("value for", key));
            }
            pairs.push(format!("{key}={value}"));
        }
        Ok(Some(pairs.join("&")))
    }
}

fn replace<T: Clone>(member: &mut T, value: &Option<T>) {
    if let Some(value) = value {
        member.clone_from(value);
    }
}

fn replace_some<T: Clone>(member: &mut Option<T>, value: &Option<T>) {
    if value.is_some() {
        member.clone_from(value);
    }
}

fn is_iso(text: &str) -> bool {
    text.parse::<Timestamp>().is_ok_and(|at| iso(at) == text)
}

impl Servers {
    /// Changes a server's record as a client asks, and what its agent has to know of that.
    ///
    /// # Errors
    /// [`AppError::TicketNotActive`], [`AppError::InvalidArgument`], [`AppError::Invalid`],
    /// [`AppError::RefusedArgument`] for a platform that does not exist,
    /// [`AppError::ServerNotFound`], [`AppError::Changed`], what the agent says to its part,
    /// [`AppError::Store`], [`AppError::Busy`] after many lost races.
    pub(crate) async fn modify(
        &self,
        server: ServerUuid,
        update: &ServerUpdate,
        expected: &Expected,
        caller: &Caller,
    ) -> Result<(), AppError> {
        self.tickets.check(caller).await?;
        let ratios = update.ratios()?;
        update.check()?;
        if let Some(platform) = &update.boot_platform
            && !self.platforms.exists(platform).await?
        {
            let text = format!("failed to find given platform image, {platform}");
            return Err(AppError::RefusedArgument(text));
        }
        let is_set_up = |entry: &super::fleet::Entry| {
            entry.record.as_ref().is_some_and(|record| record.value.setup)
        };
        if let Some(ratios) = ratios
            && self.fleet.with(server, is_set_up).unwrap_or(false)
        {
            // A version that was changed meanwhile is refused before the agent acts.
            self.fleet.update_record(server, expected, |_| {}).await?;
            let params = Object::from_iter([("value", ratios)]);
            let task = "server_overprovision_ratio";
            let query = Query::new(server, task, params, &caller.req_id, AGENT_TIMEOUT);
            self.nodes.query(caller, query).await?;
        }
        self.fleet.update_record(server, expected, |record| update.apply(record)).await
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn update(of: Value) -> ServerUpdate {
        serde_json::from_value(of).unwrap()
    }

    #[track_caller]
    fn check_refused(of: &Value, text: &str) {
        let refused = update(of.clone()).check().unwrap_err();
        assert_eq!(refused.to_string(), text, "{of}");
    }

    #[test]
    fn values_of_the_right_type_that_can_t_be_are_refused() {
        let failed = "Request parameters failed validation";
        check_refused(&json!({ "reservation_ratio": 1.1 }), failed);
        check_refused(&json!({ "reservation_ratio": -0.1 }), failed);
        check_refused(&json!({ "transitional_status": "x" }), "Invalid transitional_status");
        let date = "Invalid date for next_reboot; not an ISO date format";
        check_refused(&json!({ "next_reboot": "2026-01-01" }), date);
        let good = json!({
            "next_reboot": "2026-01-01T00:00:00.000Z", "transitional_status": "",
            "reservation_ratio": 1, "unheard_of": 1,
        });
        update(good).check().unwrap();
    }

    #[test]
    fn ratios_are_told_as_the_agent_wants_them() {
        let ratios = |of: Value| update(json!({ "overprovision_ratios": of })).ratios();
        assert_eq!(ratios(json!({ "cpu": 4, "ram": 1.5 })).unwrap().unwrap(), "cpu=4&ram=1.5");
        for (bad, text) in [
            (json!({ "x": 1 }), "Invalid key x"),
            (json!({ "cpu": "1" }), "Invalid type for cpu"),
            (json!({ "cpu": -1 }), "Invalid value for cpu"),
        ] {
            assert_eq!(ratios(bad).unwrap_err().to_string(), text);
        }
    }
}
