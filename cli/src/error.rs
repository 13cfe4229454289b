//! How a command fails, with its exit code and what to do about it.

use std::path::PathBuf;

use muster_shared::error_chain::Chain;

/// A command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// Arguments that can't be used together, or a file that is not what it should be.
    #[error("{0}")]
    Usage(String),
    /// A file of ours.
    #[error("{action} {path}")]
    File {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
    /// TLS material.
    #[error(transparent)]
    Tls(#[from] muster_shared::tls::TlsError),
    /// Nothing has that name.
    #[error("{0}")]
    NotFound(String),
    /// The task ended in failure.
    #[error("task {id} failed: {message}")]
    TaskFailed {
        /// The task.
        id: String,
        /// Its reason.
        message: String,
    },
    /// No answer.
    #[error("no answer from the coordinator at {url}")]
    Unreachable {
        /// Where it was looked for.
        url: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A 4xx answer.
    #[error("refused ({code}): {message}")]
    Refused {
        /// CNAPI's code.
        code: String,
        /// CNAPI's message, with the fields at fault.
        message: String,
        /// The answer's body.
        body: serde_json::Value,
    },
    /// A 5xx answer, or one that is not understood.
    #[error("the coordinator answered {status}: {message}")]
    Server {
        /// HTTP status.
        status: u16,
        /// What it said.
        message: String,
    },
    /// What was being shown ended.
    #[error("{0}")]
    Ended(String),
    /// What was waited for did not happen in time.
    #[error("{0}")]
    Timeout(String),
    /// The terminal or the output.
    #[error("{action}")]
    Terminal {
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        #[source]
        source: std::io::Error,
    },
}

impl CliError {
    /// Exit code of the process; listed in the help.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            // A closed pipe (`muster … | head`) is no failure.
            Self::Terminal { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Server { .. } | Self::Ended(_) | Self::Terminal { .. } => 1,
            Self::Usage(_) | Self::File { .. } | Self::Tls(_) => 2,
            Self::NotFound(_) => 3,
            Self::TaskFailed { .. } => 4,
            Self::Unreachable { .. } => 5,
            Self::Refused { .. } => 6,
            Self::Timeout(_) => 7,
        }
    }

    /// What the operator can do.
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { .. } => Some(
                "is muster-coordinator running there? --url or MUSTER_URL names another address"
                    .to_owned(),
            ),
            Self::TaskFailed { id, .. } => {
                Some(format!("`muster task get {id}` shows its steps, `muster why task {id}` why"))
            }
            Self::Refused { code, body, .. }
                if code == "NoAllocatableServersError" && body["steps"].is_null() =>
            {
                let text = "`muster allocate` with the same sizes shows every step of the decision";
                Some(text.to_owned())
            }
            Self::Server { .. } => Some("the coordinator's log has the cause".to_owned()),
            _ => None,
        }
    }

    /// Prints it to stderr.
    pub fn report(&self) {
        if self.exit_code() == 0 {
            return;
        }
        eprintln!("muster: {}", Chain(self));
        if let Some(hint) = self.hint() {
            eprintln!("  {hint}");
        }
    }
}
