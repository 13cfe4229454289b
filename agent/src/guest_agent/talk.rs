//! One conversation with a guest agent. The guest may answer anything, or nothing: every answer is
//! bounded in bytes and in time.

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;

use crate::drivers::compute::GuestIo;

/// Longest answer, bytes: what a command printed, twice, in base64, with room to spare.
const MAX_ANSWER_BYTES: usize = 8 * 1024 * 1024;
/// Longest wait for a guest agent to say that it listens.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);
/// Sent before a question, and by the guest agent before its next answer: what stands before it is of
/// an earlier conversation. No text has it.
const SENTINEL: u8 = 0xff;
/// Bytes read at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// Most that is told of a guest agent's own words, characters.
const MAX_WORDS: usize = 300;

/// A guest agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// The connection failed.
    #[error("the guest agent's channel failed")]
    Io(#[from] std::io::Error),
    /// The guest or its hypervisor closed it.
    #[error("the guest agent's channel was closed")]
    Closed,
    /// No answer in time.
    #[error("the guest agent did not answer {command} within {} s", limit.as_secs())]
    Silent {
        /// The question.
        command: &'static str,
        /// The time that it had.
        limit: Duration,
    },
    /// The answer is too long.
    #[error("the guest agent's answer to {0} has more than {MAX_ANSWER_BYTES} bytes")]
    TooLong(&'static str),
    /// The answer makes no sense.
    #[error("the guest agent's answer to {0} is not understood")]
    NotUnderstood(&'static str),
    /// It refused, in its own words.
    #[error("the guest agent refused {command}: {words}")]
    Refused {
        /// The question.
        command: &'static str,
        /// The guest agent's words, without what terminals act on.
        words: String,
        /// It does not know the question, or is not to answer it.
        unknown: bool,
    },
}

impl std::fmt::Debug for Talk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Talk").finish_non_exhaustive()
    }
}

/// A guest agent that listens; nobody else talks to it meanwhile.
pub struct Talk {
    io: Box<dyn GuestIo>,
    pending: Vec<u8>,
    _turn: OwnedMutexGuard<()>,
}

impl Talk {
    /// Begins a conversation; `number` tells its first answer from those of earlier ones.
    ///
    /// # Errors
    /// The guest agent does not answer.
    pub(super) async fn begin(
        io: Box<dyn GuestIo>,
        turn: OwnedMutexGuard<()>,
        number: u64,
    ) -> Result<Self, TalkError> {
        let command = "guest-sync-delimited";
        let mut talk = Self { io, pending: Vec::new(), _turn: turn };
        // Numbers of more bits are not exact everywhere.
        let number = number >> 12;
        let talking = async {
            talk.io.write_all(&[SENTINEL]).await?;
            talk.send(command, &json!({ "id": number })).await?;
            loop {
                let line = talk.line(command).await?;
                let answer = line.rsplit(|byte| *byte == SENTINEL).next().unwrap_or_default();
                let answer = serde_json::from_slice::<Value>(answer).unwrap_or_default();
                if answer["return"] == number {
                    return Ok(());
                }
            }
        };
        match timeout(SYNC_TIMEOUT, talking).await {
            Ok(begun) => begun.map(|()| talk),
            Err(_) => Err(TalkError::Silent { command, limit: SYNC_TIMEOUT }),
        }
    }

    /// Asks, and reads the answer.
    ///
    /// # Errors
    /// [`TalkError`]; only after [`TalkError::Refused`] may the conversation go on.
    pub async fn ask<T: DeserializeOwned>(
        &mut self,
        command: &'static str,
        arguments: &Value,
        limit: Duration,
    ) -> Result<T, TalkError> {
        let asking = async {
            self.send(command, arguments).await?;
            self.line(command).await
        };
        let line = timeout(limit, asking).await;
        let line = line.map_err(|_| TalkError::Silent { command, limit })??;
        let not_understood = || TalkError::NotUnderstood(command);
        let answer: Answer = serde_json::from_slice(&line).map_err(|_| not_understood())?;
        match answer {
            Answer { error: Some(error), .. } => Err(error.refused(command)),
            Answer { returned: Some(returned), .. } => {
                serde_json::from_value(returned).map_err(|_| not_understood())
            }
            Answer { returned: None, error: None } => Err(not_understood()),
        }
    }

    async fn send(&mut self, command: &str, arguments: &Value) -> Result<(), TalkError> {
        let mut question = json!({ "execute": command, "arguments": arguments }).to_string();
        question.push('\n');
        self.io.write_all(question.as_bytes()).await?;
        self.io.flush().await?;
        Ok(())
    }

