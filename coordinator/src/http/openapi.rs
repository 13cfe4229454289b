//! The OpenAPI 3.1 document, made from the route table.

use utoipa::PartialSchema;
use utoipa::openapi::path::{
    HttpMethod, Operation, OperationBuilder, ParameterBuilder, ParameterIn,
};
use utoipa::openapi::request_body::RequestBodyBuilder;
use utoipa::openapi::schema::{ArrayBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{
    ContentBuilder, InfoBuilder, ObjectBuilder, OpenApi, OpenApiBuilder, PathsBuilder, Ref, RefOr,
    Required, Response, ResponseBuilder,
};

use super::route::{BodyRule, Param, Reply, Route, ServerRule};
use super::rule::{Rule, UUID_PATTERN};

/// The component that every error answer refers to.
const ERROR_SCHEMA: &str = "Error";

/// The document of a route table.
pub(crate) fn document<'a>(routes: impl Iterator<Item = &'a Route>) -> OpenApi {
    let mut paths = PathsBuilder::new();
    for route in routes {
        let Some(method) = http_method(route) else { continue };
        paths = paths.path(
            path_template(route.pattern),
            utoipa::openapi::PathItem::new(method, operation(route)),
        );
    }
    let components =
        utoipa::openapi::ComponentsBuilder::new().schema(ERROR_SCHEMA, error_schema()).build();
    OpenApiBuilder::new()
        .info(
            InfoBuilder::new()
                .title("Muster coordinator")
                .description(Some("Compute nodes, their virtual machines and tasks"))
                .version(env!("CARGO_PKG_VERSION"))
                .build(),
        )
        .paths(paths)
        .components(Some(components))
        .build()
}

fn http_method(route: &Route) -> Option<HttpMethod> {
    match route.method.as_str() {
        "GET" => Some(HttpMethod::Get),
        "POST" => Some(HttpMethod::Post),
        "PUT" => Some(HttpMethod::Put),
        "DELETE" => Some(HttpMethod::Delete),
        "PATCH" => Some(HttpMethod::Patch),
        _ => None,
    }
}

