//! `zfs_set_properties`: sets properties of a dataset, all or none.

use muster_shared::wire::Code;
use serde_json::{Value, json};

use super::{change, dataset, failing, protection};
use crate::drivers::zfs::{Dataset, Name, Properties, check_setting};
use crate::tasks::steps::{Row, steps};
use crate::tasks::{Handler, Kind, Need, Params, Plan, TaskContext, TaskFailure};

/// Most properties at a time.
const MAX_PROPERTIES: usize = 128;
/// Properties that reach beyond the dataset: into the node's own folders, its network, its files.
const REACHING: [&str; 6] = ["sharenfs", "sharesmb", "keylocation", "zoned", "overlay", "snapdev"];
/// Begins the names of those by which the agent knows what is whose.
const AGENTS: &str = "muster:";

/// The kind; parameters `dataset`, `properties`.
#[derive(Debug)]
pub struct ZfsSetProperties;

impl Handler for ZfsSetProperties {
    fn kind(&self) -> Kind {
        change("zfs_set_properties")
    }

    fn needs(&self) -> Option<Need> {
        Some(Need::Zfs)
    }

    fn example(&self) -> Params {
        let params =
            [("dataset", json!("zones/one")), ("properties", json!({ "quota": "1073741824" }))];
        params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let dataset = dataset(params, "dataset")?;
        let Some(Value::Object(wanted)) = params.get("properties") else {
            return Err(TaskFailure::bad_param("properties", "must be an object"));
        };
        if wanted.len() > MAX_PROPERTIES {
            let text = format!("must be at most {MAX_PROPERTIES}");
            return Err(TaskFailure::bad_param("properties", text));
        }
        let mut properties = Properties::new();
        for (name, value) in wanted {
            let value = match value {
                Value::String(text) => text.clone(),
                Value::Number(number) => number.to_string(),
                Value::Bool(flag) => flag.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => {
                    let field = format!("properties.{name}");
                    return Err(TaskFailure::bad_param(&field, "must be a text or a number"));
                }
            };
            check_setting(name, &value)?;
            check_reach(&dataset, name, &value)?;
            properties.insert(name.clone(), value);
        }
        Ok(Plan::of(Vec::new(), Set { dataset, properties }, STEPS))
    }
}

/// Refuses what would change the node beyond the dataset, or whose it is.
fn check_reach(dataset: &Dataset, name: &str, value: &str) -> Result<(), TaskFailure> {
    let refuse = |problem: &str| {
        let text = format!("property {name:?} {problem}");
        Err(TaskFailure::new(Code::InvalidProperty, text))
    };
    if name.starts_with(AGENTS) {
        return refuse("is the agent's own");
    }
    if REACHING.contains(&name) {
        return refuse("can't be set through the agent: it reaches beyond the dataset");
    }
    if name == "mountpoint" && !matches!(value, "none" | "legacy") {
        let inside = value.strip_prefix('/').and_then(|path| path.parse::<Dataset>().ok());
        if !inside.is_some_and(|path| path.pool() == dataset.pool() && !path.is_pool()) {
            return refuse("must be none, legacy or a folder below the pool's own");
        }
    }
    Ok(())
}

const STEPS: &[Row<Set>] = steps![("set", 100, set)];

#[derive(Debug)]
struct Set {
    dataset: Dataset,
    properties: Properties,
}

impl Set {
    async fn set(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let name = Name::from(&self.dataset);
        protection::check(ctx, &[&name]).await?;
        let attempt = format!("set ZFS properties for dataset \"{name}\"");
        ctx.drivers.zfs.zfs.set(&name, &self.properties).await.map_err(failing(&attempt))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(properties: &Value) -> Result<Plan, TaskFailure> {
        let params = [("dataset", json!("zones/a")), ("properties", properties.clone())];
        ZfsSetProperties
            .plan(&params.map(|(name, value)| (name.to_owned(), value)).into_iter().collect())
    }

    #[test]
    fn properties_that_reach_beyond_the_dataset_are_refused() {
        for good in [
            json!({ "quota": 5, "atime": "off", "a:b": true }),
            json!({ "mountpoint": "none" }),
            json!({ "mountpoint": "/zones/elsewhere" }),
            json!({}),
        ] {
            plan(&good).unwrap();
        }
        for bad in [
            json!({ "mountpoint": "/etc" }),
            json!({ "mountpoint": "/zones" }),
            json!({ "mountpoint": "/zones/../etc" }),
            json!({ "sharenfs": "on" }),
            json!({ "keylocation": "file:///etc/shadow" }),
            json!({ "muster:create_task": "x" }),
            json!({ "used": 1 }),
            json!({ "-o": "x" }),
        ] {
            assert_eq!(plan(&bad).unwrap_err().code, Code::InvalidProperty, "{bad}");
        }
        for bad in [json!({ "quota": null }), json!({ "quota": [] }), json!("quota")] {
            assert_eq!(plan(&bad).unwrap_err().code, Code::InvalidParameters, "{bad}");
        }
    }
}
