//! The allocator without a coordinator: reads lines of the types `config`, `dc` and `case`, and
//! answers each case with one line. For planning, regression and comparison.
//!
//! A case is prepared (parsed and checked), decided, and rendered in separate calls, so that the
//! caller, who has a clock, can time the decision alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_shared::error_chain::Chain;
use muster_shared::ids::ServerUuid;
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use serde_json::{Map, Value, json};

use crate::allocate::{Capacity, Options, Order, allocate, capacity};
use crate::config::{Config, ConfigError, default_expression};
use crate::fleet::Fleet;
use crate::num;
use crate::outcome::{Detail, Outcome};
use crate::promises::Ticket;
use crate::ratios::RatioPolicy;
use crate::recent::Recent;
use crate::request::{FieldError, Request, parse_capacity};
use crate::server_name::ServerName;
use crate::settings::HostOs;
use crate::snapshot::Snapshot;

/// A line that can't be used.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// No JSON.
    #[error("the line is not JSON")]
    Json(#[source] serde_json::Error),
    /// Not an object, or a member is missing or of the wrong type.
    #[error("the line has no usable member {0:?}")]
    Member(&'static str),
    /// A type other than `config`, `dc`, `case` and `meta`.
    #[error("unknown line type {0:?}")]
    Type(String),
    /// A policy that can't be used.
    #[error("config {id:?} can't be used")]
    Config {
        /// Its id.
        id: String,
        /// Why.
        #[source]
        cause: ConfigError,
    },
    /// A server that is none.
    #[error("server number {0} is not an object")]
    Server(usize),
    /// A malformed ticket.
    #[error("ticket number {place}: {message}")]
    Ticket {
        /// Its place in the list, from 0.
        place: usize,
        /// What is wrong.
        message: String,
    },
    /// A case refers to a `config` or `dc` that no line before it has.
    #[error("the case refers to {kind} {id:?}, which is not known")]
    Unknown {
        /// `config` or `dc`.
        kind: &'static str,
        /// The id.
        id: String,
    },
}

#[derive(Debug)]
struct Datacentre {
    fleet: Fleet,
    /// One per ratio policy in use.
    ready: Vec<(RatioPolicy, Arc<Snapshot>)>,
}

impl Datacentre {
    fn snapshot(&mut self, config: &Config) -> Arc<Snapshot> {
        let policy = config.ratio_policy();
        if let Some((_, snapshot)) = self.ready.iter().find(|(known, _)| *known == policy) {
            return Arc::clone(snapshot);
        }
        self.fleet.set_policy(config);
        let snapshot = self.fleet.snapshot();
        self.ready.push((policy, Arc::clone(&snapshot)));
        snapshot
    }
}

/// What the lines so far have told.
#[derive(Debug)]
pub struct Offline {
    host_os: HostOs,
    configs: BTreeMap<String, Arc<Config>>,
    datacentres: BTreeMap<String, Datacentre>,
}

impl Default for Offline {
    fn default() -> Self {
        Self::new(HostOs::Reference)
    }
}

/// What a case is decided by and on.
type Policy = (Arc<Config>, Arc<Snapshot>);

/// A case ready to be decided.
#[derive(Debug)]
pub struct Case {
    id: Value,
    policy: Option<Policy>,
    question: Question,
}

#[derive(Debug)]
enum Question {
    Allocate(Box<Request>, Options),
    Capacity(Option<Vec<ServerUuid>>),
    Invalid(Refusal),
}

/// Why a case has no decision, in CNAPI's form of an error.
#[derive(Debug, serde::Serialize)]
struct Refusal {
    code: &'static str,
    message: String,
    errors: Vec<FieldError>,
}

impl From<Vec<FieldError>> for Refusal {
    fn from(errors: Vec<FieldError>) -> Self {
        let message = "Request parameters failed validation".to_owned();
        Self { code: "InvalidParameters", message, errors }
    }
}

impl From<OfflineError> for Refusal {
    fn from(error: OfflineError) -> Self {
        Self { code: "InvalidCase", message: Chain(&error).to_string(), errors: Vec::new() }
    }
}

/// A decided case.
#[derive(Debug)]
pub struct Decision {
    id: Value,
    answer: Answer,
}

#[derive(Debug)]
enum Answer {
    Allocate(Box<Outcome>),
    Capacity(Capacity),
    Invalid(Refusal),
}

/// The line that answers a case.
#[derive(Debug)]
pub struct Line<'a> {
    decision: &'a Decision,
    elapsed_us: Option<f64>,
}

fn object<'a>(line: &'a Value, name: &'static str) -> Result<&'a Map<String, Value>, OfflineError> {
    line.get(name).and_then(Value::as_object).ok_or(OfflineError::Member(name))
}

fn text<'a>(line: &'a Value, name: &'static str) -> Result<&'a str, OfflineError> {
    line.get(name).and_then(Value::as_str).ok_or(OfflineError::Member(name))
}

