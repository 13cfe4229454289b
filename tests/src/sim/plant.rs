//! Defects planted at the doors of the daemons, and defects that the coordinator once had, to see
//! that the invariants find them.

pub use muster_coordinator::planted::Defect;

use super::mix::Part;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The coordinator's disk says that a commit is durable before it is.
    EarlyCommits,
    /// The coordinator's disk makes the changes of a commit durable one after the other.
    TornCommits,
    /// Now and then a watch does not tell of a commit.
    LostEvents,
    /// An agent's disk says that a commit is durable before it is.
    EarlyJournal,
    /// One that the coordinator once had.
    Former(Defect),
}

impl Plant {
    /// All.
    pub const ALL: [Self; 8] = [
        Self::EarlyCommits,
        Self::TornCommits,
        Self::LostEvents,
        Self::EarlyJournal,
        Self::Former(Defect::ChangeOfConnection),
        Self::Former(Defect::RefusalOfConnection),
        Self::Former(Defect::RoomOfConnection),
        Self::Former(Defect::CancelBeforeTurn),
    ];

    /// The invariants that notice it.
    #[must_use]
    pub fn found_by(self) -> &'static [&'static str] {
        match self {
            Self::EarlyCommits => &["only-open-tasks-are-sent", "answered-task-is-stored"],
            Self::TornCommits => &["task-stays", "active-tasks-are-listed", "every-task-ends"],
            Self::LostEvents => &["room-returns", "active-tasks-are-listed", "every-task-ends"],
            Self::EarlyJournal => &["task-runs-once", "task-runs-on-one-server"],
            Self::Former(Defect::ChangeOfConnection) => &["active-tasks-are-listed"],
            Self::Former(Defect::RefusalOfConnection) => &["only-open-tasks-are-sent"],
            Self::Former(Defect::RoomOfConnection) => &["room-returns"],
            Self::Former(Defect::CancelBeforeTurn) => {
                &["only-open-tasks-are-sent", "ended-task-does-not-run"]
            }
        }
    }

    /// Without these nothing comes of it, or next to nothing.
    #[must_use]
    pub fn parts(self) -> &'static [Part] {
        match self {
            Self::Former(Defect::ChangeOfConnection) => &[Part::Impatience],
            Self::Former(_) => &[Part::StoreStalls],
            _ => &[],
        }
    }

    /// What is wrong with the coordinator itself.
    #[must_use]
    pub fn defect(self) -> Option<Defect> {
        match self {
            Self::Former(defect) => Some(defect),
            _ => None,
        }
    }
}
