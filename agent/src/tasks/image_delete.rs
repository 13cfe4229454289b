//! `image_delete`: takes an image off this node. A repository that has it can give it again.

use std::time::Duration;

use muster_shared::ids::ImageUuid;
use serde_json::json;

use super::machine;
use super::steps::{Row, steps};
use super::{Handler, Kind, Lock, Params, Plan, Queue, TaskContext, TaskFailure};

/// Who wants to use an image waits for one that is to be removed: not for long.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// A few files are removed.
const DEADLINE: Duration = Duration::from_secs(300);

/// The kind; parameter `uuid`. An image that is not here is no error.
#[derive(Debug)]
pub struct ImageDelete;

impl Handler for ImageDelete {
    fn kind(&self) -> Kind {
        let queue = Queue { name: "image_delete_tasks", max_concurrent: 1, max_wait: MAX_WAIT };
        Kind::mutate("image_delete", queue, DEADLINE)
    }

    fn frees_room(&self) -> bool {
        true
    }

    fn example(&self) -> Params {
        let uuid = json!("01020304-0506-4708-890a-0b0c0d0e0f10");
        Params::from_iter([("uuid".to_owned(), uuid)])
    }

    fn plan(&self, params: &Params) -> Result<Plan, TaskFailure> {
        let image = machine::image(params, "uuid")?;
        Ok(Plan::of(vec![Lock::Image(image)], Remove { image }, STEPS))
    }
}

const STEPS: &[Row<Remove>] = steps![("remove", 100, remove)];

/// There is nothing to undo: the image is here, or it is not.
#[derive(Debug)]
struct Remove {
    image: ImageUuid,
}

impl Remove {
    async fn remove(&self, ctx: &TaskContext) -> Result<(), TaskFailure> {
        ctx.drivers.images.remove(self.image).await?;
        tracing::info!(image_uuid = %self.image, "image removed");
        ctx.finish_with(json!({ "uuid": self.image }));
        Ok(())
    }
}
