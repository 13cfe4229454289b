//! The one flat parameter map of a request: path, then query, then body.

use std::borrow::Cow;

use muster_shared::api::Object;
use muster_shared::lenient::truthy;
use percent_encoding::percent_decode;
use serde_json::{Value, json};

use super::error::ApiError;
use super::route::BODY_LIMIT_BYTES;

/// Deepest nesting of a JSON body.
pub(crate) const MAX_DEPTH: usize = 64;
/// Longest string in a JSON body, bytes; scripts and metadata are only limited by the body.
pub(crate) const MAX_STRING_BYTES: usize = 64 * 1024;
/// Most members in a query or a form.
const MAX_PAIRS: usize = 1000;
/// Deepest nesting of `a[b][c]=d`, as in the reference's parser; the rest stays one key.
const MAX_BRACKETS: usize = 5;
/// Highest index that makes `a[0]=x` an array, as in the reference's parser.
const MAX_INDEX: usize = 20;

/// Members whose strings may be as long as the body: scripts and metadata.
const LONG_MEMBERS: &[&str] = &[
    "script",
    "postsetup_script",
    "prepare_image_script",
    "user-script",
    "user_script",
    "user-data",
    "user_data",
    "metadata",
    "customer_metadata",
    "internal_metadata",
    "set_customer_metadata",
    "set_internal_metadata",
    "set_metadata",
];

/// How many bytes a text of this name may have.
pub(crate) fn longest_text(name: &str) -> usize {
    if LONG_MEMBERS.contains(&name) { BODY_LIMIT_BYTES } else { MAX_STRING_BYTES }
}

/// Adds a later source to the map; truthy earlier values stay.
pub(crate) fn merge(params: &mut Object, later: Object) {
    for (name, value) in later {
        if !truthy(params.get(&name)) {
            params.set(name, value);
        }
    }
}

/// Parses a query string or a form: `+` is a space, repeated keys become an array, `a[b]=c`
/// becomes a nested object, `a[]=b` and `a[0]=b` an array.
///
/// # Errors
/// [`ApiError::InvalidContent`] over the limits or when the text is not UTF-8.
pub(crate) fn parse_urlencoded(text: &str) -> Result<Object, ApiError> {
    let mut params = Object::new();
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    for (count, pair) in pairs.enumerate() {
        if count >= MAX_PAIRS {
            return Err(ApiError::InvalidContent(format!("more than {MAX_PAIRS} parameters")));
        }
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decode_form(name)?, decode_form(value)?);
        let path = key_path(&name);
        insert(params.slot(path[0]), &path[1..], value.into_owned());
    }
    for (name, value) in params.iter_mut() {
        index_keys_to_arrays(value);
        check_limits(name, value, 2).map_err(ApiError::InvalidContent)?;
    }
    Ok(params)
}

fn decode_form(text: &str) -> Result<Cow<'_, str>, ApiError> {
    let spaced: Cow<'_, str> =
        if text.contains('+') { text.replace('+', " ").into() } else { text.into() };
    let decoded = percent_decode(spaced.as_bytes())
        .decode_utf8()
        .map_err(|_| ApiError::InvalidContent("a parameter is not UTF-8".to_owned()))?;
    Ok(decoded.into_owned().into())
}

/// `a[b][c]` → `a`, `b`, `c`; a key without well-formed brackets is one part.
fn key_path(name: &str) -> Vec<&str> {
    let Some(open) = name.find('[').filter(|&open| open > 0) else { return vec![name] };
    let mut path = vec![&name[..open]];
    let mut rest = &name[open..];
    while !rest.is_empty() {
        let inner = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let Some((part, after)) = inner.filter(|_| path.len() <= MAX_BRACKETS) else {
            return vec![name];
        };
        path.push(part);
        rest = after;
    }
    path
}

/// The empty key collects `a[]=b` until [`index_keys_to_arrays`].
fn insert(into: &mut Value, path: &[&str], value: String) {
    let added = match (path, &mut *into) {
        ([first, rest @ ..], Value::Object(members)) => {
            return insert(members.entry(*first).or_insert(Value::Null), rest, value);
        }
        ([], _) => Value::String(value),
        // `a=b&a[c]=d`: the plain value and the bracketed one stand side by side.
        (path, _) => {
            let mut nested = json!({});
            insert(&mut nested, path, value);
            nested
        }
    };
    match into {
        Value::Null => *into = added,
        Value::Array(items) => items.push(added),
        earlier => *earlier = Value::Array(vec![earlier.take(), added]),
    }
}

