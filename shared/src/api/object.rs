//! A JSON object that is somebody else's.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::openapi::schema::{ObjectBuilder, Type};
use utoipa::openapi::{RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// An object that is kept, shown or passed on as somebody else wrote it: a task's parameters, a
/// node's sysinfo, a client's metadata. The order of its members stays.
///
/// What Muster itself makes has a type of its own ([`Object::of`] is its form on the way to
/// somebody else), and what Muster reads of such an object is read into one ([`Object::read`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Object(Map<String, Value>);

impl Object {
    /// No members.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The members of a record; none of what is no record.
    #[must_use]
    pub fn of(record: &impl Serialize) -> Self {
        match serde_json::to_value(record) {
            Ok(Value::Object(members)) => Self(members),
            Ok(_) | Err(_) => Self::default(),
        }
    }

    /// What a record's type takes of the members.
    ///
    /// # Errors
    /// A member is not what the type says.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.0)
    }

    /// A member.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A member, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.0.get_mut(name)
    }

    /// A member that is text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_str()
    }

    /// Whether it has the member.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// Adds a member, or replaces it where it stands.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<Value>) {
        self.0.insert(name.into(), value.into());
    }

    /// A member; null at first, if it has none of the name.
    pub fn slot(&mut self, name: &str) -> &mut Value {
        self.0.entry(name).or_insert(Value::Null)
    }

    /// As [`Object::set`], unless it has the member.
    pub fn set_default(&mut self, name: &str, value: impl Into<Value>) {
        self.0.entry(name).or_insert_with(|| value.into());
    }

    /// Takes a member out.
    pub fn remove(&mut self, name: &str) -> Option<Value> {
        self.0.shift_remove(name)
    }

    /// Keeps the members that fit.
    pub fn retain(&mut self, mut fits: impl FnMut(&str, &Value) -> bool) {
        self.0.retain(|name, value| fits(name, value));
    }

    /// Its members in order.
    pub fn iter(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.0.iter()
    }

    /// Its members in order, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&String, &mut Value)> {
        self.0.iter_mut()
    }

    /// Whether it has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For what reads JSON.
    #[must_use]
    pub fn as_map(&self) -> &Map<String, Value> {
        &self.0
    }

    /// As a value.
    #[must_use]
    pub fn into_value(self) -> Value {
        Value::Object(self.0)
    }
}

impl From<Map<String, Value>> for Object {
    fn from(members: Map<String, Value>) -> Self {
        Self(members)
    }
}

impl From<Object> for Map<String, Value> {
    fn from(object: Object) -> Self {
        object.0
    }
}

impl From<Object> for Value {
    fn from(object: Object) -> Self {
        object.into_value()
    }
}

impl<N: Into<String>, V: Into<Value>> FromIterator<(N, V)> for Object {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(members: I) -> Self {
        Self(members.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl Extend<(String, Value)> for Object {
    fn extend<I: IntoIterator<Item = (String, Value)>>(&mut self, members: I) {
        self.0.extend(members);
    }
}

impl IntoIterator for Object {
    type Item = (String, Value);
    type IntoIter = serde_json::map::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a String, &'a Value);
    type IntoIter = serde_json::map::Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl PartialSchema for Object {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new().schema_type(Type::Object).into()
    }
}

impl ToSchema for Object {}
