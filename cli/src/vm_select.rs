//! Which machines a command is for: those that are named, or all that fit.

use crate::client::Client;
use crate::vm::Target;
use crate::vm_create::pair;
use crate::{CliError, pick};

/// Names, or what the machines have in common.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Select {
    /// Uuids, their beginnings, or aliases.
    #[arg(value_name = "VM", required_unless_present_any = ["all", "tags", "owner", "server"],
        conflicts_with_all = ["all", "tags", "owner", "server"])]
    vms: Vec<String>,

    /// All VMs.
    #[arg(long, help_heading = "Selectors")]
    all: bool,

    /// All VMs with this tag; may be repeated.
    #[arg(long = "tag", id = "tags", value_name = "KEY=VALUE", value_parser = pair,
        help_heading = "Selectors")]
    tags: Vec<(String, String)>,

    /// All VMs of this owner.
    #[arg(long, value_name = "UUID", help_heading = "Selectors")]
    owner: Option<uuid::Uuid>,

    /// All VMs on this server.
    #[arg(long, value_name = "SERVER", help_heading = "Selectors")]
    server: Option<String>,
}

impl Select {
    /// Whether they are not named one by one.
    pub(crate) fn by_what_they_have(&self) -> bool {
        self.vms.is_empty()
    }

    /// Finds all of them; nothing is to be begun unless each name is found, or, with `if_exists`,
    /// names of none are left out.
    pub(crate) async fn find(
        &self,
        client: &Client,
        if_exists: bool,
    ) -> Result<Vec<Target>, CliError> {
        if !self.by_what_they_have() {
            let find = async |name: &str| Target::find(client, name).await;
            return pick::each(&self.vms, if_exists, |target| target.uuid, find).await;
        }
        let mut query: Vec<(String, String)> =
            self.tags.iter().map(|(key, value)| (format!("tag.{key}"), value.clone())).collect();
        query.extend(self.owner.map(|owner| ("owner_uuid".to_owned(), owner.to_string())));
        if let Some(name) = &self.server {
            let server = pick::server(client, name).await?.record.uuid;
            query.push(("server_uuid".to_owned(), server.to_string()));
        }
        let query: Vec<(&str, String)> =
            query.iter().map(|(key, value)| (key.as_str(), value.clone())).collect();
        let vms = client.get_all("/vms", &query, pick::vm_uuid).await?;
        Ok(vms.iter().map(|vm| Target::of(vm)).collect())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        select: Select,
    }

    #[test]
    fn machines_are_named_or_have_something_in_common() {
        let select = |words: &[&str]| {
            Line::try_parse_from([&["stop"], words].concat()).map(|line| line.select)
        };
        assert!(!select(&["web1", "web2"]).unwrap().by_what_they_have());
        for words in [&["--all"][..], &["--tag", "a=b", "--tag", "c=d"], &["--server", "cn1"]] {
            assert!(select(words).unwrap().by_what_they_have(), "{words:?}");
        }
        for bad in [&[][..], &["web1", "--all"], &["web1", "--tag", "a=b"], &["--owner", "me"]] {
            assert!(select(bad).is_err(), "{bad:?}");
        }
    }
}
