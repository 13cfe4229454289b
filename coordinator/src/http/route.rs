//! The route table: one [`Route`] per endpoint says everything about it that is not its work.
//! From it come the warp filters, matching, 405 and HEAD, validation, preconditions, the metrics
//! label, the audit line, the OpenAPI operation and the table's tests.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

use http::{Method, StatusCode};
use serde_json::Value;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::rule::Rule;
use super::schema::Checkers;
pub(crate) use super::schema::object_schema;

/// A JSON schema (2020-12, as in OpenAPI 3.1); components are named by `$ref`, see
/// [`super::schema`].
pub(crate) type SchemaFn = fn() -> Value;

/// What a handler returns.
pub(crate) type HandlerFuture =
    Pin<Box<dyn Future<Output = Result<Response, ApiError>> + Send + 'static>>;
/// An endpoint's work.
pub(crate) type Handler = Arc<dyn Fn(Request) -> HandlerFuture + Send + Sync>;

/// What is required of `:server_uuid` before the handler runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ServerRule {
    /// The path has none, or the handler judges it.
    #[default]
    None,
    /// It is a UUID (not `default`); the record need not exist.
    Shaped,
    /// Precondition S without `default`: it is a UUID and the record exists.
    Exists,
    /// Precondition S as the reference has it: `default`, or a UUID whose record exists.
    ExistsOrDefault,
}

/// How the request's body is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyRule {
    /// JSON or form members are merged into the parameters, up to a number of bytes.
    Params(usize),
    /// The handler reads it, see [`Request::take_body`].
    Stream,
}

/// The body limit of ordinary routes, bytes.
pub(crate) const BODY_LIMIT_BYTES: usize = 1024 * 1024;

/// The body of a successful answer.
#[derive(Clone, Copy)]
pub(crate) enum Reply {
    /// None.
    Empty,
    /// JSON of a schema.
    Json(SchemaFn),
    /// Bytes of a media type.
    Bytes(&'static str),
    /// The connection becomes a websocket.
    Websocket,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Json(_) => f.write_str("Json"),
            Self::Bytes(kind) => write!(f, "Bytes({kind})"),
            Self::Websocket => f.write_str("Websocket"),
        }
    }
}

/// A parameter that is not part of the path: a member of the query or of the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Param {
    /// Its name.
    pub(crate) name: &'static str,
    /// Checked in this order; no rule means that anything goes.
    pub(crate) rules: &'static [Rule],
    /// One sentence for the documentation.
    pub(crate) doc: &'static str,
    /// More than the rules say: the shape of an object, a range.
    pub(crate) schema: Option<SchemaFn>,
    /// A value that passed the rules must also be what the schema says.
    pub(crate) checked: bool,
}

impl Param {
    /// A parameter with rules and a sentence about it.
    pub(crate) const fn new(name: &'static str, rules: &'static [Rule], doc: &'static str) -> Self {
        Self { name, rules, doc, schema: None, checked: false }
    }

    /// Documents the parameter by this schema instead of the one that its rules imply.
    pub(crate) const fn schema(mut self, schema: SchemaFn) -> Self {
        self.schema = Some(schema);
        self
    }

    /// As [`Param::schema`]; the value is checked against it too, after the rules.
    pub(crate) const fn checked(mut self, schema: SchemaFn) -> Self {
        self.schema = Some(schema);
        self.checked = true;
        self
    }

    /// Whether a request may lack it.
    pub(crate) fn is_optional(&self) -> bool {
        self.rules.first().is_none_or(|rule| matches!(rule, Rule::Optional | Rule::Nullable))
    }
}

/// An answer beside the usual ones: another success, or an error whose body is not CNAPI's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Also {
    /// HTTP status.
    pub(crate) status: u16,
    /// When.
    pub(crate) doc: &'static str,
    /// The body's schema; `None`: no body.
    pub(crate) schema: Option<SchemaFn>,
}

