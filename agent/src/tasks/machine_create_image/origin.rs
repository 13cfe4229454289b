//! The image of which an incremental one holds only the difference.

use muster_shared::ids::ImageUuid;
use muster_shared::lenient;
use muster_shared::wire::Code;

use super::manifest::boot_image;
use super::{Make, OPERATION, Params, TaskContext, TaskFailure};
use crate::drivers::images::origins;
use crate::drivers::storage::qcow2::content::MAX_ORIGINS;
use crate::tasks::machine::{failed, refuse};
use crate::vms::VmRecord;

/// The parameter `max_origin_depth`: how many images the new one may build on, one on another.
pub(super) fn deepest(params: &Params) -> Result<usize, TaskFailure> {
    let Some(value) = params.get("max_origin_depth").filter(|value| !value.is_null()) else {
        return Ok(MAX_ORIGINS);
    };
    let depth = lenient::number(value).and_then(|depth| usize::try_from(depth).ok());
    let depth = depth.filter(|depth| *depth > 0);
    let depth = depth.ok_or_else(|| {
        TaskFailure::bad_param("max_origin_depth", "must be a positive number of images")
    })?;
    Ok(depth.min(MAX_ORIGINS))
}

impl Make {
    /// Of what the difference is to be taken; `None`: nothing, the image is to be whole.
    pub(super) async fn origin(
        &self,
        ctx: &TaskContext,
        record: &VmRecord,
    ) -> Result<Option<ImageUuid>, TaskFailure> {
        let Some(deepest) = self.incremental else { return Ok(None) };
        let origin = boot_image(record).ok_or_else(|| {
            let text = format!("{OPERATION} error: VM {} was made from no image", self.vm);
            refuse(Code::VmHasNoOrigin, text)
        })?;
        let depth = origins::depth(ctx.drivers.images.as_ref(), origin).await;
        let depth = depth.map_err(failed(OPERATION))?;
        if depth > deepest {
            let text = format!(
                "{OPERATION} error: the image would build on {depth} others, one on another; at most \
                 {deepest} are allowed"
            );
            return Err(refuse(Code::MaxOriginDepth, text));
        }
        Ok(Some(origin))
    }
}
