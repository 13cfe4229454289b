//! Forms of values that several resources share.

use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The schema of a time as CNAPI writes it: UTC, with milliseconds. The types keep such a time as
/// the text that it is.
#[derive(Debug, ToSchema)]
#[schema(pattern = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
pub struct IsoTime(#[expect(dead_code, reason = "only its schema is used")] String);

/// The schema of a time that is null while there is none.
#[derive(Debug)]
pub(super) struct TimeOrNull;

impl PartialSchema for TimeOrNull {
    fn schema() -> RefOr<Schema> {
        let null = ObjectBuilder::new().schema_type(Type::Null);
        OneOfBuilder::new().item(IsoTime::schema()).item(null).into()
    }
}

impl ToSchema for TimeOrNull {}
