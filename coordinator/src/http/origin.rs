//! Keeps web pages out: a browser on a machine that reaches the API must not become the tool of
//! the pages that it shows.
//!
//! A page can send requests in its user's name (`Origin`, `Sec-Fetch-Site` tell), and it can have
//! its own name resolve to our address, after which the browser takes us for the page's server
//! (only `Host` tells; over TLS the certificate has another name, so that browsers refuse).

use std::collections::BTreeSet;
use std::net::IpAddr;

use http::header::{HOST, ORIGIN, REFERER, USER_AGENT};
use http::{HeaderMap, HeaderName, StatusCode};
use muster_shared::wire::Code;
use url::Url;

use super::error::ApiError;

/// A name that stands for all.
const ANY: &str = "*";

static SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// How the names of all browsers begin.
const BROWSER: &[u8] = b"Mozilla/";
/// What CNAPI's clients send and no page can make a browser send to another site.
const OF_CLIENTS: [&str; 2] = ["request-id", "x-request-id"];

/// The names under which the API may be asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    names: BTreeSet<String>,
    /// Connections have TLS.
    tls: bool,
}

impl Names {
    /// These, beside the host's own name, every name without a dot, and every address.
    pub(crate) fn new<'a>(names: impl IntoIterator<Item = &'a str>, tls: bool) -> Self {
        Self { names: names.into_iter().map(str::to_ascii_lowercase).collect(), tls }
    }

    /// Refuses what comes from a web page of somebody else. Only HTTP/1.0 knows no `Host`.
    ///
    /// # Errors
    /// 400 InvalidHeader, 421 and 403 with NotAuthorized.
    pub(crate) fn check(&self, headers: &HeaderMap, http_1_0: bool) -> Result<(), ApiError> {
        let mut hosts = headers.get_all(HOST).iter();
        let host = hosts.next().map(|host| host.to_str().unwrap_or_default());
        let bad = |text| Err(ApiError::coded(StatusCode::BAD_REQUEST, Code::InvalidHeader, text));
        if hosts.next().is_some() {
            return bad("more than one Host");
        }
        // A client that says nothing here might be anything, a browser behind a proxy as well.
        if host.is_none() && !http_1_0 {
            return bad("a request of HTTP/1.1 needs a Host");
        }
        if let Some(host) = host
            && !self.tls
            && !self.is_ours(name_of(host))
        {
            let text = format!("{} is not a name of this API: add it to api.hosts", name_of(host));
            return Err(ApiError::coded(
                StatusCode::MISDIRECTED_REQUEST,
                Code::NotAuthorized,
                text,
            ));
        }
        let foreign = ApiError::coded(
            StatusCode::FORBIDDEN,
            Code::NotAuthorized,
            "requests of other sites' pages are refused, see api.hosts",
        );
        let site = headers.get(&SEC_FETCH_SITE).map(|site| site.as_bytes());
        if site.is_some_and(|site| site == b"cross-site" || site == b"same-site") {
            return Err(foreign);
        }
        match headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
            Some(origin) if !self.is_origin(origin, host) => Err(foreign),
            Some(_) | None => Ok(()),
        }
    }

    fn is_ours(&self, name: &str) -> bool {
        let name = name.to_ascii_lowercase();
        // Nobody can have an address resolve to another one.
        name.parse::<IpAddr>().is_ok()
            // Nor can a stranger own a name without a dot: it is of this network, as `localhost`.
            || (!name.is_empty() && !name.contains('.'))
            || self.names.contains(&name)
            || self.names.contains(ANY)
    }

    /// Whether a page is our own, or of a name that was configured.
    fn is_origin(&self, origin: &str, host: Option<&str>) -> bool {
        let Ok(url) = origin.parse::<Url>() else { return self.names.contains(ANY) };
        let Some(name) = url.host_str() else { return self.names.contains(ANY) };
        let authority = match url.port() {
            Some(port) => format!("{name}:{port}"),
            None => name.to_owned(),
        };
        host.is_some_and(|host| host.eq_ignore_ascii_case(&authority))
            || self.names.contains(&name.to_ascii_lowercase())
            || self.names.contains(ANY)
    }
}

