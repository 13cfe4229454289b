//! The ticket record, and when a ticket expires. Pure.

use std::net::IpAddr;
use std::ops::Deref;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::Offset;
use muster_shared::api::Object;
use muster_shared::api::ticket::Ticket;
use muster_shared::clock::iso;
use serde::{Deserialize, Deserializer, Serialize};

/// The record `ticket/<uuid>`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TicketRecord {
    /// What clients see of it.
    #[serde(flatten)]
    pub ticket: Ticket,
    /// Its place in the store's order of creation, over all queues; `created_at` is only a label.
    pub seq: u64,
    /// The address of the client that asked for it, or for IPv6 its network; none: one on a unix
    /// socket. Clients share the room for open tickets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<IpAddr>,
    /// What another version keeps in the record.
    #[serde(flatten, deserialize_with = "unknown")]
    pub unknown: Object,
}

/// The members of a [`Ticket`]. It has a flattened member of its own, so it leaves all of them to
/// those that are read after it.
const OF_TICKET: [&str; 11] = [
    "uuid",
    "server_uuid",
    "scope",
    "id",
    "expires_at",
    "created_at",
    "updated_at",
    "status",
    "action",
    "extra",
    "reqid",
];

fn unknown<'de, D: Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
    let mut members = Object::deserialize(from)?;
    members.retain(|name, _| !OF_TICKET.contains(&name));
    Ok(members)
}

impl Deref for TicketRecord {
    type Target = Ticket;

    fn deref(&self) -> &Ticket {
        &self.ticket
    }
}

impl TicketRecord {
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
    use muster_shared::api::ticket::{QueueName, TicketServer, TicketStatus};
    use muster_shared::ids::TicketUuid;

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
    fn clients_see_cnapi_s_members_and_the_record_has_more() {
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
            extra: Default::default(),
            reqid: "r".to_owned(),
        };
        assert_eq!(
            serde_json::to_string(&ticket).unwrap(),
            r#"{"uuid":"00000000-0000-0000-0000-000000000000","server_uuid":"default","scope":"vm","id":"x","expires_at":"3000","created_at":"c","updated_at":"u","status":"queued","extra":{},"reqid":"r"}"#
        );
        let record = TicketRecord { ticket, seq: 7, client: None, unknown: Object::new() };
        let stored = serde_json::to_string(&record).unwrap();
        assert!(stored.ends_with(r#""reqid":"r","seq":7}"#), "{stored}");
        assert_eq!(serde_json::from_str::<TicketRecord>(&stored).unwrap(), record);
        let of_client = TicketRecord { client: Some([10, 0, 0, 1].into()), ..record.clone() };
        let stored = serde_json::to_string(&of_client).unwrap();
        assert!(stored.ends_with(r#""seq":7,"client":"10.0.0.1"}"#), "{stored}");
        assert_eq!(serde_json::from_str::<TicketRecord>(&stored).unwrap(), of_client);
        let whole = Ticket { action: Some("a".to_owned()), ..record.ticket };
        let Ok(serde_json::Value::Object(members)) = serde_json::to_value(whole) else {
            panic!("a ticket is an object")
        };
        assert_eq!(members.keys().collect::<Vec<_>>(), OF_TICKET.iter().collect::<Vec<_>>());
    }
}
