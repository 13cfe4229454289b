//! Packages: sizes of VMs under a name. A VM gets them when it is made and keeps them; what becomes of
//! the package afterwards changes no VM.
//!
//! A package's name is the key of its record, so that no two have one. Of its uuid a second record
//! keeps that, written in the same commit.

mod draft;
mod fill;

use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::package::Package;
use muster_shared::config::nearest;
use muster_shared::ids::VmUuid;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::context::Context;
use super::error::AppError;
use super::expected::Expected;
use super::keys;
use super::records::Records;
use crate::store::{Expect, Held, MAX_PAGE, StoreError};

pub(super) use fill::for_allocator;

const PACKAGES: Records<Package> = Records::under(keys::PACKAGES);
const UUIDS: Records<Named> = Records::under(keys::PACKAGE_UUIDS);
/// Most packages: a list shows all of them.
const MAX_PACKAGES: usize = MAX_PAGE;
/// Most names that are told to whoever names none of them.
const MAX_NAMED: usize = 8;

/// Whose a uuid is.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Named {
    name: String,
    /// What another version keeps in the record.
    #[serde(flatten)]
    unknown: Object,
}

/// The packages; see the module.
#[derive(Debug)]
pub(crate) struct Packages {
    ctx: Arc<Context>,
}

impl Packages {
    pub(super) fn new(ctx: Arc<Context>) -> Self {
        Self { ctx }
    }

    /// All packages, in the order of their names.
    ///
    /// # Errors
    /// [`AppError::Store`].
    pub(crate) async fn list(&self) -> Result<Vec<Package>, AppError> {
        let all = PACKAGES.all(&self.ctx).await?;
        Ok(all.into_iter().map(|(_, held)| held.value).collect())
    }

    /// The package of a name or uuid.
    ///
    /// # Errors
    /// [`AppError::PackageNotFound`], [`AppError::Store`], [`AppError::Corrupt`].
    pub(crate) async fn get(&self, named: &str) -> Result<Held<Package>, AppError> {
        let missing = || AppError::PackageNotFound(named.to_owned());
        // What can be no name is not looked for: a key takes no text of any length.
        let name = match named.parse::<VmUuid>() {
            Ok(uuid) => UUIDS.get(&self.ctx, uuid).await?.ok_or_else(missing)?.value.name,
            Err(_) if draft::is_name(named) => named.to_owned(),
            Err(_) => return Err(missing()),
        };
        PACKAGES.get(&self.ctx, name).await?.ok_or_else(missing)
    }

