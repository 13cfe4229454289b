//! Reading and writing files of a guest, a piece at a time.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use muster_shared::ids::VmUuid;
use muster_shared::wire::Code;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{ANSWER, GuestAgents, Talk, TalkError, failed};
use crate::drivers::DriverError;

/// Largest piece, bytes.
pub const MAX_CHUNK_BYTES: usize = 256 * 1024;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Piece {
    #[serde(default)]
    buf_b64: String,
}

#[derive(Deserialize)]
struct Written {
    count: usize,
}

/// A piece of a file from `offset` on, of at most [`MAX_CHUNK_BYTES`]; an empty one is its end.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`: e.g. there is no such file.
pub async fn read(
    agents: &GuestAgents,
    vm: VmUuid,
    path: &str,
    offset: u64,
) -> Result<Vec<u8>, DriverError> {
    let mut talk = agents.talk(vm).await?;
    let work = async {
        let handle = open(&mut talk, path, "rb").await?;
        let piece = async {
            seek(&mut talk, handle, offset).await?;
            let mut bytes = Vec::new();
            // A file may be read in smaller pieces than it has.
            while bytes.len() < MAX_CHUNK_BYTES {
                let wanted = json!({ "handle": handle, "count": MAX_CHUNK_BYTES - bytes.len() });
                let piece: Piece = talk.ask("guest-file-read", &wanted, ANSWER).await?;
                let not_understood = |_| TalkError::NotUnderstood("guest-file-read");
                let more = BASE64_STANDARD.decode(piece.buf_b64).map_err(not_understood)?;
                if more.is_empty() {
                    break;
                }
                bytes.extend(more);
            }
            bytes.truncate(MAX_CHUNK_BYTES);
            Ok(bytes)
        };
        let piece = piece.await;
        closed(&mut talk, handle, piece).await
    };
    work.await.map_err(failed(vm))
}

/// Writes a piece of a file at `offset`. With the first one the file is made, or emptied.
///
/// # Errors
/// As [`GuestAgents::talk`]; `GuestRefused`: e.g. there is no such folder.
pub async fn write(
    agents: &GuestAgents,
    vm: VmUuid,
    path: &str,
    offset: u64,
    bytes: &[u8],
) -> Result<(), DriverError> {
    if bytes.len() > MAX_CHUNK_BYTES {
        let text = format!("a piece of a file has at most {MAX_CHUNK_BYTES} bytes");
        return Err(DriverError::refused(Code::InvalidParameters, text));
    }
    let mut talk = agents.talk(vm).await?;
    let work = async {
        let mode = if offset == 0 { "wb" } else { "r+b" };
        let handle = open(&mut talk, path, mode).await?;
        let writing = async {
            seek(&mut talk, handle, offset).await?;
            let mut rest = bytes;
            while !rest.is_empty() {
                let wanted = json!({ "handle": handle, "buf-b64": BASE64_STANDARD.encode(rest) });
                let written: Written = talk.ask("guest-file-write", &wanted, ANSWER).await?;
                if written.count == 0 || written.count > rest.len() {
                    return Err(TalkError::NotUnderstood("guest-file-write"));
                }
                rest = &rest[written.count..];
            }
            talk.ask::<Value>("guest-file-flush", &json!({ "handle": handle }), ANSWER).await
        };
        let written = writing.await;
        closed(&mut talk, handle, written).await
    };
    work.await.map(drop).map_err(failed(vm))
}

async fn open(talk: &mut Talk, path: &str, mode: &str) -> Result<i64, TalkError> {
    talk.ask("guest-file-open", &json!({ "path": path, "mode": mode }), ANSWER).await
}

async fn seek(talk: &mut Talk, handle: i64, offset: u64) -> Result<(), TalkError> {
    let wanted = json!({ "handle": handle, "offset": offset, "whence": "set" });
    talk.ask::<Value>("guest-file-seek", &wanted, ANSWER).await.map(drop)
}

/// Closes the file, whatever became of the work with it; not where the conversation is over.
async fn closed<T>(
    talk: &mut Talk,
    handle: i64,
    worked: Result<T, TalkError>,
) -> Result<T, TalkError> {
    if !matches!(worked, Ok(_) | Err(TalkError::Refused { .. })) {
        return worked;
    }
    let ended = talk.ask::<Value>("guest-file-close", &json!({ "handle": handle }), ANSWER).await;
    // The first failure says more.
    worked.and_then(|worked| ended.map(|_| worked))
}