/// `/servers/:server_uuid` → `/servers/{server_uuid}`.
fn path_template(pattern: &str) -> String {
    let parts = pattern.split('/').map(|part| match part.strip_prefix(':') {
        Some(name) => format!("{{{name}}}"),
        None => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("/")
}

fn operation(route: &Route) -> Operation {
    let id = match route.alias {
        Some(_) => format!("{}By{}", route.operation, route.method),
        None => route.operation.to_owned(),
    };
    let mut operation = OperationBuilder::new()
        .operation_id(Some(id))
        .summary(Some(route.summary))
        .tag(super::matcher::first_segment(route.pattern));
    for part in route.pattern.split('/') {
        if let Some(name) = part.strip_prefix(':') {
            operation = operation.parameter(
                ParameterBuilder::new()
                    .name(name)
                    .parameter_in(ParameterIn::Path)
                    .required(Required::True)
                    .schema(Some(String::schema())),
            );
        }
    }
    let in_query =
        matches!(route.method.as_str(), "GET" | "DELETE") || route.body == BodyRule::Stream;
    if in_query {
        for param in route.params {
            operation = operation.parameter(
                ParameterBuilder::new()
                    .name(param.name)
                    .parameter_in(ParameterIn::Query)
                    .required(if is_optional(param) { Required::False } else { Required::True })
                    .description(Some(param.doc))
                    .schema(Some(param_schema(param.rules))),
            );
        }
    }
    operation = operation.request_body(request_body(route, in_query));
    for (status, response) in responses(route) {
        operation = operation.response(status, response);
    }
    operation.build()
}

fn is_optional(param: &Param) -> bool {
    param.rules.first().is_none_or(|rule| *rule == Rule::Optional)
}

fn request_body(
    route: &Route,
    in_query: bool,
) -> Option<utoipa::openapi::request_body::RequestBody> {
    if route.body == BodyRule::Stream {
        let octets =
            ContentBuilder::new().schema(Some(ObjectBuilder::new().schema_type(Type::String)));
        let body = RequestBodyBuilder::new().content("application/octet-stream", octets.build());
        return Some(body.required(Some(Required::True)).build());
    }
    if in_query || route.params.is_empty() {
        return None;
    }
    let mut object = ObjectBuilder::new();
    for param in route.params {
        object = object.property(param.name, described(param));
        if !is_optional(param) {
            object = object.required(param.name);
        }
    }
    let content = ContentBuilder::new().schema(Some(object)).build();
    Some(RequestBodyBuilder::new().content("application/json", content).build())
}

fn described(param: &Param) -> RefOr<Schema> {
    match param_schema(param.rules) {
        RefOr::T(Schema::Object(mut object)) => {
            object.description = Some(param.doc.to_owned());
            RefOr::T(Schema::Object(object))
        }
        other => other,
    }
}

/// The type that a parameter's rules ask for.
fn param_schema(rules: &[Rule]) -> RefOr<Schema> {
    let of = |kind: Type| ObjectBuilder::new().schema_type(kind);
    let mut schema = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
    for rule in rules {
        schema = match rule {
            Rule::Optional | Rule::Trim | Rule::ToBoolean => continue,
            Rule::StringType => of(Type::String),
            Rule::ObjectType => of(Type::Object),
            Rule::ArrayType => {
                let any = ObjectBuilder::new().schema_type(SchemaType::AnyValue);
                return ArrayBuilder::new().items(any).into();
            }
            Rule::BooleanType | Rule::BooleanString => of(Type::Boolean),
            Rule::NumberType => of(Type::Number),
            Rule::NumberOrString => ObjectBuilder::new()
                .schema_type(SchemaType::from_iter([Type::Number, Type::String])),
            Rule::Int => of(Type::Integer),
            Rule::Regex(pattern) => of(Type::String).pattern(Some(*pattern)),
            Rule::Uuid => of(Type::String).pattern(Some(UUID_PATTERN)),
        };
    }
    schema.into()
}

fn error_schema() -> RefOr<Schema> {
    let field = ObjectBuilder::new()
        .property("field", String::schema())
        .property("code", String::schema())
        .property("message", String::schema());
    ObjectBuilder::new()
        .property("code", String::schema())
        .property("message", String::schema())
        .property("errors", ArrayBuilder::new().items(field))
        .required("code")
        .required("message")
        .description(Some("Why a request was refused"))
        .into()
}

fn responses(route: &Route) -> Vec<(String, Response)> {
    let success = ResponseBuilder::new().description("Success");
    let success = match route.reply {
        Reply::Empty => success,
        Reply::Json(schema) => success
            .content("application/json", ContentBuilder::new().schema(Some(schema())).build()),
        Reply::Bytes(kind) => success.content(kind, ContentBuilder::new().build()),
        Reply::Websocket => ResponseBuilder::new().description("The connection is a websocket now"),
    };
    let mut all = vec![(route.success.as_str().to_owned(), success.build())];
    let mut refusals: Vec<(&str, &str)> = vec![("500", "A failure of the coordinator")];
    let takes_body = !matches!(route.method.as_str(), "GET");
    if takes_body {
        refusals.push(("400", "The body can't be read"));
        refusals.push(("413", "The body is too large"));
    }
    let named = route.pattern.contains(':');
    if named {
        refusals.push(("404", "It does not exist"));
    }
    if !route.params.is_empty() || route.strict || route.vm || route.server != ServerRule::None {
        refusals.push(("409", "A parameter is wrong, or the state does not allow it"));
    }
    for (status, description) in refusals {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(ERROR_SCHEMA)));
        let response = ResponseBuilder::new()
            .description(description)
            .content("application/json", content.build());
        all.push((status.to_owned(), response.build()));
    }
    all
}
