//! The ticket record: what is stored, CNAPI's view of it, and when it expires. Pure.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use muster_shared::clock::iso;
use muster_shared::ids::{BadId, ServerUuid, TicketUuid};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Whose waitlist: a server's, or that of `default`, which is about all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TicketServer(pub Option<ServerUuid>);

impl fmt::Display for TicketServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(server) => server.fmt(f),
            None => f.write_str("default"),
        }
    }
}

impl FromStr for TicketServer {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        if text == "default" { Ok(Self(None)) } else { text.parse().map(|uuid| Self(Some(uuid))) }
    }
}

impl TryFrom<String> for TicketServer {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

impl From<TicketServer> for String {
    fn from(server: TicketServer) -> Self {
        server.to_string()
    }
}

/// What tickets of one queue have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct QueueName {
    /// Whose waitlist.
    pub server_uuid: TicketServer,
    /// What kind of thing is waited for, e.g. `vm`.
    pub scope: String,
    /// Which one, e.g. a VM's uuid.
    pub id: String,
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.server_uuid, self.scope, self.id)
    }
}

/// Where a ticket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TicketStatus {
    /// Others are before it.
    Queued,
    /// It is its turn.
    Active,
    /// Its time is over.
    Expired,
    /// It was released.
    Finished,
}

impl TicketStatus {
    /// As CNAPI spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Active => "active",
            Self::Expired => "expired",
            Self::Finished => "finished",
        }
    }

    /// Whether the ticket is in its queue.
    #[must_use]
    pub fn is_open(self) -> bool {
        matches!(self, Self::Queued | Self::Active)
    }
}

/// A ticket, the record `ticket/<uuid>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ticket {
    /// Its name.
    pub uuid: TicketUuid,
    /// Its queue.
    #[serde(flatten)]
    pub queue: QueueName,
    /// When it ends by itself, as the client wrote it; see [`Due`].
    pub expires_at: String,
    /// When it was made, ISO 8601; only a label, the order is in `seq`.
    pub created_at: String,
    /// When it last changed, ISO 8601.
    pub updated_at: String,
    /// Where it is in its life.
    pub status: TicketStatus,
    /// What its holder means to do, e.g. `provision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The client's own.
    #[serde(default)]
    pub extra: Map<String, Value>,
    /// The request that made it.
    #[serde(default)]
    pub reqid: String,
    /// Its place in the store's order of creation, over all queues.
    pub seq: u64,
}

impl Ticket {
    /// CNAPI's record.
    #[must_use]
    pub fn public(&self) -> Map<String, Value> {
        let mut view = match json!(self) {
            Value::Object(members) => members,
            _ => Map::new(),
        };
        view.shift_remove("seq");
        view
    }

    /// Whether it promises room for a VM that is to be provisioned.
    #[must_use]
    pub fn is_provisioning(&self) -> bool {
        self.status.is_open()
            && self.queue.scope == "vm"
            && self.action.as_deref() == Some("provision")
    }

    /// When it expires.
    #[must_use]
    pub fn due(&self) -> Due {
        Due::of(&self.expires_at)
    }
}

/// When a ticket expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// At this time.
    At(Timestamp),
    /// `expires_at` is no time: the ticket expires once the present as ISO text sorts after it,
    /// as in the reference.
    AsText,
}

impl Due {
    /// Reads ISO 8601: without a zone it is UTC, and a date, a month or a year will do.
    #[must_use]
    pub fn of(expires_at: &str) -> Self {
        let text = expires_at.trim();
        let date = match text.len() {
            4 => format!("{text}-01-01").parse::<Date>().ok(),
            7 => format!("{text}-01").parse::<Date>().ok(),
            _ => None,
        };
        let civil = || match date {
            Some(date) => Some(DateTime::from(date)),
            None => text.parse::<DateTime>().ok(),
        };
        let in_utc = || Offset::UTC.to_timestamp(civil()?).ok();
        text.parse::<Timestamp>().ok().or_else(in_utc).map_or(Self::AsText, Self::At)
    }

    /// Whether a ticket with this `expires_at` has expired.
    #[must_use]
    pub fn is_over(self, expires_at: &str, now: Timestamp) -> bool {
        match self {
            Self::At(due) => due <= now,
            Self::AsText => expires_at < iso(now).as_str(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(expires_at: &str, expected: Option<&str>) {
        let expected = expected.map_or(Due::AsText, |text| Due::At(text.parse().unwrap()));
        assert_eq!(Due::of(expires_at), expected, "{expires_at:?}");
    }

    #[test]
    fn expiry_is_read_in_every_form_of_iso_8601_that_clients_use() {
        check("2015-10-10T00:00:00", Some("2015-10-10T00:00:00Z"));
        check("2015-10-10T00:00:00.250Z", Some("2015-10-10T00:00:00.25Z"));
        check("2015-10-10T02:00:00+02:00", Some("2015-10-10T00:00:00Z"));
        check("2015-10-10 00:00", Some("2015-10-10T00:00:00Z"));
        check("2015-10-10", Some("2015-10-10T00:00:00Z"));
        check("2015-10", Some("2015-10-01T00:00:00Z"));
        check("3000", Some("3000-01-01T00:00:00Z"));
        check("soon", None);
        check("", None);
        check("9999-12-31T23:59:59Z", None);
    }

    #[test]
    fn what_is_no_time_is_compared_as_text() {
        let now = "2026-01-01T00:00:00Z".parse().unwrap();
        let over = |text: &str| Due::of(text).is_over(text, now);
        assert!(!over("soon"));
        assert!(over(""));
        assert!(over("2025-13-45"));
        assert!(!over("9999-12-31T23:59:59Z"));
        assert!(over("2026-01-01"));
        assert!(!over("2026-01-01T00:00:01"));
    }

    #[test]
    fn the_view_has_cnapi_s_members() {
        let ticket = Ticket {
            uuid: TicketUuid(uuid::Uuid::nil()),
            queue: QueueName {
                server_uuid: TicketServer(None),
                scope: "vm".to_owned(),
                id: "x".to_owned(),
            },
            expires_at: "3000".to_owned(),
            created_at: "c".to_owned(),
            updated_at: "u".to_owned(),
            status: TicketStatus::Queued,
            action: None,
            extra: Map::new(),
            reqid: "r".to_owned(),
            seq: 7,
        };
        let keys: Vec<_> = ticket.public().keys().cloned().collect();
        let expected = [
            "uuid",
            "server_uuid",
            "scope",
            "id",
            "expires_at",
            "created_at",
            "updated_at",
            "status",
            "extra",
            "reqid",
        ];
        assert_eq!(keys, expected);
        assert_eq!(ticket.public()["server_uuid"], "default");
        let stored = serde_json::to_vec(&ticket).unwrap();
        assert_eq!(serde_json::from_slice::<Ticket>(&stored).unwrap(), ticket);
    }
}
