//! `GET /vms/:uuid/console`: a guest's serial console as a websocket of binary frames; text
//! frames tell people what happened to it.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_VERSION,
    UPGRADE,
};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use muster_shared::ids::VmUuid;
use muster_shared::link::websocket::accepted;
use muster_shared::link::{Connection, Frame, FrameSink, FrameStream};
use muster_shared::wire::Code;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::Local;
use super::answer::Answer;
use crate::consoles::{Event, Viewer};
use crate::drivers::DriverError;

/// Bytes of a frame.
const CHUNK_BYTES: usize = 16 * 1024;

/// Answers with the upgrade and carries bytes from then on.
pub(super) async fn open(request: Request<Incoming>, local: &Arc<Local>, vm: &str) -> Answer {
    let Ok(vm) = vm.parse::<VmUuid>() else {
        return Answer::error(404, &Code::VmNotFound, &format!("VM {vm} does not exist"));
    };
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    let wants = header(UPGRADE).is_some_and(|to| to.eq_ignore_ascii_case("websocket"))
        && header(SEC_WEBSOCKET_VERSION) == Some("13");
    let key = header(SEC_WEBSOCKET_KEY).filter(|_| wants).map(str::to_owned);
    let Some(key) = key else {
        return Answer::error(426, &Code::UpgradeRequired, "the console is a websocket");
    };
    let viewer = match local.agent.consoles.attach(vm).await {
        Ok(viewer) => viewer,
        Err(DriverError::Refused { code, message, .. }) => {
            let status = match code {
                Code::VmNotFound | Code::VmNotRunning => 404,
                Code::ConsoleBusy => 409,
                _ => 503,
            };
            return Answer::error(status, &code, &message);
        }
        Err(error) => return Answer::error(500, &Code::InternalError, &error.to_string()),
    };
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(io) => carry(accepted(TokioIo::new(io), &[], None), viewer).await,
            Err(error) => tracing::debug!(%error, "a console's upgrade failed"),
        }
    });
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes())) {
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    Answer::upgrade(response)
}

async fn carry(connection: Connection, viewer: Viewer) {
    let Connection { mut sink, mut stream } = connection;
    let (code, reason) = tokio::select! {
        biased;
        () = to_guest(stream.as_mut(), &viewer) => (1000, String::new()),
        end = from_guest(&viewer, sink.as_mut()) => end,
    };
    Connection { sink, stream }.shutdown(code, &reason).await;
}

async fn to_guest(stream: &mut dyn FrameStream, viewer: &Viewer) {
    while let Ok(Some(frame)) = stream.next().await {
        let bytes = match frame {
            Frame::Text(text) => Bytes::from(text),
            Frame::Binary(bytes) => bytes,
        };
        viewer.write(bytes).await;
    }
}

/// Until the end of either; with its close code.
async fn from_guest(viewer: &Viewer, sink: &mut dyn FrameSink) -> (u16, String) {
    loop {
        let frame = match viewer.next(CHUNK_BYTES).await {
            Ok(Event::Output(bytes)) => Frame::Binary(bytes),
            Ok(Event::Notice(text)) => Frame::Text(text),
            Err(end) => return (if end.is_orderly() { 1000 } else { 1011 }, end.message),
        };
        if sink.send(frame).await.is_err() {
            return (1000, String::new());
        }
    }
}
