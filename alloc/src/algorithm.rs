//! What an algorithm is: the interface between the runner and the files in `algorithms/`.

use std::fmt;

use serde_json::Value;

use crate::reason::Reasons;
use crate::run::Run;

/// What an algorithm may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Removes servers, each judged by itself.
    Filter,
    /// Removes servers, judged together.
    Set,
    /// Computes something for later steps.
    Calculator,
    /// Changes scores.
    Scorer,
    /// Changes the order, or picks.
    Sorter,
}

/// One algorithm.
pub(crate) struct Algorithm {
    /// In expressions.
    pub(crate) name: &'static str,
    /// In steps.
    pub(crate) title: &'static str,
    pub(crate) kind: Kind,
    /// Works on the servers that are left and says why it did what it did.
    pub(crate) run: fn(&mut Run<'_>) -> Reasons,
    /// The figures by which it judges one server, for `?explain=full`; `None`: none worth saying.
    pub(crate) compares: Option<Compares>,
    /// Whether it wants to know what earlier requests chose ([`crate::Recent`]).
    pub(crate) remembers: bool,
}

impl Algorithm {
    /// An algorithm that does nothing: for the members that most algorithms leave as they are.
    pub(crate) const PLAIN: Self = Self {
        name: "",
        title: "",
        kind: Kind::Filter,
        run: |_| Reasons::None,
        compares: None,
        remembers: false,
    };
}

/// Names and values that an algorithm compares on a server; of the request, too.
pub(crate) type Compares = fn(&Run<'_>, u32) -> Vec<(&'static str, Value)>;

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
