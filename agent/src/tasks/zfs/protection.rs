//! What these tasks keep their hands off: what is not the agent's, the pools' own datasets, and
//! whatever holds a VM, an image or the node itself.

use std::collections::BTreeSet;

use muster_shared::lenient;
use muster_shared::wire::Code;
use uuid::Uuid;

use super::{TaskContext, TaskFailure};
use crate::drivers::DriverError;
use crate::drivers::zfs::{Dataset, Name, Wanted};
use crate::tasks::record::Origin;

/// Datasets of a pool that are the system's, with all below them.
const SYSTEM: [&str; 5] = ["var", "opt", "config", "swap", "cores"];
/// Begins the names of those that are the agent's.
const AGENTS: &str = "muster";

/// The VMs and images of the node.
#[derive(Debug, Default)]
struct Known {
    vms: BTreeSet<Uuid>,
    images: BTreeSet<Uuid>,
}

/// Why a dataset may not be touched; `None` when it may.
fn reason(dataset: &Dataset, known: &Known) -> Option<String> {
    if dataset.is_pool() {
        return Some("is the root of its pool".to_owned());
    }
    let below: Vec<_> = dataset.components().skip(1).collect();
    let first = below.first().copied().unwrap_or_default();
    if SYSTEM.contains(&first) || first.starts_with(AGENTS) {
        return Some(format!("belongs to {first} of its pool"));
    }
    let uuids = below.iter().filter_map(|name| name.parse::<Uuid>().ok());
    for uuid in uuids {
        if known.vms.contains(&uuid) {
            return Some(format!("belongs to VM {uuid}"));
        }
        if known.images.contains(&uuid) {
            return Some(format!("belongs to image {uuid}"));
        }
    }
    None
}

async fn known(ctx: &TaskContext) -> Result<Known, DriverError> {
    let vms = ctx.drivers.vms.entries().into_iter().map(|entry| entry.record.uuid.0).collect();
    let images = ctx.drivers.images.list().await?.into_iter().map(|image| image.image.0).collect();
    Ok(Known { vms, images })
}

/// Whether protection is off: only for who has the node anyway.
fn is_forced(ctx: &TaskContext) -> Result<bool, TaskFailure> {
    let wanted = match ctx.params.get("force_protected") {
        None => false,
        Some(value) => lenient::flag(value)
            .ok_or_else(|| TaskFailure::bad_param("force_protected", "must be true or false"))?,
    };
    if wanted && ctx.origin != Origin::Socket {
        let text = "force_protected: only on the agent's own unix socket";
        return Err(TaskFailure::new(Code::DatasetProtected, text));
    }
    Ok(wanted)
}

/// Checks that these, and what they are snapshots of, may be touched.
///
/// # Errors
/// `DatasetProtected`; or it could not be told.
pub(super) async fn check(ctx: &TaskContext, names: &[&Name]) -> Result<(), TaskFailure> {
    for name in names {
        ctx.drivers.zfs.check(name)?;
    }
    if is_forced(ctx)? {
        return Ok(());
    }
    let known = known(ctx).await?;
    let protected = names.iter().find_map(|name| Some((name, reason(name.dataset(), &known)?)));
    protected.map_or(Ok(()), |(name, reason)| Err(refusal(name, &reason)))
}

/// Checks the same of all datasets below one: they go where it goes.
///
/// # Errors
/// `DatasetProtected`; or it could not be told.
pub(super) async fn check_below(ctx: &TaskContext, root: &Dataset) -> Result<(), TaskFailure> {
    if is_forced(ctx)? {
        return Ok(());
    }
    let known = known(ctx).await?;
    for row in ctx.drivers.zfs.zfs.list(&Wanted::below(root, &["name"])).await? {
        // A name that is none by our rules is nobody's here.
        let Some(Ok(dataset)) = row.get("name").map(|name| name.parse::<Dataset>()) else {
            continue;
        };
        if let Some(reason) = reason(&dataset, &known) {
            return Err(refusal(&Name::Dataset(dataset), &reason));
        }
    }
    Ok(())
}

fn refusal(name: &Name, reason: &str) -> TaskFailure {
    TaskFailure::new(Code::DatasetProtected, format!("{name} is protected: it {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_the_agents_the_vms_and_the_images_are_protected() {
        let (vm, image) = (Uuid::from_u128(7), Uuid::from_u128(8));
        let known = Known { vms: BTreeSet::from([vm]), images: BTreeSet::from([image]) };
        let reason = |name: &str| super::reason(&name.parse().unwrap(), &known);
        for free in [
            "zones/a",
            "zones/variety",
            "zones/a/var",
            "zones/a/muster",
            &format!("zones/{}", Uuid::from_u128(9)),
        ] {
            assert_eq!(reason(free), None, "{free}");
        }
        for kept in [
            "zones",
            "zones/var",
            "zones/var/log",
            "zones/opt",
            "zones/config",
            "zones/swap",
            "zones/cores/x",
            "zones/muster",
            "zones/muster-x/y",
        ] {
            assert!(reason(kept).is_some(), "{kept}");
        }
        let of_vm = reason(&format!("zones/{vm}/disk0")).unwrap();
        assert_eq!(of_vm, format!("belongs to VM {vm}"));
        assert!(reason(&format!("zones/{image}")).unwrap().contains("image"));
        assert!(reason(&format!("zones/x/{vm}")).is_some());
    }
}
