//! Tickets of the waitlist.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::{ObjectBuilder, OneOfBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use super::{IsoTime, Object};
use crate::ids::{BadId, ServerUuid, TicketUuid};

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

impl PartialSchema for TicketServer {
    fn schema() -> RefOr<Schema> {
        let default = ObjectBuilder::new().schema_type(Type::String).enum_values(Some(["default"]));
        OneOfBuilder::new().item(ServerUuid::schema()).item(default).into()
    }
}

impl ToSchema for TicketServer {}

/// What tickets of one queue have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
pub struct QueueName {
    /// Whose waitlist.
    pub server_uuid: TicketServer,
    /// What kind of thing is waited for, e.g. `vm`.
    pub scope: String,
    /// Which one, e.g. the VM's uuid.
    pub id: String,
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.server_uuid, self.scope, self.id)
    }
}

/// Where a ticket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
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

/// A place in a queue; the oldest ticket of a queue is the active one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Ticket {
    /// Its name.
    pub uuid: TicketUuid,
    /// Its queue.
    #[serde(flatten)]
    pub queue: QueueName,
    /// When it ends by itself: ISO 8601, as the client wrote it.
    pub expires_at: String,
    /// When it was made.
    #[schema(value_type = IsoTime)]
    pub created_at: String,
    /// When it last changed.
    #[schema(value_type = IsoTime)]
    pub updated_at: String,
    /// Its state.
    pub status: TicketStatus,
    /// What its holder intends to do, e.g. `provision`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
    /// The client's own.
    #[serde(default)]
    pub extra: Object,
    /// The request that made it.
    #[serde(default)]
    pub reqid: String,
}

/// A ticket that was just made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TicketCreated {
    /// The ticket.
    pub uuid: TicketUuid,
    /// Its queue, the oldest ticket first, and this one last: of a long one only the first.
    pub queue: Vec<Ticket>,
    /// How many tickets of the queue are left out, before the last; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_left_out: Option<usize>,
}
