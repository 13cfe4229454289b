//! The Muster coordinator: roster, waitlist, allocator and the CNAPI-compatible HTTP API.
#![forbid(unsafe_code)]

pub mod store;