    async fn line(&mut self, command: &'static str) -> Result<Vec<u8>, TalkError> {
        let mut searched = 0;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            if let Some(at) = self.pending[searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.pending.split_off(searched + at + 1);
                return Ok(std::mem::replace(&mut self.pending, rest));
            }
            searched = self.pending.len();
            if searched > MAX_ANSWER_BYTES {
                return Err(TalkError::TooLong(command));
            }
            match self.io.read(&mut chunk).await? {
                0 => return Err(TalkError::Closed),
                read => self.pending.extend_from_slice(&chunk[..read]),
            }
        }
    }
}

#[derive(serde::Deserialize)]
struct Answer {
    #[serde(rename = "return")]
    returned: Option<Value>,
    error: Option<Refusal>,
}

#[derive(serde::Deserialize)]
struct Refusal {
    #[serde(default)]
    class: String,
    #[serde(default)]
    desc: String,
}

impl Refusal {
    fn refused(self, command: &'static str) -> TalkError {
        let words = super::plain(&self.desc, MAX_WORDS);
        TalkError::Refused { command, words, unknown: self.class == "CommandNotFound" }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::DuplexStream;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    async fn turn() -> OwnedMutexGuard<()> {
        Arc::new(tokio::sync::Mutex::new(())).lock_owned().await
    }

    fn pair() -> (Box<dyn GuestIo>, DuplexStream) {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        (Box::new(ours), theirs)
    }

    async fn question(guest: &mut DuplexStream) -> Value {
        let mut line = Vec::new();
        loop {
            match guest.read_u8().await.unwrap() {
                b'\n' => return serde_json::from_slice(&line).unwrap(),
                SENTINEL => line.clear(),
                byte => line.push(byte),
            }
        }
    }

    /// A guest that says this to the first question.
    async fn asked(answer: &[u8]) -> Result<Value, TalkError> {
        let (io, mut guest) = pair();
        let answer = answer.to_vec();
        let guest = async move {
            let id = question(&mut guest).await["arguments"]["id"].clone();
            // Of an earlier conversation, cut off.
            let greeting = format!("n\":3}}\n{{\"return\": 1}}\n\u{ff}{{\"return\": {id}}}\n");
            let greeting: Vec<u8> = greeting.chars().map(|c| c as u8).collect();
            guest.write_all(&greeting).await.unwrap();
            question(&mut guest).await;
            guest.write_all(&answer).await.ok();
            guest
        };
        let talking = async {
            let mut talk = Talk::begin(io, turn().await, u64::MAX).await?;
            talk.ask("guest-ping", &json!({}), LIMIT).await
        };
        // Its end of the channel stays open.
        let (answer, _guest) = tokio::join!(talking, guest);
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_found_behind_what_was_left() {
        assert_eq!(asked(b"{\"return\": {\"a\": 1}}\n").await.unwrap(), json!({ "a": 1 }));
    }

    #[tokio::test(start_paused = true)]
    async fn whatever_a_guest_answers_ends_in_time() {
        let refused = br#"{"error": {"class": "CommandNotFound", "desc": "no \u001b[2J way"}}"#;
        let refused = asked(&[&refused[..], b"\n"].concat()).await.unwrap_err();
        assert!(matches!(refused, TalkError::Refused { unknown: true, .. }), "{refused}");
        assert!(refused.to_string().contains("no [2J way"), "{refused}");
        for nonsense in [&b"\n"[..], b"[]\n", b"{}\n", b"\xff\xfe\n", b"{\"return\"\n"] {
            let error = asked(nonsense).await.unwrap_err();
            assert!(matches!(error, TalkError::NotUnderstood("guest-ping")), "{error}");
        }
        assert!(matches!(asked(b"{").await.unwrap_err(), TalkError::Silent { .. }));
        let deep = format!("{}\n", "[".repeat(100_000));
        assert!(matches!(asked(deep.as_bytes()).await, Err(TalkError::NotUnderstood(_))));
        let endless = vec![b'x'; MAX_ANSWER_BYTES + CHUNK_BYTES * 2];
        assert!(matches!(asked(&endless).await, Err(TalkError::TooLong(_))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_says_nothing_is_not_waited_for() {
        let (io, _guest) = pair();
        let silent = Talk::begin(io, turn().await, 7).await;
        assert!(matches!(silent.err(), Some(TalkError::Silent { .. })));
        let (io, guest) = pair();
        drop(guest);
        assert!(Talk::begin(io, turn().await, 7).await.is_err());
    }
}
