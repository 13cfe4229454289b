//! Text frames to messages and back.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::messages::{
    Accepted, Acknowledge, Cancel, Dispatch, Drain, Error, Heartbeat, Hello, Pause, Progress,
    Resume, StreamOpen, Sysinfo, TaskResult, Welcome,
};
use super::status::Status;
use super::{Code, Lane, MAX_FRAME_BYTES};
use crate::json_bounds::{self, MAX_VALUES};

/// Longest name that is repeated in an answer, bytes.
const MAX_ABOUT_BYTES: usize = 256;
/// Most of an unknown kind that is repeated, bytes.
const MAX_KIND_BYTES: usize = 64;
/// Most of a parser's words that is repeated, bytes.
const MAX_PROBLEM_BYTES: usize = 256;

/// What a direction of the protocol may carry.
pub trait Message: Serialize + Sized {
    /// Every kind, as in the frame's `kind`.
    const KINDS: &'static [&'static str];

    /// This message's kind.
    fn kind(&self) -> &'static str;

    /// The lane it is sent in.
    fn lane(&self) -> Lane;

    /// The message that an object of a known kind holds.
    ///
    /// # Errors
    /// The parser's, if the object lacks a member or has one of a wrong type.
    fn parse(kind: &str, text: &str) -> serde_json::Result<Self>;
}

/// A frame that is no message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Over [`MAX_FRAME_BYTES`].
    #[error("a frame of {0} bytes is over the limit")]
    TooLarge(usize),
    /// Not a JSON object with a `kind`.
    #[error("not a message")]
    NotAMessage(#[source] Unfit),
    /// A kind this version does not know; answer `UnknownKind`.
    #[error("unknown message kind {kind:?}")]
    UnknownKind {
        /// The kind, or how it begins.
        kind: String,
        /// What the message is about, as far as it says so.
        about: Option<String>,
    },
    /// More than [`MAX_VALUES`] values; answer `Malformed`.
    #[error("a {kind} message of more than {MAX_VALUES} values")]
    TooManyValues {
        /// The kind.
        kind: String,
        /// What the message is about, as far as it says so.
        about: Option<String>,
    },
    /// A known kind whose members do not fit; answer `Malformed`.
    #[error("malformed {kind} message")]
    Malformed {
        /// The kind.
        kind: String,
        /// What the message is about, as far as it says so.
        about: Option<String>,
        /// What does not fit.
        #[source]
        source: Unfit,
    },
}

/// What the parser says of a frame, shortened: it repeats what it met there, and a peer must not
/// get its garbage back, nor into the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unfit(String);

impl From<serde_json::Error> for Unfit {
    fn from(error: serde_json::Error) -> Self {
        let text = error.to_string();
        if text.len() <= MAX_PROBLEM_BYTES {
            return Self(text);
        }
        // Its end says what was expected, and where.
        let start = &text[..text.floor_char_boundary(MAX_PROBLEM_BYTES / 2)];
        let end = &text[text.ceil_char_boundary(text.len() - MAX_PROBLEM_BYTES / 2)..];
        Self(format!("{start}…{end}"))
    }
}

impl DecodeError {
    /// The code of the answer, see [`Error::code`].
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::UnknownKind { .. } => Code::UnknownKind,
            Self::TooLarge(_)
            | Self::NotAMessage(_)
            | Self::TooManyValues { .. }
            | Self::Malformed { .. } => Code::Malformed,
        }
    }

    /// The task, request or stream that the message is about, so that whoever waits for the
    /// answer gets it.
    #[must_use]
    pub fn about(&self) -> Option<&str> {
        match self {
            Self::TooLarge(_) | Self::NotAMessage(_) => None,
            Self::UnknownKind { about, .. }
            | Self::TooManyValues { about, .. }
            | Self::Malformed { about, .. } => about.as_deref(),
        }
    }

    /// Whether the peer speaks the protocol all the same, perhaps a later version of it.
    #[must_use]
    pub fn is_message(&self) -> bool {
        !matches!(self, Self::TooLarge(_) | Self::NotAMessage(_))
    }
}

#[derive(Deserialize)]
struct Envelope {
    kind: String,
    #[serde(default)]
    id: Name,
    #[serde(default)]
    token: Name,
    #[serde(default)]
    stream_id: Name,
}

