use std::collections::BTreeSet;

use muster_shared::api::ticket::TicketServer;
use proptest::prelude::*;
use uuid::Uuid;

use super::*;
use crate::store::{Action, check_limits};

/// What a store would hold.
#[derive(Default)]
struct Records {
    records: BTreeMap<String, (Bytes, Revision)>,
    counter: u64,
}

impl Records {
    fn apply(&self, draft: &mut Draft, op: &Op) -> Effect {
        loop {
            match draft.apply(op) {
                Ok(effect) => return effect,
                Err(Stuck::Need(key)) => {
                    let record = self.records.get(&key).cloned();
                    draft.load(key, record);
                }
                Err(stuck) => panic!("{stuck:?}"),
            }
        }
    }

    fn commit(&mut self, draft: Draft) {
        let writes = draft.writes();
        check_limits(&writes).unwrap();
        self.counter += 1;
        let revision = Revision { epoch: 1, counter: self.counter };
        for write in writes {
            let at = self.records.get(&write.key).map(|(_, at)| *at);
            assert_eq!(write.expect, at.map_or(Expect::Absent, Expect::At), "{}", write.key);
            match write.action {
                Action::Put(value, None) => {
                    self.records.insert(write.key, (value, revision));
                }
                Action::Delete => drop(self.records.remove(&write.key)),
                action => panic!("{action:?}"),
            }
        }
    }

    fn tickets(&self) -> Vec<TicketRecord> {
        let tickets = self.records.iter().filter(|(key, _)| key.starts_with(keys::TICKETS));
        let mut tickets: Vec<TicketRecord> =
            tickets.map(|(_, (value, _))| serde_json::from_slice(value).unwrap()).collect();
        tickets.sort_by_key(|ticket| ticket.seq);
        tickets
    }

    /// Never two active; a queue that is not empty has exactly one, the oldest.
    fn check(&self) {
        let mut queues: BTreeMap<QueueName, Vec<TicketRecord>> = BTreeMap::new();
        for ticket in self.tickets() {
            if ticket.status.is_open() {
                queues.entry(ticket.queue.clone()).or_default().push(ticket);
            }
        }
        for (name, tickets) in &queues {
            for (place, ticket) in tickets.iter().enumerate() {
                let active = ticket.status == TicketStatus::Active;
                assert_eq!(active, place == 0, "{name}: {tickets:#?}");
            }
        }
        let records = self.records.iter().filter(|(key, _)| key.starts_with(keys::QUEUES));
        let records: Vec<Queue> =
            records.map(|(_, (value, _))| serde_json::from_slice(value).unwrap()).collect();
        assert_eq!(records.len(), queues.len());
        for record in records {
            let listed: Vec<_> = queues[&record.name].iter().map(|t| t.uuid).collect();
            assert_eq!(record.tickets, listed);
        }
    }
}

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn uuid(n: u8) -> TicketUuid {
    TicketUuid(Uuid::from_u128(n.into()))
}

fn create(n: u8, id: &str, expires_at: &str) -> Op {
    Op::Create(Box::new(NewTicket {
        uuid: uuid(n),
        queue: QueueName {
            server_uuid: TicketServer(None),
            scope: "s".to_owned(),
            id: id.to_owned(),
        },
        expires_at: expires_at.to_owned(),
        action: None,
        extra: Object::new(),
        reqid: String::new(),
        client: None,
    }))
}

#[derive(Clone, Debug)]
enum Act {
    Create { queue: u8, over: bool },
    Release(u8),
    Delete(u8),
    Expire(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (0u8..3, any::<bool>()).prop_map(|(queue, over)| Act::Create { queue, over }),
        2 => (0u8..40).prop_map(Act::Release),
        1 => (0u8..40).prop_map(Act::Delete),
        1 => (0u8..40).prop_map(Act::Expire),
    ];
    prop::collection::vec(act, 0..80)
}

proptest! {
    #[test]
    fn a_queue_has_one_active_ticket_the_oldest(
        acts in acts(), ends in prop::collection::vec(any::<(bool, bool)>(), 80)
    ) {
        let mut records = Records::default();
        let mut draft = Draft::new(now());
        // What a plain reading of the rules says of each ticket.
        let mut model: BTreeMap<TicketUuid, &str> = BTreeMap::new();
        let mut committed = model.clone();
        let mut over = BTreeSet::new();
        let mut made = 0;
        for (act, (commit, lost)) in acts.into_iter().zip(ends) {
            let op = match act {
                Act::Create { queue, over: is_over } => {
                    made += 1;
                    model.insert(uuid(made), "open");
                    if is_over {
                        over.insert(uuid(made));
                    }
                    let at = if is_over { "2025-01-01" } else { "2027-01-01" };
                    create(made, &queue.to_string(), at)
                }
                Act::Release(n) => {
                    model.entry(uuid(n)).and_modify(|status| *status = "finished");
                    Op::Release(uuid(n), Expected::ANY)
                }
                Act::Delete(n) => {
                    model.remove(&uuid(n));
                    Op::Delete(uuid(n), Expected::ANY)
                }
                Act::Expire(n) => {
                    if over.contains(&uuid(n)) {
                        let open = |status: &mut &str| if *status == "open" { *status = "expired" };
                        model.entry(uuid(n)).and_modify(open);
                    }
                    Op::Expire(uuid(n))
                }
            };
            records.apply(&mut draft, &op);
            if commit || !draft.has_room() {
                let done = std::mem::replace(&mut draft, Draft::new(now()));
                if lost {
                    // Another coordinator was first: as if nothing had been asked.
                    model.clone_from(&committed);
                } else {
                    records.commit(done);
                    committed.clone_from(&model);
                    records.check();
                }
            }
        }
        let shown: BTreeMap<_, _> = records
            .tickets()
            .iter()
            .map(|t| (t.uuid, if t.status.is_open() { "open" } else { t.status.as_str() }))
            .collect();
        prop_assert_eq!(shown, committed);
    }
}

#[test]
fn a_version_that_the_client_names_must_be_the_record_s() {
    let mut records = Records::default();
    let mut draft = Draft::new(now());
    records.apply(&mut draft, &create(1, "a", "3000"));
    records.commit(draft);
    let mut draft = Draft::new(now());
    let with = |version: &str| Op::Release(uuid(1), Expected::one_of(vec![version.to_owned()]));
    assert_eq!(records.apply(&mut draft, &with("1.7")), Effect::Changed);
    assert_eq!(records.apply(&mut draft, &with("1.1")), Effect::Done);
    assert_eq!(records.apply(&mut draft, &with("1.1")), Effect::Changed);
    assert_eq!(records.apply(&mut draft, &Op::Delete(uuid(2), Expected::ANY)), Effect::NotFound);
}

#[test]
fn a_queue_has_a_limit_and_fits_a_record() {
    let mut draft = Draft::new(now());
    let records = Records::default();
    records.apply(&mut draft, &create(1, "a", "3000"));
    let Op::Create(new) = create(1, "a", "3000") else { panic!("no create") };
    let tickets = (0..MAX_QUEUE).map(|n| TicketUuid(Uuid::from_u128(n as u128))).collect();
    let full = Queue { name: new.queue.clone(), tickets, unknown: Object::new() };
    draft.put(&keys::queue(&new.queue), &full);
    assert!(keys::encode(&full).len() < crate::store::MAX_VALUE_BYTES);
    assert_eq!(records.apply(&mut draft, &create(2, "a", "3000")), Effect::Full);
    assert_eq!(records.apply(&mut draft, &create(2, "b", "3000")), Effect::Done);
}
