//! Decisions one after the other, so that no two take the same room.
//!
//! Questions wait in a line. Whoever finds it unserved serves it until it is empty, on one thread: the
//! next decision begins when the last has ended, and waits for no task or thread to be woken.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Placement;
use super::flow::{Decision, Question};
use crate::app::error::AppError;

/// The questions that wait.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Line>);

#[derive(Debug, Default)]
struct Line {
    waiting: VecDeque<Turn>,
    is_served: bool,
}

/// A question, and who asks it.
#[derive(Debug)]
struct Turn {
    question: Arc<Question>,
    answer: oneshot::Sender<Result<Decision, AppError>>,
}

impl Turns {
    /// Puts a question at the end; `true` when nobody serves the line, which is the caller's then.
    fn join(&self, turn: Turn) -> bool {
        let mut line = self.0.lock();
        line.waiting.push_back(turn);
        !std::mem::replace(&mut line.is_served, true)
    }

    /// Puts a question back to the front, for another thread to serve.
    fn put_back(&self, turn: Turn) {
        self.0.lock().waiting.push_front(turn);
    }

    /// The first question; without one the line is unserved again.
    fn next(&self) -> Option<Turn> {
        let mut line = self.0.lock();
        let next = line.waiting.pop_front();
        line.is_served = next.is_some();
        next
    }
}

impl Placement {
    /// The decision about a question, in its turn.
    ///
    /// # Errors
    /// [`AppError::Busy`] when it takes too long.
    pub(super) async fn decision(
        self: &Arc<Self>,
        question: &Arc<Question>,
    ) -> Result<Decision, AppError> {
        let (answer, decision) = oneshot::channel();
        if self.turns.join(Turn { question: Arc::clone(question), answer }) {
            self.serve_line(false);
        }
        decision.await.expect("a decision that panics has said so")
    }

    /// Decides what waits. What takes milliseconds is left to a thread that `may_compute`.
    fn serve_line(self: &Arc<Self>, may_compute: bool) {
        while let Some(turn) = self.turns.next() {
            // Whoever asked may have gone.
            if turn.answer.is_closed() {
                continue;
            }
            if !may_compute && self.is_large(&turn.question) {
                self.turns.put_back(turn);
                let placement = Arc::clone(self);
                let serve = move || placement.serve_line(true);
                return self.ctx.parts.threads.compute(Box::new(serve));
            }
            // The line goes on after a decision that panics; whoever asked for it does not.
            let decided = catch_unwind(AssertUnwindSafe(|| self.decide(&turn.question)));
            if let Ok(decided) = decided {
                drop(turn.answer.send(decided));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::{Config, HostOs};
    use crate::app::placement::Ask;

    /// A question that is known by the number of its VMs.
    fn turn(count: usize) -> Turn {
        let ask = Ask { count, ..Ask::default() };
        let policy = Arc::new(Config::reference_default(HostOs::Any));
        let question = Question { ask, policy, vms: Vec::new(), making: false };
        Turn { question: Arc::new(question), answer: oneshot::channel().0 }
    }

    #[test]
    fn a_line_is_served_by_one_who_finds_it_unserved_and_in_order() {
        let turns = Turns::default();
        let counts = |turn: Option<Turn>| turn.map(|turn| turn.question.ask.count);
        assert!(turns.join(turn(1)), "the first serves it");
        assert!(!turns.join(turn(2)), "it is served");
        let first = turns.next().unwrap();
        assert!(!turns.join(turn(3)), "also while the first is decided");
        turns.put_back(first);
        for count in 1..=3 {
            assert_eq!(counts(turns.next()), Some(count));
        }
        assert_eq!(counts(turns.next()), None);
        assert!(turns.join(turn(4)), "it is served no more");
    }
}