/// Objects whose keys are all empty or small indexes become arrays.
fn index_keys_to_arrays(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(index_keys_to_arrays),
        Value::Object(members) => {
            members.values_mut().for_each(index_keys_to_arrays);
            let index = |key: &String| match key.as_str() {
                "" => Some(0),
                key => {
                    key.parse::<usize>().ok().filter(|i| *i <= MAX_INDEX && i.to_string() == key)
                }
            };
            if members.is_empty() || !members.keys().all(|key| index(key).is_some()) {
                return;
            }
            let mut items: Vec<(usize, Value)> = std::mem::take(members)
                .into_iter()
                .map(|(key, value)| (index(&key).unwrap_or_default(), value))
                .collect();
            items.sort_by_key(|(index, _)| *index);
            *value = Value::Array(
                items
                    .into_iter()
                    .flat_map(|(_, item)| match item {
                        Value::Array(inner) => inner,
                        one => vec![one],
                    })
                    .collect(),
            );
        }
        _ => {}
    }
}

/// Parses a JSON body; an empty one and `null` have no parameters. Repeated members: the last
/// counts.
///
/// # Errors
/// [`ApiError::InvalidContent`] for anything but an object, or beyond the limits.
pub(crate) fn parse_json(body: &[u8]) -> Result<Object, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(Object::new());
    }
    let parsed = serde_json::from_slice::<Value>(body);
    let value = parsed.or_else(|error| match without_lone_surrogates(body) {
        Some(mended) => serde_json::from_slice(&mended),
        None => Err(error),
    });
    let value =
        value.map_err(|error| ApiError::InvalidContent(format!("Invalid JSON: {error}")))?;
    let members = match value {
        Value::Object(members) => members,
        Value::Null => return Ok(Object::new()),
        _ => {
            let text = "Invalid JSON: the body is not an object".to_owned();
            return Err(ApiError::InvalidContent(text));
        }
    };
    for (name, member) in &members {
        check_limits(name, member, 2)
            .map_err(|problem| ApiError::InvalidContent(format!("Invalid JSON: {problem}")))?;
    }
    Ok(members.into())
}

/// The text with U+FFFD for each escape of half a surrogate pair; `None` when it has none.
/// JavaScript's strings may hold such halves, and its JSON carries them.
fn without_lone_surrogates(json: &[u8]) -> Option<Vec<u8>> {
    let unit = |at: usize| {
        let escape = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(escape).ok()?, 16).ok()
    };
    let (mut mended, mut changed, mut at) = (Vec::with_capacity(json.len()), false, 0);
    while at < json.len() {
        let taken = match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                mended.extend_from_slice(b"\\ufffd");
                changed = true;
                at += 6;
                continue;
            }
            // The character that is escaped begins no other escape.
            _ if json[at] == b'\\' => 2,
            _ => 1,
        };
        let end = json.len().min(at + taken);
        mended.extend_from_slice(&json[at..end]);
        at = end;
    }
    changed.then_some(mended)
}

