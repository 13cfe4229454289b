//! `/allocate`, `/allocations` and `/capacity`: where a VM would fit, and why.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::Method;
use muster_shared::api::allocation::{
    Allocated, Capacities, Decision, DecisionDetail, Plan, Replayed,
};
use muster_shared::threads::compute_aside;
use muster_shared::wire::Code;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};
use serde_json::Value;
use uuid::Uuid;

use super::compressed;
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route};
use super::rule::Rule;
use super::schema;
use crate::alloc::{Detail, Explanation};
use crate::app::Decided;

/// Servers of an explanation that are written at a time.
const PART: usize = 50;

/// What the allocator itself checks, in the reference's order and words.
const ANY: &[Rule] = &[];
const VM: Param = Param::new("vm", &[], "The VM; needed").schema(schema::allocation_vm);
const IMAGE: Param =
    Param::new("image", &[], "Its image's manifest; needed").schema(schema::allocation_image);
const PACKAGE: Param = Param::new(
    "package",
    ANY,
    "Its package, with the overprovisioning ratios to account by; or a kept \
         package's name or uuid, whose sizes count where `vm` has none",
)
.schema(schema::allocation_package);
const NIC_TAGS: Param =
    Param::new("nic_tags", &[], "NIC tags it needs, all of them; needed").schema(schema::texts);
const REQUIREMENTS: Param =
    Param::new("nic_tag_requirements", ANY, "Lists of NIC tags, of each of which it needs one")
        .schema(schema::lists_of_texts);
const SERVERS: Param =
    Param::new("servers", ANY, "Only these servers").schema(schema::server_uuids);
const STEPS: Param = Param::new("steps", ANY, "How much of the steps to show; else `full`")
    .schema(schema::step_detail);

const CREATE: Param = Param::new(
    "create",
    ANY,
    "`true`: decide as `POST /vms` does, whose members `vm` has then: with room for its disks and \
     its hypervisor, under the policy for VMs that Muster creates",
)
.schema(schema::flag);

const ALLOCATE_PARAMS: &[Param] = &[
    SERVERS,
    PACKAGE,
    IMAGE,
    VM,
    REQUIREMENTS,
    NIC_TAGS,
    STEPS,
    Param::new("explain", ANY, "`full`: what every algorithm compared on every server")
        .schema(schema::explain_detail),
    Param::new("reserve", ANY, "`false`: keep no room for the VM").schema(schema::flag),
    Param::new("seed", ANY, "Decides shuffles; the answer has the one that was used")
        .schema(schema::seed),
    Param::new("count", ANY, "How many VMs to place, all or none").schema(schema::vm_count),
    Param::new("vm_uuids", ANY, "The VMs to place, if there are several").schema(schema::texts),
    Param::new(
        "keep",
        ANY,
        "`true`: keep the snapshot for replays as long as the decision; `false`: keep neither",
    )
    .schema(schema::flag),
    CREATE,
    Param::new("least_changes", ANY, "`false`: do not look for what would make it fit")
        .schema(schema::flag),
    Param::new(
        "what_if",
        ANY,
        "What to imagine: `add_servers`, `remove_servers`, `add_vms`, `remove_vms`, \
         `allocationDescription`, `changeDefaults`; nothing is reserved",
    )
    .schema(schema::what_if),
];

const REPLAY_PARAMS: &[Param] = &[
    Param::new("config", ANY, "Another policy: `allocationDescription`, `changeDefaults`")
        .schema(schema::policy),
    STEPS,
];

const LIST_PARAMS: &[Param] = &[
    Param::new("limit", &[Rule::Optional, Rule::Int], "At most this many, 1 to 1000")
        .schema(schema::limit),
    Param::new("marker", &[Rule::Optional, Rule::Uuid], "Older than this decision"),
];

const PLAN_PARAMS: &[Param] = &[
    Param::new("vm", ANY, "The VM").schema(schema::planned_vm),
    IMAGE,
    PACKAGE,
    NIC_TAGS,
    REQUIREMENTS,
    SERVERS,
    CREATE,
];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::POST, "/allocate", "SelectServer", allocate)
            .summary("Chooses a server for a VM, reserves resources there, and explains the choice")
            .params(ALLOCATE_PARAMS)
            .errors(&[503])
            .returns_schema(schema::of::<Allocated>),
        Route::new(Method::GET, "/allocations", "AllocationList", list)
            .summary("Placement decisions, newest first")
            .params(LIST_PARAMS)
            .returns_schema(schema::array_of::<Decision>),
        Route::new(Method::GET, "/allocations/:id", "AllocationGet", get)
            .summary("One decision: request, policy, seed, and what each algorithm left")
            .returns_schema(schema::of::<DecisionDetail>),
        Route::new(Method::POST, "/allocations/:id/replay", "AllocationReplay", replay)
            .summary("Decides again on the same snapshot, under the same policy or another")
            .params(REPLAY_PARAMS)
            .returns_schema(schema::of::<Replayed>),
        Route::new(Method::POST, "/capacity", "ServerCapacity", capacity)
            .summary("Unallocated resources of servers: percent of a core, MiB of memory and disk")
            .params(const { &[SERVERS] })
            .returns_schema(schema::of::<Capacities>),
        Route::new(Method::POST, "/capacity/plan", "CapacityPlan", plan)
            .summary("How many more VMs of a size fit on each server, and what would be stranded")
            .params(PLAN_PARAMS)
            .returns_schema(schema::of::<Plan>),
    ]
}