/// A short text; anything else is passed over without being kept.
#[derive(Default)]
struct Name(Option<String>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Short;

        impl<'de> Visitor<'de> for Short {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("anything")
            }

            fn visit_str<E>(self, text: &str) -> Result<Name, E> {
                Ok(Name((text.len() <= MAX_ABOUT_BYTES).then(|| text.to_owned())))
            }

            fn visit_unit<E>(self) -> Result<Name, E> {
                Ok(Name(None))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Name, E> {
                Ok(Name(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Name, E> {
                Ok(Name(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Name, E> {
                Ok(Name(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Name, E> {
                Ok(Name(None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Name, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Name(None))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Name, A::Error> {
                while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Name(None))
            }
        }

        deserializer.deserialize_any(Short)
    }
}

impl Envelope {
    fn about(self) -> (String, Option<String>) {
        let Self { kind, id, token, stream_id } = self;
        (kind, id.0.or(token.0).or(stream_id.0))
    }
}

/// Reads one text frame.
///
/// # Errors
/// [`DecodeError`] for anything that is not a message of this direction.
pub fn decode<M: Message>(text: &str) -> Result<M, DecodeError> {
    if text.len() > MAX_FRAME_BYTES {
        return Err(DecodeError::TooLarge(text.len()));
    }
    let envelope: Envelope =
        serde_json::from_str(text).map_err(|error| DecodeError::NotAMessage(error.into()))?;
    let (mut kind, about) = envelope.about();
    if !M::KINDS.contains(&kind.as_str()) {
        kind.truncate(kind.floor_char_boundary(MAX_KIND_BYTES));
        return Err(DecodeError::UnknownKind { kind, about });
    }
    if json_bounds::is_over(text.as_bytes()) {
        return Err(DecodeError::TooManyValues { kind, about });
    }
    M::parse(&kind, text).map_err(|error| DecodeError::Malformed {
        kind,
        about,
        source: error.into(),
    })
}

/// Writes one text frame.
#[must_use]
pub fn encode<M: Message>(message: &M) -> String {
    serde_json::to_string(message).expect("messages have only string keys")
}

fn parse_as<T: DeserializeOwned>(text: &str) -> serde_json::Result<T> {
    serde_json::from_str(text)
}

macro_rules! direction {
    ($(#[$doc:meta])* $name:ident { $($kind:literal $variant:ident($body:ty) $lane:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "kind")]
        pub enum $name {
            $(
                #[doc = concat!("`", $kind, "`")]
                #[serde(rename = $kind)]
                $variant($body),
            )*
        }

        impl Message for $name {
            const KINDS: &'static [&'static str] = &[$($kind),*];

            fn kind(&self) -> &'static str {
                match self { $(Self::$variant(_) => $kind,)* }
            }

            fn lane(&self) -> Lane {
                match self { $(Self::$variant(_) => Lane::$lane,)* }
            }

            fn parse(kind: &str, text: &str) -> serde_json::Result<Self> {
                match kind {
                    $($kind => parse_as(text).map(Self::$variant),)*
                    _ => Err(serde::de::Error::custom("not of this direction")),
                }
            }
        }

        $(impl From<$body> for $name {
            fn from(body: $body) -> Self {
                Self::$variant(body)
            }
        })*
    };
}

direction! {
    /// What an agent sends.
    FromAgent {
        "hello" Hello(Hello) Control,
        "heartbeat" Heartbeat(Heartbeat) Heartbeat,
        "sysinfo" Sysinfo(Sysinfo) Bulk,
        "status" Status(Box<Status>) Bulk,
        "accepted" Accepted(Accepted) Control,
        "progress" Progress(Progress) Bulk,
        "result" Result(TaskResult) Bulk,
        "error" Error(Error) Control,
    }
}

direction! {
    /// What a coordinator sends.
    FromCoordinator {
        "welcome" Welcome(Welcome) Control,
        "heartbeat" Heartbeat(Heartbeat) Heartbeat,
        "dispatch" Dispatch(Box<Dispatch>) Control,
        "acknowledge" Acknowledge(Acknowledge) Control,
        "cancel" Cancel(Cancel) Control,
        "pause" Pause(Pause) Control,
        "resume" Resume(Resume) Control,
        "drain" Drain(Drain) Control,
        "sysinfo" Sysinfo(Sysinfo) Bulk,
        "status" Status(Box<Status>) Bulk,
        "stream_open" StreamOpen(StreamOpen) Control,
        "error" Error(Error) Control,
    }
}
