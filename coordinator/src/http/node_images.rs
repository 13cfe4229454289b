//! `/servers/:server_uuid/images`: images that a server has installed.

use http::Method;
use muster_shared::api::Object;
use muster_shared::wire::Code;

use super::ask::Ask;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Route, ServerRule};
use super::schema;
use crate::app::AppError;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/servers/:server_uuid/images/:uuid", "ImageGet", get)
            .summary("The manifest of an image that the server has installed")
            .server(ServerRule::Exists)
            .errors(&[501, 503])
            .fenced()
            .returns_schema(schema::installed_image),
    ]
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let image = request.text("uuid").unwrap_or_default();
    let absent = || ApiError::NotFound(format!("Image {image} not found"));
    if image.parse::<muster_shared::ids::ImageUuid>().is_err() {
        return Err(absent());
    }
    let params = Object::from_iter([("uuid", image)]);
    let asked = Ask::new("image_get", params, 60).query(&request).await;
    let result = asked.map_err(|error| match &error {
        AppError::Agent { code: Code::ImageNotInstalled, .. } => absent(),
        _ => error.into(),
    })?;
    Response::json(result)
}
