//! The chosen server as CNAPI shows it. It goes to the answer as it is: only a server that the
//! question imagines is made of members first.

use muster_shared::api::Object;
use muster_shared::api::server::{Ratios, Server};
use serde::Serialize;
use serde_json::Value;

use super::ask::Ask;
use super::{Placement, no_server};
use crate::alloc::{Outcome, Unreserved, num};
use crate::app::error::AppError;
use crate::app::fields::Extras;
use crate::app::server_view::{ratios_shown, server_view};

/// The server, and what the decision says of it.
#[derive(Debug, Serialize)]
pub(super) struct ChosenServer {
    #[serde(flatten)]
    view: View,
    score: Value,
    overprovision_ratios: Ratios,
    /// What it had left, if the policy asks.
    #[serde(flatten)]
    left: Option<Left>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum View {
    Known(Box<Server>),
    Imagined(Object),
}

/// Percent of a core, MiB and MiB.
#[derive(Debug, Serialize)]
struct Left {
    unreserved_cpu: Value,
    unreserved_ram: Value,
    unreserved_disk: Value,
}

impl Left {
    fn of(left: Unreserved) -> Self {
        Self {
            unreserved_cpu: num::json(left.cpu),
            unreserved_ram: num::json(left.ram),
            unreserved_disk: num::json(left.disk),
        }
    }
}

/// Members of a view that nobody can imagine otherwise.
const DECIDED: [&str; 6] =
    ["vms", "score", "overprovision_ratios", "unreserved_cpu", "unreserved_ram", "unreserved_disk"];

impl Placement {
    /// The chosen server.
    pub(super) fn chosen_view(
        &self,
        ask: &Ask,
        outcome: &Outcome,
    ) -> Result<ChosenServer, AppError> {
        let choice = outcome.server.as_ref().ok_or_else(|| no_server(outcome))?;
        let imagined = ask.what_if.as_ref();
        let imagined = imagined.and_then(|what_if| what_if.server(&choice.server_uuid));
        let extras = Extras { sysinfo: true, memory: true, disk: true, ..Extras::default() };
        let server = choice.server_uuid.uuid().ok_or_else(|| no_server(outcome))?;
        let known = self.fleet.get(server).and_then(|entry| server_view(&entry, extras));
        let view = match (known, imagined) {
            (Some(server), None) => View::Known(Box::new(server)),
            (None, None) => return Err(AppError::ServerNotFound(server)),
            (known, Some(imagined)) => {
                let mut view = known.as_ref().map(Object::of).unwrap_or_default();
                view.extend(imagined.iter().map(|(k, v)| (k.clone(), v.clone())));
                view.retain(|name, _| !DECIDED.contains(&name));
                View::Imagined(view)
            }
        };
        Ok(ChosenServer {
            view,
            score: num::json(choice.score),
            overprovision_ratios: ratios_shown(&choice.ratios),
            left: choice.unreserved.map(Left::of),
        })
    }
}
