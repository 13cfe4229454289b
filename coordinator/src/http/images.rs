//! The image repository, in the manner of IMGAPI.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt as _;
use http::header::{
    ACCEPT_RANGES, CONTENT_RANGE, CONTENT_TYPE, ETAG, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use muster_shared::api::image::Manifest;
use muster_shared::ids::ImageUuid;
use muster_shared::wire::Code;

use super::MAX_UPLOADS_OF_CLIENT;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route};
use super::rule::Rule;
use super::schema;
use crate::app::AppError;
use crate::app::images::{FileClaim, Image, ImageError, ImageFilter};
use crate::store::StoreError;

const OCTETS: &str = "application/octet-stream";

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType];
const LIST_PARAMS: &[Param] = &[
    Param::new("name", TEXT, "exact, or a part of the name after `~`"),
    Param::new("state", TEXT, "`active` (default), `unactivated` or `all`"),
    Param::new("owner", &[Rule::Optional, Rule::Uuid], "the owner's uuid"),
    Param::new("os", TEXT, "e.g. `linux`"),
    Param::new("type", TEXT, "e.g. `zvol`"),
    Param::new("limit", &[Rule::Optional, Rule::Int], "at most 1000").schema(schema::limit),
    Param::new("marker", &[Rule::Optional, Rule::Uuid], "only images after this uuid"),
];
const CREATE_PARAMS: &[Param] = &[
    Param::new("v", &[], "manifest version, 2").schema(schema::manifest_version),
    Param::new("uuid", &[], "chosen by the repository when absent").schema(schema::exact_uuid),
    Param::new("name", &[Rule::StringType], "short name"),
    Param::new("version", &[Rule::StringType], "version of what is in it"),
    Param::new("type", &[Rule::StringType], "`zvol` for disk images"),
    Param::new("os", &[Rule::StringType], "e.g. `linux`"),
    Param::new("owner", &[], "the owner's uuid").schema(schema::exact_uuid),
    Param::new("files", &[], "one entry; only its `format` (`raw`, `qcow2`, `oci-archive`, `docker-archive`) is taken over")
        .schema(schema::manifest_files),
];
const HEX_40: Rule = Rule::Regex("^[0-9a-fA-F]{40}$");
const HEX_64: Rule = Rule::Regex("^[0-9a-fA-F]{64}$");
const UPLOAD_PARAMS: &[Param] = &[
    Param::new(
        "compression",
        &[Rule::Optional, Rule::Regex("^(none|gzip|bzip2|xz|zstd)$")],
        "`none` (default), `gzip`, `bzip2`, `xz` or `zstd`",
    ),
    Param::new("sha256", &[Rule::Optional, HEX_64], "refuse the upload unless this is its sum"),
    Param::new("sha1", &[Rule::Optional, HEX_40], "refuse the upload unless this is its sum"),
];
const ACTION_PARAMS: &[Param] = &[Param::new("action", &[Rule::Regex("^activate$")], "`activate`")];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/images", "ImageList", list)
            .summary("Images, ordered by uuid")
            .params(LIST_PARAMS)
            .returns_schema(schema::array_of::<Manifest>),
        Route::new(Method::POST, "/images", "ImageCreate", create)
            .summary("Creates an image from a manifest, without a file yet")
            .params(CREATE_PARAMS)
            .versioned()
            .returns_schema(schema::of::<Manifest>),
        Route::new(Method::GET, "/images/:uuid", "ImageManifest", get)
            .summary("An image's manifest")
            .versioned()
            .returns_schema(schema::of::<Manifest>),
        Route::new(Method::POST, "/images/:uuid", "ImageAction", act)
            .summary("Activates an image, after which its file can't be replaced")
            .params(ACTION_PARAMS)
            .versioned()
            .returns_schema(schema::of::<Manifest>),
        Route::new(Method::DELETE, "/images/:uuid", "ImageDelete", delete)
            .summary("Deletes an image and its file; VMs made from it stay")
            .versioned()
            .errors(&[409])
            .no_content(),
        Route::new(Method::GET, "/images/:uuid/file", "ImageFileGet", download)
            .summary("An image's file; a Range resumes an interrupted download")
            .returns_bytes(OCTETS),
        Route::new(Method::PUT, "/images/:uuid/file", "ImageFileAdd", upload)
            .summary("Uploads an image's file")
            .params(UPLOAD_PARAMS)
            .streams_body()
            .versioned()
            .errors(&[503])
            .returns_schema(schema::of::<Manifest>),
    ]
}

