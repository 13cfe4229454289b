//! `/servers/:server_uuid/datasets`, `…/zpools`: ZFS of a server, as old clients see it.
//!
//! The server need not be running; whether it has ZFS is said by its agent's capabilities.

use http::Method;
use muster_shared::api::Object;
use serde_json::{Value, json};

use super::ask::{Ask, IDEMPOTENT, pick, prefixed};
use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;

/// The agent's own limit for a ZFS task, seconds.
const LIMIT: u64 = 600;

const PARSEABLE: Param =
    Param::new("parseable", &[], "Exact numbers instead of `1.2G`").checked(schema::flag);
const LIST_PARAMS: &[Param] = &[PARSEABLE];
const DESTROY: &[Param] = &[IDEMPOTENT];
const NAME: &[Param] = &[Param::new("name", &[Rule::StringType], "The snapshot")];
const CREATE: &[Param] =
    &[Param::new("dataset", &[Rule::StringType], "The new dataset"), IDEMPOTENT];
const SET: &[Param] = &[Param::new("properties", &[Rule::ObjectType], "Names and values")
    .checked(schema::zfs_properties)];
const WANTED: Param = Param::new(
    "prop1",
    &[],
    "A property to show, as `prop2` and every other parameter whose name starts with `prop`; \
     without any all are shown",
)
.checked(schema::text);
const PROPERTIES: &[Param] = &[WANTED];
const ALL_PROPERTIES: &[Param] =
    &[Param::new("dataset", &[], "Only of this dataset").checked(schema::text), WANTED];

pub(super) fn routes() -> Vec<Route> {
    let get = |pattern, operation, work: Work| route(Method::GET, pattern, operation, work);
    let post =
        |pattern, operation, work: Work| route(Method::POST, pattern, operation, work).no_content();
    vec![
        get("/servers/:server_uuid/datasets", "DatasetList", LIST)
            .params(LIST_PARAMS)
            .returns_schema(schema::datasets),
        post("/servers/:server_uuid/datasets", "DatasetCreate", CREATE_DATASET).params(CREATE),
        route(
            Method::DELETE,
            "/servers/:server_uuid/datasets/:dataset",
            "DatasetDestroy",
            DESTROY_DATASET,
        )
        .params(DESTROY)
        .no_content(),
        post("/servers/:server_uuid/datasets/:dataset/snapshot", "SnapshotCreate", SNAPSHOT)
            .params(NAME),
        post("/servers/:server_uuid/datasets/:dataset/rollback", "SnapshotRollback", ROLLBACK)
            .params(NAME),
        get("/servers/:server_uuid/datasets/:dataset/snapshots", "SnapshotList", SNAPSHOTS)
            .params(LIST_PARAMS)
            .returns_schema(schema::datasets),
        get("/servers/:server_uuid/datasets/:dataset/properties", "DatasetPropertiesGet", GET)
            .params(PROPERTIES)
            .returns_schema(schema::properties),
        post(
            "/servers/:server_uuid/datasets/:dataset/properties",
            "DatasetPropertiesSet",
            SET_PROPERTIES,
        )
        .params(SET),
        get("/servers/:server_uuid/dataset-properties", "DatasetPropertiesGetAll", GET)
            .params(ALL_PROPERTIES)
            .returns_schema(schema::properties),
        get("/servers/:server_uuid/zpools", "ZpoolList", POOLS)
            .params(LIST_PARAMS)
            .returns_schema(schema::pools),
    ]
}

/// What one endpoint asks for.
#[derive(Clone, Copy, Debug)]
struct Work {
    task: &'static str,
    prefix: &'static str,
    params: fn(&Request) -> Object,
    changes: bool,
}

const fn reads(task: &'static str, prefix: &'static str) -> Work {
    Work { task, prefix, params: all, changes: false }
}

const fn changes(task: &'static str, prefix: &'static str) -> Work {
    Work { task, prefix, params: all, changes: true }
}

const LIST: Work = reads("zfs_list_datasets", "cannot list datasets:");
const SNAPSHOTS: Work = reads("zfs_list_snapshots", "cannot list snapshots:");
const POOLS: Work = reads("zfs_list_pools", "cannot list pools:");
const GET: Work = Work { params: wanted, ..reads("zfs_get_properties", "cannot get properties:") };
const CREATE_DATASET: Work = changes("zfs_create_dataset", "cannot create dataset:");
const DESTROY_DATASET: Work = changes("zfs_destroy_dataset", "cannot destroy dataset:");
const SET_PROPERTIES: Work = changes("zfs_set_properties", "cannot set properties:");
const SNAPSHOT: Work =
    Work { params: snapshot, ..changes("zfs_snapshot_dataset", "cannot create snapshot: ") };
// The reference says "create" here too.
const ROLLBACK: Work =
    Work { params: snapshot, ..changes("zfs_rollback_dataset", "cannot create snapshot: ") };

fn route(method: Method, pattern: &'static str, operation: &'static str, work: Work) -> Route {
    Route::new(method, pattern, operation, move |request| run(request, work))
        .summary("ZFS on the server (deprecated): asks the agent and waits for its answer")
        .server(ServerRule::Exists)
        .errors(&[501, 503])
        .fenced()
}

async fn run(request: Request, work: Work) -> Result<Response, ApiError> {
    let ask = Ask::new(work.task, (work.params)(&request), LIMIT);
    if work.changes {
        ask.run(&request).await.map_err(prefixed(work.prefix))?;
        return Ok(Response::empty());
    }
    let mut result = ask.query(&request).await.map_err(prefixed(work.prefix))?;
    if let Some(members) = result.as_object_mut() {
        members.shift_remove("log");
    }
    Response::json(result)
}

fn all(request: &Request) -> Object {
    request.params.clone()
}

/// `<dataset>@<name>`, and nothing else.
fn snapshot(request: &Request) -> Object {
    let part = |name| request.text(name).unwrap_or_default();
    let joined = format!("{}@{}", part("dataset"), part("name"));
    Object::from_iter([("dataset", joined)])
}

/// Every member whose name starts with `prop` names a property.
fn wanted(request: &Request) -> Object {
    let mut params = pick(request, &["dataset"]);
    let named = request.params.iter().filter(|(name, _)| name.starts_with("prop"));
    let properties: Vec<Value> = named.map(|(_, value)| value.clone()).collect();
    if !properties.is_empty() {
        params.set("properties", json!(properties));
    }
    params
}
