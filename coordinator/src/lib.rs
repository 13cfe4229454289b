//! The Muster coordinator: roster, waitlist, allocator and the CNAPI-compatible HTTP API.
#![forbid(unsafe_code)]

pub mod app;
pub mod http;
pub mod metrics;
pub mod store;