/// `depth` counts the value itself: a member of the body is at depth 2.
fn check_limits(name: &str, value: &Value, depth: usize) -> Result<(), String> {
    match value {
        Value::String(text) if text.len() > MAX_STRING_BYTES && !LONG_MEMBERS.contains(&name) => {
            Err(format!("a string in '{name}' is over {MAX_STRING_BYTES} bytes"))
        }
        Value::Array(_) | Value::Object(_) if depth > MAX_DEPTH => {
            Err(format!("nested deeper than {MAX_DEPTH} levels"))
        }
        Value::Array(items) => {
            items.iter().try_for_each(|item| check_limits(name, item, depth + 1))
        }
        Value::Object(members) => members.iter().try_for_each(|(key, member)| {
            let long = LONG_MEMBERS.contains(&name);
            check_limits(if long { name } else { key }, member, depth + 1)
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(query: &str, expected: &Value) {
        assert_eq!(&parse_urlencoded(query).unwrap().into_value(), expected, "{query}");
    }

    #[test]
    fn queries_are_read_as_the_reference_reads_them() {
        check("", &json!({}));
        check("a=1&b=", &json!({"a": "1", "b": ""}));
        check("a", &json!({"a": ""}));
        check("a=1&a=2&a=3", &json!({"a": ["1", "2", "3"]}));
        check("a[b]=c&a[d]=e", &json!({"a": {"b": "c", "d": "e"}}));
        check("a[b][c]=d", &json!({"a": {"b": {"c": "d"}}}));
        check("a[]=1", &json!({"a": ["1"]}));
        check("a[]=1&a[]=2", &json!({"a": ["1", "2"]}));
        check("a[1]=y&a[0]=x", &json!({"a": ["x", "y"]}));
        check("a[21]=y", &json!({"a": {"21": "y"}}));
        check("a.b=c", &json!({"a.b": "c"}));
        check("a[b=c&[d]=e", &json!({"a[b": "c", "[d]": "e"}));
        check("a=b&a[c]=d", &json!({"a": ["b", {"c": "d"}]}));
        check("n=x%20y+z&k%5Bm%5D=1", &json!({"n": "x y z", "k": {"m": "1"}}));
        assert!(parse_urlencoded("a=%ff").is_err());
        assert!(parse_urlencoded(&"a=1&".repeat(1001)).is_err());
        let long = "x".repeat(MAX_STRING_BYTES + 1);
        assert!(parse_urlencoded(&format!("alias={long}")).is_err());
        assert!(parse_urlencoded(&format!("script={long}")).is_ok());
    }

    #[test]
    fn bodies_must_be_objects_within_limits() {
        assert_eq!(parse_json(b" ").unwrap(), Object::new());
        assert_eq!(parse_json(br#"{"a":1,"a":2}"#).unwrap().get("a"), Some(&json!(2)));
        for bad in ["[]", "\"x\"", "3", "{", "{\"a\":}", "\u{0}"] {
            assert!(
                matches!(parse_json(bad.as_bytes()), Err(ApiError::InvalidContent(_))),
                "{bad}"
            );
        }
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(parse_json(nested(MAX_DEPTH).as_bytes()).is_ok());
        assert!(parse_json(nested(MAX_DEPTH + 1).as_bytes()).is_err());
        assert!(parse_json(nested(100_000).as_bytes()).is_err());
        let long = "x".repeat(MAX_STRING_BYTES + 1);
        assert!(parse_json(json!({ "alias": long }).to_string().as_bytes()).is_err());
        for ok in [
            json!({ "script": long }),
            json!({"customer_metadata": {"user-script": long}}),
            json!({"customer_metadata": {"anything": long}}),
        ] {
            assert!(parse_json(ok.to_string().as_bytes()).is_ok());
        }
    }

    #[test]
    fn bodies_that_javascript_writes_are_read() {
        assert_eq!(parse_json(b"null").unwrap(), Object::new());
        for (body, expected) in [
            (r#"{"a":"\ud800"}"#, "\u{fffd}"),
            (r#"{"a":"\uDC00x\ud83d"}"#, "\u{fffd}x\u{fffd}"),
            (r#"{"a":"\ud83d\ude00\ud83d"}"#, "\u{1f600}\u{fffd}"),
            (r#"{"a":"\ud83d\ud83d\ude00"}"#, "\u{fffd}\u{1f600}"),
            (r#"{"a":"\\ud800\ud800"}"#, "\\ud800\u{fffd}"),
        ] {
            let parsed = parse_json(body.as_bytes()).unwrap();
            assert_eq!(parsed.text("a"), Some(expected), "{body}");
        }
        for bad in [r#"{"a":"\ud8"}"#, r#"{"a":"\u+800"}"#, r#"{"a":"\ud800"#] {
            assert!(parse_json(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn later_sources_replace_only_untrue_values() {
        let mut params = parse_urlencoded("a=1&b=").unwrap();
        merge(&mut params, parse_json(br#"{"a":2,"b":3,"c":4}"#).unwrap());
        assert_eq!(params.into_value(), json!({"a": "1", "b": 3, "c": 4}));
    }

    proptest! {
        #[test]
        fn plain_pairs_match_a_naive_reading(
            pairs in prop::collection::vec(("[a-c]{1,2}", "[ -~]{0,6}"), 0..12)
        ) {
            let encode = |text: &str| {
                percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC)
                    .to_string()
            };
            let query: Vec<String> =
                pairs.iter().map(|(k, v)| format!("{}={}", encode(k), encode(v))).collect();
            let mut naive = Object::new();
            for (key, _) in &pairs {
                let values: Vec<&String> =
                    pairs.iter().filter(|(k, _)| k == key).map(|(_, v)| v).collect();
                let value = if values.len() == 1 { json!(values[0]) } else { json!(values) };
                naive.set(key.clone(), value);
            }
            prop_assert_eq!(parse_urlencoded(&query.join("&")).unwrap(), naive);
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}", brackets in "[a\\[\\]=&0-9%+]{0,30}") {
            drop(parse_urlencoded(&text));
            drop(parse_urlencoded(&brackets));
            drop(parse_json(text.as_bytes()));
        }

        #[test]
        fn merging_matches_a_naive_reading(
            first in prop::collection::btree_map("[a-d]", 0..3i32, 0..4),
            second in prop::collection::btree_map("[a-d]", 0..3i32, 0..4),
        ) {
            let map = |from: &std::collections::BTreeMap<String, i32>| -> Object {
                from.iter().map(|(k, v)| (k.clone(), json!(v))).collect()
            };
            let mut merged = map(&first);
            merge(&mut merged, map(&second));
            for key in ["a", "b", "c", "d"] {
                let expected = match (first.get(key), second.get(key)) {
                    (Some(0), Some(b)) => Some(b),
                    (Some(a), _) => Some(a),
                    (None, b) => b,
                };
                prop_assert_eq!(merged.get(key).cloned(), expected.map(|v| json!(v)));
            }
        }
    }
}
