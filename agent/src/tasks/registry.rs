//! The task kinds an engine knows, and what follows from the list: queues, capabilities, and the
//! points at which a test can kill the agent.

use std::collections::BTreeMap;

use super::{Class, Handler, Queue};

/// Task kinds by name.
#[derive(Clone, Debug)]
pub struct Registry {
    kinds: BTreeMap<&'static str, &'static dyn Handler>,
    limits: BTreeMap<String, usize>,
}

impl Registry {
    /// The kinds of a list such as [`super::HANDLERS`]; names are unique there (a test checks).
    #[must_use]
    pub fn new(handlers: &'static [&'static dyn Handler]) -> Self {
        let kinds = handlers.iter().map(|h| (h.kind().name, *h)).collect();
        Self { kinds, limits: BTreeMap::new() }
    }

    /// Lets other numbers of tasks run at the same time, by queue.
    #[must_use]
    pub fn with_limits(self, limits: BTreeMap<String, usize>) -> Self {
        Self { limits, ..self }
    }

    /// The queue of a kind, with its limit.
    #[must_use]
    pub fn queue_of(&self, handler: &dyn Handler) -> Queue {
        let queue = handler.kind().queue;
        let max_concurrent = self.limits.get(queue.name).copied().unwrap_or(queue.max_concurrent);
        Queue { max_concurrent, ..queue }
    }

    /// The kind of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'static dyn Handler> {
        self.kinds.get(name).copied()
    }

    /// Every kind, by name.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Handler> + '_ {
        self.kinds.values().copied()
    }

    /// The kinds that this version can do where the node has what they need, by name.
    pub fn offered(&self) -> impl Iterator<Item = &'static dyn Handler> + '_ {
        self.iter().filter(|handler| handler.lacks().is_none())
    }

    /// Every queue, by name.
    #[must_use]
    pub fn queues(&self) -> Vec<Queue> {
        let queues: BTreeMap<_, _> =
            self.iter().map(|h| (h.kind().queue.name, self.queue_of(h))).collect();
        queues.into_values().collect()
    }

    /// Names of the kinds in a queue.
    #[must_use]
    pub fn kinds_in(&self, queue: &str) -> Vec<&'static str> {
        self.iter().filter(|h| h.kind().queue.name == queue).map(|h| h.kind().name).collect()
    }

    /// Where a journaled kind can be killed: `<task>:<step>:before` is when the journal holds
    /// that the step has begun, `…:after` when the step is done and the journal does not hold it
    /// yet. A step name that occurs twice in a plan gives one pair of points.
    #[must_use]
    pub fn fault_points(&self, task: Option<&str>) -> Vec<String> {
        let mut points = Vec::new();
        let wanted = |h: &&dyn Handler| task.is_none_or(|t| t == h.kind().name);
        for handler in self.iter().filter(wanted).filter(|h| h.kind().class == Class::Mutate) {
            let Ok(plan) = handler.plan(&handler.example()) else { continue };
            for step in &plan.steps {
                for moment in [Moment::Before, Moment::After] {
                    let point =
                        format!("{}:{}:{}", handler.kind().name, step.name(), moment.name());
                    if !points.contains(&point) {
                        points.push(point);
                    }
                }
            }
        }
        points
    }
}

/// When, relative to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// The journal holds that the step has begun; nothing was done yet.
    Before,
    /// The step is done; the journal does not hold it yet.
    After,
}

impl Moment {
    /// As in a fault point.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
        }
    }
}

/// Told about every point a task passes, so that a test can end the agent exactly there.
pub trait Faults: std::fmt::Debug + Send + Sync {
    /// True: the task must do nothing more (the process is as good as dead).
    fn reached(&self, task: &str, step: &str, moment: Moment) -> bool;
}

/// `MUSTER_FAULT=<task>:<step>[:before|:after]:kill`: the process kills itself there.
#[derive(Debug)]
pub struct KillAt {
    task: String,
    step: String,
    moment: Moment,
}

/// The text is no fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("MUSTER_FAULT={0:?} is not <task>:<step>[:before|:after]:kill")]
pub struct BadFault(pub String);

impl std::str::FromStr for KillAt {
    type Err = BadFault;

    fn from_str(text: &str) -> Result<Self, BadFault> {
        let parts: Vec<&str> = text.split(':').collect();
        let (task, step, moment) = match parts.as_slice() {
            [task, step, "before", "kill"] | [task, step, "kill"] => (task, step, Moment::Before),
            [task, step, "after", "kill"] => (task, step, Moment::After),
            _ => return Err(BadFault(text.to_owned())),
        };
        Ok(Self { task: (*task).to_owned(), step: (*step).to_owned(), moment })
    }
}

impl Faults for KillAt {
    fn reached(&self, task: &str, step: &str, moment: Moment) -> bool {
        if (task, step, moment) != (self.task.as_str(), self.step.as_str(), self.moment) {
            return false;
        }
        let this = nix::unistd::Pid::this();
        if let Err(error) = nix::sys::signal::kill(this, nix::sys::signal::Signal::SIGKILL) {
            tracing::error!(%error, "cannot kill this process as MUSTER_FAULT asks");
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use muster_shared::wire::Code;

    use super::*;
    use crate::tasks::HANDLERS;

    #[test]
    fn every_kind_has_a_unique_name_and_a_usable_example() {
        let registry = Registry::new(HANDLERS);
        assert_eq!(registry.kinds.len(), HANDLERS.len(), "a name is used twice");
        for handler in HANDLERS {
            let plan = handler.plan(&handler.example());
            let refused = plan.as_ref().err().map(|failure| &failure.code);
            let expected = handler.lacks().map(|_| &Code::NotSupported);
            assert_eq!(refused, expected, "{}: the example: {plan:?}", handler.kind().name);
        }
    }

    #[test]
    fn kinds_of_one_queue_agree_about_it() {
        for handler in HANDLERS {
            for other in HANDLERS {
                if handler.kind().queue.name == other.kind().queue.name {
                    assert_eq!(handler.kind().queue, other.kind().queue, "{}", handler.kind().name);
                }
            }
        }
    }

    #[test]
    fn faults_are_parsed() {
        let fault: KillAt = "machine_create:disks:after:kill".parse().unwrap();
        assert_eq!((fault.step.as_str(), fault.moment), ("disks", Moment::After));
        assert_eq!("a:b:kill".parse::<KillAt>().unwrap().moment, Moment::Before);
        assert!("a:b".parse::<KillAt>().is_err());
        assert!(!fault.reached("machine_create", "disks", Moment::Before));
    }
}
