//! The metadata protocol, version 2, as guests of SmartOS speak it: a line asks, a line answers. Pure.
//!
//! `V2 <length> <crc32> <body>`, where the body is `<request id> <word>` and, in base64, what the word
//! is about. Length and checksum are the body's, the checksum in eight hexadecimal digits.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

/// Longest line, bytes: twice base64 of the longest value, and its frame.
pub const MAX_LINE_BYTES: usize = 512 * 1024;
/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 256;
/// Longest request id, which every answer repeats.
const MAX_ID_BYTES: usize = 64;

/// What is answered to whatever is no request. Guests send an empty line to see that somebody is there.
pub const INVALID: &str = "invalid command\n";
/// The answer to the question for this version.
const AGREED: &str = "V2_OK\n";

/// A line of the guest's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Asks for version 2.
    Negotiate,
    /// A request, with the id that its answer carries.
    Request(String, Command),
    /// What was answered before, sent back by a terminal that echoes: an answer to it would come back
    /// again, for ever.
    Echo,
}

/// What a guest wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// The value of a key.
    Get(String),
    /// Sets the value of a key.
    Put(String, String),
    /// Removes a key.
    Delete(String),
    /// All keys.
    Keys,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done; with what was asked for.
    Success(Option<String>),
    /// There is no such key.
    NotFound,
    /// Not done, for this reason.
    Failure(String),
}

/// It is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is no request of the metadata protocol")]
pub struct Invalid;

/// Reads a line, without its end.
///
/// # Errors
/// It is none of [`Line`].
pub fn read(line: &[u8]) -> Result<Line, Invalid> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = std::str::from_utf8(line).map_err(|_| Invalid)?;
    if line == "NEGOTIATE V2" {
        return Ok(Line::Negotiate);
    }
    if [INVALID, AGREED].iter().any(|own| own.trim_end() == line) {
        return Ok(Line::Echo);
    }
    let (head, body) = framed(line).ok_or(Invalid)?;
    if head != frame_of(body) {
        return Err(Invalid);
    }
    let mut words = body.split(' ');
    let (id, word) = (words.next().ok_or(Invalid)?, words.next().ok_or(Invalid)?);
    let about = words.next();
    if words.next().is_some() || id.is_empty() || id.len() > MAX_ID_BYTES {
        return Err(Invalid);
    }
    if ["SUCCESS", "NOTFOUND", "FAILURE"].contains(&word) {
        return Ok(Line::Echo);
    }
    let command = match (word, about) {
        ("KEYS", None) => Command::Keys,
        ("GET", Some(about)) => Command::Get(key(decoded(about)?)?),
        ("DELETE", Some(about)) => Command::Delete(key(decoded(about)?)?),
        ("PUT", Some(about)) => {
            let about = decoded(about)?;
            let (name, value) = about.split_once(' ').ok_or(Invalid)?;
            Command::Put(key(decoded(name)?)?, decoded(value)?)
        }
        _ => return Err(Invalid),
    };
    Ok(Line::Request(id.to_owned(), command))
}

/// Length and checksum, and the body.
fn framed(line: &str) -> Option<(&str, &str)> {
    let rest = line.strip_prefix("V2 ")?;
    let length_end = rest.find(' ')?;
    let body_at = rest[length_end + 1..].find(' ')? + length_end + 1;
    Some((&rest[..body_at], &rest[body_at + 1..]))
}

fn frame_of(body: &str) -> String {
    format!("{} {:08x}", body.len(), crc32fast::hash(body.as_bytes()))
}

fn decoded(text: &str) -> Result<String, Invalid> {
    let bytes = BASE64_STANDARD.decode(text).map_err(|_| Invalid)?;
    String::from_utf8(bytes).map_err(|_| Invalid)
}

fn key(name: String) -> Result<String, Invalid> {
    let usable = !name.is_empty() && name.len() <= MAX_KEY_BYTES;
    if usable && !name.chars().any(char::is_control) { Ok(name) } else { Err(Invalid) }
}

/// The answer to [`Line::Negotiate`].
#[must_use]
pub fn agreed() -> String {
    AGREED.to_owned()
}

/// The line that answers a request.
#[must_use]
pub fn written(id: &str, answer: &Answer) -> String {
    let encode = |text: &String| BASE64_STANDARD.encode(text);
    let body = match answer {
        // An empty value has no word of its own.
        Answer::Success(Some(value)) if !value.is_empty() => {
            format!("{id} SUCCESS {}", encode(value))
        }
        Answer::Success(_) => format!("{id} SUCCESS"),
        Answer::NotFound => format!("{id} NOTFOUND"),
        Answer::Failure(why) => format!("{id} FAILURE {}", encode(why)),
    };
    framed_as_line(&body)
}

