//! A new VM.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{full_cpu_cap, property};
use crate::api::FieldError;
use crate::ids::{ImageUuid, VmUuid};
use crate::lenient;

/// A new VM, as `POST /vms` and a `machine_create` carry it: typed, as far as Muster itself reads
/// it; everything else lies in [`VmSpec::extra`] and is passed on as it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VmSpec {
    /// Its uuid.
    pub uuid: Option<VmUuid>,
    /// Its name.
    pub alias: Option<String>,
    /// `kvm`, `bhyve`, `lx`, …
    pub brand: Option<String>,
    /// Its owner.
    pub owner_uuid: Option<String>,
    /// Its image, or that of its only disk.
    pub image_uuid: Option<ImageUuid>,
    /// Memory of the guest, MiB.
    pub ram: Option<u64>,
    /// Virtual CPUs.
    pub vcpus: Option<u64>,
    /// CPU limit, percent of one core.
    pub cpu_cap: Option<u64>,
    /// Quota, GiB.
    pub quota: Option<u64>,
    /// Its disks, if it is a hardware VM.
    pub disks: Option<Vec<DiskSpec>>,
    /// Its network interfaces.
    pub nics: Option<Vec<NicSpec>>,
    /// Free-form labels: texts, numbers and booleans.
    pub tags: Option<Map<String, Value>>,
    /// For the guest: texts, numbers and switches.
    pub customer_metadata: Option<Map<String, Value>>,
    /// Everything else.
    pub extra: Map<String, Value>,
}

/// A disk of a new VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskSpec {
    /// Size, MiB.
    pub size: Option<u64>,
    /// The image that it starts as.
    pub image_uuid: Option<ImageUuid>,
    /// Everything else.
    pub extra: Map<String, Value>,
}

/// A network interface of a new VM.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NicSpec {
    /// Network of the server that it is on.
    pub nic_tag: Option<String>,
    /// Everything else.
    pub extra: Map<String, Value>,
}

/// Takes members out of an object and notes those that are not what they should be, which stay.
struct Reader {
    left: Map<String, Value>,
    path: String,
    errors: Vec<FieldError>,
}

impl Reader {
    fn new(left: Map<String, Value>, path: &str) -> Self {
        Self { left, path: path.to_owned(), errors: Vec::new() }
    }

    /// A member that is absent, null or an empty text is not there.
    fn take<T>(
        &mut self,
        name: &str,
        problem: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.left.get(name)?;
        let taken = read(value);
        if taken.is_some() {
            self.left.shift_remove(name);
        } else if !value.is_null() && *value != json!("") {
            self.errors.push(FieldError::new(format!("{}{name}", self.path), problem));
        }
        taken
    }

    fn number(&mut self, name: &str) -> Option<u64> {
        self.take(name, "value was not a number", lenient::number)
    }

    fn text(&mut self, name: &str) -> Option<String> {
        self.take(name, "value was not a string", |value| value.as_str().map(str::to_owned))
    }

    fn uuid<T: std::str::FromStr>(&mut self, name: &str) -> Option<T> {
        self.take(name, "value was not a UUID", |value| value.as_str()?.parse().ok())
    }

    fn flat_object(&mut self, name: &str) -> Option<Map<String, Value>> {
        let problem = "value is not an object of strings, numbers and booleans, or is too large";
        let read = |value: &Value| match property(name)?.read(value) {
            Some(Value::Object(members)) => Some(members),
            _ => None,
        };
        self.take(name, problem, read)
    }

    /// A list of objects; one bad item leaves the whole list where it is.
    fn list<T>(
        &mut self,
        name: &str,
        read: impl Fn(Map<String, Value>, &str) -> (T, Vec<FieldError>),
    ) -> Option<Vec<T>> {
        let items = self.left.get(name)?.as_array();
        let Some(items) = items.filter(|items| items.iter().all(Value::is_object)) else {
            return self.take(name, "value was not an array of objects", |_| None);
        };
        let objects = items.iter().filter_map(Value::as_object).cloned().enumerate();
        let read = |(index, item): (usize, _)| read(item, &format!("{}{name}.{index}.", self.path));
        let (read, errors): (Vec<T>, Vec<_>) = objects.map(read).unzip();
        let errors: Vec<FieldError> = errors.into_iter().flatten().collect();
        let good = errors.is_empty();
        self.errors.extend(errors);
        if good {
            self.left.shift_remove(name);
        }
        good.then_some(read)
    }
}

impl VmSpec {
    /// Reads a request's members. Numbers may be texts. What is not what it should be is named,
    /// and stays among [`VmSpec::extra`].
    #[must_use]
    pub fn read(members: Map<String, Value>) -> (Self, Vec<FieldError>) {
        let mut from = Reader::new(members, "");
        let mut spec = Self {
            uuid: from.uuid("uuid"),
            alias: from.text("alias"),
            brand: from.text("brand"),
            owner_uuid: from.text("owner_uuid"),
            image_uuid: from.uuid("image_uuid"),
            ram: from.number("ram"),
            vcpus: from.number("vcpus"),
            cpu_cap: from.number("cpu_cap"),
            quota: from.number("quota"),
            disks: from.list("disks", DiskSpec::read),
            nics: from.list("nics", NicSpec::read),
            tags: from.flat_object("tags"),
            customer_metadata: from.flat_object("customer_metadata"),
            extra: Map::new(),
        };
        spec.extra = from.left;
        (spec, from.errors)
    }