/// The body of a refusal: CNAPI's members first, for logs that show only the beginning.
struct Refusal<'a> {
    code: Code,
    message: String,
    decided: &'a Decided,
}

impl Serialize for Refusal<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", &self.code)?;
        map.serialize_entry("message", &self.message)?;
        self.decided.members(&mut map)?;
        map.end()
    }
}

async fn allocate(request: Request) -> Result<Response, ApiError> {
    let mut decided = request.app.placement.allocate(&request.params).await?;
    let explanation = decided.take_explanation();
    let refused = match decided.failure().map(ApiError::from) {
        None => None,
        Some(ApiError::Coded { status, code, message, .. }) => Some((status, code, message)),
        Some(other) => return Err(other),
    };
    let status = refused.as_ref().map(|(status, ..)| *status);
    let is_small = decided.is_small();
    let encode = move || match refused {
        None => encoded(&decided),
        Some((_, code, message)) => encoded(&Refusal { code, message, decided: &decided }),
    };
    let threads = &*request.app.parts().threads;
    // Of a large fleet the steps are MBs.
    let answer = if is_small { encode() } else { compute_aside(threads, encode).await }?;
    let response = match explanation {
        Some(explanation) => explained(answer, explanation),
        // The log shows how a refusal begins.
        None if status.is_some() => Response::encoded_as(answer),
        None => compressed::json(answer, &request.headers, threads).await?,
    };
    Ok(match status {
        Some(status) => response.status(status),
        None => response,
    })
}

fn encoded(value: &impl Serialize) -> Result<Vec<u8>, ApiError> {
    serde_json::to_vec(value).map_err(|error| ApiError::internal("cannot encode the answer", error))
}

/// An answer with the member `explain`, which is written server by server: whole, that of a large
/// fleet takes hundreds of MB.
fn explained(mut answer: Vec<u8>, explanation: Explanation) -> Response {
    // The answer is an object; the member goes before its end.
    answer.pop();
    answer.extend_from_slice(br#","explain":{"#);
    let parts = stream::iter((0..explanation.len()).step_by(PART)).map(move |from| {
        let mut part = serde_json::to_vec(&explanation.part(from, PART))?;
        // Its braces are those of the whole; commas stand between the parts.
        part.pop();
        if from == 0 {
            part.remove(0);
        } else {
            part[0] = b',';
        }
        Ok(Bytes::from(part))
    });
    let first = stream::iter([Ok(Bytes::from(answer))]);
    let last = stream::iter([Ok(Bytes::from_static(b"}}"))]);
    Response::endless("application/json", first.chain(parts).chain(last).boxed())
}

fn id(request: &Request) -> Result<Uuid, ApiError> {
    let text = request.text("id").unwrap_or_default();
    let missing = || ApiError::NotFound(format!("allocation {text} not found"));
    Uuid::parse_str(text).map_err(|_| missing())
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let limit = request.limit()?.unwrap_or(100);
    let before = request.text("marker").and_then(|text| Uuid::parse_str(text).ok());
    Response::list(request.app.decisions.list(limit, before))
}

async fn get(request: Request) -> Result<Response, ApiError> {
    Response::json(request.app.decisions.get(id(&request)?).await?)
}

async fn replay(request: Request) -> Result<Response, ApiError> {
    let detail = match request.param("steps").map(Value::as_str) {
        None | Some(Some("full")) => Detail::Full,
        Some(Some("counts")) => Detail::Counts,
        Some(Some("none")) => Detail::None,
        Some(_) => return Err(ApiError::invalid("steps", "must be none, counts or full")),
    };
    let config = request.param("config");
    Response::json(request.app.decisions.replay(id(&request)?, config, detail).await?)
}

async fn capacity(request: Request) -> Result<Response, ApiError> {
    Ok(Response::unwritten(request.app.placement.capacity(&request.params).await?))
}

async fn plan(request: Request) -> Result<Response, ApiError> {
    Ok(Response::unwritten(request.app.placement.plan(&request.params).await?))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::TryStreamExt as _;
    use serde_json::json;

    use super::*;
    use crate::alloc::{Config, Fleet, HostOs, Options, Request as Asked, explain};
    use crate::http::response::Body;

    #[tokio::test]
    async fn an_explanation_in_parts_is_the_whole() {
        let config = Config::reference_default(HostOs::Any);
        let body = json!({
            "vm": { "vm_uuid": Uuid::from_u128(1), "owner_uuid": Uuid::from_u128(2), "ram": 1 },
            "image": {}, "nic_tags": [],
        });
        let request = Asked::parse(body.as_object().unwrap()).unwrap();
        for servers in [0, 1, 50, 120] {
            let mut fleet = Fleet::new(&config);
            for n in 1..=servers {
                let record = json!({ "uuid": Uuid::from_u128(n), "setup": true });
                fleet.upsert_server(Arc::new(record.as_object().unwrap().clone())).unwrap();
            }
            let options = Options::default();
            let (_, whole) = explain(&fleet.snapshot(), &request, &config, &options);
            let want = json!({ "id": 7, "explain": whole });
            let response = explained(br#"{"id":7}"#.to_vec(), whole);
            let Body::Stream(stream) = response.body else { panic!("{response:?}") };
            let parts: Vec<Bytes> = stream.try_collect().await.unwrap();
            let text = parts.concat();
            assert_eq!(serde_json::from_slice::<Value>(&text).unwrap(), want);
            assert_eq!(text, serde_json::to_vec(&want).unwrap(), "{servers} servers");
        }
    }
}
