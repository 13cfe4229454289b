//! `/servers/:server_uuid/vms/:uuid/screenshot`: what a VM's display shows.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::Method;
use muster_shared::api::Object;
use serde::Deserialize;
use serde_json::{Value, json};

use super::ask::{Ask, prefixed};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Route, ServerRule};
use crate::app::AppError;

const PNG: &str = "image/png";
/// Longest wait for the picture, seconds.
const SECONDS: u64 = 30;
/// Longest picture, bytes; agents send none that is longer.
const MAX_BYTES: usize = 1024 * 1024;
const NO_PICTURE: &str = "the agent's answer is not a picture";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/servers/:server_uuid/vms/:uuid/screenshot", "VmScreenshot", get)
            .summary("A screenshot of the VM's display")
            .server(ServerRule::Exists)
            .vm()
            .running()
            .fenced()
            .returns_bytes(PNG),
    ]
}

/// What `machine_screenshot` returns, as far as it is read.
#[derive(Deserialize)]
struct Shot {
    format: String,
    data: String,
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let params = Object::from_iter([("uuid", json!(request.vm()?)), ("format", json!("png"))]);
    let answer = Ask::new("machine_screenshot", params, SECONDS).query(&request).await;
    let png = picture(answer.map_err(prefixed(""))?).ok_or(AppError::Answer(NO_PICTURE))?;
    Ok(Response::bytes(PNG, png))
}

fn picture(answer: Value) -> Option<Vec<u8>> {
    let Shot { format, data } = Shot::deserialize(answer).ok()?;
    let png = BASE64_STANDARD.decode(data).ok()?;
    (format == "png" && png.starts_with(b"\x89PNG\r\n") && png.len() <= MAX_BYTES).then_some(png)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pictures_are_passed_on() {
        let answer = |format: &str, bytes: &[u8]| {
            picture(json!({ "format": format, "data": BASE64_STANDARD.encode(bytes) }))
        };
        let png = b"\x89PNG\r\n\x1a\n";
        assert_eq!(answer("png", png), Some(png.to_vec()));
        assert_eq!(answer("ppm", png), None);
        assert_eq!(answer("png", b"<html>"), None);
        assert_eq!(answer("png", &[&png[..], &vec![0; MAX_BYTES]].concat()), None);
        assert_eq!(picture(json!({ "format": "png", "data": "!" })), None);
        assert_eq!(picture(Value::Null), None);
    }
}
