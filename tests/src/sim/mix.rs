//! What a run is made of: a seed has some of the things that can go wrong, not all of them, so that
//! they are met alone and together.

use muster_shared::entropy::{Entropy as _, SeededEntropy};

/// Something that runs may have or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Clients that close their connection before they are answered.
    Impatience,
    /// Nodes in another order at each tick, and ticks of different lengths.
    Order,
    /// Processes that get no time for a while.
    Pauses,
    /// Wall clocks that are wrong.
    Skew,
    /// Connections that are cut one way only.
    OneWay,
    /// Hosts on which everything takes seconds.
    SlowHosts,
    /// A store that stalls.
    StoreStalls,
    /// Commits with an unknown outcome.
    StoreUnsure,
    /// Hosts with little memory, which fills up.
    Tight,
    /// Allocations.
    Allocate,
    /// The waitlist.
    Tickets,
    /// Jobs that reboot servers.
    Jobs,
    /// Images.
    Images,
    /// A reader of events.
    Events,
    /// Processes that are stopped in order, as for an upgrade.
    Stops,
    /// A server whose agent has no connection, but POSTs.
    Posts,
    /// Ended tasks that are kept for a moment only.
    ShortHistory,
}

impl Part {
    /// All, by name.
    pub const ALL: [(Self, &'static str); 17] = [
        (Self::Impatience, "impatience"),
        (Self::Order, "order"),
        (Self::Pauses, "pauses"),
        (Self::Skew, "skew"),
        (Self::OneWay, "one-way"),
        (Self::SlowHosts, "slow-hosts"),
        (Self::StoreStalls, "store-stalls"),
        (Self::StoreUnsure, "store-unsure"),
        (Self::Tight, "tight"),
        (Self::Allocate, "allocate"),
        (Self::Tickets, "tickets"),
        (Self::Jobs, "jobs"),
        (Self::Images, "images"),
        (Self::Events, "events"),
        (Self::Stops, "stops"),
        (Self::Posts, "posts"),
        (Self::ShortHistory, "short-history"),
    ];
}

/// The parts of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mix(Vec<Part>);

impl Mix {
    /// Nothing but the basics.
    #[must_use]
    pub fn plain() -> Self {
        Self(Vec::new())
    }

    /// What a seed has. `MUSTER_SIM_PARTS=a,b` allows only these, `-a,b` all others.
    #[must_use]
    pub fn of(entropy: &SeededEntropy) -> Self {
        let wanted = std::env::var("MUSTER_SIM_PARTS").ok();
        let allowed = |name: &str| match &wanted {
            None => true,
            Some(list) => match list.strip_prefix('-') {
                Some(list) => !list.split(',').any(|part| part == name),
                None => list.split(',').any(|part| part == name),
            },
        };
        // Drawn for every part, so that what is allowed does not change the rest of the run.
        let drawn = Part::ALL.into_iter().filter(|_| entropy.u64().is_multiple_of(2));
        let drawn: Vec<_> = drawn.collect();
        Self(drawn.into_iter().filter(|(_, name)| allowed(name)).map(|(part, _)| part).collect())
    }

    /// The same and these.
    #[must_use]
    pub fn and(mut self, parts: &[Part]) -> Self {
        let more: Vec<_> = parts.iter().filter(|part| !self.has(**part)).copied().collect();
        self.0.extend(more);
        self
    }

    /// Whether the run has it.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.0.contains(&part)
    }
}
