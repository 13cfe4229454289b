//! What is wrong with a configured URL.

use url::{ParseError, Url};

use super::Problems;

/// Adds a problem for every text that is no URL of one of the schemes.
pub fn check_urls(problems: &mut Problems, key: &str, texts: &[String], schemes: [&str; 2]) {
    for (index, text) in texts.iter().enumerate() {
        if let Err(problem) = check_url(text, schemes) {
            problems.add(&format!("{key}.{index}"), problem);
        }
    }
}

/// Checks that a text is a URL of one of the schemes, of a host and perhaps a port and a path.
///
/// # Errors
/// What is wrong, without a password that the text may hold.
pub fn check_url(text: &str, [plain, tls]: [&str; 2]) -> Result<(), String> {
    let shown = match text.rsplit_once('@') {
        Some((_, host)) => format!("…@{host}"),
        None => text.to_owned(),
    };
    let wrong = |why: &str| Err(format!("{shown:?}: {why}"));
    let hint = meant(text, [plain, tls]).map(|url| format!("; did you mean {url}?"));
    let form = format!("is not a {plain}:// or {tls}:// URL{}", hint.unwrap_or_default());
    let url = match text.parse::<Url>() {
        Ok(url) => url,
        Err(ParseError::RelativeUrlWithoutBase) => return wrong(&form),
        Err(error) => return wrong(&error.to_string()),
    };
    if ![plain, tls].contains(&url.scheme()) || !url.has_host() {
        return wrong(&form);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return wrong("must not contain a user name or password, because logs would show it");
    }
    if url.query().is_some() || url.fragment().is_some() {
        return wrong("must not contain a query or a fragment");
    }
    Ok(())
}

/// The URL with the scheme that fits; none for what may hold a password.
fn meant(text: &str, [plain, tls]: [&str; 2]) -> Option<String> {
    let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
    let scheme = if scheme.ends_with('s') { tls } else { plain };
    // Without a port it may be anything.
    let authority = rest.split('/').next().unwrap_or_default();
    let port = authority.rsplit_once(':').is_some_and(|(host, port)| {
        !host.is_empty() && port.parse::<u16>().is_ok() && !host.contains('@')
    });
    port.then(|| format!("{scheme}://{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, problem: &str) {
        let error = check_url(text, ["ws", "wss"]).unwrap_err();
        assert!(error.contains(problem), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for text in ["ws://127.0.0.1:8480", "wss://a.example/agent", "ws://[::1]:1"] {
            check_url(text, ["ws", "wss"]).unwrap();
        }
        check("foo", "\"foo\": is not a ws:// or wss:// URL");
        check("http://x:1", "is not a ws:// or wss:// URL; did you mean ws://x:1?");
        check("https://x:1/a", "did you mean wss://x:1/a?");
        check("127.0.0.1:8480", "did you mean ws://127.0.0.1:8480?");
        check("http://u:hidden@x:1", "is not a ws:// or wss:// URL");
        check("ws://:80", "empty host");
        check("ws://127.0.0.1:99999", "invalid port number");
        check("ws://u:hidden@h:1", "\"…@h:1\": must not contain a user");
        check("ws://u:hidden@:1", "empty host");
        check("ws://h:1?x=1", "must not contain a query");
    }
}