/// One endpoint.
#[derive(Clone)]
pub(crate) struct Route {
    /// HTTP method.
    pub(crate) method: Method,
    /// E.g. `/servers/:server_uuid/vms`.
    pub(crate) pattern: &'static str,
    /// Operation name: unique among routes that are no aliases; the metrics label in lower case.
    pub(crate) operation: &'static str,
    /// One sentence for the documentation.
    pub(crate) summary: &'static str,
    /// Status of the normal answer.
    pub(crate) success: StatusCode,
    /// Refuses parameters without a rule.
    pub(crate) strict: bool,
    /// Precondition S.
    pub(crate) server: ServerRule,
    /// Precondition V: `:uuid` looks like a UUID.
    pub(crate) vm: bool,
    /// Precondition R: the server's status is `running`.
    pub(crate) running: bool,
    /// Query and body members.
    pub(crate) params: &'static [Param],
    /// What the parameters together have to be, beside [`Route::params`].
    pub(crate) payload: Option<SchemaFn>,
    /// Compiled at the first request.
    pub(crate) checkers: OnceLock<Result<Checkers, String>>,
    /// What happens with the body.
    pub(crate) body: BodyRule,
    /// What a successful answer carries.
    pub(crate) reply: Reply,
    /// Request headers with a meaning of this endpoint's own.
    pub(crate) headers: &'static [Param],
    /// Headers of a successful answer: name and sentence.
    pub(crate) reply_headers: &'static [(&'static str, &'static str)],
    /// Statuses of errors that do not follow from the other declarations.
    pub(crate) errors: &'static [u16],
    /// Answers beside the usual ones.
    pub(crate) also: &'static [Also],
    /// Answers carry an `ETag`, or a change honours `If-Match`.
    pub(crate) versioned: bool,
    /// Starts a task or a job, for which the request may name a ticket.
    pub(crate) fenced: bool,
    /// Only agents use it: it works when all other connections are taken.
    pub(crate) for_agents: bool,
    /// Gets a line in the audit log.
    pub(crate) audited: bool,
    /// The alias of another route; `Some(true)` when a GET that has an effect.
    pub(crate) alias: Option<bool>,
    /// The work.
    pub(crate) handler: Handler,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.method, self.pattern, self.operation)
    }
}

impl Route {
    /// A route with no preconditions whose success is 200 without a body.
    pub(crate) fn new<F, Fut>(
        method: Method,
        pattern: &'static str,
        operation: &'static str,
        handler: F,
    ) -> Self
    where
        F: Fn(Request) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Response, ApiError>> + Send + 'static,
    {
        Self {
            method,
            pattern,
            operation,
            summary: "",
            success: StatusCode::OK,
            strict: false,
            server: ServerRule::None,
            vm: false,
            running: false,
            params: &[],
            payload: None,
            checkers: OnceLock::new(),
            body: BodyRule::Params(BODY_LIMIT_BYTES),
            reply: Reply::Empty,
            headers: &[],
            reply_headers: &[],
            errors: &[],
            also: &[],
            versioned: false,
            fenced: false,
            for_agents: false,
            audited: true,
            alias: None,
            handler: Arc::new(move |request| Box::pin(handler(request))),
        }
    }

    /// One sentence for the documentation.
    pub(crate) fn summary(mut self, summary: &'static str) -> Self {
        self.summary = summary;
        self
    }

    /// Only agents use it.
    pub(crate) fn for_agents(mut self) -> Self {
        self.for_agents = true;
        self
    }

    /// Success is 204 without a body.
    pub(crate) fn no_content(mut self) -> Self {
        self.success = StatusCode::NO_CONTENT;
        self
    }

    /// Success has another status than 200.
    pub(crate) fn success(mut self, status: StatusCode) -> Self {
        self.success = status;
        self
    }

    /// Refuses parameters that have no rule.
    pub(crate) fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// What is required of `:server_uuid`.
    pub(crate) fn server(mut self, rule: ServerRule) -> Self {
        self.server = rule;
        self
    }

    /// `:uuid` must look like a UUID; existence of the VM is not checked.
    pub(crate) fn vm(mut self) -> Self {
        self.vm = true;
        self
    }

    /// The server must be running; implies that it exists.
    pub(crate) fn running(mut self) -> Self {
        self.running = true;
        self
    }

    /// Query and body members with their rules, in the order in which errors are reported.
    pub(crate) fn params(mut self, params: &'static [Param]) -> Self {
        self.params = params;
        self
    }

    /// What the parameters together have to be, beside [`Route::params`]; see
    /// [`super::schema`].
    pub(crate) fn payload(mut self, schema: SchemaFn) -> Self {
        self.payload = Some(schema);
        self
    }

    /// What checks parameters against their schemas.
    ///
    /// # Errors
    /// [`ApiError::Internal`]: a schema is none, which is a defect.
    pub(crate) fn checkers(&self) -> Result<&Checkers, ApiError> {
        let compiled = self.checkers.get_or_init(|| Checkers::of(self));
        compiled
            .as_ref()
            .map_err(|error| ApiError::internal("a parameter's schema is damaged", error.clone()))
    }

