//! What is wrong with one parameter of a request.

use serde::Serialize;
use utoipa::ToSchema;

/// One element of `errors` in CNAPI's `InvalidParameters` body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct FieldError {
    /// The parameter, with dots where it lies deeper: `vm.ram`.
    pub field: String,
    /// Always `Invalid`, as in the reference.
    pub code: &'static str,
    /// What is wrong with it.
    pub message: String,
}

impl FieldError {
    /// A bad parameter.
    pub fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), code: "Invalid", message: message.into() }
    }
}
