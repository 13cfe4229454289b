//! How a command fails, with its exit code and what to do about it.

use std::path::PathBuf;

use muster_shared::error_chain::Chain;
use serde_json::{Value, json};

use crate::output::{tame, warn};

/// Fewest characters of an abbreviated uuid. Lists show the end of those that begin with the time.
pub(crate) const MIN_PREFIX: usize = 4;

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
    /// The job ended in failure.
    #[error("job {id} failed: {message}")]
    JobFailed {
        /// The job.
        id: String,
        /// Its reason.
        message: String,
    },
    /// Ctrl-C while something went on.
    #[error("interrupted; {goes_on}")]
    Interrupted {
        /// What goes on without this program.
        goes_on: String,
        /// How to come back to it.
        hint: String,
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
    /// A command in a guest exited with another status than 0.
    #[error("the command exited with {0}")]
    Exited(i64),
    /// A 4xx answer.
    #[error("refused ({code}): {message}")]
    Refused {
        /// CNAPI's code.
        code: String,
        /// CNAPI's message, with the fields at fault.
        message: String,
        /// The answer's body.
        body: Value,
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
    /// Nothing of this kind is meant by this.
    pub(crate) fn no_such(kind: &str, wanted: &str) -> Self {
        let is_hex = wanted.chars().all(|c| c.is_ascii_hexdigit());
        let short = if is_hex && wanted.len() < MIN_PREFIX {
            format!("; give at least {MIN_PREFIX} characters of an id")
        } else {
            String::new()
        };
        Self::NotFound(format!(
            "there is no {kind} {wanted:?}{short}; `muster {kind} list` lists them"
        ))
    }

    /// Exit code of the process; listed in the help.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            // A closed pipe (`muster … | head`) is no failure.
            Self::Terminal { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe => 0,
            Self::Server { .. } | Self::Ended(_) | Self::Terminal { .. } => 1,
            // As `ssh` does; what no exit code can say is a failure.
            Self::Exited(status) => u8::try_from(*status).unwrap_or(1),
            Self::Usage(_) | Self::File { .. } | Self::Tls(_) => 2,
            Self::NotFound(_) => 3,
            Self::TaskFailed { .. } | Self::JobFailed { .. } => 4,
            Self::Unreachable { .. } => 5,
            Self::Refused { .. } => 6,
            Self::Timeout(_) => 7,
            // As shells have it for SIGINT.
            Self::Interrupted { .. } => 130,
        }
    }

    /// What the operator can do.
    fn hint(&self) -> Option<String> {
        match self {
            Self::Unreachable { source, .. } => Some(unreachable_hint(&**source).to_owned()),
            Self::JobFailed { id, .. } => Some(format!("`muster job get {id}` shows its steps")),
            Self::Interrupted { hint, .. } => Some(hint.clone()),
            Self::TaskFailed { id, .. } => {
                Some(format!("`muster task get {id}` shows its steps, `muster why task {id}` the cause"))
            }
            Self::Refused { code, .. } if code == "ServerNotRunning" => Some(
                "`muster server list` shows which servers are online, `muster why SERVER` since when \
                 one is not"
                    .to_owned(),
            ),
            Self::Refused { code, body, .. } if code == "NoAllocatableServersError" => {
                let id = body["id"].as_str()?;
                Some(format!("`muster allocation get {id}` shows every step of the decision"))
            }
            Self::Server { status: 200..=299 | 404, .. } => Some(
                "this may be an agent, or another version: is --url or MUSTER_URL the \
                 coordinator's address?"
                    .to_owned(),
            ),
            Self::Server { .. } => Some("see the coordinator's log for the cause".to_owned()),
            _ => None,
        }
    }

    /// Prints it to stderr: sentences for people, a line of JSON for programs.
    pub fn report(&self, for_programs: bool) {
        if self.exit_code() == 0 {
            return;
        }
        if for_programs {
            eprintln!("{}", tame(&self.json().to_string()));
            return;
        }
        warn(&format!("muster: {}", Chain(self)));
        if let Some(hint) = self.hint() {
            warn(&format!("  {hint}"));
        }
    }

    fn json(&self) -> Value {
        let mut error = json!({
            "kind": self.kind(), "exit_code": self.exit_code(), "message": Chain(self).to_string(),
        });
        let mut set = |name: &str, value: Value| error[name] = value;
        match self {
            Self::Refused { code, body, .. } => {
                set("code", json!(code));
                if !body["errors"].is_null() {
                    set("errors", body["errors"].clone());
                }
            }
            Self::TaskFailed { id, .. } => set("task", json!(id)),
            Self::JobFailed { id, .. } => set("job", json!(id)),
            Self::Server { status, .. } => set("status", json!(status)),
            _ => {}
        }
        if let Some(hint) = self.hint() {
            error["hint"] = json!(hint);
        }
        json!({ "error": error })
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Usage(_) => "usage",
            Self::File { .. } => "file",
            Self::Tls(_) => "tls",
            Self::NotFound(_) => "not_found",
            Self::TaskFailed { .. } => "task_failed",
            Self::JobFailed { .. } => "job_failed",
            Self::Interrupted { .. } => "interrupted",
            Self::Unreachable { .. } => "unreachable",
            Self::Refused { .. } => "refused",
            Self::Server { .. } => "server_error",
            Self::Ended(_) | Self::Exited(_) => "ended",
            Self::Timeout(_) => "timeout",
            Self::Terminal { .. } => "terminal",
        }
    }
}

