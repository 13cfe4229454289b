//! Text frames to messages and back.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::messages::{
    Accepted, Acknowledge, Cancel, Dispatch, Drain, Error, Heartbeat, Hello, Pause, Progress,
    Resume, StreamOpen, Sysinfo, TaskResult, Welcome,
};
use super::status::Status;
use super::{Lane, MAX_FRAME_BYTES};

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
    NotAMessage(#[source] serde_json::Error),
    /// A kind this version does not know; answer `UnknownKind`.
    #[error("unknown message kind {0:?}")]
    UnknownKind(String),
    /// A known kind whose members do not fit; answer `Malformed`.
    #[error("malformed {kind} message")]
    Malformed {
        /// The kind.
        kind: String,
        /// What does not fit.
        #[source]
        source: serde_json::Error,
    },
}

#[derive(Deserialize)]
struct Envelope {
    kind: String,
}

/// Reads one text frame.
///
/// # Errors
/// [`DecodeError`] for anything that is not a message of this direction.
pub fn decode<M: Message>(text: &str) -> Result<M, DecodeError> {
    if text.len() > MAX_FRAME_BYTES {
        return Err(DecodeError::TooLarge(text.len()));
    }
    let Envelope { kind } = serde_json::from_str(text).map_err(DecodeError::NotAMessage)?;
    if !M::KINDS.contains(&kind.as_str()) {
        return Err(DecodeError::UnknownKind(kind));
    }
    M::parse(&kind, text).map_err(|source| DecodeError::Malformed { kind, source })
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
