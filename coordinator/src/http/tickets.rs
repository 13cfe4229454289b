//! `/servers/:server_uuid/tickets` and `/tickets`: the waitlist.

use http::{Method, StatusCode};
use muster_shared::api::ticket::{QueueName, Ticket, TicketCreated, TicketServer};
use muster_shared::ids::TicketUuid;
use serde_json::Value;

use super::MAX_WAITS_OF_CLIENT;
use super::dispatch::X_MUSTER_TICKET;
use super::error::ApiError;
use super::request::{Request, ServerRef};
use super::response::Response;
use super::route::{Param, Route, ServerRule};
use super::rule::Rule;
use super::schema;
use crate::app::AppError;
use crate::app::tickets::{TicketFilter, TicketRequest};

const TEXT: &[Rule] = &[Rule::Optional, Rule::StringType, Rule::Trim];
const LIMIT: &[Rule] = &[Rule::Optional, Rule::NotNegative, Rule::Regex("^[1-9][0-9]*$")];
const OFFSET: &[Rule] = &[Rule::Optional, Rule::NotNegative, Rule::Regex("^([1-9][0-9]*|0)$")];

const LIST_PARAMS: &[Param] = &[
    Param::new("limit", LIMIT, "At most this many, 1 to 1000").schema(schema::limit),
    Param::new("offset", OFFSET, "Skip this many").schema(schema::offset),
    Param::new("attribute", TEXT, "Sort by this member instead of `created_at`"),
    Param::new("order", TEXT, "`ASC` or `DESC`"),
];
const CREATE_PARAMS: &[Param] = &[
    Param::new("scope", &[Rule::StringType, Rule::Plain], "What kind of thing the ticket is about"),
    Param::new("id", &[Rule::StringType, Rule::Plain], "Which one"),
    Param::new("expires_at", &[Rule::StringType], "When it ends by itself, ISO 8601")
        .schema(schema::when),
    Param::new(
        "action",
        &[Rule::Nullable, Rule::StringType, Rule::Plain],
        "What its holder means to do",
    ),
    Param::new("extra", &[Rule::Nullable, Rule::ObjectType], "Kept with it"),
];
const DELETE_PARAMS: &[Param] =
    &[Param::new("force", &[], "Must be `true`, or nothing is deleted").schema(schema::text)];
const WAIT_PARAMS: &[Param] = &[Param::new(
    "timeout",
    &[],
    "Seconds, after which the answer is 409 TicketNotActive; else as long as it takes",
)
.schema(schema::seconds)];
/// So that a deadlock between holders can be found.
const WAIT_HEADERS: &[Param] = &[Param::new(
    X_MUSTER_TICKET,
    &[Rule::Optional, Rule::Uuid],
    "A ticket that the client holds meanwhile",
)];

pub(super) fn routes() -> Vec<Route> {
    let get = Route::new(Method::GET, "/tickets/:ticket_uuid", "ServerWaitlistGetTicket", get)
        .summary("One ticket")
        .versioned()
        .returns_schema(schema::of::<Ticket>);
    let release = Route::new(
        Method::PUT,
        "/tickets/:ticket_uuid/release",
        "ServerWaitlistTicketRelease",
        release,
    )
    .summary("Ends a ticket; the next in its queue becomes active")
    .errors(&[503])
    .versioned()
    .no_content();
    let all = "/servers/:server_uuid/tickets";
    vec![
        Route::new(Method::GET, all, "ServerWaitlistList", list)
            .summary("Tickets in any status, oldest first")
            .strict()
            .server(ServerRule::ExistsOrDefault)
            .params(LIST_PARAMS)
            .returns_schema(schema::array_of::<Ticket>),
        Route::new(Method::POST, all, "ServerWaitlistTicketCreate", create)
            .summary("Creates a ticket in its queue; the oldest of a queue is active")
            .server(ServerRule::ExistsOrDefault)
            .params(CREATE_PARAMS)
            .success(StatusCode::ACCEPTED)
            .errors(&[503])
            .returns_schema(schema::of::<TicketCreated>),
        Route::new(Method::DELETE, all, "ServerWaitlistTicketsDeleteAll", delete_all)
            .summary("Deletes all tickets, whatever their status")
            .server(ServerRule::ExistsOrDefault)
            .params(DELETE_PARAMS)
            .errors(&[412, 503])
            .no_content(),
        // A POST that changes nothing has no use for If-Match.
        Route { versioned: false, ..get.alias(Method::POST, false) },
        get,
        Route::new(Method::DELETE, "/tickets/:ticket_uuid", "ServerWaitlistDeleteTickets", delete)
            .summary("Deletes a ticket; the next in its queue becomes active")
            .errors(&[503])
            .versioned()
            .no_content(),
        Route::new(Method::GET, "/tickets/:ticket_uuid/wait", "ServerWaitlistTicketsWait", wait)
            .summary("Answers once the ticket is active, however long that takes")
            .params(WAIT_PARAMS)
            .headers(WAIT_HEADERS)
            .errors(&[503])
            .no_content(),
        release.alias(Method::GET, true),
        release,
    ]
}