    /// Its members, for a request or a task.
    #[must_use]
    pub fn into_members(self) -> Map<String, Value> {
        let mut members = self.extra;
        let typed = [
            ("uuid", self.uuid.map(|uuid| json!(uuid))),
            ("alias", self.alias.map(Value::from)),
            ("brand", self.brand.map(Value::from)),
            ("owner_uuid", self.owner_uuid.map(Value::from)),
            ("image_uuid", self.image_uuid.map(|uuid| json!(uuid))),
            ("ram", self.ram.map(Value::from)),
            ("vcpus", self.vcpus.map(Value::from)),
            ("cpu_cap", self.cpu_cap.map(Value::from)),
            ("quota", self.quota.map(Value::from)),
            ("disks", self.disks.map(|disks| list(disks, DiskSpec::into_members))),
            ("nics", self.nics.map(|nics| list(nics, NicSpec::into_members))),
            ("tags", self.tags.map(Value::Object)),
            ("customer_metadata", self.customer_metadata.map(Value::Object)),
        ];
        put(&mut members, typed);
        members
    }

    /// Whether it has memory of its own and disks.
    #[must_use]
    pub fn is_hvm(&self) -> bool {
        self.brand.as_deref().is_some_and(super::is_hvm)
    }

    /// What all its disks take together as far as they have sizes, MiB.
    #[must_use]
    pub fn disks_mib(&self) -> u64 {
        let sizes = self.disks.iter().flatten().filter_map(|disk| disk.size);
        sizes.fold(0, u64::saturating_add)
    }

    /// Gives a VM that has no cap one that leaves each virtual CPU a whole core: without one it
    /// may use the whole server, and the allocator would count it so.
    pub fn cap_cpu(&mut self) {
        let vcpus = self.vcpus.unwrap_or(1);
        self.cpu_cap.get_or_insert(full_cpu_cap(vcpus));
    }
}

impl DiskSpec {
    fn read(members: Map<String, Value>, path: &str) -> (Self, Vec<FieldError>) {
        let mut from = Reader::new(members, path);
        let (size, image_uuid) = (from.number("size"), from.uuid("image_uuid"));
        (Self { size, image_uuid, extra: from.left }, from.errors)
    }

    fn into_members(self) -> Map<String, Value> {
        let mut members = self.extra;
        let image = self.image_uuid.map(|uuid| json!(uuid));
        put(&mut members, [("size", self.size.map(Value::from)), ("image_uuid", image)]);
        members
    }
}

impl NicSpec {
    fn read(members: Map<String, Value>, path: &str) -> (Self, Vec<FieldError>) {
        let mut from = Reader::new(members, path);
        let nic_tag = from.text("nic_tag");
        (Self { nic_tag, extra: from.left }, from.errors)
    }

    fn into_members(self) -> Map<String, Value> {
        let mut members = self.extra;
        put(&mut members, [("nic_tag", self.nic_tag.map(Value::from))]);
        members
    }
}

impl Serialize for VmSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.clone().into_members().serialize(serializer)
    }
}

pub(super) fn put<const N: usize>(
    members: &mut Map<String, Value>,
    typed: [(&str, Option<Value>); N],
) {
    for (name, value) in typed {
        if let Some(value) = value {
            members.insert(name.to_owned(), value);
        }
    }
}

fn list<T>(items: Vec<T>, members: impl Fn(T) -> Map<String, Value>) -> Value {
    items.into_iter().map(members).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: Value) -> (VmSpec, Vec<FieldError>) {
        let Value::Object(members) = value else { panic!("an object is needed") };
        VmSpec::read(members)
    }

    #[test]
    fn what_is_read_comes_out_again_with_numbers_for_their_texts() {
        let (spec, errors) = read(json!({
            "ram": "512", "vcpus": 2, "quota": null, "alias": "one", "unknown": { "x": [1] },
            "disks": [{ "size": "10", "model": "virtio" }], "nics": [{ "nic_tag": "admin" }],
        }));
        assert_eq!(errors, []);
        assert_eq!((spec.ram, spec.vcpus, spec.quota), (Some(512), Some(2), None));
        assert_eq!(spec.disks_mib(), 10);
        assert_eq!(
            Value::Object(spec.into_members()),
            json!({
                "ram": 512, "vcpus": 2, "quota": null, "alias": "one", "unknown": { "x": [1] },
                "disks": [{ "size": 10, "model": "virtio" }], "nics": [{ "nic_tag": "admin" }],
            })
        );
    }

    #[test]
    fn all_that_is_wrong_is_named_and_stays() {
        let body = json!({
            "ram": "much", "alias": 7, "uuid": "x", "tags": { "a": [] }, "nics": {},
            "disks": [{ "size": 1 }, { "size": -1 }],
        });
        let (spec, errors) = read(body.clone());
        let mut fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        fields.sort_unstable();
        assert_eq!(fields, ["alias", "disks.1.size", "nics", "ram", "tags", "uuid"]);
        assert_eq!(Value::Object(spec.into_members()), body);
    }

    #[test]
    fn what_no_agent_would_take_is_named() {
        let large = "x".repeat(crate::vm::MAX_TAGS_BYTES);
        let (_, errors) =
            read(json!({ "tags": { "a": large }, "customer_metadata": { "a": large } }));
        let fields: Vec<_> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["tags"]);
    }

    #[test]
    fn a_cap_follows_the_virtual_cpus() {
        let mut spec = VmSpec { vcpus: Some(3), ..VmSpec::default() };
        spec.cap_cpu();
        assert_eq!(spec.cpu_cap, Some(300));
        spec.vcpus = Some(1);
        spec.cap_cpu();
        assert_eq!(spec.cpu_cap, Some(300));
    }
}
