//! The way of a request through the shell: match, negotiate, read parameters, check the declared
//! preconditions, validate, hand over to the handler, and give the answer its headers.

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{
    ACCEPT, ALLOW, CONTENT_LENGTH, CONTENT_TYPE, DATE, RETRY_AFTER, SERVER, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::upgrade::OnUpgrade;
use muster_shared::api::FieldError;
use muster_shared::api::Object;
use muster_shared::error_chain::Chain;
use muster_shared::ids::{ServerUuid, VmUuid};
use warp::Reply as _;

use super::Shell;
use super::accept::{Form, negotiate};
use super::audit::Handled;
use super::body::{Bodies, Held};
use super::error::ApiError;
use super::matcher::{self, Match};
use super::origin;
use super::params::{merge, parse_json, parse_urlencoded};
use super::places::Place;
use super::request::{BodyStream, Request, ServerRef, invalid_server, invalid_vm};
use super::response::{Body, Response};
use super::route::{BodyRule, HandlerFuture, Reply, Route, ServerRule};
use super::rule::check;
use super::schema::Fault;
use super::stream::SyncStream;
use crate::app::Caller;
use crate::budget::Hold;
use crate::planted::Defect;

/// Longest request id that is taken over from a client, bytes.
const MAX_REQ_ID_BYTES: usize = 1024;
/// When a client that got 503 may try again, seconds.
const RETRY_SECONDS: &str = "1";
/// The `Server` header; free text that no client reads.
const SERVER_NAME: &str = "Compute Node API";

/// Names the ticket under which a request starts a task.
pub(super) const X_MUSTER_TICKET: &str = "x-muster-ticket";

static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
static X_RESPONSE_TIME: HeaderName = HeaderName::from_static("x-response-time");
static X_SERVER_NAME: HeaderName = HeaderName::from_static("x-server-name");

/// Who is at the other end of a connection; an extension of its requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Peer {
    /// `None` on a unix socket.
    pub(crate) address: Option<SocketAddr>,
    /// Whose certificate it showed.
    pub(crate) name: Option<Arc<str>>,
    /// The request is of HTTP/1.0, which knows no `Host`.
    pub(crate) http_1_0: bool,
    /// Counts the connection; a websocket takes it along.
    pub(crate) place: Option<Arc<Place>>,
}

/// A request as the filters hand it over.
pub(super) struct Incoming {
    pub(super) path: String,
    pub(super) segments: Vec<String>,
    pub(super) method: Method,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) peer: Peer,
    pub(super) upgrade: Option<OnUpgrade>,
    pub(super) body: BodyStream,
}

/// What the answer's headers, the audit line and the metrics need of the request.
struct Context {
    req_id: String,
    method: Method,
    path: String,
    user_agent: String,
    peer: Option<SocketAddr>,
    who: Option<Arc<str>>,
    started: Duration,
    form: Form,
}

impl Shell {
    /// Answers a request. `group` is the group of routes that its first segment names.
    pub(super) async fn answer(
        self: Arc<Self>,
        group: Option<usize>,
        incoming: Incoming,
    ) -> warp::reply::Response {
        let mut context = Context {
            req_id: self.request_id(&incoming.headers),
            method: incoming.method.clone(),
            path: incoming.path.clone(),
            user_agent: header_text(&incoming.headers, &USER_AGENT).unwrap_or("unknown").to_owned(),
            peer: incoming.peer.address,
            who: incoming.peer.name.clone(),
            started: self.app.parts().clock.monotonic(),
            form: Form::Json,
        };
        // Whoever is on a unix socket is no browser.
        if context.peer.is_some()
            && let Err(refused) = self.config.names.check(&incoming.headers, incoming.peer.http_1_0)
        {
            return self.finish(None, Err(refused), &context);
        }
        let routes = group.map_or(&[][..], |index| &self.groups[index].routes);
        let found = matcher::find(routes.iter(), &incoming.method, &incoming.segments);
        let (route, result) = match found {
            Match::Route(route, path_params) => {
                let result = self.run(route, path_params, incoming, &mut context).await;
                let result = match result {
                    Ok(answer) => answer.written(&*self.app.parts().threads).await,
                    refused => refused,
                };
                (Some(route), result)
            }
            Match::OtherMethods(allow) => {
                let method = incoming.method.to_string();
                (None, Err(ApiError::MethodNotAllowed { method, allow }))
            }
            Match::Nothing => {
                (None, Err(ApiError::NotFound(format!("{} does not exist", incoming.path))))
            }
        };
        self.finish(route, result, &context)
    }

