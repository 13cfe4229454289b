//! The application's refusals in their HTTP form.

use http::StatusCode;
use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;

use super::error::ApiError;
use crate::app::AppError;
use crate::store::StoreError;

const NO_VOLUME_SERVER: &str =
    "No compute resources available on the host containing the mounted volume";

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        let message = error.to_string();
        let conflict = |code, message| Self::coded(StatusCode::CONFLICT, code, message);
        match error {
            AppError::AllocationNotFound(_)
            | AppError::SnapshotNotKept(_)
            | AppError::ServerNotFound(_)
            | AppError::VmNotFound(_)
            | AppError::PackageNotFound(_)
            | AppError::TaskNotFound
            | AppError::JobNotFound
            | AppError::TicketNotFound(_)
            | AppError::NoSuchTicket(_) => Self::NotFound(message),
            AppError::TicketExpired(_) => Self::RefusedArgument(message),
            AppError::TicketNotActive(_) => conflict(Code::TicketNotActive, message),
            AppError::ServerNotRunning => Self::ServerNotRunning,
            AppError::VmExists(_) => conflict(Code::VmExists, message),
            AppError::PackageExists(_) => conflict(Code::PackageExists, message),
            AppError::NotCancellable(_) => conflict(Code::NotCancellable, message),
            AppError::Invalid(errors) => Self::InvalidParameters(errors),
            AppError::InvalidArgument(_) => Self::InvalidArgument(message),
            AppError::RefusedArgument(_) => Self::RefusedArgument(message),
            AppError::NoServer { beside, volumes, .. } => {
                let (code, message) = if volumes {
                    (Code::VolumeServerNoResources, NO_VOLUME_SERVER.to_owned())
                } else {
                    (Code::NoAllocatableServers, message)
                };
                Self::Coded { status: StatusCode::CONFLICT, code, message, beside }
            }
            AppError::Busy(_) => {
                Self::coded(StatusCode::SERVICE_UNAVAILABLE, Code::QueueFull, message)
            }
            // As if the agent had been asked.
            AppError::NotSupported { .. } => Self::Agent { code: Code::NotSupported, message },
            AppError::Precondition(_) => Self::PreconditionFailed(message),
            AppError::NotConnected(_) | AppError::OldAgent(_) | AppError::Stopping => {
                Self::Unavailable(message)
            }
            AppError::Timeout(_) | AppError::Imgapi(_) | AppError::Answer(_) => {
                Self::Internal { message, source: None }
            }
            AppError::NotAllowed(_) => {
                Self::coded(StatusCode::FORBIDDEN, Code::NotAuthorized, message)
            }
            AppError::OldServer(_) => {
                Self::coded(StatusCode::BAD_REQUEST, Code::InvalidVersion, message)
            }
            AppError::Agent { code, .. } => Self::Agent { code, message },
            AppError::Stream(error) => Self::Agent { code: error.code, message },
            AppError::Changed => Self::PreconditionFailed(message),
            // Only what a client sent can make a record too large.
            AppError::Store(StoreError::TooLarge { limit, .. }) => {
                Self::TooLarge(format!("what would be stored is over its limit of {limit} bytes"))
            }
            AppError::Store(StoreError::Full { .. }) => Self::full(&error),
            AppError::Blob { .. } if is_full(&error) => Self::full(&error),
            AppError::Store(_)
            | AppError::Blob { .. }
            | AppError::Corrupt { .. }
            | AppError::Platforms { .. } => Self::internal(message, error),
        }
    }
}

impl ApiError {
    /// There is no room for what the request would have stored.
    fn full(error: &AppError) -> Self {
        tracing::error!(error = %Chain(error), "the coordinator has no room left");
        let message = "the coordinator's data folder has no room for this; nothing was changed";
        Self::coded(StatusCode::SERVICE_UNAVAILABLE, Code::StoreFull, message)
    }
}

/// Whether a file system had no room.
fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| {
        let cause = cause.downcast_ref::<std::io::Error>();
        cause.is_some_and(|cause| cause.kind() == std::io::ErrorKind::StorageFull)
    })
}
