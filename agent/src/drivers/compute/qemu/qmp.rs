//! Conversations with a hypervisor over QMP. Every one has a deadline.

use std::path::Path;
use std::time::Duration;

use qapi::futures::{QapiStream, QmpStreamTokio};
use serde::Serialize;
use serde_json::Value;
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::UnixStream;

/// Longest wait for the greeting.
const GREETING_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest wait for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum QmpError {
    /// Nobody listens, or the connection broke.
    #[error("talk to the hypervisor")]
    Io(#[from] std::io::Error),
    /// It refused.
    #[error("{command}: {reason}")]
    Refused {
        /// The command.
        command: &'static str,
        /// The hypervisor's words.
        reason: String,
    },
    /// It did not answer in time.
    #[error("no answer to {command} in {} ms", limit.as_millis())]
    Timeout {
        /// The command, or `greeting`.
        command: &'static str,
        /// How long it had.
        limit: Duration,
    },
}

/// One connection.
pub(super) struct Qmp {
    stream: QapiStream<QmpStreamTokio<ReadHalf<UnixStream>>, QmpStreamTokio<WriteHalf<UnixStream>>>,
}

/// A command without arguments whose answer is returned as it is.
pub(super) trait Plain: qapi::qmp::QmpCommand + qapi::Command<Ok = Value> + Default {}

macro_rules! commands {
    ($($name:ident $command:literal)*) => {
        $(
            #[derive(Debug, Default, Serialize)]
            pub(super) struct $name {}

            impl qapi::Command for $name {
                type Ok = Value;
                const NAME: &'static str = $command;
                const ALLOW_OOB: bool = false;
            }

            impl qapi::qmp::QmpCommand for $name {}
            impl Plain for $name {}
        )*
    };
}

commands! {
    Cont "cont"
    InjectNmi "inject-nmi"
    PowerDown "system_powerdown"
    QueryBlock "query-block"
    QueryBlockstats "query-blockstats"
    QueryChardev "query-chardev"
    QueryCpus "query-cpus-fast"
    QueryKvm "query-kvm"
    QueryPci "query-pci"
    QueryStatus "query-status"
    QueryVersion "query-version"
    QueryVnc "query-vnc"
    Quit "quit"
    Reset "system_reset"
    Stop "stop"
}

impl Qmp {
    /// Connects and leaves the negotiation behind.
    pub(super) async fn connect(socket: &Path) -> Result<Self, QmpError> {
        let connect = async {
            let stream = UnixStream::connect(socket).await?;
            QmpStreamTokio::open(stream).await?.negotiate().await
        };
        match tokio::time::timeout(GREETING_TIMEOUT, connect).await {
            Ok(stream) => Ok(Self { stream: stream? }),
            Err(_) => Err(QmpError::Timeout { command: "greeting", limit: GREETING_TIMEOUT }),
        }
    }

    /// Runs a command.
    pub(super) async fn execute<C: Plain>(&mut self) -> Result<Value, QmpError> {
        self.send(C::default(), ANSWER_TIMEOUT).await
    }

    /// Runs a command with arguments that may take up to `limit`.
    pub(super) async fn send<C>(&mut self, command: C, limit: Duration) -> Result<Value, QmpError>
    where
        C: qapi::qmp::QmpCommand + qapi::Command<Ok = Value>,
    {
        let answer = self.stream.execute(command);
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(qapi::ExecuteError::Io(error))) => Err(QmpError::Io(error)),
            Ok(Err(qapi::ExecuteError::Qapi(error))) => {
                Err(QmpError::Refused { command: C::NAME, reason: error.to_string() })
            }
            Err(_) => Err(QmpError::Timeout { command: C::NAME, limit }),
        }
    }
}
