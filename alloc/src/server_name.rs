//! How servers are called.

use std::fmt;
use std::sync::Arc;

use muster_shared::ids::ServerUuid;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::validate::is_uuid;

/// A server's uuid. In cases from outside a record may have anything else in its place, by which
/// the reference knows the server until a filter calls the record invalid.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerName {
    /// What all servers of a coordinator have.
    Uuid(ServerUuid),
    /// Any other text.
    Other(Arc<str>),
}

impl ServerName {
    pub(crate) fn of(text: &str) -> Self {
        let uuid = if is_uuid(text) { text.parse().ok() } else { None };
        uuid.map_or_else(|| Self::Other(text.into()), Self::Uuid)
    }

    /// The uuid, if it is one.
    #[must_use]
    pub fn uuid(&self) -> Option<ServerUuid> {
        match self {
            Self::Uuid(uuid) => Some(*uuid),
            Self::Other(_) => None,
        }
    }

    /// Appends the name.
    pub(crate) fn push_to(&self, text: &mut String) {
        let mut buffer = Uuid::encode_buffer();
        text.push_str(match self {
            Self::Uuid(uuid) => uuid.0.hyphenated().encode_lower(&mut buffer),
            Self::Other(name) => name,
        });
    }
}

impl From<ServerUuid> for ServerName {
    fn from(uuid: ServerUuid) -> Self {
        Self::Uuid(uuid)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Other(name) => name.fmt(f),
        }
    }
}

impl Serialize for ServerName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ServerName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self::of(&text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_reads_back_the_same_is_a_uuid() {
        let uuid = "929bdb5b-4232-48b6-a4ec-d94cbc265ab2";
        for text in [uuid, &uuid.to_uppercase(), "undefined", ""] {
            let name = ServerName::of(text);
            let mut pushed = String::new();
            name.push_to(&mut pushed);
            assert_eq!((name.to_string(), pushed), (text.to_owned(), text.to_owned()));
            assert_eq!(name.uuid().is_some(), text == uuid);
        }
    }
}