    fn request_id(&self, headers: &HeaderMap) -> String {
        let given = ["request-id", "x-request-id"].iter().find_map(|name| {
            let id = headers.get(*name)?.as_bytes();
            // Bytes beyond ASCII are the characters of Latin-1, as they are in the reference.
            let fits = !id.is_empty() && id.len() <= MAX_REQ_ID_BYTES && !id.contains(&b'\t');
            fits.then(|| id.iter().copied().map(char::from).collect())
        });
        given.unwrap_or_else(|| self.app.parts().entropy.uuid().to_string())
    }

    async fn run(
        self: &Arc<Self>,
        route: &Route,
        path_params: Object,
        incoming: Incoming,
        context: &mut Context,
    ) -> Result<Response, ApiError> {
        if !route.for_agents && incoming.peer.place.as_ref().is_some_and(|it| it.is_reserved()) {
            let text = "all connections but those that are kept for agents are taken";
            return Err(ApiError::Unavailable(text.to_owned()));
        }
        if route.alias == Some(true) {
            origin::refuse_pages(&incoming.headers)?;
        }
        // Bytes have one form only, so there is nothing to negotiate.
        match negotiate(header_text(&incoming.headers, &ACCEPT)) {
            Some(form) => context.form = form,
            None if matches!(route.reply, Reply::Json(_) | Reply::Empty) => {
                return Err(ApiError::NotAcceptable);
            }
            None => {}
        }
        let mut params = path_params;
        merge(&mut params, parse_urlencoded(&incoming.query)?);
        let mut body = Some(incoming.body);
        let mut hold = Hold::default();
        if let BodyRule::Params(limit) = route.body {
            let read = body.take().filter(|_| !is_get(&context.method));
            if let Some(read) = read {
                let read = read_params(&self.bodies, &incoming.headers, read, limit).await?;
                hold = read.1;
                merge(&mut params, read.0);
            }
        }
        let server = self.check_server(route, &params).await?;
        let vm = check_vm(route, &params)?;
        if route.running && !server.is_some_and(|(_, running)| running) {
            return Err(ApiError::ServerNotRunning);
        }
        validate(route, &mut params)?;
        let ticket = incoming.headers.get(X_MUSTER_TICKET);
        let ticket = ticket.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned());
        let request = Request {
            app: Arc::clone(&self.app),
            params,
            caller: Caller { req_id: context.req_id.clone(), ticket },
            head: context.method == Method::HEAD,
            headers: incoming.headers,
            server: server.map(|(server, _)| server),
            vm,
            body,
            upgrade: incoming.upgrade,
            place: incoming.peer.place,
            _hold: hold,
            shell: Arc::clone(self),
        };
        let work = (route.handler)(request);
        let attached = self.app.config().planted.has(Defect::ChangeOfConnection);
        let work = if route.changes() && !attached { self.detach(work)? } else { work };
        tokio::select! {
            biased;
            answer = AssertUnwindSafe(work).catch_unwind() => {
                answer.unwrap_or_else(|_| Err(defect()))
            }
            () = self.hurry.cancelled() => {
                Err(ApiError::Unavailable("the coordinator is shutting down".to_owned()))
            }
        }
    }

    /// Runs the work of a request on a task of its own: a client that goes away, at any moment,
    /// only stops waiting for what it began.
    fn detach(&self, work: HandlerFuture) -> Result<HandlerFuture, ApiError> {
        let Ok(permit) = Arc::clone(&self.changes).try_acquire_owned() else {
            return Err(ApiError::Unavailable("too many changes are under way".to_owned()));
        };
        let task = self.app.ctx.spawn(async move {
            let answer = work.await;
            drop(permit);
            answer
        });
        Ok(Box::pin(async move { task.await.unwrap_or_else(|_| Err(defect())) }))
    }

    /// Precondition S; also tells whether the server is running.
    async fn check_server(
        &self,
        route: &Route,
        params: &Object,
    ) -> Result<Option<(ServerRef, bool)>, ApiError> {
        let text = params.text("server_uuid").unwrap_or_default();
        match route.server {
            ServerRule::None => return Ok(None),
            ServerRule::ExistsOrDefault if text == "default" => {
                return Ok(Some((ServerRef::Default, false)));
            }
            _ => {}
        }
        let server: ServerUuid = text.parse().map_err(|_| invalid_server())?;
        if route.server == ServerRule::Shaped {
            return Ok(Some((ServerRef::Server(server), false)));
        }
        match self.gate.server(server).await? {
            Some(gate) => Ok(Some((ServerRef::Server(server), gate.running))),
            None => Err(ApiError::NotFound(format!("Server {text} not found"))),
        }
    }

    /// Gives the answer its headers, counts it and logs it.
    fn finish(
        &self,
        route: Option<&Route>,
        result: Result<Response, ApiError>,
        context: &Context,
    ) -> warp::reply::Response {
        let mut allow = None;
        let (status, headers, body) = match result {
            Ok(answer) => {
                let success = route.map_or(StatusCode::OK, |route| route.success);
                (answer.status.unwrap_or(success), answer.headers, answer.body)
            }
            Err(error) => {
                if let ApiError::MethodNotAllowed { allow: methods, .. } = &error {
                    allow = HeaderValue::try_from(methods.as_str()).ok();
                }
                let (status, body) = self.refuse(&error, context);
                (status, HeaderMap::new(), body)
            }
        };
        let failure = failure_text(status, &context.method, &body);
        let mut response = encode(body, context);
        *response.status_mut() = status;
        response.headers_mut().extend(headers);
        if let Some(allow) = allow {
            response.headers_mut().insert(ALLOW, allow);
        }
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
        }
        let elapsed = self.app.parts().clock.monotonic().saturating_sub(context.started);
        self.stamp(response.headers_mut(), context, elapsed);
        self.app.metrics().observe_request(
            route.map(|route| route.operation),
            context.method.as_str(),
            &context.user_agent,
            status.as_u16(),
            elapsed.as_secs_f64(),
        );
        if route.is_none_or(|route| route.audited) {
            let changes = route.map_or(!is_get(&context.method), Route::changes);
            let handled = Handled {
                operation: route.map_or("unknown", |route| route.operation),
                method: &context.method,
                path: &context.path,
                status,
                elapsed,
                req_id: &context.req_id,
                who: context.who.as_deref(),
                peer: context.peer,
                user_agent: &context.user_agent,
                failure: failure.as_deref(),
            };
            handled.tell(changes);
        }
        response
    }

    fn refuse(&self, error: &ApiError, context: &Context) -> (StatusCode, Body) {
        let validation = self.config.validation_status;
        let (status, _) = error.outcome(validation);
        if matches!(error, ApiError::Internal { .. }) {
            tracing::error!(req_id = context.req_id, error = %Chain(error), "request failed");
        }
        let body = match context.form {
            Form::Json => Body::Json(error.body(validation)),
            Form::Text => Body::Bytes(Bytes::from(error.to_string())),
        };
        (status, body)
    }

    fn stamp(&self, headers: &mut HeaderMap, context: &Context, elapsed: Duration) {
        let parts = self.app.parts();
        let date = parts.clock.wall().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let millis = elapsed.as_millis().to_string();
        let values = [
            (&DATE, date.as_str()),
            (&SERVER, SERVER_NAME),
            (&X_RESPONSE_TIME, millis.as_str()),
            (&X_SERVER_NAME, self.config.hostname.as_str()),
        ];
        for (name, value) in values {
            if let Ok(value) = HeaderValue::try_from(value) {
                headers.insert(name.clone(), value);
            }
        }
        if let Some(id) = latin_1(&context.req_id) {
            headers.insert(X_REQUEST_ID.clone(), id);
        }
    }
}