/// What is likely to be wrong with the address, as the connection failed.
fn unreachable_hint(source: &(dyn std::error::Error + 'static)) -> &'static str {
    let causes = std::iter::successors(Some(source), |error| error.source());
    let texts: Vec<String> = causes.map(|cause| format!("{cause} {cause:?}")).collect();
    let has = |word: &str| texts.iter().any(|cause| cause.contains(word));
    if has("InvalidContentType") {
        "the server does not speak TLS: try http:// instead of https://"
    } else if has("invalid HTTP version") {
        "the server may speak TLS: try https:// instead of http://"
    } else if has("UnknownIssuer") {
        "give the CA that signed the coordinator's certificate with --ca or MUSTER_CA"
    } else if has("CertificateRequired") {
        "it requires a client certificate: --cert and --key, or MUSTER_CERT and MUSTER_KEY"
    } else if has("NotValidForName") {
        "its certificate is for a different name than the one in --url"
    } else {
        "is muster-coordinator running there? --url or MUSTER_URL sets another address"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_what_is_likely_to_be_wrong() {
        let hint = |cause: &str| {
            let cause = std::io::Error::other(cause.to_owned());
            unreachable_hint(&std::io::Error::other(cause))
        };
        assert!(hint("received corrupt message of type InvalidContentType").contains("http://"));
        assert!(hint("invalid HTTP version parsed").contains("https://"));
        assert!(hint("invalid peer certificate: UnknownIssuer").contains("--ca"));
        assert!(hint("Connection refused").contains("running there?"));
    }

    #[test]
    fn what_is_missing_is_told_with_the_command_that_helps() {
        let text = |kind: &str, wanted: &str| CliError::no_such(kind, wanted).to_string();
        assert_eq!(text("vm", "web"), "there is no vm \"web\"; `muster vm list` lists them");
        assert!(text("task", "fcf").contains("4 characters"));
    }

    #[test]
    fn programs_get_the_code_and_the_fields_at_fault() {
        let errors = json!([{ "field": "ram", "message": "is no number" }]);
        let refused = CliError::Refused {
            code: "InvalidParameters".to_owned(),
            message: "no".to_owned(),
            body: json!({ "code": "InvalidParameters", "errors": errors }),
        };
        let want = json!({ "error": {
            "kind": "refused", "exit_code": 6, "message": "refused (InvalidParameters): no",
            "code": "InvalidParameters", "errors": errors,
        } });
        assert_eq!(refused.json(), want);
        let failed = CliError::TaskFailed { id: "t".to_owned(), message: "x".to_owned() };
        assert_eq!(failed.json()["error"]["task"], "t");
        assert!(failed.json()["error"]["hint"].as_str().unwrap().contains("muster task get t"));
    }

    #[test]
    fn a_failed_job_is_not_called_a_task() {
        let failed = CliError::JobFailed { id: "j".to_owned(), message: "refused".to_owned() };
        assert_eq!(failed.exit_code(), 4);
        assert!(failed.hint().unwrap().contains("muster job get j"));
    }
}
