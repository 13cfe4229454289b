//! `image_ensure_present`: installs an image unless it is here.

use std::time::Duration;

use muster_shared::ids::ImageUuid;
use serde_json::{Value, json};

use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, Queue, TaskContext, TaskFailure};
use crate::drivers::storage;

/// Images are large; the reference gives them as long.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The pool that the image is for.
const POOL: &str = "zfs_storage_pool_name";

/// The kind; parameters `image_uuid` and `zfs_storage_pool_name`. Images lie in the first pool and
/// serve the disks of all, so the pool has to be one of this server and decides nothing else. What
/// else CNAPI sends along is not needed here.
#[derive(Debug)]
pub struct ImageEnsurePresent;

impl Handler for ImageEnsurePresent {
    fn kind(&self) -> Kind {
        Kind::mutate(
            "image_ensure_present",
            Queue { name: "image_import_tasks", max_concurrent: 2, max_wait: DEADLINE },
            DEADLINE,
        )
    }

    fn cancellable(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let uuid = json!("01020304-0506-4708-890a-0b0c0d0e0f10");
        Params::from_iter([("image_uuid".to_owned(), uuid)])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let image = match params.get("image_uuid") {
            Some(Value::String(text)) => text
                .parse::<ImageUuid>()
                .map_err(|problem| TaskFailure::bad_param("image_uuid", problem))?,
            Some(_) => return Err(TaskFailure::bad_param("image_uuid", "must be a string")),
            None => return Err(TaskFailure::bad_param("image_uuid", "is required")),
        };
        let pool = match params.get(POOL) {
            Some(Value::String(name)) => Some(name.clone()),
            Some(Value::Null) | None => None,
            Some(_) => return Err(TaskFailure::bad_param(POOL, "must be a string")),
        };
        Ok(Plan::of(vec![Lock::ImageUse(image)], Ensure { image, pool }, STEPS))
    }
}

const STEPS: &[Row<Ensure>] = steps![("image", 100, image)];

/// Repeating it finds the image, or goes on with the partial file of the attempt before. There is
/// nothing to undo: an image that was fetched may serve others already.
#[derive(Debug)]
struct Ensure {
    image: ImageUuid,
    pool: Option<String>,
}

impl Ensure {
    async fn image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        let pools = ctx.drivers.storage.pools();
        if let Some(name) = &self.pool
            && storage::find_pool(&pools, name).is_none()
        {
            return Err(TaskFailure::bad_param(POOL, storage::no_pool(name, &pools)));
        }
        let progress = |percent| ctx.progress(percent);
        ctx.drivers.images.ensure(self.image, &progress, &ctx.cancelled).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(params: &Value, fits: bool) {
        let params = params.as_object().unwrap();
        match ImageEnsurePresent.plan(params) {
            Ok(plan) => assert!(fits && plan.locks.len() == 1, "{params:?}"),
            Err(failure) => {
                assert!(!fits && failure.code == "InvalidParameters", "{params:?}: {failure}");
            }
        }
    }

    #[test]
    fn the_image_has_to_be_named() {
        check(&json!({ "image_uuid": "01020304-0506-4708-890a-0b0c0d0e0f10" }), true);
        check(&json!({ "image_uuid": "01020304-0506-4708-890A-0B0C0D0E0F10", "x": [] }), true);
        check(&json!({}), false);
        check(&json!({ "image_uuid": "../../etc/passwd" }), false);
        check(&json!({ "image_uuid": 7 }), false);
    }

    #[test]
    fn the_pool_is_named_or_not() {
        let image = "01020304-0506-4708-890a-0b0c0d0e0f10";
        for pool in [json!("zones"), json!(null)] {
            check(&json!({ "image_uuid": image, POOL: pool }), true);
        }
        check(&json!({ "image_uuid": image, POOL: 7 }), false);
    }
}