fn server(request: &Request) -> Result<TicketServer, ApiError> {
    Ok(TicketServer(match request.server_ref()? {
        ServerRef::Default => None,
        ServerRef::Server(server) => Some(server),
    }))
}

/// The ticket of the path; `missing` is the text for what can't be one.
fn ticket(request: &Request, missing: fn(&str) -> String) -> Result<TicketUuid, ApiError> {
    let text = request.text("ticket_uuid").unwrap_or_default();
    text.parse().map_err(|_| ApiError::NotFound(missing(text)))
}

fn not_found(ticket: &str) -> String {
    format!("ticket {ticket} not found")
}

fn no_such(ticket: &str) -> String {
    format!("no such ticket {ticket}")
}

async fn list(request: Request) -> Result<Response, ApiError> {
    let number = |name: &str| -> Option<usize> {
        match request.param(name)? {
            Value::String(text) => text.parse().ok(),
            value => usize::try_from(value.as_u64()?).ok(),
        }
    };
    let limit = match (request.param("limit"), number("limit")) {
        (None, _) => None,
        (Some(_), Some(limit)) if limit <= 1_000 => Some(limit),
        (Some(_), _) => {
            return Err(ApiError::InvalidArgument("limit must be less than 1000".to_owned()));
        }
    };
    let filter = TicketFilter {
        attribute: request.text("attribute").map(str::to_owned),
        descending: request.text("order").is_some_and(|text| text.eq_ignore_ascii_case("desc")),
        limit,
        // One too large for a number is after the end of every list.
        offset: request.param("offset").map_or(0, |_| number("offset").unwrap_or(usize::MAX)),
    };
    let tickets = request.app.tickets.list(server(&request)?, &filter);
    Response::list(tickets.iter().map(|record| record.ticket.clone()).collect::<Vec<_>>())
}

async fn create(request: Request) -> Result<Response, ApiError> {
    let text = |name: &str| request.text(name).unwrap_or_default().to_owned();
    let wanted = TicketRequest {
        queue: QueueName { server_uuid: server(&request)?, scope: text("scope"), id: text("id") },
        expires_at: text("expires_at"),
        action: request.text("action").map(str::to_owned),
        req_id: request.caller.req_id.clone(),
        extra: request.object("extra").unwrap_or_default(),
        client: request.peer(),
    };
    Response::json(request.app.tickets.create(wanted).await?)
}

async fn delete_all(request: Request) -> Result<Response, ApiError> {
    if request.text("force") != Some("true") {
        let message = "Will not delete all tickets without ?force=true".to_owned();
        return Err(ApiError::PreconditionFailed(message));
    }
    request.app.tickets.delete_all(server(&request)?).await?;
    Ok(Response::empty())
}

async fn get(request: Request) -> Result<Response, ApiError> {
    let held = request.app.tickets.get(ticket(&request, not_found)?).await?;
    Ok(Response::json(&held.value.ticket)?.etag(held.revision))
}

async fn delete(request: Request) -> Result<Response, ApiError> {
    request.app.tickets.delete(ticket(&request, not_found)?, request.expected()).await?;
    Ok(Response::empty())
}

async fn release(request: Request) -> Result<Response, ApiError> {
    request.app.tickets.release(ticket(&request, not_found)?, request.expected()).await?;
    Ok(Response::empty())
}

async fn wait(request: Request) -> Result<Response, ApiError> {
    let uuid = ticket(&request, no_such)?;
    let _share = request.share(&request.shell.waits, MAX_WAITS_OF_CLIENT, "waits")?;
    let holds = request.headers.get(X_MUSTER_TICKET).and_then(|name| name.to_str().ok());
    let waiting = request.app.tickets.wait(uuid, holds.and_then(|name| name.parse().ok()));
    match request.seconds("timeout") {
        None => waiting.await?,
        Some(limit) => tokio::time::timeout(limit, waiting)
            .await
            .map_err(|_| AppError::TicketNotActive(uuid.to_string()))??,
    }
    Ok(Response::empty())
}
