//! `/agent`: the websockets of agents.

use std::sync::Arc;

use http::Method;
use muster_shared::wire;
use uuid::Uuid;

use super::error::ApiError;
use super::request::Request;
use super::response::Response;
use super::route::Route;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/agent", "AgentConnect", connect)
            .summary("An agent's control connection, see docs/protocol.md")
            .for_agents()
            .websocket(),
        Route::new(Method::GET, "/agent/streams/:id", "AgentStream", stream)
            .summary("A byte stream that an agent was asked for")
            .for_agents()
            .websocket(),
    ]
}

async fn connect(request: Request) -> Result<Response, ApiError> {
    let app = Arc::clone(&request.app);
    request.check_websocket(Some(wire::PROTOCOL))?;
    if let Some(place) = &request.place {
        place.give_to_agent();
    }
    request.into_websocket(Some(wire::PROTOCOL), move |connection| async move {
        app.agents().serve(connection).await;
    })
}

async fn stream(request: Request) -> Result<Response, ApiError> {
    let id: Option<Uuid> = request.text("id").and_then(|text| text.parse().ok());
    let expected = id.filter(|id| request.app.agents().expects_stream(*id));
    let Some(id) = expected else {
        return Err(ApiError::NotFound("nobody waits for this stream".to_owned()));
    };
    let app = Arc::clone(&request.app);
    request.check_websocket(Some(wire::stream::PROTOCOL))?;
    if let Some(place) = &request.place {
        place.give_to_agent();
    }
    request.into_websocket(Some(wire::stream::PROTOCOL), move |connection| async move {
        if !app.agents().accept_stream(id, connection) {
            tracing::info!(stream_id = %id, "a stream came too late");
        }
    })
}
