//! Operations of CNAPI that are not implemented: the path is known, the answer is 501.
//!
//! An operation that gets its implementation leaves this list.

use http::{Method, StatusCode};

use super::error::ApiError;
use super::route::Route;

const OPERATIONS: &[(Method, &str, &str)] = &[
    (Method::GET, "/platforms", "PlatformList"),
    (Method::GET, "/boot/default", "BootParamsGetDefault"),
    (Method::PUT, "/boot/default", "BootParamsSetDefault"),
    (Method::POST, "/boot/default", "BootParamsUpdateDefault"),
    (Method::GET, "/boot/:server_uuid", "BootParamsGet"),
    (Method::PUT, "/boot/:server_uuid", "BootParamsSet"),
    (Method::POST, "/boot/:server_uuid", "BootParamsUpdate"),
    (Method::PUT, "/servers/:server_uuid/setup", "ServerSetup"),
    (Method::PUT, "/servers/:server_uuid/factory-reset", "ServerFactoryReset"),
    (Method::POST, "/servers/:server_uuid/reboot", "ServerReboot"),
    (Method::PUT, "/servers/:server_uuid/nics", "NicUpdate"),
    (Method::POST, "/servers/:server_uuid/uninstall-agents", "ServerUninstallAgents"),
    (Method::POST, "/servers/:server_uuid/recovery-config", "ServerRecoveryConfig"),
    (Method::POST, "/servers/:server_uuid/execute", "CommandExecute"),
    (Method::GET, "/servers/:server_uuid/images/:uuid", "ImageGet"),
    (Method::GET, "/servers/:server_uuid/tickets", "ServerWaitlistList"),
    (Method::POST, "/servers/:server_uuid/tickets", "ServerWaitlistTicketCreate"),
    (Method::DELETE, "/servers/:server_uuid/tickets", "ServerWaitlistTicketsDeleteAll"),
    (Method::GET, "/tickets/:ticket_uuid", "ServerWaitlistGetTicket"),
    (Method::DELETE, "/tickets/:ticket_uuid", "ServerWaitlistDeleteTickets"),
    (Method::GET, "/tickets/:ticket_uuid/wait", "ServerWaitlistTicketsWait"),
    (Method::PUT, "/tickets/:ticket_uuid/release", "ServerWaitlistTicketRelease"),
    (Method::POST, "/servers/:server_uuid/vms/nics/update", "VmNicsUpdate"),
    (Method::GET, "/servers/:server_uuid/vms/:uuid/vnc", "VmVnc"),
    (Method::POST, "/servers/:server_uuid/vms/:uuid/migrate", "VmMigrate"),
    (Method::PUT, "/servers/:server_uuid/vms/:uuid/snapshots", "VmSnapshotCreate"),
    (
        Method::PUT,
        "/servers/:server_uuid/vms/:uuid/snapshots/:snapshot_name/rollback",
        "VmSnapshotRollback",
    ),
    (
        Method::DELETE,
        "/servers/:server_uuid/vms/:uuid/snapshots/:snapshot_name",
        "VmSnapshotDestroy",
    ),
    (Method::POST, "/servers/:server_uuid/vms/:uuid/images", "VmImageCreate"),
    (Method::POST, "/servers/:server_uuid/vms/:uuid/docker-exec", "VmDockerExec"),
    (Method::POST, "/servers/:server_uuid/vms/:uuid/docker-copy", "VmDockerCopy"),
    (Method::POST, "/servers/:server_uuid/vms/:uuid/docker-stats", "VmDockerStats"),
    (Method::POST, "/servers/:server_uuid/vms/:uuid/docker-build", "VmDockerBuild"),
    (Method::GET, "/servers/:server_uuid/datasets", "DatasetList"),
    (Method::POST, "/servers/:server_uuid/datasets", "DatasetCreate"),
    (Method::DELETE, "/servers/:server_uuid/datasets/:dataset", "DatasetDestroy"),
    (Method::POST, "/servers/:server_uuid/datasets/:dataset/snapshot", "SnapshotCreate"),
    (Method::POST, "/servers/:server_uuid/datasets/:dataset/rollback", "SnapshotRollback"),
    (Method::GET, "/servers/:server_uuid/datasets/:dataset/snapshots", "SnapshotList"),
    (Method::GET, "/servers/:server_uuid/datasets/:dataset/properties", "DatasetPropertiesGet"),
    (Method::POST, "/servers/:server_uuid/datasets/:dataset/properties", "DatasetPropertiesSet"),
    (Method::GET, "/servers/:server_uuid/dataset-properties", "DatasetPropertiesGetAll"),
    (Method::GET, "/servers/:server_uuid/zpools", "ZpoolList"),
];

pub(super) fn routes() -> Vec<Route> {
    let route = |(method, pattern, operation): &(Method, &'static str, &'static str)| {
        let operation = *operation;
        let refuse = move |_request| async move { Err(ApiError::NotImplemented(operation)) };
        Route::new(method.clone(), pattern, operation, refuse)
            .summary("Not implemented")
            .success(StatusCode::NOT_IMPLEMENTED)
    };
    OPERATIONS.iter().map(route).collect()
}
