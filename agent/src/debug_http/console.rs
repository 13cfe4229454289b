//! `GET /vms/:uuid/console`: a guest's serial console as a websocket of binary frames.

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
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::Local;
use super::answer::Answer;
use crate::drivers::DriverError;
use crate::drivers::compute::{GuestIo, GuestPort};

/// Bytes read from the guest at a time.
const CHUNK_BYTES: usize = 16 * 1024;

/// Answers with the upgrade and carries bytes from then on.
pub(super) async fn open(request: Request<Incoming>, local: &Arc<Local>, vm: &str) -> Answer {
    let Ok(vm) = vm.parse::<VmUuid>() else {
        return Answer::error(404, "VmNotFound", &format!("VM {vm} does not exist"));
    };
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok());
    let wants = header(UPGRADE).is_some_and(|to| to.eq_ignore_ascii_case("websocket"))
        && header(SEC_WEBSOCKET_VERSION) == Some("13");
    let key = header(SEC_WEBSOCKET_KEY).filter(|_| wants).map(str::to_owned);
    let Some(key) = key else {
        return Answer::error(426, "UpgradeRequired", "the console is a websocket");
    };
    let guest = match local.agent.drivers.compute.open(vm, GuestPort::Console).await {
        Ok(guest) => guest,
        Err(DriverError::Refused { code, message }) => return Answer::error(404, code, &message),
        Err(error) => return Answer::error(500, "InternalError", &error.to_string()),
    };
    let upgrade = hyper::upgrade::on(request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(io) => carry(accepted(TokioIo::new(io)).await, guest).await,
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

async fn carry(connection: Connection, guest: Box<dyn GuestIo>) {
    let Connection { mut sink, mut stream } = connection;
    let (reader, writer) = tokio::io::split(guest);
    tokio::select! {
        biased;
        () = to_guest(stream.as_mut(), writer) => {}
        () = from_guest(reader, sink.as_mut()) => {}
    }
    Connection { sink, stream }.shutdown(1000, "").await;
}

async fn to_guest(stream: &mut dyn FrameStream, mut guest: impl AsyncWrite + Unpin) {
    while let Ok(Some(frame)) = stream.next().await {
        let bytes = match frame {
            Frame::Text(text) => Bytes::from(text),
            Frame::Binary(bytes) => bytes,
        };
        if guest.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn from_guest(mut guest: impl AsyncRead + Unpin, sink: &mut dyn FrameSink) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match guest.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(length) => {
                let bytes = Bytes::copy_from_slice(&buffer[..length]);
                if sink.send(Frame::Binary(bytes)).await.is_err() {
                    return;
                }
            }
        }
    }
}