/// A line that carries this body, which has no end of a line in it.
#[must_use]
pub fn framed_as_line(body: &str) -> String {
    format!("V2 {} {body}\n", frame_of(body))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(body: &str) -> String {
        format!("V2 {} {body}", frame_of(body))
    }

    fn b64(text: &str) -> String {
        BASE64_STANDARD.encode(text)
    }

    fn request(id: &str, command: &Command) -> String {
        line(&match command {
            Command::Keys => format!("{id} KEYS"),
            Command::Get(key) => format!("{id} GET {}", b64(key)),
            Command::Delete(key) => format!("{id} DELETE {}", b64(key)),
            Command::Put(key, value) => {
                format!("{id} PUT {}", b64(&format!("{} {}", b64(key), b64(value))))
            }
        })
    }

    #[test]
    fn a_request_as_guests_send_it() {
        // Sums by another program.
        let key = "user-script".to_owned();
        for (sent, command) in [
            ("V2 29 9d9ce93f dc4fae17 GET dXNlci1zY3JpcHQ=", Command::Get(key)),
            ("V2 13 7c5eff90 dc4fae17 KEYS\r", Command::Keys),
        ] {
            assert_eq!(read(sent.as_bytes()), Ok(Line::Request("dc4fae17".to_owned(), command)));
        }
        assert_eq!(read(b"NEGOTIATE V2\r"), Ok(Line::Negotiate));
        for nothing in
            ["", "GET user-script", "NEGOTIATE V3", "V2", "V2 1", "V2 1 2", "V2 0 00000000 "]
        {
            assert_eq!(read(nothing.as_bytes()), Err(Invalid), "{nothing:?}");
        }
    }

    #[test]
    fn what_comes_back_from_a_terminal_is_no_request() {
        for own in [INVALID, &agreed()] {
            assert_eq!(read(own.trim_end().as_bytes()), Ok(Line::Echo));
        }
        for answer in [
            Answer::Success(None),
            Answer::Success(Some("x".to_owned())),
            Answer::NotFound,
            Answer::Failure("no".to_owned()),
        ] {
            let sent = written("dc4fae17", &answer);
            assert_eq!(read(sent.trim_end().as_bytes()), Ok(Line::Echo), "{sent}");
        }
    }

    #[test]
    fn keys_and_ids_are_bounded() {
        let get = |id: &str, key: &str| {
            read(request(id, &Command::Get(key.to_owned())).as_bytes()).is_ok()
        };
        assert!(get("1", &"k".repeat(MAX_KEY_BYTES)));
        assert!(!get("1", &"k".repeat(MAX_KEY_BYTES + 1)));
        assert!(!get(&"1".repeat(MAX_ID_BYTES + 1), "k"));
        assert!(!get("1", "a\nb") && !get("1", ""));
        let latin = line(&format!("1 GET {}", BASE64_STANDARD.encode(b"\xff")));
        assert_eq!(read(latin.as_bytes()), Err(Invalid));
        assert_eq!(read(line("1 KEYS a b").as_bytes()), Err(Invalid));
    }

    fn commands() -> impl Strategy<Value = Command> {
        let key = "[^\\p{Cc}]{1,40}";
        prop_oneof![
            Just(Command::Keys),
            key.prop_map(Command::Get),
            key.prop_map(Command::Delete),
            (key, ".*").prop_map(|(key, value)| Command::Put(key, value)),
        ]
    }

    proptest! {
        #[test]
        fn a_request_is_read_as_it_was_written(id in "[0-9a-f]{8}", command in commands()) {
            let sent = request(&id, &command);
            prop_assert_eq!(read(sent.as_bytes()), Ok(Line::Request(id, command)));
        }

        #[test]
        fn a_changed_byte_is_noticed(command in commands(), at in any::<usize>(), bit in 0..8) {
            let mut sent = request("dc4fae17", &command).into_bytes();
            let at = at % sent.len();
            sent[at] ^= 1_u8 << bit;
            prop_assert_eq!(read(&sent), Err(Invalid));
        }

        #[test]
        fn whatever_comes_is_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            read(&bytes).ok();
            let framed = line(&String::from_utf8_lossy(&bytes));
            read(framed.as_bytes()).ok();
        }

        #[test]
        fn an_answer_is_one_line(value in "(?s).*") {
            let sent = written("dc4fae17", &Answer::Success(Some(value.clone())));
            prop_assert_eq!(sent.matches('\n').count(), 1);
            let text = sent.trim_end().split(' ').nth(5).unwrap_or_default();
            prop_assert_eq!(decoded(text), Ok(value));
        }
    }
}
