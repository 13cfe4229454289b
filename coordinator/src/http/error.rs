//! What a client is told when a request is refused: one enum, and one place that gives each
//! variant its HTTP status and CNAPI code. Causes are logged and never sent.

use std::error::Error;

use http::StatusCode;
use muster_shared::api::{FieldError, Object};
use muster_shared::wire::Code;
use serde_json::{Value, json};

type Cause = Box<dyn Error + Send + Sync>;

/// A refused request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    /// The body can't be parsed, or is not an object of parameters.
    #[error("{0}")]
    InvalidContent(String),
    /// The body, or a string in it, is over its limit.
    #[error("{0}")]
    TooLarge(String),
    /// Parameters failed validation: 409, or 500 with `api.validation_status = 500`.
    #[error("Request parameters failed validation")]
    InvalidParameters(Vec<FieldError>),
    /// As [`ApiError::InvalidParameters`], but always 400 (ServerList's `limit`).
    #[error("Request parameters failed validation")]
    OutOfRange(Vec<FieldError>),
    /// 409 in both validation modes.
    #[error("{0}")]
    InvalidArgument(String),
    /// 409 InvalidArgument; the reference answers 500 InternalError.
    #[error("{0}")]
    RefusedArgument(String),
    /// 409 InvalidArgument; the reference answers 500 with the same code.
    #[error("{0}")]
    RefusedUpdate(String),
    /// 404; the message says what was not found.
    #[error("{0}")]
    NotFound(String),
    /// The path is known, but not with this method.
    #[error("{method} is not allowed")]
    MethodNotAllowed {
        /// The method of the request.
        method: String,
        /// The methods that the path has.
        allow: String,
    },
    /// No acceptable media type.
    #[error(
        "Server accepts: application/json,text/plain,application/octet-stream,application/javascript"
    )]
    NotAcceptable,
    /// The server's status is not `running`.
    #[error("Operation attempted on server which is not running")]
    ServerNotRunning,
    /// The request's condition does not hold (`If-Match`, agent too old, missing `force`).
    #[error("{0}")]
    PreconditionFailed(String),
    /// A status and code of the contract that only one endpoint uses, e.g.
    /// NoAllocatableServersError.
    #[error("{message}")]
    Coded {
        /// HTTP status.
        status: StatusCode,
        /// CNAPI code.
        code: Code,
        /// For the client.
        message: String,
        /// Further members of the body, e.g. the steps of an allocation that found no server.
        beside: Object,
    },
    /// A synchronous task failed on the agent; the status follows the agent's code.
    #[error("{message}")]
    Agent {
        /// The agent's code, e.g. [`Code::VmNotFound`].
        code: Code,
        /// The agent's text with the endpoint's prefix, e.g. `posting task to cn-agent: …`.
        message: String,
    },
    /// Try again later.
    #[error("{0}")]
    Unavailable(String),
    /// Our own failure.
    #[error("{message}")]
    Internal {
        /// For the client; no internals.
        message: String,
        /// For the log.
        #[source]
        source: Option<Cause>,
    },
}

impl ApiError {
    /// A failure of ours with its cause, which goes to the log only.
    pub(crate) fn internal(message: impl Into<String>, source: impl Into<Cause>) -> Self {
        Self::Internal { message: message.into(), source: Some(source.into()) }
    }

