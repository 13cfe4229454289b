//! JSON types of the public API, one file per resource: what the coordinator answers, what it
//! keeps in its records, and what the command line reads.
//!
//! The OpenAPI document is derived from them. A doc comment is the description of its type or
//! member there; a member that is an `Option` without `#[schema(required)]` is left out rather
//! than null. Members that this version does not know are ignored on reading, unless a type
//! keeps them in a flattened map. What is somebody else's, and only kept, shown or passed on, is an
//! [`Object`].

pub mod allocation;
pub mod boot;
mod field_error;
pub mod image;
pub mod info;
pub mod job;
pub mod log;
mod object;
pub mod orphan;
pub mod package;
pub mod server;
pub mod server_image;
pub mod task;
pub mod ticket;
pub mod transfer;
pub mod usage;
mod value;
pub mod vm;

pub use field_error::FieldError;
pub use object::Object;
pub use value::IsoTime;