impl Offline {
    /// Nothing read yet. The reference's rule for operating systems is the tool's default.
    #[must_use]
    pub fn new(host_os: HostOs) -> Self {
        Self { host_os, configs: BTreeMap::new(), datacentres: BTreeMap::new() }
    }

    /// Takes in one line. `None`: it was no case.
    ///
    /// # Errors
    /// The line can't be used; what earlier lines told stays.
    pub fn line(&mut self, line: &str) -> Result<Option<Case>, OfflineError> {
        if line.trim().is_empty() {
            return Ok(None);
        }
        let line: Value = serde_json::from_str(line).map_err(OfflineError::Json)?;
        match text(&line, "type")? {
            "meta" => Ok(None),
            "config" => self.config(&line).map(|()| None),
            "dc" => self.datacentre(&line).map(|()| None),
            "case" => Ok(Some(self.case(&line))),
            other => Err(OfflineError::Type(other.to_owned())),
        }
    }

    fn config(&mut self, line: &Value) -> Result<(), OfflineError> {
        let id = text(line, "id")?.to_owned();
        let default = default_expression(false);
        let expression = line.get("allocationDescription").unwrap_or(&default);
        let none = json!({});
        let changes = line.get("changeDefaults").unwrap_or(&none);
        let config = Config::new(expression, changes, self.host_os)
            .map_err(|cause| OfflineError::Config { id: id.clone(), cause })?;
        self.configs.insert(id, Arc::new(config));
        Ok(())
    }

    fn datacentre(&mut self, line: &Value) -> Result<(), OfflineError> {
        let id = text(line, "id")?.to_owned();
        let list = |name: &'static str| line.get(name).and_then(Value::as_array);
        let mut fleet = Fleet::new(&Config::reference_default(self.host_os));
        let servers = list("servers").ok_or(OfflineError::Member("servers"))?;
        for (place, record) in servers.iter().enumerate() {
            let record = record.as_object().ok_or(OfflineError::Server(place))?;
            // As the reference keys it; a filter says what is wrong with it.
            let name = num::display(record.get("uuid"));
            fleet.upsert_named(ServerName::of(&name), Arc::new(record.clone()));
        }
        for (place, ticket) in list("tickets").into_iter().flatten().enumerate() {
            let ticket = Ticket::from_json(ticket)
                .map_err(|message| OfflineError::Ticket { place, message })?;
            if let Some(ticket) = ticket {
                fleet.open_ticket(ticket);
            }
        }
        self.datacentres.insert(id, Datacentre { fleet, ready: Vec::new() });
        Ok(())
    }

    /// A case that can't be prepared is answered like a bad request, so that every case has its
    /// line.
    fn case(&mut self, line: &Value) -> Case {
        let id = line.get("id").cloned().unwrap_or(Value::Null);
        match self.prepare(line) {
            Ok((policy, question)) => Case { id, policy: Some(policy), question },
            Err(error) => Case { id, policy: None, question: Question::Invalid(error.into()) },
        }
    }

    fn prepare(&mut self, line: &Value) -> Result<(Policy, Question), OfflineError> {
        let config = text(line, "config")?;
        let unknown =
            |kind: &'static str, id: &str| OfflineError::Unknown { kind, id: id.to_owned() };
        let config = Arc::clone(self.configs.get(config).ok_or_else(|| unknown("config", config))?);
        let dc = text(line, "dc")?;
        let dc = self.datacentres.get_mut(dc).ok_or_else(|| unknown("dc", dc))?;
        let request = line.get("request").ok_or(OfflineError::Member("request"))?;
        let question = question(line, request, object(request, "body")?);
        let snapshot = dc.snapshot(&config);
        Ok(((config, snapshot), question))
    }

    /// Takes one document `{servers, tickets?, config?, request}` in: `config` as a `config` line,
    /// `request` as a case has it, or the body alone.
    ///
    /// # Errors
    /// The document can't be used.
    pub fn document(&mut self, text: &str) -> Result<Case, OfflineError> {
        let mut whole: Value = serde_json::from_str(text).map_err(OfflineError::Json)?;
        let document = whole.as_object_mut().ok_or(OfflineError::Member("servers"))?;
        let mut config = document.remove("config").unwrap_or_else(|| json!({}));
        if let Some(config) = config.as_object_mut() {
            config.insert("id".to_owned(), json!(DOCUMENT));
        }
        self.config(&config)?;
        let request = document.remove("request").ok_or(OfflineError::Member("request"))?;
        let request = if request.get("body").is_some_and(Value::is_object) {
            request
        } else {
            json!({ "body": request })
        };
        let mut case = document.clone();
        case.retain(|name, _| matches!(name.as_str(), "id" | "kind" | "seed" | "recent"));
        document.insert("id".to_owned(), json!(DOCUMENT));
        self.datacentre(&whole)?;
        case.insert("config".to_owned(), json!(DOCUMENT));
        case.insert("dc".to_owned(), json!(DOCUMENT));
        case.insert("request".to_owned(), request);
        Ok(self.case(&Value::Object(case)))
    }
}

