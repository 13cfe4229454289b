//! The allocator: finds a server for a VM, and says why.
//!
//! Pure: no input or output, no clock, no hidden randomness. The same snapshot, request, policy
//! and seed give the same decision, here and in a year. The behaviour is sdc-designation's (the
//! reference); what it calls things, how it rounds and how it words its reasons is kept.
//!
//! How the parts fit:
//! - [`Fleet`] takes in records, reports, tickets and reservations as they arrive and keeps every
//!   server's sums ready. One task owns it.
//! - [`Snapshot`] is what it hands to a request; never changed, shared by pointer.
//! - [`Request`] is a checked body, [`Config`] a checked policy.
//! - [`allocate`] evaluates the policy's expression; [`Outcome`] holds the decision and renders
//!   the steps on demand. [`capacity`] says what servers have left.
//!
//! ```
//! # use std::sync::Arc;
//! # use muster_alloc::{Config, Fleet, HostOs, Options, Request, allocate};
//! let config = Config::reference_default(HostOs::Any);
//! let mut fleet = Fleet::new(&config);
//! // news.set_record(record)?; news.set_status("running"); … fleet.take_news(&server, news);
//! let body = serde_json::json!({
//!     "vm": {"vm_uuid": "f9627169-cdc9-4970-aebe-35a164cbbe0e", "ram": 512,
//!            "owner_uuid": "dea0834e-4747-4f77-aed4-b2a2737b59a8", "brand": "kvm"},
//!     "image": {}, "nic_tags": ["admin"],
//! });
//! let request = Request::parse(body.as_object().ok_or("no object")?).map_err(|e| format!("{e:?}"))?;
//! let options = Options { only_ready: true, seed: 7, ..Options::default() };
//! let outcome = allocate(&fleet.snapshot(), &request, &config, &options);
//! assert_eq!(outcome.failure(), "received by DAPI");
//! # Ok::<(), String>(())
//! ```
#![forbid(unsafe_code)]

mod algorithm;
mod algorithms;
mod allocate;
mod bits;
mod change;
mod config;
mod explain;
mod expr;
mod figures;
mod findings;
mod fingerprint;
mod fit;
mod flags;
mod fleet;
mod least;
mod new_vm;
mod news;
pub mod num;
pub mod offline;
mod order;
mod outcome;
mod owners;
mod persist;
mod platform;
mod predicate;
mod promises;
mod ratios;
mod reason;
mod recent;
mod relax;
mod remaining;
mod remedy;
mod render;
mod request;
mod rng;
mod run;
mod save;
mod schema;
mod score;
mod scored;
mod scores;
mod server;
mod server_name;
mod settings;
mod slot_set;
mod snapshot;
mod sorting;
mod sweep;
mod time;
mod validate;
mod vm;
mod what_if;

pub use algorithms::title_of;
pub use allocate::{Capacity, Options, Order, allocate, allocate_within, capacity, explain};
pub use config::{Config, ConfigError, create_expression, default_expression};
pub use explain::Explanation;
pub use expr::ExprError;
pub use fit::{Fit, Fitted, fit};
pub use fleet::Fleet;
pub use least::{Helpless, LeastChanges, Suggestion, least_changes};
pub use news::{News, NoUuid};
pub use outcome::{Choice, Detail, Digest, Outcome, RECEIVED, Step, StepCount};
pub use predicate::BadPredicate;
pub use promises::{Extra, Ticket};
pub use ratios::{RatioPolicy, Ratios};
pub use recent::{PlacedVm, Recent, RecentServer, RecentVm};
pub use render::Steps;
pub use request::{FieldError, Request, check_package, known_members, parse_capacity};
pub use save::{Changes, Restored, SavedServer};
pub use server::Unreserved;
pub use server_name::ServerName;
pub use settings::{BadDefault, HostOs};
pub use snapshot::Snapshot;
pub use validate::MAX_AMOUNT;
pub use what_if::WhatIf;