/// The bytes that a header's text came as.
fn latin_1(text: &str) -> Option<HeaderValue> {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(c).ok()).collect();
    HeaderValue::from_bytes(&bytes?).ok()
}

/// A handler that panicked; the panic hook has written it to the log.
fn defect() -> ApiError {
    ApiError::Internal { message: "the request met a defect".to_owned(), source: None }
}

/// The bodies of GET and HEAD are ignored.
fn is_get(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
}

fn header_text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Precondition V.
fn check_vm(route: &Route, params: &Object) -> Result<Option<VmUuid>, ApiError> {
    if !route.vm {
        return Ok(None);
    }
    let text = params.text("uuid").unwrap_or_default();
    text.parse().map(Some).map_err(|_| invalid_vm())
}

/// Strictness first, then the rules in the declared order.
fn validate(route: &Route, params: &mut Object) -> Result<(), ApiError> {
    if route.strict {
        let in_path =
            |name: &str| route.pattern.split('/').any(|part| part.strip_prefix(':') == Some(name));
        let known = |name: &str| route.params.iter().any(|param| param.name == name);
        if let Some(stranger) =
            params.iter().map(|(name, _)| name).find(|name| !in_path(name) && !known(name))
        {
            let message = format!("{stranger} is not an explicitly defined parameter");
            return Err(ApiError::InvalidArgument(message));
        }
    }
    let checkers = route.checkers()?;
    let mut errors = Vec::new();
    for param in route.params {
        let before = errors.len();
        check(param.name, param.rules, params, &mut errors);
        if errors.len() == before
            && let Some(value) = params.get(param.name)
        {
            let faults = checkers.param(param.name, value);
            errors.extend(faults.into_iter().map(field_error));
        }
    }
    if route.payload.is_some() {
        errors.extend(checkers.payload(params).into_iter().map(field_error));
    }
    if errors.is_empty() { Ok(()) } else { Err(ApiError::InvalidParameters(errors)) }
}

