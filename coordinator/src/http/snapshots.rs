//! `/servers/:server_uuid/vms/:uuid/snapshots`: snapshots of a VM's disks.

use http::Method;

use super::ask::JOB;
use super::route::{Param, Route};
use super::rule::Rule;
use super::schema;
use super::servers::start_task;
use super::vms::starts;

const NAME: Param =
    Param::new("snapshot_name", &[Rule::StringType], "Its name").checked(schema::snapshot_name);
const CREATE_PARAMS: &[Param] = &[
    // CNAPI looks at it no closer: the task says what is wrong with it.
    Param::new("snapshot_name", &[], "Its name").schema(schema::snapshot_name),
    Param::new("quiesce", &[], "How the guest is made still: `none` (default), `pause`, `guest`")
        .checked(schema::quiesce),
    Param::new("expires_s", &[], "After so many seconds its server deletes it")
        .checked(schema::expiry_seconds),
    JOB,
];
const PARAMS: &[Param] = &[NAME, JOB];

pub(super) fn routes() -> Vec<Route> {
    vec![
        route(
            Method::PUT,
            "/servers/:server_uuid/vms/:uuid/snapshots",
            "VmSnapshotCreate",
            "machine_create_snapshot",
        )
        .params(CREATE_PARAMS),
        route(
            Method::PUT,
            "/servers/:server_uuid/vms/:uuid/snapshots/:snapshot_name/rollback",
            "VmSnapshotRollback",
            "machine_rollback_snapshot",
        )
        .params(PARAMS),
        route(
            Method::DELETE,
            "/servers/:server_uuid/vms/:uuid/snapshots/:snapshot_name",
            "VmSnapshotDestroy",
            "machine_delete_snapshot",
        )
        .params(PARAMS),
    ]
}

fn route(
    method: Method,
    pattern: &'static str,
    operation: &'static str,
    task: &'static str,
) -> Route {
    starts(Route::new(method, pattern, operation, move |request| start_task(request, task)))
        .summary("Starts a task about a snapshot of the VM; all parameters are passed on")
}
