//! What the filters of a resource do if the package has no ratio for it.

use crate::num::text;
use crate::ratios::Ratios;
use crate::reason::{Reason, Reasons};
use crate::run::{Run, Verdict};

/// Removes the servers that have a ratio for the resource.
pub(super) fn without_ratio(
    run: &mut Run<'_>,
    resource: &str,
    ratio: impl Fn(Ratios) -> Option<f64>,
) -> Reasons {
    // A request without package is never limited, as in the reference.
    if run.found.package().is_none() {
        return Reasons::None;
    }
    run.filter(|run, slot| match ratio(run.ratios(slot)) {
        None => Verdict::Keep,
        Some(ratio) => {
            let ratio = text(ratio);
            let text = format!(
                "Package gave no {resource} overprovision ratio, but server has ratio {ratio}"
            );
            Verdict::Because(Reason::Owned(text.into()))
        }
    })
}
