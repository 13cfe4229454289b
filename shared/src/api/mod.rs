//! JSON types of the public API, one file per resource: what the coordinator answers, what it
//! keeps in its records, and what the command line reads.
//!
//! The OpenAPI document is derived from them. A doc comment is the description of its type or
//! member there; a member that is an `Option` without `#[schema(required)]` is left out rather
//! than null. Members that this version does not know are ignored on reading, unless a type
//! keeps them in a flattened map.

mod field_error;
pub mod job;
pub mod ticket;
mod value;

pub use field_error::FieldError;
pub use value::IsoTime;