impl From<ImageError> for ApiError {
    fn from(error: ImageError) -> Self {
        let message = error.to_string();
        let conflict = |code| Self::coded(StatusCode::CONFLICT, code, error.to_string());
        match error {
            ImageError::NotFound(_) => Self::NotFound(message),
            ImageError::NoFile(_) => conflict(Code::NoActivationNoFile),
            ImageError::Exists(_) => conflict(Code::ImageUuidAlreadyExists),
            ImageError::Active(_) => conflict(Code::ImageFilesImmutable),
            ImageError::HasDependents { .. } => conflict(Code::ImageHasDependentClones),
            ImageError::Manifest(bad) => Self::invalid(bad.field, bad.problem),
            ImageError::Checksum { kind, .. } => Self::invalid(kind, message),
            ImageError::Empty => Self::invalid("file", message),
            ImageError::Upload(_) => Self::InvalidContent(message),
            ImageError::Changed(_) => Self::PreconditionFailed(message),
            ImageError::Record(AppError::Store(StoreError::TooLarge { .. })) => {
                Self::TooLarge("the manifest is too large".to_owned())
            }
            ImageError::Record(_) | ImageError::Blob { .. } => Self::internal(message, error),
        }
    }
}

/// An id that is no UUID names no image.
fn image_uuid(request: &Request) -> Result<ImageUuid, ApiError> {
    let text = request.text("uuid").unwrap_or_default();
    text.parse().map_err(|_| ApiError::NotFound(format!("image {text} not found")))
}

fn answer(image: Image) -> Result<Response, ApiError> {
    Ok(Response::json(image.manifest)?.etag(image.revision))
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let text = |name: &str| request.text(name).map(str::to_owned);
    let filter = ImageFilter {
        name: text("name"),
        state: text("state"),
        owner: text("owner"),
        os: text("os"),
        kind: text("type"),
        limit: request.limit()?,
        marker: request.text("marker").and_then(|marker| marker.parse().ok()),
    };
    let images = request.app.images.list(&filter).await?;
    Response::list(images.into_iter().map(|image| image.manifest).collect::<Vec<_>>())
}

async fn create(request: Request) -> Result<Response, ApiError> {
    answer(request.app.images.create(request.params).await?)
}

async fn get(request: Request) -> Result<Response, ApiError> {
    answer(request.app.images.get(image_uuid(&request)?).await?)
}

async fn act(request: Request) -> Result<Response, ApiError> {
    let image = image_uuid(&request)?;
    answer(request.app.images.activate(image, &request.expected()).await?)
}

async fn delete(request: Request) -> Result<Response, ApiError> {
    let image = image_uuid(&request)?;
    request.app.images.delete(image, &request.expected()).await?;
    Ok(Response::empty())
}

async fn upload(mut request: Request) -> Result<Response, ApiError> {
    let image = image_uuid(&request)?;
    let expected = request.expected();
    let claim = FileClaim {
        compression: request.text("compression").unwrap_or("none").to_owned(),
        sha1: request.text("sha1").map(str::to_owned),
        sha256: request.text("sha256").map(str::to_owned),
    };
    let most = MAX_UPLOADS_OF_CLIENT;
    let share = request.share(&request.shell.uploads_of, most, "uploads")?;
    let Ok(permit) = Arc::clone(&request.shell.uploads).try_acquire_owned() else {
        return Err(ApiError::Unavailable("too many uploads at a time".to_owned()));
    };
    let body = request.take_body()?.map(|chunk| chunk.map_err(io::Error::other)).boxed();
    let app = Arc::clone(&request.app);
    // In a task of its own: a client that goes away drops this handler, but the upload must still
    // be aborted, which is work.
    let done = request.shell.tracker.spawn(async move {
        let done = app.images.upload(image, claim, &expected, body).await;
        drop((permit, share));
        done
    });
    let done = done.await.map_err(|error| ApiError::internal("the upload failed", error))?;
    answer(done?)
}

