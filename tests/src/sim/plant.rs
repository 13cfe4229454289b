//! Defects planted at the doors of the daemons, to see that the invariants find them.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// The coordinator's disk says that a commit is durable before it is.
    EarlyCommits,
    /// Now and then a watch does not tell of a commit.
    LostEvents,
    /// An agent's disk says that a commit is durable before it is.
    EarlyJournal,
}

impl Plant {
    /// All.
    pub const ALL: [Self; 3] = [Self::EarlyCommits, Self::LostEvents, Self::EarlyJournal];
}
