//! The route table as warp filters: one boxed filter per first path segment, and one for the
//! rest, which answers 404.

use std::sync::Arc;

use bytes::Buf;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, Method};
use hyper::upgrade::OnUpgrade;
use warp::filters::BoxedFilter;
use warp::path::FullPath;
use warp::{Filter, Rejection};

use super::Shell;
use super::dispatch::{Incoming, Peer};
use super::matcher::segments;

/// All routes of the shell.
pub(super) fn filters(shell: &Arc<Shell>) -> BoxedFilter<(warp::reply::Response,)> {
    let rest = incoming(shell, None).boxed();
    // Each is in a box of its own: in the others' place, each request would take the room of as
    // many as there are groups.
    let group = |index| incoming(shell, Some(index)).boxed();
    (0..shell.groups.len()).rev().fold(rest, |rest, index| group(index).or(rest).unify().boxed())
}

/// Gives a request whose target has no path (`CONNECT a:1`) one that names nothing: warp panics
/// without any.
pub(super) fn give_path<B>(request: &mut http::Request<B>) {
    if request.uri().path_and_query().is_none() {
        *request.uri_mut() = http::Uri::from_static("*");
    }
}

/// Requests of one group of routes (`None`: of any path).
fn incoming(
    shell: &Arc<Shell>,
    group: Option<usize>,
) -> impl Filter<Extract = (warp::reply::Response,), Error = Rejection> + Clone + use<> {
    let shell = Arc::clone(shell);
    let of_group = Arc::clone(&shell);
    warp::path::full()
        .and_then(move |path: FullPath| {
            let segments = segments(path.as_str());
            let first = segments.first().map(String::as_str);
            let fits = group.is_none_or(|index| first == Some(of_group.groups[index].segment));
            let path = path.as_str().to_owned();
            async move { if fits { Ok((path, segments)) } else { Err(warp::reject::not_found()) } }
        })
        .untuple_one()
        .and(warp::method())
        .and(query())
        .and(warp::header::headers_cloned())
        .and(warp::ext::optional::<Peer>())
        .and(warp::ext::optional::<OnUpgrade>())
        .and(warp::body::stream())
        .then(
            move |path: String,
                  segments: Vec<String>,
                  method: Method,
                  query: String,
                  headers: HeaderMap,
                  peer: Option<Peer>,
                  upgrade: Option<OnUpgrade>,
                  body| {
                let peer = peer.unwrap_or_default();
                let body = boxed(body);
                let incoming =
                    Incoming { path, segments, method, query, headers, peer, upgrade, body };
                Arc::clone(&shell).answer(group, incoming)
            },
        )
}

/// The raw query; empty when there is none.
fn query() -> impl Filter<Extract = (String,), Error = std::convert::Infallible> + Clone {
    warp::query::raw().or(warp::any().map(String::new)).unify()
}

fn boxed<S, B>(body: S) -> super::request::BodyStream
where
    S: Stream<Item = Result<B, warp::Error>> + Send + 'static,
    B: Buf,
{
    let stream = body.map(|chunk| chunk.map(|mut chunk| chunk.copy_to_bytes(chunk.remaining())));
    super::stream::SyncStream::new(stream.boxed())
}
