//! Clients: requests to the coordinator's API, some given up half-way, and what was answered.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use muster_coordinator::app::Caller;
use muster_coordinator::http::LocalApi;
use muster_shared::ids::{TaskId, TicketUuid, VmUuid};
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ask::{Ask, Post};
use super::coordinator::{CoordinatorNode, Served};
use super::invariants::{Verdict, Violation, Witness};
use super::trace::Trace;

/// How long a client waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Until it is answered.
    Endless,
    /// It closes its connection after this time.
    Time(Duration),
    /// It closes its connection when the request has to wait for the so manyth time.
    Waits(u32),
}

/// What came of a request.
#[derive(Clone, Debug)]
enum Outcome {
    Answered(u16, Value),
    GivenUp,
}

#[derive(Debug)]
struct Answer {
    number: u64,
    outcome: Outcome,
}

#[derive(Debug)]
struct UnderWay {
    ask: Ask,
    asked: Duration,
}

/// All clients.
#[derive(Debug)]
pub struct Client {
    answers: Arc<Mutex<Vec<Answer>>>,
    last: u64,
    witness: Witness,
    under_way: BTreeMap<u64, UnderWay>,
    /// Given up or never answered; to be asked again.
    unanswered: Vec<Ask>,
    vms: Vec<VmUuid>,
    tickets: Vec<TicketUuid>,
    images: BTreeSet<u64>,
    replies: BTreeMap<u64, (u16, Value)>,
    statuses: BTreeMap<u16, u64>,
    given_up: u64,
}

impl Client {
    /// No request was made yet.
    #[must_use]
    pub fn new(witness: Witness) -> Self {
        Self {
            answers: Arc::default(),
            last: 0,
            witness,
            under_way: BTreeMap::new(),
            unanswered: Vec::new(),
            vms: Vec::new(),
            tickets: Vec::new(),
            images: BTreeSet::new(),
            replies: BTreeMap::new(),
            statuses: BTreeMap::new(),
            given_up: 0,
        }
    }

    /// Sends a request if the coordinator is up, which arrives after `delay`; the answer comes
    /// later, or never.
    pub fn send(
        &mut self,
        coordinator: &CoordinatorNode,
        ask: Ask,
        patience: Patience,
        (trace, now, delay): (&Trace, Duration, Duration),
    ) -> Option<u64> {
        let served = coordinator.served()?;
        self.last += 1;
        let number = self.last;
        trace.event(format_args!("request {number}: {ask:?}, {patience:?}"));
        if let Some(vm) = ask.makes()
            && !self.vms.contains(&vm)
        {
            self.vms.push(vm);
        }
        self.under_way.insert(number, UnderWay { ask: ask.clone(), asked: now });
        let answers = self.answers.clone();
        coordinator.spawn(async move {
            tokio::time::sleep(delay).await;
            let outcome = wait(perform(served, ask, number), patience).await;
            answers.lock().push(Answer { number, outcome });
        });
        Some(number)
    }

    /// Takes the answers that have come. `calm_since`: since when nothing is wrong with the
    /// coordinator's machine, if nothing is. Who asked before may be told late that the store
    /// failed: the coordinator may have been stopped in between.
    ///
    /// # Errors
    /// An answer that must not be given.
    pub fn collect(&mut self, trace: &Trace, calm_since: Option<Duration>) -> Verdict {
        let answers = std::mem::take(&mut *self.answers.lock());
        for Answer { number, outcome } in answers {
            let Some(UnderWay { ask, asked }) = self.under_way.remove(&number) else { continue };
            match outcome {
                Outcome::GivenUp => {
                    trace.event(format_args!("request {number} is given up"));
                    self.given_up += 1;
                    self.unanswered.push(ask);
                }
                Outcome::Answered(status, body) => {
                    let shown = body.to_string();
                    trace.data(format_args!("answer {number}: {status}"), shown.as_bytes());
                    *self.statuses.entry(status).or_insert(0) += 1;
                    // That an agent did not answer in time is CNAPI's 500, too.
                    let message = body["message"].as_str().unwrap_or_default();
                    let late = message.starts_with("Time-out reached waiting for");
                    let calm = calm_since.is_some_and(|since| since < asked);
                    if body["code"] == "InternalError" && calm && !late {
                        let detail = format!("{ask:?} is answered 500 {body}");
                        return Err(Violation::new("nothing-is-the-servers-fault", detail));
                    }
                    self.learn(&ask, asked, status, &body)?;
                    self.replies.insert(number, (status, body));
                }
            }
        }
        Ok(())
    }