    /// One invalid parameter.
    pub(crate) fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::InvalidParameters(vec![FieldError::new(field, message)])
    }

    /// A code of the contract that only one endpoint uses.
    pub(crate) fn coded(status: StatusCode, code: Code, message: impl Into<String>) -> Self {
        Self::Coded { status, code, message: message.into(), beside: Object::new() }
    }

    /// Status and code. `validation` is the configured status of failed validations.
    pub(crate) fn outcome(&self, validation: ValidationStatus) -> (StatusCode, Code) {
        use StatusCode as S;
        let reference = validation == ValidationStatus::Reference;
        let dagger = if reference { S::INTERNAL_SERVER_ERROR } else { S::CONFLICT };
        match self {
            Self::InvalidContent(_) => (S::BAD_REQUEST, Code::InvalidContent),
            Self::TooLarge(_) => (S::PAYLOAD_TOO_LARGE, Code::RequestEntityTooLarge),
            Self::InvalidParameters(_) => (dagger, Code::InvalidParameters),
            Self::OutOfRange(_) => (S::BAD_REQUEST, Code::InvalidParameters),
            Self::InvalidArgument(_) => (S::CONFLICT, Code::InvalidArgument),
            Self::RefusedArgument(_) if reference => (dagger, Code::InternalError),
            Self::RefusedArgument(_) | Self::RefusedUpdate(_) => (dagger, Code::InvalidArgument),
            Self::NotFound(_) => (S::NOT_FOUND, Code::ResourceNotFound),
            Self::MethodNotAllowed { .. } => (S::METHOD_NOT_ALLOWED, Code::MethodNotAllowed),
            Self::NotAcceptable => (S::NOT_ACCEPTABLE, Code::NotAcceptable),
            Self::ServerNotRunning => (S::CONFLICT, Code::ServerNotRunning),
            Self::PreconditionFailed(_) => (S::PRECONDITION_FAILED, Code::PreconditionFailed),
            Self::Coded { status, code, .. } => (*status, code.clone()),
            Self::Agent { .. } if reference => (S::INTERNAL_SERVER_ERROR, Code::InternalError),
            Self::Agent { code, .. } => (code.status(), agent_code(code)),
            Self::Unavailable(_) => (S::SERVICE_UNAVAILABLE, Code::ServiceUnavailable),
            Self::Internal { .. } => (S::INTERNAL_SERVER_ERROR, Code::InternalError),
        }
    }

    /// The CNAPI error body.
    pub(crate) fn body(&self, validation: ValidationStatus) -> Value {
        let (_, code) = self.outcome(validation);
        let mut body = json!({ "code": code, "message": self.to_string() });
        match self {
            Self::InvalidParameters(errors) | Self::OutOfRange(errors) => {
                body["errors"] = json!(errors);
            }
            Self::Coded { beside, .. } => {
                for (name, value) in beside.iter() {
                    body[name.as_str()] = value.clone();
                }
            }
            _ => {}
        }
        body
    }
}

/// What a failed validation is answered with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValidationStatus {
    /// 409: a client's mistake is a 4xx.
    #[default]
    Conflict,
    /// 500 and the codes of the reference (`api.validation_status = 500`).
    Reference,
}

/// An agent of another make may give none.
fn agent_code(code: &Code) -> Code {
    if code.as_str().is_empty() { Code::InternalError } else { code.clone() }
}

#[cfg(test)]
mod tests {
    use muster_shared::ids::ServerUuid;

    use super::*;
    use crate::app::AppError;

    #[track_caller]
    fn check(error: &ApiError, by_default: (u16, &str), by_reference: (u16, &str)) {
        for (mode, (status, code)) in
            [(ValidationStatus::Conflict, by_default), (ValidationStatus::Reference, by_reference)]
        {
            let outcome = error.outcome(mode);
            assert_eq!((outcome.0.as_u16(), outcome.1.as_str()), (status, code), "{error:?}");
            assert_eq!(error.body(mode)["code"], code);
        }
    }

    #[test]
    fn validation_status_changes_exactly_the_daggers() {
        let invalid = ApiError::invalid("a", "value was not a string");
        check(&invalid, (409, "InvalidParameters"), (500, "InvalidParameters"));
        check(
            &ApiError::OutOfRange(vec![]),
            (400, "InvalidParameters"),
            (400, "InvalidParameters"),
        );
        let text = || "x".to_owned();
        check(
            &ApiError::InvalidArgument(text()),
            (409, "InvalidArgument"),
            (409, "InvalidArgument"),
        );
        check(&ApiError::RefusedArgument(text()), (409, "InvalidArgument"), (500, "InternalError"));
        check(&ApiError::RefusedUpdate(text()), (409, "InvalidArgument"), (500, "InvalidArgument"));
        let gone = ApiError::Agent { code: Code::VmNotFound, message: text() };
        check(&gone, (404, "VmNotFound"), (500, "InternalError"));
        let broken = ApiError::Agent { code: String::new().into(), message: text() };
        check(&broken, (500, "InternalError"), (500, "InternalError"));
        // Also what the coordinator refuses because it knows what the agent would say.
        let (server, task) = (ServerUuid(uuid::Uuid::nil()), text());
        let missing = ApiError::from(AppError::NotSupported { server, task });
        check(&missing, (501, "NotSupported"), (500, "InternalError"));
    }

    #[test]
    fn bodies_have_the_contract_s_shape() {
        let error = ApiError::invalid("comments", "value was not a string");
        assert_eq!(
            error.body(ValidationStatus::Conflict).to_string(),
            r#"{"code":"InvalidParameters","message":"Request parameters failed validation","errors":[{"field":"comments","code":"Invalid","message":"value was not a string"}]}"#
        );
    }
}
