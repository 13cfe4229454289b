//! The allocator without a coordinator: reads lines of the types `config`, `dc` and `case`, and
//! answers each case with one line. For planning, regression and comparison.
//!
//! A case is prepared (parsed and checked), decided, and rendered in separate calls, so that the
//! caller, who has a clock, can time the decision alone.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::allocate::{Capacity, Options, Order, allocate, capacity};
use crate::config::{Config, ConfigError, HostOs, RatioPolicy};
use crate::fleet::Fleet;
use crate::num;
use crate::outcome::{Detail, Outcome};
use crate::promises::Ticket;
use crate::recent::Recent;
use crate::request::{FieldError, Request, parse_capacity};
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
    /// A server without a uuid.
    #[error("server number {0} has no uuid")]
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

/// A case ready to be decided.
#[derive(Debug)]
pub struct Case {
    id: Value,
    config: Arc<Config>,
    snapshot: Arc<Snapshot>,
    question: Question,
}

#[derive(Debug)]
enum Question {
    Allocate(Box<Request>, Options),
    Capacity(Option<Vec<String>>),
    Invalid(Vec<FieldError>),
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
    Invalid(Vec<FieldError>),
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
            "case" => self.case(&line).map(Some),
            other => Err(OfflineError::Type(other.to_owned())),
        }
    }

    fn config(&mut self, line: &Value) -> Result<(), OfflineError> {
        let id = text(line, "id")?.to_owned();
        let default = crate::config::default_expression(false);
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
            let added = fleet.upsert_server(Arc::new(record.clone()));
            added.map_err(|_| OfflineError::Server(place))?;
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

    fn case(&mut self, line: &Value) -> Result<Case, OfflineError> {
        let config = text(line, "config")?;
        let unknown =
            |kind: &'static str, id: &str| OfflineError::Unknown { kind, id: id.to_owned() };
        let config = Arc::clone(self.configs.get(config).ok_or_else(|| unknown("config", config))?);
        let dc = text(line, "dc")?;
        let dc = self.datacentres.get_mut(dc).ok_or_else(|| unknown("dc", dc))?;
        let request = line.get("request").ok_or(OfflineError::Member("request"))?;
        let body = object(request, "body")?;
        let question = match text(line, "kind")? {
            "capacity" => match parse_capacity(body) {
                Ok(servers) => Question::Capacity(servers),
                Err(errors) => Question::Invalid(errors),
            },
            _ => match Request::parse(body) {
                Ok(request) => {
                    let options = Options {
                        order: Order::Arrival,
                        only_ready: false,
                        seed: line.get("seed").and_then(Value::as_u64).unwrap_or(0),
                        recent: line.get("recent").map(Recent::from_json).unwrap_or_default(),
                    };
                    Question::Allocate(Box::new(request), options)
                }
                Err(errors) => Question::Invalid(errors),
            },
        };
        let id = line.get("id").cloned().unwrap_or(Value::Null);
        let snapshot = dc.snapshot(&config);
        Ok(Case { id, config, snapshot, question })
    }
}

impl Case {
    /// Decides; this is what is worth timing.
    #[must_use]
    pub fn decide(self) -> Decision {
        let Self { id, config, snapshot, question } = self;
        let answer = match question {
            Question::Allocate(request, options) => {
                Answer::Allocate(Box::new(allocate(&snapshot, &request, &config, &options)))
            }
            Question::Capacity(servers) => {
                Answer::Capacity(capacity(&snapshot, servers.as_deref(), &config, false))
            }
            Question::Invalid(errors) => Answer::Invalid(errors),
        };
        Decision { id, answer }
    }
}

impl Decision {
    /// The answer's line; `elapsed_us` is added if given.
    #[must_use]
    pub fn render(&self, elapsed_us: Option<f64>) -> Value {
        let mut out = Map::new();
        out.insert("id".to_owned(), self.id.clone());
        match &self.answer {
            Answer::Allocate(outcome) => {
                let server = outcome.server.as_ref();
                let uuid = server.map(|server| server.server_uuid.as_str());
                out.insert("server".to_owned(), uuid.into());
                let score = server.map_or(Value::Null, |server| num::json(server.score));
                out.insert("score".to_owned(), score);
                out.insert("steps".to_owned(), outcome.steps_json(Detail::Full));
            }
            Answer::Capacity(capacity) => {
                out.insert("capacities".to_owned(), capacity.capacities_json());
                out.insert("errors".to_owned(), Value::Object(capacity.errors.clone()));
            }
            Answer::Invalid(errors) => {
                let error = json!({
                    "code": "InvalidParameters",
                    "message": "Request parameters failed validation",
                    "errors": errors,
                });
                out.insert("error".to_owned(), error);
            }
        }
        if let Some(elapsed) = elapsed_us {
            out.insert("elapsed_us".to_owned(), num::json(elapsed));
        }
        Value::Object(out)
    }
}
