//! The expression that says which algorithms run, in which order: `["pipe", …]` and `["or", …]`,
//! nested.

use serde_json::Value;

use crate::algorithm::Algorithm;
use crate::algorithms;
use crate::num::display;

/// Most algorithms and commands in an expression; the default has some fifty. Clients send
/// expressions as well, and each algorithm looks at every server.
const MAX_ELEMENTS: usize = 512;

/// A parsed expression.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    /// Each element works on what the one before it left; ends when nothing is left.
    Pipe(Vec<Expr>),
    /// Each element gets the same servers; the first that leaves any wins.
    Or(Vec<Expr>),
    /// One algorithm.
    Run(&'static Algorithm),
}

/// An expression that can't be used. The texts are the reference's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExprError {
    /// The first element of an array is neither `pipe` nor `or`.
    #[error("Bad expression given: Invalid command: {0}")]
    Command(String),
    /// `pipe` needs one element, `or` two.
    #[error("Bad expression given: sexp too short for given command: {0}")]
    Short(&'static str),
    /// An element is neither a name nor an array.
    #[error("Bad expression given: Invalid element: {0}")]
    Element(String),
    /// No algorithm has this name.
    #[error("Bad expression given: Unrecognized algorithm: {0}")]
    Unknown(String),
    /// It is too long.
    #[error("Bad expression given: more than {MAX_ELEMENTS} elements")]
    TooLong,
}

impl Expr {
    /// Parses an expression.
    ///
    /// # Errors
    /// The first fault, depth first, left to right.
    pub(crate) fn parse(value: &Value) -> Result<Self, ExprError> {
        if elements(value) > MAX_ELEMENTS {
            return Err(ExprError::TooLong);
        }
        Self::list(value)
    }

    fn list(value: &Value) -> Result<Self, ExprError> {
        let Value::Array(items) = value else {
            return Err(ExprError::Command(display(Some(value))));
        };
        let (pipe, elements) = match items.split_first() {
            Some((Value::String(command), rest)) if command == "pipe" => (true, rest),
            Some((Value::String(command), rest)) if command == "or" => (false, rest),
            first => return Err(ExprError::Command(display(first.map(|(x, _)| x)))),
        };
        if pipe && elements.is_empty() {
            return Err(ExprError::Short("pipe"));
        }
        if !pipe && elements.len() < 2 {
            return Err(ExprError::Short("or"));
        }
        let parsed = elements.iter().map(Self::element).collect::<Result<_, _>>()?;
        Ok(if pipe { Self::Pipe(parsed) } else { Self::Or(parsed) })
    }

    fn element(value: &Value) -> Result<Self, ExprError> {
        match value {
            Value::String(name) => algorithms::find(name)
                .map(Self::Run)
                .ok_or_else(|| ExprError::Unknown(name.clone())),
            Value::Array(_) => Self::list(value),
            other => Err(ExprError::Element(display(Some(other)))),
        }
    }

    /// Whether some algorithm in it satisfies the condition.
    pub(crate) fn any(&self, condition: &impl Fn(&Algorithm) -> bool) -> bool {
        match self {
            Self::Pipe(elements) | Self::Or(elements) => elements.iter().any(|e| e.any(condition)),
            Self::Run(algorithm) => condition(algorithm),
        }
    }
}

/// How much there is in an expression.
fn elements(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(elements).sum::<usize>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: &Value, want: &str) {
        let error = Expr::parse(value).expect_err("the expression is bad");
        assert_eq!(error.to_string(), format!("Bad expression given: {want}"));
    }

    #[test]
    fn faults_are_named() {
        check(&json!(["and", "identity"]), "Invalid command: and");
        check(&json!([]), "Invalid command: undefined");
        check(&json!("identity"), "Invalid command: identity");
        check(&json!([["pipe"]]), "Invalid command: pipe");
        check(&json!(["pipe"]), "sexp too short for given command: pipe");
        check(&json!(["or", "identity"]), "sexp too short for given command: or");
        check(&json!(["pipe", 5]), "Invalid element: 5");
        check(&json!(["pipe", "identity", "nope"]), "Unrecognized algorithm: nope");
        check(&json!(["pipe", ["or", "identity"], 5]), "sexp too short for given command: or");
    }

    #[test]
    fn no_expression_is_longer_than_servers_can_bear() {
        let of = |algorithms: usize| {
            let mut list = vec![json!("pipe")];
            list.resize(1 + algorithms, json!("identity"));
            Expr::parse(&json!(["pipe", list, "identity"]))
        };
        assert!(of(500).is_ok());
        assert_eq!(of(512).unwrap_err(), ExprError::TooLong);
    }

    #[test]
    fn nested_expressions_parse() {
        let expr = Expr::parse(&json!(["pipe", ["or", "identity", ["pipe", "identity"]]]));
        assert!(matches!(expr, Ok(Expr::Pipe(elements)) if elements.len() == 1));
    }
}
