//! Whether a value is what a schema says, and what to tell whoever sent it.

use std::collections::BTreeMap;

use jsonschema::error::{TypeKind, ValidationErrorKind as Broken};
use jsonschema::paths::{Location, LocationSegment};
use jsonschema::{JsonType, PatternOptions, ValidationError, Validator};
use muster_shared::api::Object;
use serde_json::{Value, json};

use super::super::route::Route;
use super::document;

/// One thing that is wrong with a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Where, as `nics.0.mac`.
    pub(crate) at: String,
    /// What is wrong there.
    pub(crate) problem: String,
}

/// A schema to check values against.
#[derive(Clone, Debug)]
pub(crate) struct Checker(Validator);

impl Checker {
    /// A schema whose references are looked up in `document`.
    pub(crate) fn new(document: &Value, schema: &Value) -> Result<Self, String> {
        let whole = json!({ "allOf": [schema], "components": document["components"] });
        // Without look-around, so that no text takes more than linear time.
        let options = jsonschema::options().with_pattern_options(PatternOptions::regex());
        options.build(&whole).map(Self).map_err(|error| format!("{schema}: {error}"))
    }

    /// Everything that is wrong with the value of this name; empty: with a value that has none.
    pub(crate) fn faults(&self, name: &str, value: &Value) -> Vec<Fault> {
        self.0.iter_errors(value).flat_map(|error| faults(name, &error)).collect()
    }
}

/// What checks a parameter.
#[derive(Clone, Debug)]
struct ParamChecker {
    checker: Checker,
    /// Digits in a query stand for the number, so its bounds hold for them, too.
    is_numeric: bool,
}

impl ParamChecker {
    fn new(schema: &Value) -> Result<Self, String> {
        let is_numeric = schema.get("maximum").is_some();
        Ok(Self { checker: Checker::new(document(), schema)?, is_numeric })
    }

    fn faults(&self, name: &str, value: &Value) -> Vec<Fault> {
        let faults = self.checker.faults(name, value);
        let text = value.as_str().filter(|_| self.is_numeric && faults.is_empty());
        match text.and_then(|text| text.parse::<u64>().ok()) {
            Some(number) => self.checker.faults(name, &json!(number)),
            None => faults,
        }
    }
}

/// What checks the parameters of a route that have to be more than their rules say.
#[derive(Clone, Debug)]
pub(crate) struct Checkers {
    params: BTreeMap<&'static str, ParamChecker>,
    payload: Option<Checker>,
}

impl Checkers {
    pub(crate) fn of(route: &Route) -> Result<Self, String> {
        let checked = route.params.iter().filter(|param| param.checked);
        let compiled = checked.filter_map(|param| {
            let schema = param.schema?;
            Some(ParamChecker::new(&schema()).map(|checker| (param.name, checker)))
        });
        let payload = route.payload.map(|schema| Checker::new(document(), &schema()));
        Ok(Self { params: compiled.collect::<Result<_, _>>()?, payload: payload.transpose()? })
    }

    /// What is wrong with a parameter.
    pub(crate) fn param(&self, name: &str, value: &Value) -> Vec<Fault> {
        self.params.get(name).map_or_else(Vec::new, |checker| checker.faults(name, value))
    }

    /// What is wrong with all parameters together.
    pub(crate) fn payload(&self, params: &Object) -> Vec<Fault> {
        self.payload.as_ref().map_or_else(Vec::new, |checker| checker.faults("", &json!(params)))
    }
}

fn faults(name: &str, error: &ValidationError<'_>) -> Vec<Fault> {
    let at = place(name, error.instance_path());
    let one = |at: String, problem: String| vec![Fault { at, problem }];
    match error.kind() {
        Broken::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            one(joined(&at, name), "value is missing".to_owned())
        }
        Broken::AdditionalProperties { unexpected } => {
            let problem = || "no such member".to_owned();
            let fault = |name: &String| Fault { at: joined(&at, name), problem: problem() };
            unexpected.iter().map(fault).collect()
        }
        Broken::Type { kind } => one(at, format!("value was not {}", kind_words(kind))),
        // The alternative that comes closest.
        Broken::AnyOf { context } | Broken::OneOfNotValid { context } => {
            let tried = context
                .iter()
                .map(|errors| errors.iter().flat_map(|error| faults(name, error)).collect());
            let of_itself = |faults: &Vec<Fault>| faults.iter().any(|fault| fault.at == at);
            tried.min_by_key(|faults| (of_itself(faults), faults.len())).unwrap_or_default()
        }
        // CNAPI's words for it; the pattern stands in the document.
        Broken::Pattern { .. } => {
            let problem = format!("Invalid value for param '{at}'");
            one(at, problem)
        }
        // Says what is wanted, and not what was sent.
        _ => one(at, error.masked().to_string()),
    }
}