async fn download(request: Request) -> Result<Response, ApiError> {
    let image = image_uuid(&request)?;
    let file = match request.app.images.file(image).await {
        Err(ImageError::NoFile(_)) => {
            return Err(ApiError::NotFound(format!("image {image} has no file")));
        }
        found => found?,
    };
    let etag = HeaderValue::try_from(format!("\"{}\"", file.sha256))
        .map_err(|error| ApiError::internal("the stored checksum is broken", error))?;
    let common = |response: Response| {
        response.header(ETAG, etag.clone()).header(ACCEPT_RANGES, HeaderValue::from_static("bytes"))
    };
    if request.headers.get(IF_NONE_MATCH) == Some(&etag) {
        return Ok(common(Response::empty().status(StatusCode::NOT_MODIFIED)));
    }
    let size = file.size_bytes;
    let (status, range) = match wanted_range(&request.headers, &etag, size) {
        Wanted::All => (StatusCode::OK, 0..size),
        Wanted::Part(range) => (StatusCode::PARTIAL_CONTENT, range),
        Wanted::Nothing => {
            let answer = Response::empty().status(StatusCode::RANGE_NOT_SATISFIABLE);
            return content_range(common(answer), format!("bytes */{size}"));
        }
    };
    let length = range.end - range.start;
    let shown = format!("bytes {}-{}/{size}", range.start, range.end.saturating_sub(1));
    let stream = if request.head {
        futures_util::stream::empty().boxed()
    } else {
        request.app.images.read(&file, range).await?
    };
    let response = common(Response::stream(OCTETS, length, stream)).status(status);
    if status == StatusCode::PARTIAL_CONTENT {
        content_range(response, shown)
    } else {
        Ok(response)
    }
}

fn content_range(response: Response, value: String) -> Result<Response, ApiError> {
    let value = HeaderValue::try_from(value)
        .map_err(|error| ApiError::internal("cannot answer the range", error))?;
    let mut response = response.header(CONTENT_RANGE, value);
    if response.status == Some(StatusCode::RANGE_NOT_SATISFIABLE) {
        response.headers.remove(CONTENT_TYPE);
    }
    Ok(response)
}

/// What a `Range` header asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Part(Range<u64>),
    /// Nothing that the file has: 416.
    Nothing,
}

/// Several ranges, other units and malformed ones are ignored, as RFC 9110 allows; so is a range
/// whose `If-Range` names another file.
fn wanted_range(headers: &HeaderMap, etag: &HeaderValue, size: u64) -> Wanted {
    let Some(range) = headers.get(RANGE).and_then(|value| value.to_str().ok()) else {
        return Wanted::All;
    };
    if headers.get(IF_RANGE).is_some_and(|wanted| wanted != etag) {
        return Wanted::All;
    }
    let Some((first, last)) = range.trim().strip_prefix("bytes=").and_then(|r| r.split_once('-'))
    else {
        return Wanted::All;
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let (start, end) = match (first.trim(), last.trim()) {
        ("", suffix) => match number(suffix) {
            Some(0) => return Wanted::Nothing,
            Some(length) => (size.saturating_sub(length), size),
            None => return Wanted::All,
        },
        (first, "") => match number(first) {
            Some(first) => (first, size),
            None => return Wanted::All,
        },
        (first, last) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => (first, last.saturating_add(1).min(size)),
            _ => return Wanted::All,
        },
    };
    if start >= size { Wanted::Nothing } else { Wanted::Part(start..end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases read better as values")]
    fn check(range: &str, expected: Wanted) {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, range.parse().unwrap());
        let etag = HeaderValue::from_static("\"a\"");
        assert_eq!(wanted_range(&headers, &etag, 100), expected, "{range}");
        headers.insert(IF_RANGE, HeaderValue::from_static("\"b\""));
        assert_eq!(wanted_range(&headers, &etag, 100), Wanted::All);
    }

    #[test]
    fn ranges_are_read_as_the_rfc_says() {
        check("bytes=0-", Wanted::Part(0..100));
        check("bytes=10-19", Wanted::Part(10..20));
        check("bytes=99-", Wanted::Part(99..100));
        check("bytes=90-1000", Wanted::Part(90..100));
        check("bytes=-10", Wanted::Part(90..100));
        check("bytes=-1000", Wanted::Part(0..100));
        check("bytes=100-", Wanted::Nothing);
        check("bytes=-0", Wanted::Nothing);
        check("bytes=5-4", Wanted::All);
        check("bytes=1-2,4-5", Wanted::All);
        check("lines=1-2", Wanted::All);
        check("bytes=x", Wanted::All);
    }
}