    /// Makes a package from what a client says.
    ///
    /// # Errors
    /// [`AppError::Invalid`], [`AppError::PackageExists`], [`AppError::Store`].
    pub(crate) async fn create(&self, members: &Object) -> Result<Held<Package>, AppError> {
        let package = draft::new(members, || self.ctx.parts.entropy.uuid())?;
        if PACKAGES.page(&self.ctx, None, MAX_PACKAGES).await?.records.len() >= MAX_PACKAGES {
            let text = format!("there are {MAX_PACKAGES} packages, as many as there may be");
            return Err(AppError::invalid("name", text));
        }
        let named = Named { name: package.name.clone(), unknown: Object::new() };
        let writes = vec![
            PACKAGES.put(&package.name, Expect::Absent, &package),
            UUIDS.put(package.uuid, Expect::Absent, &named),
        ];
        match self.ctx.parts.store.commit(writes).await {
            Ok(revision) => Ok(Held { value: package, revision }),
            Err(StoreError::Conflict { key }) if key == PACKAGES.key(&package.name) => {
                Err(AppError::PackageExists(package.name))
            }
            Err(StoreError::Conflict { .. }) => {
                Err(AppError::PackageExists(package.uuid.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Changes what a client names of a package; `null` takes it away. VMs stay as they are.
    ///
    /// # Errors
    /// [`AppError::PackageNotFound`], [`AppError::Invalid`], [`AppError::Changed`],
    /// [`AppError::Busy`], [`AppError::Store`].
    pub(crate) async fn change(
        &self,
        named: &str,
        members: &Object,
        expected: &Expected,
    ) -> Result<Held<Package>, AppError> {
        let attempt = || async {
            let old = self.get(named).await?;
            expected.check(old.revision)?;
            let value = draft::changed(&old.value, members)?;
            if value == old.value {
                return Ok(old);
            }
            let write = PACKAGES.put(&value.name, Expect::At(old.revision), &value);
            let revision = self.ctx.parts.store.commit(vec![write]).await?;
            Ok(Held { value, revision })
        };
        self.ctx.retry(format!("package {named}"), attempt).await
    }

    /// Deletes a package; existing VMs keep their sizes.
    ///
    /// # Errors
    /// [`AppError::PackageNotFound`], [`AppError::Changed`], [`AppError::Busy`],
    /// [`AppError::Store`].
    pub(crate) async fn delete(&self, named: &str, expected: &Expected) -> Result<(), AppError> {
        let attempt = || async {
            let old = self.get(named).await?;
            expected.check(old.revision)?;
            let writes = vec![
                PACKAGES.delete(&old.value.name, Expect::At(old.revision)),
                UUIDS.delete(old.value.uuid, Expect::Any),
            ];
            self.ctx.parts.store.commit(writes).await?;
            Ok(())
        };
        self.ctx.retry(format!("package {named}"), attempt).await
    }

    /// Gives a VM whose parameters name a package its sizes where they say none themselves. A
    /// package that stands there as an object is the client's own, and is left alone.
    ///
    /// # Errors
    /// [`AppError::Invalid`] when there is no such package; [`AppError::Store`].
    pub(super) async fn complete(&self, vm: &mut Object) -> Result<Option<Package>, AppError> {
        let Some(package) = self.asked_for(vm).await? else { return Ok(None) };
        vm.remove("package");
        fill::fill(vm, &package);
        Ok(Some(package))
    }

    /// As [`Packages::complete`], of what is asked of the allocator, where the VM stands in `vm`.
    /// The package takes the place of its name.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn complete_question(
        &self,
        body: &mut Object,
    ) -> Result<Option<Package>, AppError> {
        let Some(package) = self.asked_for(body).await? else { return Ok(None) };
        if let Some(Value::Object(vm)) = body.get_mut("vm") {
            let mut filled = Object::from(std::mem::take(vm));
            fill::fill(&mut filled, &package);
            *vm = filled.into();
        }
        body.set("package", Object::of(&package));
        Ok(Some(package))
    }

    async fn asked_for(&self, body: &Object) -> Result<Option<Package>, AppError> {
        let Some(named) = body.text("package") else { return Ok(None) };
        match self.get(named).await {
            Ok(held) => Ok(Some(held.value)),
            Err(AppError::PackageNotFound(_)) => {
                let all = self.list().await?;
                let names: Vec<&str> = all.iter().map(|package| package.name.as_str()).collect();
                Err(AppError::invalid("package", no_such(named, &names)))
            }
            Err(other) => Err(other),
        }
    }
}

/// That there is no such package, and which it may have been.
fn no_such(named: &str, names: &[&str]) -> String {
    let hint = match (nearest(named, names.iter().copied()), names) {
        (Some(meant), _) => format!("; did you mean {meant}?"),
        (None, []) => "; there are none".to_owned(),
        (None, names) if names.len() <= MAX_NAMED => format!("; there are {}", names.join(", ")),
        (None, _) => String::new(),
    };
    format!("there is no such package{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_no_package_is_told_which_there_are() {
        let names = ["large", "small"];
        assert_eq!(no_such("smal", &names), "there is no such package; did you mean small?");
        let far = no_such("0123456789", &names);
        assert_eq!(far, "there is no such package; there are large, small");
        assert_eq!(no_such("x", &[]), "there is no such package; there are none");
    }
}
