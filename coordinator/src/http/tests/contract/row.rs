//! One row of the table: how it is written.

use std::fmt;

use serde_json::Value;

/// A request. `{name}` in the path is replaced by what the cluster knows under that name.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    pub(super) method: &'static str,
    pub(super) path: String,
    /// `name: value` each.
    pub(super) headers: Vec<String>,
    pub(super) body: Vec<u8>,
    /// Members of the answer that are remembered: (member, as which name).
    pub(super) keeps: Option<(&'static str, &'static str)>,
}

impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body: String = String::from_utf8_lossy(&self.body).chars().take(200).collect();
        write!(f, "({} {} {:?} {body})", self.method, self.path, self.headers)
    }
}

impl Sent {
    pub(super) fn new(method: &'static str, path: impl Into<String>) -> Self {
        Self { method, path: path.into(), ..Self::default() }
    }

    pub(super) fn json(mut self, body: &Value) -> Self {
        self.headers.push("content-type: application/json".to_owned());
        self.body = body.to_string().into_bytes();
        self
    }

    /// Remembers a member of the answer under a name.
    pub(super) fn keep(mut self, member: &'static str, name: &'static str) -> Self {
        self.keeps = Some((member, name));
        self
    }
}

/// A bad request and how it is refused.
#[derive(Clone, Debug)]
pub(super) struct Bad {
    pub(super) sent: Sent,
    pub(super) status: u16,
    pub(super) code: &'static str,
}

/// What a good request gets.
#[derive(Clone, Copy, Debug)]
pub(super) enum Good {
    /// This status and a body of the declared schema.
    Answers(u16),
    /// Another row's good request implies this one's, for the stated reason.
    Elsewhere(&'static str),
}

/// One endpoint.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) route: &'static str,
    pub(super) before: Vec<Sent>,
    pub(super) sent: Sent,
    pub(super) good: Good,
    pub(super) bad: Vec<Bad>,
}

/// A row of a route `METHOD /pattern`, whose path's parameters have the cluster's values.
pub(super) fn row(route: &'static str, status: u16) -> Row {
    let (method, pattern) = route.split_once(' ').expect("METHOD /pattern");
    let parts = pattern.split('/').map(|part| match part.strip_prefix(':') {
        Some(name) => format!("{{{name}}}"),
        None => part.to_owned(),
    });
    let path = parts.collect::<Vec<_>>().join("/");
    let sent = Sent::new(method, path);
    Row { route, before: Vec::new(), sent, good: Good::Answers(status), bad: Vec::new() }
}

impl Row {
    /// The body of the good request; also of bad ones that follow.
    pub(super) fn sends(mut self, body: &Value) -> Self {
        self.sent = self.sent.json(body);
        self
    }

    /// A further header.
    pub(super) fn header(mut self, header: &str) -> Self {
        self.sent.headers.push(header.to_owned());
        self
    }

    /// A body that is not JSON.
    pub(super) fn sends_bytes(mut self, bytes: &[u8]) -> Self {
        self.sent.body = bytes.to_vec();
        self
    }

    /// Another value for a parameter of the path.
    pub(super) fn at(mut self, parameter: &str, name: &str) -> Self {
        self.sent.path = self.sent.path.replace(parameter, name);
        self
    }

    /// The query of the good request.
    pub(super) fn asks(mut self, query: &str) -> Self {
        self.sent.path = format!("{}?{query}", self.sent.path);
        self
    }

    /// A request before this one, whose answer must be a success.
    pub(super) fn after(mut self, sent: Sent) -> Self {
        self.before.push(sent);
        self
    }

    /// No good request here, because of something.
    pub(super) fn elsewhere(mut self, reason: &'static str) -> Self {
        self.good = Good::Elsewhere(reason);
        self
    }

    fn bad(mut self, sent: Sent, status: u16, code: &'static str) -> Self {
        self.bad.push(Bad { sent, status, code });
        self
    }

    /// The good request with another value for a parameter of the path is refused.
    pub(super) fn bad_at(
        self,
        parameter: &str,
        value: &str,
        status: u16,
        code: &'static str,
    ) -> Self {
        let path = self.sent.path.replace(parameter, value);
        let sent = Sent { path, ..self.sent.clone() };
        self.bad(sent, status, code)
    }

    /// The good request with this query is refused.
    pub(super) fn bad_query(self, query: &str, status: u16, code: &'static str) -> Self {
        let path = self.sent.path.split('?').next().unwrap_or_default();
        let sent = Sent { path: format!("{path}?{query}"), ..self.sent.clone() };
        self.bad(sent, status, code)
    }

    /// The good request with this body is refused.
    pub(super) fn bad_body(self, body: &Value, status: u16, code: &'static str) -> Self {
        let sent = Sent { headers: Vec::new(), ..self.sent.clone() }.json(body);
        self.bad(sent, status, code)
    }

    /// The good request with this text as JSON body is refused.
    pub(super) fn bad_json(self, text: &str, status: u16, code: &'static str) -> Self {
        let mut sent = Sent { headers: Vec::new(), ..self.sent.clone() }.json(&Value::Null);
        sent.body = text.as_bytes().to_vec();
        self.bad(sent, status, code)
    }

    /// The good request with a further header is refused.
    pub(super) fn bad_header(self, header: &str, status: u16, code: &'static str) -> Self {
        let mut sent = self.sent.clone();
        sent.headers.push(header.to_owned());
        self.bad(sent, status, code)
    }

    /// The good request without its headers is refused.
    pub(super) fn bad_bare(self, status: u16, code: &'static str) -> Self {
        let sent = Sent { headers: Vec::new(), ..self.sent.clone() };
        self.bad(sent, status, code)
    }

    /// What every route with nothing to get wrong refuses: a form that it has not, another method.
    pub(super) fn plain(self) -> Self {
        let other = Sent { method: "PATCH", ..self.sent.clone() };
        self.bad_header("accept: text/html", 406, "NotAcceptableError").bad(
            other,
            405,
            "MethodNotAllowedError",
        )
    }

    /// Precondition S: no UUID, an unknown one.
    pub(super) fn of_server(self) -> Self {
        self.bad_at("{server_uuid}", "nonsense", 409, "InvalidArgument").bad_at(
            "{server_uuid}",
            "{missing}",
            404,
            "ResourceNotFound",
        )
    }

    /// Preconditions S and R.
    pub(super) fn of_running(self) -> Self {
        self.of_server().bad_at("{server_uuid}", "{away}", 409, "ServerNotRunning").bad_at(
            "{server_uuid}",
            "default",
            409,
            "InvalidArgument",
        )
    }

    /// Preconditions S, V and R.
    pub(super) fn of_vm(self) -> Self {
        self.of_running().bad_at("{uuid}", "nonsense", 409, "InvalidArgument")
    }
}
