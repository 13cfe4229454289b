//! `/boot` and `/platforms`: what servers boot, and with which parameters.

use http::Method;
use muster_shared::api::boot::{BootModule, BootParams};
use serde_json::{Value, json};

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::{FLAG_PATTERN, Rule};
use super::schema;
use crate::app::{BootChange, BootOwner, Mode};

/// Boot modules make these bodies large, bytes.
const BODY_LIMIT_BYTES: usize = 8 * 1024 * 1024;

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType, Rule::Trim];
const OBJECT: &[Rule] = &[Rule::Optional, Rule::ObjectType];
const TEXT_OR_NULL: &[Rule] = &[Rule::Nullable, Rule::StringType, Rule::Trim];
const OBJECT_OR_NULL: &[Rule] = &[Rule::Nullable, Rule::ObjectType];
const FLAG: &[Rule] = &[Rule::Optional, Rule::Regex(FLAG_PATTERN), Rule::ToBoolean];

const PLATFORM: Param =
    Param::new("platform", TEXT, "Platform of the next boot; one of /platforms, empty: none");
const ARGS: Param = Param::new("kernel_args", OBJECT, "Arguments of the kernel");
const FLAGS: &str = "Switches of the kernel";
const MODULES: Param =
    Param::new("boot_modules", &[Rule::Nullable, Rule::ArrayType], "Files for the boot loader")
        .schema(array_of_modules);

/// Of the default record.
const DEFAULT_PARAMS: &[Param] = &[
    PLATFORM,
    ARGS,
    Param::new("kernel_flags", OBJECT_OR_NULL, FLAGS),
    MODULES,
    Param::new("default_console", TEXT_OR_NULL, "Console; null unsets it"),
    Param::new("serial", TEXT_OR_NULL, "Serial device; null unsets it"),
];
/// Of a server, to be replaced.
const SET_PARAMS: &[Param] = &[
    PLATFORM,
    Param::new("default_console", TEXT, "Console"),
    Param::new("serial", TEXT, "Serial device"),
    ARGS,
    Param::new("kernel_flags", OBJECT, FLAGS),
    MODULES,
    Param::new("boot_params", OBJECT, "Another name of kernel_args"),
    Param::new("kernel_values", OBJECT, "Another name of kernel_flags"),
];
/// Of a server, to be merged.
const UPDATE_PARAMS: &[Param] = &[
    Param::new(
        "platform",
        &[Rule::Optional, Rule::Trim, Rule::StringType],
        "Platform of the next boot; one of /platforms, empty: as it was",
    ),
    ARGS,
    Param::new("kernel_flags", OBJECT_OR_NULL, FLAGS),
    MODULES,
    Param::new("default_console", TEXT_OR_NULL, "Console; null empties it"),
    Param::new("serial", TEXT_OR_NULL, "Serial device; null empties it"),
    Param::new("params", OBJECT, "Another name of kernel_args"),
];

/// An array, or null.
fn array_of_modules() -> Value {
    json!({ "anyOf": [schema::array_of::<BootModule>(), { "type": "null" }] })
}

const PLATFORM_PARAMS: &[Param] =
    &[Param::new("os", FLAG, "Whether to tell what each platform boots")];

pub(super) fn routes() -> Vec<Route> {
    const DEFAULT: &str = "/boot/default";
    const SERVER: &str = "/boot/:server_uuid";
    vec![
        Route::new(Method::GET, DEFAULT, "BootParamsGetDefault", get)
            .summary("The boot parameters that new servers inherit")
            .versioned()
            .returns_schema(schema::of::<BootParams>),
        write_route(Method::PUT, DEFAULT, "BootParamsSetDefault")
            .params(DEFAULT_PARAMS)
            .summary("Replaces the boot parameters that new servers inherit"),
        write_route(Method::POST, DEFAULT, "BootParamsUpdateDefault")
            .params(DEFAULT_PARAMS)
            .summary("Merges into the boot parameters that new servers inherit; null deletes"),
        Route::new(Method::GET, SERVER, "BootParamsGet", get)
            .summary("A server's boot parameters")
            .server(ServerRule::Exists)
            .versioned()
            .returns_schema(schema::of::<BootParams>),
        write_route(Method::PUT, SERVER, "BootParamsSet")
            .params(SET_PARAMS)
            .summary("Replaces a server's boot parameters")
            .server(ServerRule::Exists),
        write_route(Method::POST, SERVER, "BootParamsUpdate")
            .params(UPDATE_PARAMS)
            .summary("Merges into a server's boot parameters; null deletes")
            .server(ServerRule::Exists),
        Route::new(Method::GET, "/platforms", "PlatformList", platforms)
            .summary("Platform images that servers can boot")
            .strict()
            .params(PLATFORM_PARAMS)
            .returns_schema(schema::platforms),
    ]
}

fn write_route(method: Method, pattern: &'static str, operation: &'static str) -> Route {
    let mode = if method == Method::PUT { Mode::Replace } else { Mode::Merge };
    Route::new(method, pattern, operation, move |request| write(request, mode))
        .body_limit(BODY_LIMIT_BYTES)
        .versioned()
        .no_content()
}

/// Routes of the default record name no server.
fn owner(request: &Request) -> BootOwner {
    request.server().map_or(BootOwner::Default, BootOwner::Server)
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let (reply, version) = request.app.boot.get(owner(&request)).await?;
    Ok(Response::json(reply)?.etag(version))
}

async fn write(request: Request, mode: Mode) -> Result<Response, ApiError> {
    let owner = owner(&request);
    // Each route has its own names, as in the reference.
    let (args, flags) = match (owner, mode) {
        (BootOwner::Default, _) => ("kernel_args", "kernel_flags"),
        (BootOwner::Server(_), Mode::Replace) => ("boot_params", "kernel_values"),
        (BootOwner::Server(_), Mode::Merge) => ("params", "kernel_flags"),
    };
    let object = |name, other| request.object(name).or_else(|| request.object(other));
    let platform = request.text("platform").filter(|platform| !platform.is_empty());
    let change = BootChange {
        platform: platform.map(str::to_owned),
        kernel_args: object("kernel_args", args),
        kernel_flags: object("kernel_flags", flags),
        boot_modules: request.param("boot_modules").and_then(Value::as_array).cloned(),
        default_console: text_or_null(&request, "default_console"),
        serial: text_or_null(&request, "serial"),
    };
    request.app.boot.change(owner, mode, &change, &request.expected()).await?;
    Ok(Response::empty())
}

/// A parameter that the rules have found to be text or null.
fn text_or_null(request: &Request, name: &str) -> Option<Option<String>> {
    Some(request.param(name)?.as_str().map(str::to_owned))
}

async fn platforms(request: Request) -> Result<Response, ApiError> {
    let with_os = request.param("os") == Some(&Value::Bool(true));
    Response::json(request.app.platforms.all().await?.shown(with_os))
}