    fn learn(&mut self, ask: &Ask, asked: Duration, status: u16, body: &Value) -> Verdict {
        if !(200..300).contains(&status) {
            return Ok(());
        }
        match ask {
            Ask::ListActive => {
                let listed = body.as_array().into_iter().flatten();
                let listed = listed.filter_map(|task| task["id"].as_str()?.parse().ok());
                let listed: BTreeSet<TaskId> = listed.collect();
                return self.witness.model().tasks.check_list(asked, &listed);
            }
            Ask::Ticket { .. } => {
                if let Some(uuid) = body["uuid"].as_str().and_then(|text| text.parse().ok()) {
                    self.tickets.push(uuid);
                    self.witness.ticket_answered(uuid);
                }
            }
            Ask::Post(server, Post::Heartbeat) => self.witness.posted(*server),
            Ask::ImageActivate(image) => drop(self.images.insert(*image)),
            Ask::ImageFile(image) if *body != json!(super::ask::image_text(*image)) => {
                let detail = format!("image {image} is {body}");
                return Err(Violation::new("image-is-whole", detail));
            }
            _ if ask.makes_task() => {
                if let Some(id) = body["id"].as_str().and_then(|text| text.parse().ok()) {
                    self.witness.task_answered(&id);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The coordinator died: what was under way is never answered.
    pub fn forget(&mut self) {
        let lost = std::mem::take(&mut self.under_way);
        self.unanswered.extend(lost.into_values().map(|under_way| under_way.ask));
        self.answers.lock().clear();
    }

    /// A request that was not answered, to be asked again.
    pub fn take_unanswered(&mut self) -> Option<Ask> {
        self.unanswered.pop()
    }

    /// The answer to a request, once.
    pub fn take_reply(&mut self, number: u64) -> Option<(u16, Value)> {
        self.replies.remove(&number)
    }

    /// Whether no request waits for its answer.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.under_way.is_empty()
    }

    /// VMs that were asked for.
    #[must_use]
    pub fn vms(&self) -> &[VmUuid] {
        &self.vms
    }

    /// Tickets that were made.
    #[must_use]
    pub fn tickets(&self) -> &[TicketUuid] {
        &self.tickets
    }

    /// Images that were activated.
    #[must_use]
    pub fn images(&self) -> &BTreeSet<u64> {
        &self.images
    }

    /// Answers by status, and requests that were given up.
    #[must_use]
    pub fn tally(&self) -> (&BTreeMap<u16, u64>, u64) {
        (&self.statuses, self.given_up)
    }
}

async fn perform(served: Served, ask: Ask, number: u64) -> Outcome {
    if let Ask::Task { server, kind, params } = ask {
        let caller = Caller::new(format!("request-{number}"));
        let made = served.app.tasks.create(server, kind, params.into(), &caller).await;
        return match made {
            Ok(id) => Outcome::Answered(200, json!({ "id": id })),
            Err(error) => Outcome::Answered(409, json!({ "message": error.to_string() })),
        };
    }
    let (status, body) = call(&served.api, ask.request(number)).await;
    let value = serde_json::from_slice(&body);
    Outcome::Answered(status, value.unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))))
}

/// One request and its whole answer.
async fn call(api: &LocalApi, request: Request<Full<Bytes>>) -> (u16, Bytes) {
    let response = api.call(request).await;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await;
    (status, body.map(http_body_util::Collected::to_bytes).unwrap_or_default())
}

/// Drops the request when the client's patience ends.
async fn wait(request: impl Future<Output = Outcome>, patience: Patience) -> Outcome {
    match patience {
        Patience::Endless => request.await,
        Patience::Time(time) => {
            tokio::time::timeout(time, request).await.unwrap_or(Outcome::GivenUp)
        }
        Patience::Waits(waits) => {
            let mut request = pin!(request);
            let mut left = waits;
            poll_fn(|context| match request.as_mut().poll(context) {
                Poll::Pending if left > 1 => {
                    left -= 1;
                    Poll::Pending
                }
                Poll::Pending => Poll::Ready(Outcome::GivenUp),
                ready => ready,
            })
            .await
        }
    }
}