    /// Starts a task or a job: a request may name the ticket under which it does so (header
    /// `x-muster-ticket`), and is refused with 409 unless that is active.
    pub(crate) fn fenced(mut self) -> Self {
        self.fenced = true;
        self
    }

    /// The handler reads the body.
    pub(crate) fn streams_body(mut self) -> Self {
        self.body = BodyRule::Stream;
        self
    }

    /// The body's members may be this many bytes together.
    pub(crate) fn body_limit(mut self, bytes: usize) -> Self {
        self.body = BodyRule::Params(bytes);
        self
    }

    /// Request headers with a meaning of this endpoint's own.
    pub(crate) fn headers(mut self, headers: &'static [Param]) -> Self {
        self.headers = headers;
        self
    }

    /// Headers of a successful answer: name and sentence.
    pub(crate) fn reply_headers(
        mut self,
        headers: &'static [(&'static str, &'static str)],
    ) -> Self {
        self.reply_headers = headers;
        self
    }

    /// Statuses of errors that do not follow from the other declarations; see
    /// [`Route::error_statuses`].
    pub(crate) fn errors(mut self, statuses: &'static [u16]) -> Self {
        self.errors = statuses;
        self
    }

    /// Answers beside the usual ones.
    pub(crate) fn also(mut self, also: &'static [Also]) -> Self {
        self.also = also;
        self
    }

    /// One record's version: a GET answers with its `ETag` ([`Response::etag`]), a change honours
    /// `If-Match` ([`Request::expected`]).
    pub(crate) fn versioned(mut self) -> Self {
        self.versioned = true;
        self
    }

    /// The schema of the answer; records have theirs in [`super::schema`].
    pub(crate) fn returns_schema(mut self, schema: SchemaFn) -> Self {
        self.reply = Reply::Json(schema);
        self
    }

    /// The answer is bytes of this media type, whatever the client accepts.
    pub(crate) fn returns_bytes(mut self, content_type: &'static str) -> Self {
        self.reply = Reply::Bytes(content_type);
        self
    }

    /// The connection becomes a websocket.
    pub(crate) fn websocket(mut self) -> Self {
        self.reply = Reply::Websocket;
        self.success = StatusCode::SWITCHING_PROTOCOLS;
        self
    }

    /// No line in the audit log.
    pub(crate) fn unaudited(mut self) -> Self {
        self.audited = false;
        self
    }

    /// Whether its work may change something, and so must not end with its client's connection.
    pub(crate) fn changes(&self) -> bool {
        !matches!(self.method, Method::GET | Method::HEAD) || self.alias == Some(true)
    }

    /// The same endpoint under another method: an alias that the seed documents.
    pub(crate) fn alias(&self, method: Method, has_effect: bool) -> Self {
        let mut alias = self.clone();
        alias.method = method;
        alias.alias = Some(has_effect);
        alias
    }

    /// Every status with which the endpoint may refuse a request, in ascending order. A route that
    /// needs a running server speaks to its agent, with all that can go wrong there.
    pub(crate) fn error_statuses(&self) -> Vec<u16> {
        let json = matches!(self.reply, Reply::Json(_) | Reply::Empty);
        let server = matches!(self.server, ServerRule::Exists | ServerRule::ExistsOrDefault);
        let named = self.pattern.contains(':') && self.server != ServerRule::Shaped;
        let judged = !self.params.is_empty() || self.payload.is_some() || self.fenced;
        let judged = judged || self.strict || self.vm || server;
        let reads = !matches!(self.method, Method::GET | Method::HEAD);
        let changes = reads && self.versioned;
        let inferred = [
            (true, 400),
            (named, 404),
            (self.alias == Some(true), 403),
            (json, 406),
            (judged || self.server == ServerRule::Shaped, 409),
            (changes, 412),
            (reads, 413),
            (true, 414),
            (true, 431),
            (matches!(self.reply, Reply::Websocket), 426),
            (true, 500),
            (self.running, 501),
            (self.running, 503),
        ];
        let mut statuses: Vec<u16> =
            inferred.iter().filter(|(applies, _)| *applies).map(|(_, status)| *status).collect();
        statuses.extend(self.errors);
        statuses.sort_unstable();
        statuses.dedup();
        statuses
    }
}
