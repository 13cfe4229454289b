//! How datasets are made.

use muster_shared::error_chain::Chain;
use muster_shared::wire::Code;

use super::super::arguments::{for_library, options, words};
use super::super::error::About;
use super::super::helper::Call;
use super::super::{Dataset, Kind, Properties, Snapshot, Wanted, Zfs as _, patiently};
use super::CommandZfs;
use crate::drivers::DriverError;

/// What a clone's own volume is given; `zfs clone` takes neither. In this order: `zfs` sets aside no more
/// than a volume has.
const OF_VOLUMES: [&str; 2] = ["volsize", "refreservation"];

impl CommandZfs {
    pub(super) async fn make(
        &self,
        dataset: &Dataset,
        kind: Kind,
        properties: &Properties,
    ) -> Result<(), DriverError> {
        let mut arguments = vec!["create".to_owned()];
        match kind {
            Kind::Filesystem => {
                if let Some((texts, numbers)) = for_library(properties) {
                    let dataset_name = dataset.to_string();
                    let call = Call::Create { dataset: dataset_name, properties: texts, numbers };
                    if let Some(made) = self.atomic(call, About::Making).await {
                        made?;
                        return match properties.get("canmount").map(String::as_str) {
                            Some("off") => Ok(()),
                            _ => self.mount(dataset).await,
                        };
                    }
                }
            }
            Kind::Volume { size_bytes, sparse } => {
                arguments.extend(sparse.then(|| "-s".to_owned()));
                arguments.extend(["-V".to_owned(), size_bytes.to_string()]);
            }
        }
        arguments.extend(options(properties));
        arguments.push(dataset.to_string());
        self.change("create", &words(&arguments)).await
    }

    pub(super) async fn make_clone(
        &self,
        from: &Snapshot,
        to: &Dataset,
        properties: &Properties,
    ) -> Result<(), DriverError> {
        if let Some((texts, numbers)) = for_library(properties) {
            let sets_aside = !numbers.is_empty();
            let names = (from.to_string(), to.to_string());
            let call = Call::Clone { from: names.0, to: names.1, properties: texts, numbers };
            match self.atomic(call, About::Making).await {
                Some(Err(DriverError::Refused { code: Code::NoSpace, message, source }))
                    if sets_aside =>
                {
                    self.drop_half_made(from, to).await;
                    return Err(DriverError::Refused { code: Code::NoSpace, message, source });
                }
                Some(made) => return made,
                None => {}
            }
        }
        let mut properties = properties.clone();
        let later = OF_VOLUMES.map(|name| properties.remove_entry(name));
        let mut arguments = vec!["clone".to_owned()];
        arguments.extend(options(&properties));
        arguments.extend([from.to_string(), to.to_string()]);
        self.change("clone", &words(&arguments)).await?;
        for property in later.into_iter().flatten() {
            if let Err(error) = self.set(&to.into(), &Properties::from([property])).await {
                self.drop_half_made(from, to).await;
                return Err(error);
            }
        }
        Ok(())
    }

    /// Destroys a clone that is there but could not be given its properties. The kernel does so as well,
    /// but can't as long as the volume's device is just coming into being.
    async fn drop_half_made(&self, from: &Snapshot, to: &Dataset) {
        let dropped = async {
            let found = self.list(&Wanted::of(to, &["origin"])).await?;
            match found.iter().any(|row| row.get("origin") == Some(&from.to_string())) {
                true => patiently(|| self.destroy(to)).await,
                false => Ok(()),
            }
        };
        match dropped.await {
            Ok(()) | Err(DriverError::Refused { code: Code::DatasetNotFound, .. }) => {}
            // Whoever asked is told why it could not be made, not this.
            Err(error) => {
                tracing::warn!(dataset = %to, error = %Chain(&error), "a clone is left half made");
            }
        }
    }
}