fn field_error(fault: Fault) -> FieldError {
    FieldError::new(fault.at, fault.problem)
}

/// The body's members, and the room that they hold; bodies of other content types are ignored.
async fn read_params(
    bodies: &Bodies,
    headers: &HeaderMap,
    body: BodyStream,
    limit: usize,
) -> Result<(Object, Hold), ApiError> {
    let kind = header_text(headers, &CONTENT_TYPE).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let held = bodies.read(headers, body, limit).await?;
    let Held { bytes: body, mut hold } = bodies.unpack(headers, held, limit).await?;
    let params = match kind.as_str() {
        "application/json" => {
            bodies.weigh(&body, &mut hold)?;
            parse_json(&body)
        }
        "application/x-www-form-urlencoded" => {
            let text = std::str::from_utf8(&body)
                .map_err(|_| ApiError::InvalidContent("the form is not UTF-8".to_owned()))?;
            parse_urlencoded(text)
        }
        _ => Ok(Object::new()),
    };
    Ok((params?, hold))
}

/// Most of a large refusal that goes into the audit log, bytes.
const MAX_FAILURE_BYTES: usize = 1024;

/// The part of an answer's body that goes into the audit log: only of refused requests that are
/// neither GET nor 404.
fn failure_text(status: StatusCode, method: &Method, body: &Body) -> Option<String> {
    if status.is_success() || status == StatusCode::NOT_FOUND || method == Method::GET {
        return None;
    }
    match body {
        Body::Json(value) => Some(value.to_string()),
        Body::Encoded(bytes) => {
            let start = &bytes[..bytes.len().min(MAX_FAILURE_BYTES)];
            Some(String::from_utf8_lossy(start).into_owned())
        }
        Body::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Body::Empty | Body::Unwritten(_) | Body::Stream(_) => None,
    }
}

fn encode(body: Body, context: &Context) -> warp::reply::Response {
    let head = context.method == Method::HEAD;
    let typed = |form: Form, bytes: Bytes| {
        let length = bytes.len();
        let kept = if head { Bytes::new() } else { bytes };
        let mut response = warp::reply::Response::new(kept.into());
        let kind = match form {
            Form::Json => "application/json",
            Form::Text => "text/plain",
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
        response
    };
    match body {
        Body::Empty => warp::reply::Response::default(),
        Body::Json(value) => typed(context.form, Bytes::from(value.to_string())),
        Body::Encoded(bytes) => typed(context.form, bytes),
        Body::Unwritten(_) => unreachable!("answers are written before they are sent"),
        Body::Bytes(bytes) => typed(Form::Text, bytes),
        Body::Stream(_) if head => warp::reply::Response::default(),
        Body::Stream(stream) => warp::reply::stream(SyncStream::new(stream)).into_response(),
    }
}
