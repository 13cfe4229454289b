//! What the coordinator answers: what of it this program knows, and the whole of it.

use std::ops::Deref;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// A record as it was answered. People are shown what this program knows of it; programs get all,
/// also members that only a newer coordinator has.
#[derive(Clone, Debug)]
pub(crate) struct Answer<T> {
    known: T,
    json: Value,
}

impl<T> Answer<T> {
    /// All of it.
    pub(crate) fn json(&self) -> &Value {
        &self.json
    }
}

impl<T> Deref for Answer<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.known
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Answer<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = Value::deserialize(deserializer)?;
        let known = T::deserialize(&json).map_err(D::Error::custom)?;
        Ok(Self { known, json })
    }
}

impl<T> Serialize for Answer<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.json.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::api::ticket::TicketCreated;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_stays() {
        let answered =
            json!({ "uuid": "11111111-1111-4111-8111-111111111111", "queue": [], "newer": 1 });
        let answer: Answer<TicketCreated> = serde_json::from_value(answered.clone()).unwrap();
        assert!(answer.queue.is_empty());
        assert_eq!(json!(answer), answered);
        serde_json::from_value::<Answer<TicketCreated>>(json!({ "uuid": 1 })).unwrap_err();
    }
}
