//! Large answers, compressed for clients that say they can read that.

use std::io;

use async_compression::tokio::write::GzipEncoder;
use futures_util::FutureExt as _;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue};
use muster_shared::threads::{Threads, compute_aside};
use tokio::io::AsyncWriteExt as _;

use super::error::ApiError;
use super::response::Response;

/// Smaller answers are sent as they are, bytes.
const LARGE: usize = 16 * 1024;

/// An answer of JSON text, compressed if that is worth it and the client accepts it; off the async
/// threads.
///
/// # Errors
/// [`ApiError::Internal`].
pub(super) async fn json(
    text: Vec<u8>,
    request: &HeaderMap,
    threads: &dyn Threads,
) -> Result<Response, ApiError> {
    let vary = (VARY, HeaderValue::from_static("accept-encoding"));
    if text.len() < LARGE || !accepts_gzip(request) {
        return Ok(Response::encoded_as(text).header(vary.0, vary.1));
    }
    let packed = compute_aside(threads, move || gzip(&text)).await;
    let packed = packed.map_err(|error| ApiError::internal("cannot compress the answer", error))?;
    let encoding = HeaderValue::from_static("gzip");
    let answer = Response::encoded_as(packed).header(vary.0, vary.1);
    Ok(answer.header(CONTENT_ENCODING, encoding))
}

fn gzip(text: &[u8]) -> io::Result<Vec<u8>> {
    let packing = async {
        let mut encoder = GzipEncoder::new(Vec::new());
        encoder.write_all(text).await?;
        encoder.shutdown().await?;
        io::Result::Ok(encoder.into_inner())
    };
    packing.now_or_never().expect("a vector takes everything at once")
}

/// Whether a client names gzip and does not refuse it (`q=0`).
fn accepts_gzip(request: &HeaderMap) -> bool {
    let accepts = |one: &str| {
        let mut parts = one.split(';').map(str::trim);
        let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        named && weight.is_none_or(|weight| weight > 0.0)
    };
    let values = request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    { values }.any(|value| value.split(',').any(accepts))
}

#[cfg(test)]
mod tests {
    use async_compression::tokio::bufread::GzipDecoder;
    use muster_shared::threads::OsThreads;
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::http::response::Body;

    fn accepting(text: &'static str) -> HeaderMap {
        [(ACCEPT_ENCODING, HeaderValue::from_static(text))].into_iter().collect()
    }

    #[test]
    fn clients_say_what_they_accept() {
        for (text, accepts) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, br", false),
            ("br", false),
            ("", false),
        ] {
            assert_eq!(accepts_gzip(&accepting(text)), accepts, "{text}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn what_is_compressed_reads_back() {
        let text = b"[1,2,3,4]".repeat(20_000);
        let answer = json(text.clone(), &accepting("gzip"), &OsThreads).await.unwrap();
        assert_eq!(answer.headers[CONTENT_ENCODING], "gzip");
        let Body::Encoded(bytes) = answer.body else { panic!("no text") };
        assert!(bytes.len() < text.len() / 10);
        let mut read = Vec::new();
        GzipDecoder::new(&bytes[..]).read_to_end(&mut read).await.unwrap();
        assert_eq!(read, text);
        let plain = json(text.clone(), &HeaderMap::new(), &OsThreads).await.unwrap();
        assert!(!plain.headers.contains_key(CONTENT_ENCODING));
        let small = json(b"{}".to_vec(), &accepting("gzip"), &OsThreads).await.unwrap();
        assert!(!small.headers.contains_key(CONTENT_ENCODING));
    }
}
