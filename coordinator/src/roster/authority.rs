//! Who may write a server's status: exactly one coordinator at a time, named in the record
//! `roster/<uuid>`. An authority whose `members/` key is gone is no authority.

use std::collections::BTreeSet;

use jiff::Timestamp;
use muster_shared::api::Object;
use serde::{Deserialize, Serialize};

use crate::store::LeaseId;

/// What is stored of a server's liveness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Heard.
    Running,
    /// Heard by no coordinator.
    Unknown,
}

impl Status {
    /// As CNAPI spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Unknown => "unknown",
        }
    }
}

/// How a server gives its signs of life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// Over a websocket.
    #[default]
    Socket,
    /// By POSTing heartbeats.
    Post,
    /// Only by registering its sysinfo.
    Sysinfo,
}

/// The coordinator that may write a server's status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authority {
    /// Its instance name.
    pub instance: String,
    /// The lease its `members/` key is bound to.
    pub lease: LeaseId,
}

/// The record `roster/<uuid>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RosterRecord {
    /// The server's status.
    pub status: Status,
    /// When the status was written, by the writer's wall clock.
    pub since: Timestamp,
    /// When the server was last heard before the status was written; a label, not a decision.
    #[serde(default)]
    pub last_heartbeat: Option<Timestamp>,
    /// How it was heard.
    #[serde(default)]
    pub via: Via,
    /// Who may write this record.
    pub authority: Authority,
    /// What another version keeps in the record.
    #[serde(flatten)]
    pub unknown: Object,
}

/// What to do about a wanted status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Write it.
    Write,
    /// The record already says so.
    Keep,
    /// Another live coordinator decides.
    NotOurs,
}

/// Whether this coordinator writes `wanted` over `record`. `members` are the coordinators whose
/// `members/` key exists.
#[must_use]
pub fn plan(
    record: Option<&RosterRecord>,
    me: &str,
    members: &BTreeSet<String>,
    wanted: Status,
    via: Via,
) -> Plan {
    let Some(record) = record else { return Plan::Write };
    if record.status == wanted {
        // After a restart this decides how long its silence is excused.
        let hears_more = record.via == Via::Sysinfo && via != Via::Sysinfo;
        return if hears_more { Plan::Write } else { Plan::Keep };
    }
    let other = record.authority.instance != me && members.contains(&record.authority.instance);
    match wanted {
        // Somebody hears the server: that ends `unknown` whoever wrote it.
        Status::Running => Plan::Write,
        // Silence here says nothing about what a live authority hears.
        Status::Unknown if other => Plan::NotOurs,
        Status::Unknown => Plan::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(status: Status, instance: &str) -> RosterRecord {
        RosterRecord {
            status,
            since: Timestamp::UNIX_EPOCH,
            last_heartbeat: None,
            via: Via::Socket,
            authority: Authority { instance: instance.to_owned(), lease: LeaseId(1) },
            unknown: Object::new(),
        }
    }

    #[track_caller]
    fn check(old: Option<&RosterRecord>, members: &[&str], wanted: Status, expected: Plan) {
        let members = members.iter().map(|m| (*m).to_owned()).collect();
        assert_eq!(plan(old, "a", &members, wanted, Via::Socket), expected);
    }

    #[test]
    fn only_the_authority_or_its_heir_writes_unknown() {
        use Status::{Running, Unknown};
        check(None, &["a"], Unknown, Plan::Write);
        check(Some(&record(Running, "a")), &["a", "b"], Unknown, Plan::Write);
        check(Some(&record(Running, "b")), &["a", "b"], Unknown, Plan::NotOurs);
        check(Some(&record(Running, "b")), &["a"], Unknown, Plan::Write);
    }

    #[test]
    fn whoever_hears_a_server_ends_unknown() {
        use Status::{Running, Unknown};
        check(Some(&record(Unknown, "b")), &["a", "b"], Running, Plan::Write);
        check(Some(&record(Running, "b")), &["a", "b"], Running, Plan::Keep);
    }
}
