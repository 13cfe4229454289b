//! Decisions one after the other, so that no two take the same room.
//!
//! Questions wait in a queue. Whoever finds it empty and idle decides its own; what has come meanwhile
//! is decided on one thread until the queue is empty. So the next decision begins when the last has
//! ended, and waits for no task or thread to be woken.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Placement;
use super::flow::{Decision, Question};
use crate::app::error::AppError;

/// The questions that wait: no more than there are requests and moves under way.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Queue>);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Turn>,
    /// Somebody decides what waits.
    is_busy: bool,
}

/// A question, and who asks it.
#[derive(Debug)]
struct Turn {
    question: Arc<Question>,
    answer: oneshot::Sender<Result<Decision, AppError>>,
}

impl Turns {
    /// Puts a question at the end; `true` when the queue was idle: the caller decides then.
    fn join(&self, turn: Turn) -> bool {
        let mut queue = self.0.lock();
        queue.waiting.push_back(turn);
        !std::mem::replace(&mut queue.is_busy, true)
    }

    /// Puts a question back to the front, for another thread.
    fn put_back(&self, turn: Turn) {
        self.0.lock().waiting.push_front(turn);
    }

    /// The first question; without one the queue is idle again.
    fn next(&self) -> Option<Turn> {
        let mut queue = self.0.lock();
        let next = queue.waiting.pop_front();
        queue.is_busy = next.is_some();
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
            self.decide_first();
        }
        decision.await.expect("a decision that panics has said so")
    }

    /// Decides the first question that waits, if that is quick. The rest is left to a thread of its
    /// own: others' questions must not hold up whoever asked, nor the async thread it runs on.
    fn decide_first(self: &Arc<Self>) {
        if let Some(first) = self.turns.next() {
            if self.is_large(&first.question) {
                self.turns.put_back(first);
            } else {
                self.answer_turn(first);
            }
        }
        let Some(next) = self.turns.next() else { return };
        self.turns.put_back(next);
        let placement = Arc::clone(self);
        let rest = move || {
            while let Some(turn) = placement.turns.next() {
                placement.answer_turn(turn);
            }
        };
        self.ctx.parts.threads.compute(Box::new(rest));
    }

    /// Decides one question. The queue goes on after a decision that panics; whoever asked does not.
    fn answer_turn(&self, turn: Turn) {
        // Whoever asked may have gone.
        if turn.answer.is_closed() {
            return;
        }
        let decided = catch_unwind(AssertUnwindSafe(|| self.decide(&turn.question)));
        if let Ok(decided) = decided {
            drop(turn.answer.send(decided));
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
    fn a_queue_is_worked_off_in_order_by_the_one_who_finds_it_idle() {
        let turns = Turns::default();
        let counts = |turn: Option<Turn>| turn.map(|turn| turn.question.ask.count);
        assert!(turns.join(turn(1)), "it was idle");
        assert!(!turns.join(turn(2)), "the first is at work");
        let first = turns.next().unwrap();
        assert!(!turns.join(turn(3)), "also while the first is decided");
        turns.put_back(first);
        for count in 1..=3 {
            assert_eq!(counts(turns.next()), Some(count));
        }
        assert_eq!(counts(turns.next()), None);
        assert!(turns.join(turn(4)), "it is idle again");
    }
}