/// Refuses a GET that changes something when a browser sends it: pages can make it do so with
/// no more than an image, for which it names no origin. A request id proves that a program asks.
///
/// # Errors
/// 403 NotAuthorized.
pub(crate) fn refuse_pages(headers: &HeaderMap) -> Result<(), ApiError> {
    let fetches = headers.keys().any(|name| name.as_str().starts_with("sec-fetch-"));
    let named = headers.get(USER_AGENT).is_some_and(|name| name.as_bytes().starts_with(BROWSER));
    let browser = fetches || named || headers.contains_key(ORIGIN) || headers.contains_key(REFERER);
    if !browser || OF_CLIENTS.iter().any(|name| headers.contains_key(*name)) {
        return Ok(());
    }
    let text = "a browser changes nothing with a GET; send a POST, or the header x-request-id";
    Err(ApiError::coded(StatusCode::FORBIDDEN, Code::NotAuthorized, text))
}

/// A `Host` without its port and brackets.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(tls: bool, headers: &[(&'static str, &'static str)], status: Option<u16>) {
        let names = Names::new(["Muster.example"], tls);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let refused = names.check(&map, false).err();
        let refused = refused.map(|error| error.outcome(Default::default()).0.as_u16());
        assert_eq!(refused, status, "{headers:?}");
    }

    #[test]
    fn hosts_are_ours() {
        for host in ["localhost", "LOCALHOST:8480", "127.0.0.1:8480", "[::1]:8480", "10.1.2.3"] {
            check(false, &[("host", host)], None);
        }
        check(false, &[], Some(400));
        check(true, &[], Some(400));
        assert!(Names::default().check(&HeaderMap::new(), true).is_ok(), "HTTP/1.0");
        check(false, &[("host", "muster.EXAMPLE:80")], None);
        check(false, &[("host", "muster")], None);
        check(false, &[("host", "headnode:8480")], None);
        check(false, &[("host", "evil.example")], Some(421));
        check(false, &[("host", "evil.")], Some(421));
        check(false, &[("host", "")], Some(421));
        check(false, &[("host", "localhost.evil.example:8480")], Some(421));
        check(false, &[("host", "")], Some(421));
        check(true, &[("host", "any.example")], None);
        check(true, &[("host", "localhost"), ("host", "localhost")], Some(400));
    }

    #[track_caller]
    fn check_get(allowed: bool, headers: &[(&'static str, &'static str)]) {
        let header = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let headers: HeaderMap = headers.iter().map(header).collect();
        assert_eq!(refuse_pages(&headers).is_ok(), allowed, "{headers:?}");
    }

    #[test]
    fn a_browser_changes_nothing_with_a_get() {
        check_get(true, &[]);
        check_get(true, &[("user-agent", "curl/8.0"), ("accept", "*/*")]);
        check_get(false, &[("user-agent", "Mozilla/5.0 (X11; Linux x86_64)")]);
        check_get(false, &[("sec-fetch-site", "none")]);
        check_get(false, &[("sec-fetch-mode", "no-cors")]);
        check_get(false, &[("referer", "http://evil.example/")]);
        check_get(false, &[("origin", "http://127.0.0.1:8480")]);
        for id in ["request-id", "x-request-id"] {
            check_get(true, &[("user-agent", "Mozilla/5.0"), (id, "a")]);
        }
    }

    #[test]
    fn pages_of_others_are_refused() {
        let page = |origin| [("host", "127.0.0.1:8480"), ("origin", origin)];
        check(false, &page("http://127.0.0.1:8480"), None);
        check(false, &page("https://muster.example"), None);
        check(false, &page("http://evil.example"), Some(403));
        check(false, &page("http://127.0.0.1:9999"), Some(403));
        check(false, &page("null"), Some(403));
        check(true, &[("host", "a.example"), ("origin", "https://a.example")], None);
        check(true, &[("host", "a.example"), ("origin", "https://b.example")], Some(403));
        for site in ["cross-site", "same-site"] {
            check(false, &[("host", "localhost"), ("sec-fetch-site", site)], Some(403));
        }
        check(false, &[("host", "localhost"), ("sec-fetch-site", "same-origin")], None);
        check(false, &[("host", "localhost"), ("sec-fetch-site", "none")], None);
    }
}
