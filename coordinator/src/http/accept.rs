//! Content negotiation: everything is JSON; `text/plain` gets the same text, errors as the bare
//! message.

/// The form of a text answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// `application/json`.
    Json,
    /// `text/plain`.
    Text,
}

/// Picks the form for an `Accept` header; `None` when nothing acceptable is left.
///
/// Among equal weights JSON wins.
pub(crate) fn negotiate(accept: Option<&str>) -> Option<Form> {
    let accept = accept.unwrap_or("*/*");
    if accept.trim().is_empty() {
        return Some(Form::Json);
    }
    let ranges: Vec<(&str, f32)> = accept.split(',').map(media_range).collect();
    // The most specific range that names a type decides about it.
    let weight = |kind: &str, group: &str| {
        [kind, group, "*/*"].iter().find_map(|wanted| {
            let named = ranges.iter().find(|(range, _)| range.eq_ignore_ascii_case(wanted));
            named.map(|(_, weight)| *weight)
        })
    };
    let json = ["application/json", "application/octet-stream", "application/javascript"]
        .iter()
        .filter_map(|kind| weight(kind, "application/*"))
        .fold(0.0, f32::max);
    let text = weight("text/plain", "text/*").unwrap_or(0.0);
    if json <= 0.0 && text <= 0.0 {
        None
    } else if text > json {
        Some(Form::Text)
    } else {
        Some(Form::Json)
    }
}

fn media_range(item: &str) -> (&str, f32) {
    let mut parts = item.split(';').map(str::trim);
    let range = parts.next().unwrap_or_default();
    let weight =
        parts.find_map(|part| part.strip_prefix("q=")).map_or(Some(1.0), |q| q.parse().ok());
    (range, weight.unwrap_or(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(accept: &str, expected: Option<Form>) {
        assert_eq!(negotiate(Some(accept)), expected, "{accept}");
    }

    #[test]
    fn json_unless_only_text_is_wanted() {
        assert_eq!(negotiate(None), Some(Form::Json));
        check("", Some(Form::Json));
        check("*/*", Some(Form::Json));
        check("application/json", Some(Form::Json));
        check("Application/JSON; charset=utf-8", Some(Form::Json));
        check("text/plain", Some(Form::Text));
        check("text/*", Some(Form::Text));
        check("text/plain, application/json", Some(Form::Json));
        check("text/plain, application/json;q=0.5", Some(Form::Text));
        check("application/octet-stream", Some(Form::Json));
        check("application/javascript", Some(Form::Json));
        check("text/html,application/xhtml+xml,*/*;q=0.8", Some(Form::Json));
        check("text/html", None);
        check("image/png, text/html", None);
        check("*/*;q=0", None);
    }
}
