//! What the Muster agent, coordinator and command line share: names, units, the wire protocol
//! between agent and coordinator, and the doors through which all code reaches the outside world.
//!
//! Nothing here knows about the agent or the coordinator.

pub mod api;
pub mod backoff;
pub mod clock;
pub mod config;
pub mod entropy;
pub mod error_chain;
pub mod export;
pub mod exposition;
pub mod folders;
pub mod huge_pages;
pub mod ids;
pub mod json_bounds;
pub mod kv;
pub mod lenient;
pub mod link;
pub mod platform;
pub mod process_usage;
pub mod reserve;
pub mod secrets;
pub mod telemetry;
pub mod threads;
pub mod tls;
pub mod units;
pub mod unix_socket;
pub mod vm;
pub mod wire;
