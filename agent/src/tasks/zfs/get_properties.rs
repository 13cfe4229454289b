//! `zfs_get_properties`: properties of one dataset or of all, exact.

use serde_json::{Map, Value, json};

use super::{failing, finish, named, question};
use crate::drivers::zfs::{Name, Wanted, check_property};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// Most properties that are asked for at a time.
const MAX_PROPERTIES: usize = 128;

/// The kind; parameters `dataset` (else all), `properties` (else all).
#[derive(Debug)]
pub struct ZfsGetProperties;

impl Handler for ZfsGetProperties {
    fn kind(&self) -> Kind {
        question("zfs_get_properties")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let of = match params.get("dataset") {
            None | Some(Value::Null) => None,
            Some(_) => Some(named(params, "dataset")?),
        };
        let properties = match params.get("properties") {
            None | Some(Value::Null) => vec!["all".to_owned()],
            Some(Value::Array(names)) if (1..=MAX_PROPERTIES).contains(&names.len()) => {
                let name = |name: &Value| name.as_str().map(str::to_owned);
                let names: Option<Vec<_>> = names.iter().map(name).collect();
                names.ok_or_else(|| TaskFailure::bad_param("properties", "must be texts"))?
            }
            Some(_) => {
                let text = format!("must be 1 to {MAX_PROPERTIES} texts");
                return Err(TaskFailure::bad_param("properties", text));
            }
        };
        properties.iter().try_for_each(|name| check_property(name))?;
        Ok(Plan::of(Vec::new(), Get { of, properties }, STEPS))
    }
}

const STEPS: &[Row<Get>] = steps![("get", 100, get)];

#[derive(Debug)]
struct Get {
    of: Option<Name>,
    properties: Vec<String>,
}

impl Get {
    async fn get(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let delegated = &ctx.drivers.zfs;
        let roots: Vec<Name> = match &self.of {
            Some(name) => {
                delegated.check(name)?;
                vec![name.clone()]
            }
            None => delegated.roots.iter().map(Name::from).collect(),
        };
        let shown = self.of.as_ref().map_or_else(|| "all".to_owned(), Name::to_string);
        let attempt = format!("get ZFS properties for dataset \"{shown}\"");
        let properties: Vec<_> = self.properties.iter().map(String::as_str).collect();
        let mut all = Map::new();
        for root in roots {
            let wanted = Wanted { below: self.of.is_none(), ..Wanted::of(root, &properties) };
            let found = delegated.zfs.get(&wanted).await.map_err(failing(&attempt))?;
            all.extend(found.into_iter().map(|(name, of)| (name, json!(of))));
        }
        finish(ctx, Value::Object(all))
    }
}