/// The id of what a document brings.
const DOCUMENT: &str = "document";

fn question(line: &Value, request: &Value, body: &Map<String, Value>) -> Question {
    let kind = line.get("kind").and_then(Value::as_str);
    let path = request.get("path").and_then(Value::as_str);
    if kind == Some("capacity") || (kind.is_none() && path == Some("/capacity")) {
        return match parse_capacity(body) {
            Ok(servers) => Question::Capacity(servers),
            Err(errors) => Question::Invalid(errors.into()),
        };
    }
    match Request::parse(body) {
        Ok(request) => {
            let seed = line.get("seed").or_else(|| body.get("seed")).and_then(Value::as_u64);
            let options = Options {
                order: Order::Arrival,
                only_ready: false,
                seed: seed.unwrap_or(0),
                recent: line.get("recent").map(Recent::from_json).unwrap_or_default(),
            };
            Question::Allocate(Box::new(request), options)
        }
        Err(errors) => Question::Invalid(errors.into()),
    }
}

impl Case {
    /// Decides; this is what is worth timing.
    #[must_use]
    pub fn decide(self) -> Decision {
        let Self { id, policy, question } = self;
        let answer = match (question, policy) {
            (Question::Allocate(request, options), Some((config, snapshot))) => {
                Answer::Allocate(Box::new(allocate(&snapshot, &request, &config, &options)))
            }
            (Question::Capacity(servers), Some((config, snapshot))) => {
                Answer::Capacity(capacity(&snapshot, servers.as_deref(), &config))
            }
            (Question::Invalid(refusal), _) => Answer::Invalid(refusal),
            (Question::Allocate(..) | Question::Capacity(_), None) => {
                Answer::Invalid(OfflineError::Member("config").into())
            }
        };
        Decision { id, answer }
    }
}

impl Decision {
    /// The answer's line; `elapsed_us` is added if given.
    #[must_use]
    pub fn line(&self, elapsed_us: Option<f64>) -> Line<'_> {
        Line { decision: self, elapsed_us }
    }
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("id", &self.decision.id)?;
        match &self.decision.answer {
            Answer::Allocate(outcome) => {
                let server = outcome.server.as_ref();
                map.serialize_entry("server", &server.map(|server| &server.server_uuid))?;
                map.serialize_entry("score", &server.map(|server| num::json(server.score)))?;
                map.serialize_entry("seed", &outcome.seed)?;
                map.serialize_entry("steps", &outcome.steps(Detail::Full))?;
            }
            Answer::Capacity(capacity) => {
                map.serialize_entry("capacities", &capacity.capacities_json())?;
                map.serialize_entry("errors", &capacity.errors)?;
            }
            Answer::Invalid(refusal) => map.serialize_entry("error", refusal)?,
        }
        if let Some(elapsed) = self.elapsed_us {
            map.serialize_entry("elapsed_us", &num::json(elapsed))?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(case: Case) -> Value {
        serde_json::to_value(case.decide().line(None)).expect("it is JSON")
    }

    #[test]
    fn a_case_without_its_datacentre_is_answered_all_the_same() {
        let mut offline = Offline::default();
        let line = r#"{"type": "case", "id": 7, "config": "c", "dc": "d", "request": {}}"#;
        let case = offline.line(line).expect("it is a line").expect("it is a case");
        let answer = answer(case);
        assert_eq!((&answer["id"], &answer["error"]["code"]), (&json!(7), &json!("InvalidCase")));
        let message = answer["error"]["message"].as_str().expect("text");
        assert!(message.contains("\"c\""), "{message}");
    }

    #[test]
    fn a_document_has_all_in_one() {
        let mut document = json!({
            "servers": [{ "uuid": "564d69b1-a178-07f5-14f6-0be5c9ab1c9d", "setup": false }],
            "tickets": [],
            "request": {
                "vm": { "vm_uuid": "f9627169-cdc9-4970-aebe-35a164cbbe0e", "ram": 512,
                        "owner_uuid": "dea0834e-4747-4f77-aed4-b2a2737b59a8" },
                "image": {}, "nic_tags": [],
            },
        });
        let case = Offline::default().document(&document.to_string()).expect("it is good");
        let got = answer(case);
        assert_eq!((&got["server"], &got["score"]), (&Value::Null, &Value::Null));
        assert_eq!(got["steps"][1]["step"], "Servers which have been setup");
        document["config"] = json!({ "allocationDescription": ["pipe", "nope"] });
        let refused = Offline::default().document(&document.to_string()).expect_err("it is bad");
        assert!(Chain(&refused).to_string().ends_with("Unrecognized algorithm: nope"));
    }
}
