//! Kinds of the contract whose driver this version does not have: their parameters are checked as
//! ever, and then they are refused by the name of what is missing. They are not announced, so
//! coordinators refuse them before they send anything.

use std::time::Duration;

use muster_shared::lenient::is_uuid;
use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::machine::MACHINE_TASKS;
use super::server_reboot::SERVER_TASKS;
use super::{Handler, Kind, Params, Plan, Queue, TaskFailure};

const MIGRATION: &str = "migration";
const ENCRYPTION: &str = "pool encryption";
const PACKAGES: &str = "agent packages";

/// The queue of what concerns the software of the node.
pub(super) const AGENTS_TASKS: Queue =
    Queue { name: "agents_tasks", max_concurrent: 1, max_wait: Duration::from_secs(3600) };

/// What a parameter has to be.
#[derive(Clone, Copy, Debug)]
enum Shape {
    Text,
    Uuid,
}

/// A kind without a driver.
#[derive(Debug)]
pub struct Unsupported {
    kind: Kind,
    needs: &'static str,
    required: &'static [(&'static str, Shape)],
}

/// Moves a VM to another server.
pub static MACHINE_MIGRATE: Unsupported = Unsupported {
    kind: Kind::mutate("machine_migrate", MACHINE_TASKS, Duration::from_secs(86_400)),
    needs: MIGRATION,
    required: &[],
};
/// Stages or activates the recovery configuration of an encrypted pool.
pub static RECOVERY_CONFIG: Unsupported = Unsupported {
    kind: Kind::mutate("recovery_config", SERVER_TASKS, Duration::from_secs(300)),
    needs: ENCRYPTION,
    required: &[("action", Shape::Text), ("pivtoken", Shape::Text), ("recovery_uuid", Shape::Uuid)],
};
/// Installs another agent from an image.
pub static AGENT_INSTALL: Unsupported = Unsupported {
    kind: Kind::mutate("agent_install", AGENTS_TASKS, Duration::from_secs(1800)),
    needs: PACKAGES,
    required: &[("image_uuid", Shape::Uuid)],
};

impl Handler for Unsupported {
    fn kind(&self) -> Kind {
        self.kind
    }

    fn lacks(&self) -> Option<&'static str> {
        Some(self.needs)
    }

    fn example(&self) -> Params {
        let value = |shape: &Shape| match shape {
            Shape::Text => json!("zones/one"),
            Shape::Uuid => json!("6c1a5a44-5b5c-4d4e-9f43-2a1f0e2b7c01"),
        };
        self.required.iter().map(|(name, shape)| ((*name).to_owned(), value(shape))).collect()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        for (name, shape) in self.required {
            let fits = match (shape, params.get(*name)) {
                (Shape::Text, Some(Value::String(text))) => !text.is_empty(),
                (Shape::Uuid, Some(Value::String(text))) => is_uuid(text),
                _ => false,
            };
            if !fits {
                let problem = match shape {
                    Shape::Text => "must be a text",
                    Shape::Uuid => "must be a UUID",
                };
                return Err(TaskFailure::bad_param(name, problem));
            }
        }
        let text = format!("{}: this agent has no {}", self.kind.name, self.needs);
        Err(TaskFailure::new(Code::NotSupported, text)
            .with_details(json!({ "restCode": Code::NotSupported, "capability": self.needs })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_checked_before_the_lack_is_told() {
        let failure = AGENT_INSTALL.plan(&Params::new()).unwrap_err();
        assert_eq!(failure.details.unwrap()["field"], "image_uuid");
        let failure = AGENT_INSTALL.plan(&AGENT_INSTALL.example()).unwrap_err();
        assert_eq!(failure.code, "NotSupported");
        assert!(failure.message.contains("packages"), "{failure}");
        let mut bad = AGENT_INSTALL.example();
        bad.insert("image_uuid".to_owned(), json!("x"));
        assert_eq!(AGENT_INSTALL.plan(&bad).unwrap_err().code, "InvalidParameters");
    }
}
