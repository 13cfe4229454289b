//! Packages: sizes of VMs under a name. A VM gets them when it is made and keeps them; what becomes of
//! the package afterwards changes no VM.
//!
//! A package's name is the key of its record, so that no two have one. Of its uuid a second record
//! keeps that, written in the same commit.

mod draft;

use std::sync::Arc;

use muster_shared::api::Object;
use muster_shared::api::package::Package;
use muster_shared::ids::VmUuid;
use serde::{Deserialize, Serialize};

use super::context::Context;
use super::error::AppError;
use super::expected::Expected;
use super::keys;
use super::records::Records;
use crate::store::{Expect, Held, MAX_PAGE, StoreError};

const PACKAGES: Records<Package> = Records::under(keys::PACKAGES);
const UUIDS: Records<Named> = Records::under(keys::PACKAGE_UUIDS);
/// Most packages: a list shows all of them.
const MAX_PACKAGES: usize = MAX_PAGE;

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

    /// Removes a package; VMs made from it stay as they are.
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
}
