//! Builds images of containers.

mod context;
pub mod dockerfile;
mod note;

pub use self::note::{Note, Published};