fn place(name: &str, path: &Location) -> String {
    path.segments().fold(name.to_owned(), |at, segment| match segment {
        LocationSegment::Property(name) => joined(&at, &name),
        LocationSegment::Index(index) => joined(&at, &index.to_string()),
    })
}

fn joined(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// In the words of the rules.
fn kind_words(wanted: &TypeKind) -> String {
    let word = |kind: JsonType| match kind {
        JsonType::Boolean => Some("true or false"),
        JsonType::String => Some("a string"),
        JsonType::Array => Some("an array"),
        JsonType::Object => Some("an object"),
        JsonType::Number => Some("a number"),
        JsonType::Integer => Some("a whole number"),
        // Means that it is left out.
        JsonType::Null => None,
    };
    let words: Vec<_> = match wanted {
        TypeKind::Single(kind) => word(*kind).into_iter().collect(),
        TypeKind::Multiple(kinds) => kinds.into_iter().filter_map(word).collect(),
    };
    if words.is_empty() { "null".to_owned() } else { words.join(" or ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(schema: &Value, value: &Value, expected: &[(&str, &str)]) {
        let document = json!({ "components": { "schemas": { "Id": { "type": "string" } } } });
        let found = Checker::new(&document, schema).unwrap().faults("", value);
        let mut found: Vec<_> = found.iter().map(|f| (f.at.as_str(), f.problem.as_str())).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{value} under {schema}");
    }

    #[test]
    fn faults_name_their_place_and_not_what_was_sent() {
        let object = json!({
            "type": "object", "required": ["id"], "additionalProperties": false,
            "properties": {
                "id": { "$ref": "#/components/schemas/Id" },
                "list": { "items": { "minimum": 1 } },
            },
        });
        check(&object, &json!({ "id": "x", "list": [1] }), &[]);
        let expected = [
            ("id", "value was not a string"),
            ("list.1", "value is less than the minimum of 1"),
            ("more", "no such member"),
        ];
        check(&object, &json!({ "id": 7, "list": [1, 0], "more": 1 }), &expected);
        check(&object, &json!({}), &[("id", "value is missing")]);
        check(&object, &json!([]), &[("", "value was not an object")]);
        let kinds = json!({ "type": ["integer", "string", "null"] });
        check(&kinds, &json!(1.5), &[("", "value was not a whole number or a string")]);
        check(&kinds, &Value::Null, &[]);
    }

    #[test]
    fn a_pattern_that_does_not_fit_names_the_parameter_as_cnapi_does() {
        let checker = Checker::new(&json!({}), &json!({ "pattern": "^a$" })).unwrap();
        let fault = |at: &str| {
            let problem = format!("Invalid value for param '{at}'");
            vec![Fault { at: at.to_owned(), problem }]
        };
        assert_eq!(checker.faults("sleep", &json!("b")), fault("sleep"));
        let nested = json!({ "properties": { "mac": { "pattern": "^a$" } } });
        let checker = Checker::new(&json!({}), &json!({ "items": nested })).unwrap();
        assert_eq!(checker.faults("nics", &json!([{ "mac": "b" }])), fault("nics.0.mac"));
    }

    #[test]
    fn the_closest_alternative_is_told() {
        let nic = json!({ "type": "object", "properties": { "mac": { "type": "string" } } });
        let either = json!({ "anyOf": [{ "type": "string" }, nic] });
        check(&either, &json!("x"), &[]);
        check(&either, &json!({ "mac": 7 }), &[("mac", "value was not a string")]);
        check(&either, &json!(7), &[("", "value was not a string")]);
        let deep = json!({ "properties": { "a": { "items": either } } });
        check(
            &deep,
            &json!({ "a": ["x", { "mac": 1 }] }),
            &[("a.1.mac", "value was not a string")],
        );
    }

    #[test]
    fn what_is_no_schema_is_a_defect() {
        for bad in [json!({ "$ref": "#/x" }), json!({ "pattern": "(" }), json!({ "minimum": "1" })]
        {
            Checker::new(&json!({ "components": {} }), &bad).unwrap_err();
        }
    }
}
