//! `image_ensure_present`: installs an image unless it is here.

use std::time::Duration;

use muster_shared::ids::ImageUuid;
use serde_json::{Value, json};

use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, Queue, TaskContext, TaskFailure};

/// Images are large; the reference gives them as long.
const DEADLINE: Duration = Duration::from_secs(3600);

/// The kind; parameter `image_uuid`. What else CNAPI sends along is not needed here.
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
        Ok(Plan::of(vec![Lock::ImageUse(image)], Ensure { image }, STEPS))
    }
}

const STEPS: &[Row<Ensure>] = steps![("image", 100, image)];

/// Repeating it finds the image, or goes on with the partial file of the attempt before. There is
/// nothing to undo: an image that was fetched may serve others already.
#[derive(Debug)]
struct Ensure {
    image: ImageUuid,
}

impl Ensure {
    async fn image(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
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
}
