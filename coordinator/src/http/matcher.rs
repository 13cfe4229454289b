//! Finds the route of a path: exact, case-sensitive, segment by segment; a literal beats a
//! parameter; a trailing slash is another path; runs of slashes count once.

use http::Method;
use muster_shared::api::Object;
use percent_encoding::percent_decode_str;

use super::route::Route;

/// What a path and a method lead to.
#[derive(Debug)]
pub(crate) enum Match<'a> {
    /// A route, with the decoded path parameters in the order of the path.
    Route(&'a Route, Object),
    /// The path exists with these methods (for `Allow`).
    OtherMethods(String),
    /// No such path.
    Nothing,
}

/// A path's segments, percent-decoded. What is not UTF-8 becomes U+FFFD, which names nothing: the
/// endpoint then says that there is no such thing.
pub(crate) fn segments(path: &str) -> Vec<String> {
    let path = path.trim_start_matches('/');
    let decode = |segment| percent_decode_str(segment).decode_utf8_lossy().into_owned();
    let mut segments: Vec<String> = Vec::new();
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        if !part.is_empty() || parts.peek().is_none() {
            segments.push(decode(part));
        }
    }
    segments
}

/// The first literal segment of a pattern, by which routes are grouped.
pub(crate) fn first_segment(pattern: &str) -> &str {
    let pattern = pattern.trim_start_matches('/');
    pattern.split_once('/').map_or(pattern, |(first, _)| first)
}

fn is_parameter(part: &str) -> bool {
    part.starts_with(':')
}

fn fits(pattern: &str, segments: &[String]) -> bool {
    let mut parts = pattern[1..].split('/');
    let all = segments.iter().all(|segment| {
        parts.next().is_some_and(|part| {
            if is_parameter(part) { !segment.is_empty() } else { part == segment }
        })
    });
    all && parts.next().is_none()
}

/// Smaller is more specific: literals before parameters, from the left.
fn generality(pattern: &str) -> Vec<bool> {
    pattern[1..].split('/').map(is_parameter).collect()
}

/// Finds the route. HEAD is GET, except on an alias that has an effect.
pub(crate) fn find<'a>(
    routes: impl Iterator<Item = &'a Route>,
    method: &Method,
    segments: &[String],
) -> Match<'a> {
    let mut fitting: Vec<&Route> = routes.filter(|route| fits(route.pattern, segments)).collect();
    if fitting.is_empty() {
        return Match::Nothing;
    }
    fitting.sort_by_key(|route| generality(route.pattern));
    // A path is what its literals say, with their methods alone: `import` is no machine's uuid.
    let closest = generality(fitting[0].pattern);
    fitting.retain(|route| generality(route.pattern) == closest);
    let wanted = if method == Method::HEAD { &Method::GET } else { method };
    let allowed = |route: &&&Route| {
        route.method == wanted && !(method == Method::HEAD && route.alias == Some(true))
    };
    if let Some(route) = fitting.iter().find(allowed) {
        return Match::Route(route, path_params(route.pattern, segments));
    }
    let mut methods: Vec<&str> = Vec::new();
    for route in fitting {
        if !methods.contains(&route.method.as_str()) {
            methods.push(route.method.as_str());
        }
    }
    Match::OtherMethods(methods.join(", "))
}

fn path_params(pattern: &str, segments: &[String]) -> Object {
    pattern[1..]
        .split('/')
        .zip(segments)
        .filter_map(|(part, segment)| {
            let name = part.strip_prefix(':')?;
            Some((name, segment.as_str()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::response::Response;
    use super::*;

    fn table() -> Vec<Route> {
        let route = |method: Method, pattern| {
            Route::new(method, pattern, pattern, |_| async { Ok(Response::empty()) })
        };
        let pause = route(Method::POST, "/servers/:s/pause");
        vec![
            route(Method::GET, "/ping"),
            route(Method::GET, "/servers"),
            route(Method::GET, "/servers/:s"),
            route(Method::POST, "/servers/:s"),
            route(Method::POST, "/servers/:s/vms/:u/update"),
            route(Method::POST, "/servers/:s/vms/nics/update"),
            route(Method::GET, "/servers/:s/vms/:u"),
            route(Method::GET, "/servers/:s/datasets/:dataset"),
            route(Method::POST, "/servers/import"),
            pause.alias(Method::GET, true),
            pause,
        ]
    }

    #[track_caller]
    fn check(request: &str, expected: &str) {
        let routes = table();
        let (method, path) = request.split_once(' ').unwrap();
        let segments = segments(path);
        let found = match find(routes.iter(), &method.parse().unwrap(), &segments) {
            Match::Route(route, params) => {
                let values: Vec<&str> =
                    params.iter().filter_map(|(_, value)| value.as_str()).collect();
                format!("{} {}", route.pattern, values.join(","))
            }
            Match::OtherMethods(allow) => format!("405 {allow}"),
            Match::Nothing => "404".to_owned(),
        };
        assert_eq!(found.trim_end(), expected, "{request}");
    }

    #[test]
    fn paths_match_exactly() {
        check("GET /ping", "/ping");
        check("GET //ping", "/ping");
        check("GET /ping/", "404");
        check("GET /Ping", "404");
        check("GET /", "404");
        check("GET /servers/", "404");
        check("GET /servers//a", "/servers/:s a");
        check("GET ///servers///a", "/servers/:s a");
        check("GET /servers/a//", "404");
        check("GET /servers/a", "/servers/:s a");
        check("HEAD /servers/a", "/servers/:s a");
        check("DELETE /servers/a", "405 GET, POST");
        check("OPTIONS /servers", "405 GET");
        check("GET /servers/import", "405 POST");
        check("GET /servers/a/datasets/zones%2Fx", "/servers/:s/datasets/:dataset a,zones/x");
        check("POST /servers/a/vms/nics/update", "/servers/:s/vms/nics/update a");
        check("POST /servers/a/vms/b/update", "/servers/:s/vms/:u/update a,b");
        check("GET /servers/a/pause", "/servers/:s/pause a");
        check("HEAD /servers/a/pause", "405 GET, POST");
        check("GET /servers/%ff", "/servers/:s \u{fffd}");
        check("GET /%ff", "404");
    }

    proptest! {
        #[test]
        fn matching_agrees_with_a_naive_reading(
            parts in prop::collection::vec("(servers|ping|vms|nics|update|a|Servers|)", 0..6)
        ) {
            let routes = table();
            let path = format!("/{}", parts.join("/"));
            let segments = segments(&path);
            let naive = |pattern: &str| {
                let pattern: Vec<&str> = pattern[1..].split('/').collect();
                pattern.len() == segments.len()
                    && pattern.iter().zip(&segments).all(|(p, s)| {
                        if p.starts_with(':') { !s.is_empty() } else { p == s }
                    })
            };
            let any = routes.iter().any(|route| naive(route.pattern));
            match find(routes.iter(), &Method::POST, &segments) {
                Match::Nothing => prop_assert!(!any),
                Match::Route(route, _) => prop_assert!(naive(route.pattern)),
                Match::OtherMethods(_) => prop_assert!(
                    any && !routes.iter().any(|r| r.method == Method::POST && naive(r.pattern))
                ),
            }
        }
    }
}
