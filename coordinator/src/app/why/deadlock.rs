//! Who waits for whom. Pure.
//!
//! Two rules say that a ticket can't go on before another has:
//!
//! - A ticket in a queue comes after the one before it.
//! - A client that waits for a ticket goes no further with another that it holds. That a client
//!   holds both is known when its wait names the other (`x-muster-ticket`), or when both carry the
//!   same `extra.workflow_job_uuid`.
//!
//! A circle of these is a deadlock: no client in it can go on until a ticket expires. Only waits
//! at this coordinator are known, and a client that says nothing is not seen; so every circle
//! found is one, but not every one is found.

use std::collections::{BTreeMap, BTreeSet};

use muster_shared::ids::TicketUuid;

/// What is known, ready to be asked.
#[derive(Debug, Default)]
pub(super) struct Graph {
    after: BTreeMap<TicketUuid, BTreeSet<TicketUuid>>,
}

impl Graph {
    /// `ticket` can't go on before `other` has.
    pub(super) fn waits(&mut self, ticket: TicketUuid, other: TicketUuid) {
        if ticket != other {
            self.after.entry(ticket).or_default().insert(other);
        }
    }

    /// A circle that `start` is in or waits for: its tickets, each waiting for the next and the
    /// last for the first.
    pub(super) fn circle_from(&self, start: TicketUuid) -> Option<Vec<TicketUuid>> {
        let mut done = BTreeSet::new();
        // The path walked so far, each with those still to be looked at.
        let mut path: Vec<(TicketUuid, Vec<TicketUuid>)> = vec![(start, self.next(start))];
        while let Some((ticket, rest)) = path.last_mut() {
            let Some(next) = rest.pop() else {
                done.insert(*ticket);
                path.pop();
                continue;
            };
            if let Some(at) = path.iter().position(|(ticket, _)| *ticket == next) {
                return Some(path[at..].iter().map(|(ticket, _)| *ticket).collect());
            }
            if !done.contains(&next) {
                path.push((next, self.next(next)));
            }
        }
        None
    }

    fn next(&self, ticket: TicketUuid) -> Vec<TicketUuid> {
        self.after.get(&ticket).into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ticket(n: u8) -> TicketUuid {
        TicketUuid(uuid::Uuid::from_u128(n.into()))
    }

    fn graph(edges: &[(u8, u8)]) -> Graph {
        let mut graph = Graph::default();
        for (from, to) in edges {
            graph.waits(ticket(*from), ticket(*to));
        }
        graph
    }

    #[test]
    fn two_holders_that_wait_for_each_other_are_a_circle() {
        // 1 is held by a client that waits for 4, which comes after 3; 3's holder waits for 2,
        // which comes after 1.
        let graph = graph(&[(4, 3), (2, 1), (1, 4), (3, 2), (9, 4)]);
        assert_eq!(graph.circle_from(ticket(1)).unwrap(), [1, 4, 3, 2].map(ticket));
        assert_eq!(graph.circle_from(ticket(9)).unwrap().len(), 4, "it waits for the circle");
        assert_eq!(graph.circle_from(ticket(7)), None);
    }

    proptest! {
        #[test]
        fn a_circle_is_found_exactly_when_there_is_one(
            edges in prop::collection::vec((0u8..6, 0u8..6), 0..12), start in 0u8..6
        ) {
            let graph = graph(&edges);
            // Reachability, the naive way.
            let mut reach = [[false; 6]; 6];
            for (from, to) in edges.iter().filter(|(from, to)| from != to) {
                reach[usize::from(*from)][usize::from(*to)] = true;
            }
            for via in 0..6 {
                for from in 0..6 {
                    for to in 0..6 {
                        reach[from][to] |= reach[from][via] && reach[via][to];
                    }
                }
            }
            let start = usize::from(start);
            let exists = (0..6).any(|n| reach[n][n] && (n == start || reach[start][n]));
            let found = graph.circle_from(ticket(u8::try_from(start).unwrap()));
            prop_assert_eq!(found.is_some(), exists);
            if let Some(circle) = found {
                for (n, from) in circle.iter().enumerate() {
                    let to = circle[(n + 1) % circle.len()];
                    prop_assert!(graph.after[from].contains(&to));
                }
            }
        }
    }
}
