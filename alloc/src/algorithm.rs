//! What an algorithm is: the interface between the runner and the files in `algorithms/`.

use std::fmt;

use serde_json::Value;

use crate::change::Change;
use crate::reason::Reasons;
use crate::remedy::Refused;
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
    /// What could help where it refused a server that is looked at by itself, the likeliest first.
    pub(crate) remedies: Remedies,
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
        remedies: |_| Vec::new(),
        remembers: false,
    };
}

/// Changes of the server, the policy or the request's VMs that may make the server do.
pub(crate) type Remedies = fn(&Refused<'_>) -> Vec<Change>;

/// Names and values that an algorithm compares on a server; of the request, too.
pub(crate) type Compares = fn(&Run<'_>, u32) -> Vec<(&'static str, Value)>;

impl fmt::Debug for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
