//! Forms of values that several resources share.

use utoipa::ToSchema;

/// The schema of a time as CNAPI writes it: UTC, with milliseconds. The types keep such a time as
/// the text that it is.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
pub struct IsoTime(#[expect(dead_code, reason = "only its schema is used")] String);
