//! Identifiers. Each kind has a type of its own, so that one can't be passed for another.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            ToSchema,
        )]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = BadId;

            /// Accepts the hyphenated `8-4-4-4-12` form in either case, nothing else.
            fn from_str(text: &str) -> Result<Self, BadId> {
                if text.len() != 36 {
                    return Err(BadId);
                }
                text.parse().map(Self).map_err(|_| BadId)
            }
        }

        impl From<Uuid> for $name {
            fn from(uuid: Uuid) -> Self {
                Self(uuid)
            }
        }
    };
}

/// The text is not an identifier of the wanted kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a UUID of the form 8-4-4-4-12")]
pub struct BadId;

uuid_id! {
    /// A compute node.
    ServerUuid
}
uuid_id! {
    /// A virtual machine or container.
    VmUuid
}
uuid_id! {
    /// An image.
    ImageUuid
}
uuid_id! {
    /// A waitlist ticket.
    TicketUuid
}

/// A task. Minted as a UUID, but opaque: any text of 1 to 64 visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String", into = "String")]
// In the API `TaskId` is the answer that has one.
#[schema(as = OpaqueTaskId)]
pub struct TaskId(String);

impl TaskId {
    /// Longest id, in bytes.
    pub const MAX_LEN: usize = 64;

    /// The id's text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text can't be a task id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a task id: 1 to 64 visible ASCII characters without '/'")]
pub struct BadTaskId;

impl TryFrom<String> for TaskId {
    type Error = BadTaskId;

    fn try_from(text: String) -> Result<Self, BadTaskId> {
        // '/' separates the parts of a store key.
        let fits = (1..=Self::MAX_LEN).contains(&text.len());
        if fits && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/') {
            Ok(Self(text))
        } else {
            Err(BadTaskId)
        }
    }
}

impl FromStr for TaskId {
    type Err = BadTaskId;

    fn from_str(text: &str) -> Result<Self, BadTaskId> {
        text.to_owned().try_into()
    }
}

impl From<TaskId> for String {
    fn from(id: TaskId) -> Self {
        id.0
    }
}

impl From<Uuid> for TaskId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid.to_string())
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
