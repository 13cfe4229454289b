//! The OpenAPI document of a running coordinator, and whether its answers are what it says.

use serde_json::{Value, json};

use crate::http::Client;

/// The document.
#[derive(Debug)]
pub struct Contract {
    document: Value,
}

impl Contract {
    /// Reads it from a coordinator.
    pub async fn of(client: &Client) -> Self {
        Self { document: client.get("/openapi.json").await.expect(200) }
    }

    /// Gets a path and panics unless the answer is a success whose body the document allows.
    /// `template`: the path in the document.
    pub async fn check(&self, client: &Client, template: &str, path: &str) -> Value {
        let answer = client.get(path).await;
        let declared =
            &self.document["paths"][template]["get"]["responses"][answer.status.as_str()];
        let schema = &declared["content"]["application/json"]["schema"];
        assert!(schema.is_object(), "GET {template}: {} {}", answer.status, answer.text);
        let body = answer.expect(200);
        let whole = json!({ "allOf": [schema], "components": self.document["components"] });
        let validator = jsonschema::validator_for(&whole).expect("a schema");
        let faults: Vec<_> = validator.iter_errors(&body).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "GET {path}: {faults:#?} in {body:#}");
        body
    }
}
