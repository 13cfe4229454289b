//! `/boot` and `/platforms`: what servers boot, and with which parameters.

use http::Method;
use muster_shared::api::Object;
use serde_json::Value;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use crate::app::{BootChange, BootOwner, Mode};

/// Boot modules make these bodies large, bytes.
const BODY_LIMIT_BYTES: usize = 8 * 1024 * 1024;

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType, Rule::Trim];
const OBJECT: &[Rule] = &[Rule::Optional, Rule::ObjectType];
const FLAG: &[Rule] = &[Rule::Optional, Rule::BooleanString, Rule::ToBoolean];

const PARAMS: &[Param] = &[
    Param::new("platform", TEXT, "Platform of the next boot; one of /platforms"),
    Param::new("kernel_args", OBJECT, "Arguments of the kernel"),
    Param::new("kernel_flags", OBJECT, "Switches of the kernel"),
    Param::new("boot_modules", &[Rule::Optional, Rule::ArrayType], "Files for the boot loader")
        .schema(schema::boot_modules),
    // A string or null, which no rule can say.
    Param::new("default_console", &[], "Console: text, or null to unset it")
        .schema(schema::long_text),
    Param::new("serial", &[], "Serial device: text, or null to unset it").schema(schema::long_text),
    Param::new("boot_params", OBJECT, "Another name of kernel_args"),
    Param::new("params", OBJECT, "Another name of kernel_args"),
    Param::new("kernel_values", OBJECT, "Another name of kernel_flags"),
];

const PLATFORM_PARAMS: &[Param] =
    &[Param::new("os", FLAG, "Whether to tell what each platform boots")];

pub(super) fn routes() -> Vec<Route> {
    const DEFAULT: &str = "/boot/default";
    const SERVER: &str = "/boot/:server_uuid";
    vec![
        Route::new(Method::GET, DEFAULT, "BootParamsGetDefault", get)
            .summary("The boot parameters that new servers inherit")
            .versioned()
            .returns_schema(schema::boot_params),
        write_route(Method::PUT, DEFAULT, "BootParamsSetDefault")
            .summary("Replaces the boot parameters that new servers inherit"),
        write_route(Method::POST, DEFAULT, "BootParamsUpdateDefault")
            .summary("Merges into the boot parameters that new servers inherit; null deletes"),
        Route::new(Method::GET, SERVER, "BootParamsGet", get)
            .summary("A server's boot parameters")
            .server(ServerRule::Exists)
            .versioned()
            .returns_schema(schema::boot_params),
        write_route(Method::PUT, SERVER, "BootParamsSet")
            .summary("Replaces a server's boot parameters")
            .server(ServerRule::Exists),
        write_route(Method::POST, SERVER, "BootParamsUpdate")
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
        .params(PARAMS)
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
    let object =
        |names: &[&str]| -> Option<Object> { names.iter().find_map(|name| request.object(name)) };
    let change = BootChange {
        platform: request.text("platform").map(str::to_owned),
        kernel_args: object(&["kernel_args", "boot_params", "params"]),
        kernel_flags: object(&["kernel_flags", "kernel_values"]),
        boot_modules: request.param("boot_modules").and_then(Value::as_array).cloned(),
        default_console: text_or_null(&request, "default_console")?,
        serial: text_or_null(&request, "serial")?,
    };
    request.app.boot.change(owner, mode, &change, &request.expected()).await?;
    Ok(Response::empty())
}

fn text_or_null(request: &Request, name: &str) -> Result<Option<Option<String>>, ApiError> {
    match request.param(name) {
        None => Ok(None),
        Some(Value::Null) => Ok(Some(None)),
        Some(Value::String(text)) if text.trim() == text => Ok(Some(Some(text.clone()))),
        Some(Value::String(_)) => {
            Err(ApiError::invalid(name, "value contains leading or trailing whitespace"))
        }
        Some(_) => Err(ApiError::invalid(name, "value was not a string")),
    }
}

async fn platforms(request: Request) -> Result<Response, ApiError> {
    let with_os = request.param("os") == Some(&Value::Bool(true));
    Response::json(request.app.platforms.all().await?.shown(with_os))
}
