//! Who asks for a change.

/// What a change knows of the request behind it. It is passed on as an argument, because the work
/// of a change may run on a task of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The request's id, kept in the records that it makes.
    pub req_id: String,
    /// The ticket that it names, under which tasks and jobs are started; checked by
    /// [`App::fence`](super::App::fence).
    pub ticket: Option<String>,
}

impl Caller {
    /// A request that names no ticket.
    #[must_use]
    pub fn new(req_id: impl Into<String>) -> Self {
        Self { req_id: req_id.into(), ticket: None }
    }

    /// The same request under a ticket.
    #[must_use]
    pub fn under(mut self, ticket: Option<String>) -> Self {
        self.ticket = ticket;
        self
    }
}
