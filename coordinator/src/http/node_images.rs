//! `/servers/:server_uuid/images`: images that a server has installed.

use std::fmt::Display;

use http::Method;
use muster_shared::api::Object;
use muster_shared::api::server_image::ServerImages;
use muster_shared::api::task::TaskStarted;
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;
use serde_json::json;

use super::ask::Ask;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Route, ServerRule};
use super::schema;
use crate::app::AppError;
use crate::app::tasks::NewTask;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/servers/:server_uuid/images", "ServerImages", list)
            .summary("The images installed on the server, and what uses them")
            .server(ServerRule::Exists)
            .errors(&[501, 503])
            .fenced()
            .returns_schema(schema::of::<ServerImages>),
        Route::new(
            Method::DELETE,
            "/servers/:server_uuid/images/:uuid",
            "ServerImageRemove",
            remove,
        )
        .summary("Removes an image from the server, unless disks or other images there need it")
        .server(ServerRule::Exists)
        .running()
        .fenced()
        .returns_schema(schema::of::<TaskStarted>),
        Route::new(Method::GET, "/servers/:server_uuid/images/:uuid", "ImageGet", get)
            .summary("The manifest of an image that the server has installed")
            .server(ServerRule::Exists)
            .errors(&[501, 503])
            .fenced()
            .returns_schema(schema::installed_image),
    ]
}

async fn list(request: Request) -> Result<Response, ApiError> {
    Response::json(Ask::new("server_images", Object::new(), 60).query(&request).await?)
}

/// The image in the path; nothing else is one.
fn named(request: &Request) -> Result<ImageUuid, ApiError> {
    let image = request.text("uuid").unwrap_or_default();
    image.parse().map_err(|_| absent(image))
}

fn absent(image: impl Display) -> ApiError {
    ApiError::NotFound(format!("Image {image} not found"))
}

async fn remove(request: Request) -> Result<Response, ApiError> {
    named(&request)?;
    let new = NewTask {
        server: request.server()?,
        task: "image_delete".to_owned(),
        params: request.params.clone(),
        caller: request.caller.clone(),
        // The uuid is no VM's.
        vm: None,
    };
    Response::json(TaskStarted { id: request.app.tasks.create_new(new).await? })
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let image = named(&request)?;
    let params = Object::from_iter([("uuid", json!(image))]);
    let asked = Ask::new("image_get", params, 60).query(&request).await;
    let result = asked.map_err(|error| match &error {
        AppError::Agent { code: Code::ImageNotInstalled, .. } => absent(image),
        _ => error.into(),
    })?;
    Response::json(result)
}
