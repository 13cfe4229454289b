//! `muster server update`, `delete`, `pause`, `resume`, `factory-reset` and `nics`.

use clap::ValueEnum;
use muster_shared::api::job::JobStarted;
use muster_shared::api::server::{Server, ServerStatus};
use serde_json::{Map, Value, json};

use crate::answer::Answer;
use crate::client::Client;
use crate::confirm::meant;
use crate::output::Output;
use crate::server::JobWait;
use crate::vm_create::pair;
use crate::{CliError, pick};

pub(crate) const NODE: &str = "Uuid, its beginning, or hostname";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  muster server update cn1 --reserved true         takes no new VMs
  muster server update cn1 --comments 'fan is loud' --rack r12
  muster server update cn1 --trait ssd=true --remove-trait old")]
pub(crate) struct Update {
    #[arg(help = NODE)]
    server: String,
    /// Whether it is closed to new VMs.
    #[arg(long, value_name = "BOOL")]
    reserved: Option<bool>,
    /// Whether it gets VMs only when no other server has room.
    #[arg(long, value_name = "BOOL")]
    reservoir: Option<bool>,
    /// Share of its memory to keep free, 0 to 1.
    #[arg(long, value_name = "RATIO")]
    reservation_ratio: Option<f64>,
    /// A note for people.
    #[arg(long, value_name = "TEXT")]
    comments: Option<String>,
    /// The rack it is in.
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    /// Time of its next planned reboot (ISO 8601); empty clears it.
    #[arg(long, value_name = "TIME")]
    next_reboot: Option<String>,
    /// Sets a trait that images and packages can require; may be repeated.
    #[arg(long = "trait", value_name = "KEY=VALUE", value_parser = pair)]
    traits: Vec<(String, String)>,
    /// Removes a trait; may be repeated.
    #[arg(long = "remove-trait", value_name = "KEY")]
    remove_traits: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Delete {
    #[arg(help = NODE)]
    server: String,
    /// Skips the confirmation; without a terminal there is none.
    #[arg(long, short)]
    yes: bool,
    /// Deletes a connected server too; it comes back when its agent registers again.
    #[arg(long)]
    force: bool,
    /// Succeeds even if the server does not exist.
    #[arg(long)]
    if_exists: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct FactoryReset {
    #[arg(help = NODE)]
    server: String,
    /// Skips the confirmation; without a terminal there is none.
    #[arg(long, short)]
    yes: bool,
    #[command(flatten)]
    wait: JobWait,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  muster server nics cn1 update 00:25:90:c0:ff:ee=admin,external")]
pub(crate) struct Nics {
    #[arg(help = NODE)]
    server: String,
    /// What to do with the interfaces' current tags.
    action: NicAction,
    /// An interface and its tags; may be repeated.
    #[arg(required = true, value_name = "MAC=TAG[,TAG…]", value_parser = pair)]
    nics: Vec<(String, String)>,
    #[command(flatten)]
    wait: JobWait,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum NicAction {
    /// They stay, and the named ones are added.
    Update,
    /// The named ones take their place.
    Replace,
    /// The named ones are taken away.
    Delete,
}

impl NicAction {
    fn word(self) -> &'static str {
        match self {
            Self::Update => "update",
            Self::Replace => "replace",
            Self::Delete => "delete",
        }
    }
}

pub(crate) async fn update(client: &Client, output: &Output, args: Update) -> Result<(), CliError> {
    let server = pick::server(client, &args.server).await?;
    let change = change(&args, &server);
    if change.is_empty() {
        let text = "nothing to change; see `muster server update --help`";
        return Err(CliError::Usage(text.to_owned()));
    }
    let path = format!("/servers/{}", server.record.uuid);
    let names: Vec<&str> = change.keys().map(String::as_str).collect();
    let sentence = format!("update {}: {} changed", server.record.hostname, names.join(", "));
    client.post::<()>(&path, &Value::Object(change.clone())).await?;
    output.done(&sentence, &client.get(&path, &[]).await?)
}

/// The members to send. Traits are sent whole, so those that stay are taken over.
fn change(args: &Update, server: &Server) -> Map<String, Value> {
    let mut change = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        change.extend(value.map(|value| (name.to_owned(), value)));
    };
    set("reserved", args.reserved.map(Value::from));
    set("reservoir", args.reservoir.map(Value::from));
    set("reservation_ratio", args.reservation_ratio.map(Value::from));
    set("comments", args.comments.clone().map(Value::from));
    set("rack_identifier", args.rack.clone().map(Value::from));
    set("next_reboot", args.next_reboot.clone().map(Value::from));
    if !args.traits.is_empty() || !args.remove_traits.is_empty() {
        let before = server.record.traits.iter();
        let mut traits: Map<String, Value> =
            before.map(|(name, value)| (name.clone(), value.clone())).collect();
        traits.retain(|name, _| !args.remove_traits.contains(name));
        for (name, value) in &args.traits {
            let value = match value.as_str() {
                "true" => json!(true),
                "false" => json!(false),
                text => json!(text),
            };
            traits.insert(name.clone(), value);
        }
        set("traits", Some(Value::Object(traits)));
    }
    change
}

pub(crate) async fn delete(client: &Client, output: &Output, args: Delete) -> Result<(), CliError> {
    let server = match pick::server(client, &args.server).await {
        Err(CliError::NotFound(_)) if args.if_exists => {
            return output.done("nothing to delete", &json!({}));
        }
        found => found?,
    };
    let (name, uuid) = (&server.record.hostname, server.record.uuid);
    if server.status == ServerStatus::Running && !args.force {
        return Err(CliError::Usage(format!(
            "{name} is heard, and would be back as soon as its agent registers again: stop \
             muster-agent there first, or say --force"
        )));
    }
    let vms = server.vms.as_ref().map_or(0, std::collections::BTreeMap::len);
    let question = format!(
        "Delete the records of {name} ({uuid}) and its {vms} VMs? Nothing changes on the node."
    );
    meant(&question, args.yes)?;
    client.delete::<()>(&format!("/servers/{uuid}")).await?;
    output.done(&format!("delete {name} ({uuid}): done"), &json!({ "uuid": uuid }))
}

/// Has the node's agent take no further work, or go on.
pub(crate) async fn pause(
    client: &Client,
    output: &Output,
    name: &str,
    resume: bool,
) -> Result<(), CliError> {
    let server = pick::server(client, name).await?;
    let (uuid, name) = (server.record.uuid, &server.record.hostname);
    let (verb, state) = if resume {
        ("resume", "accepts work again")
    } else {
        ("pause", "accepts no new work; running tasks continue")
    };
    client.post::<()>(&format!("/servers/{uuid}/cn-agent/{verb}"), &json!({})).await?;
    output.done(&format!("{verb} {name}: {state}"), &json!({ "uuid": uuid }))
}

pub(crate) async fn factory_reset(
    client: &Client,
    output: &Output,
    args: FactoryReset,
) -> Result<(), CliError> {
    let server = pick::server(client, &args.server).await?;
    let (uuid, name) = (server.record.uuid, &server.record.hostname);
    meant(&format!("Wipe all disks of {name} ({uuid})? This cannot be undone."), args.yes)?;
    let path = format!("/servers/{uuid}/factory-reset");
    let started: Answer<JobStarted> = client.put(&path, &json!({})).await?;
    args.wait.follow(client, output, Some(started)).await
}

pub(crate) async fn nics(client: &Client, output: &Output, args: Nics) -> Result<(), CliError> {
    let server = pick::server(client, &args.server).await?;
    let nic = |(mac, tags): &(String, String)| {
        let tags: Vec<&str> = tags.split(',').filter(|tag| !tag.is_empty()).collect();
        json!({ "mac": mac, "nic_tags_provided": tags })
    };
    let nics: Vec<Value> = args.nics.iter().map(nic).collect();
    let body = json!({ "action": args.action.word(), "nics": nics });
    let path = format!("/servers/{}/nics", server.record.uuid);
    let started: Answer<JobStarted> = client.put(&path, &body).await?;
    args.wait.follow(client, output, Some(started)).await
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Update,
    }

    #[test]
    fn traits_that_are_not_named_stay() {
        let server: Server = serde_json::from_value(json!({
            "uuid": uuid::Uuid::nil(), "hostname": "cn1", "status": "running",
            "traits": { "ssd": true, "old": "x" },
        }))
        .unwrap();
        let words = |words: &[&str]| Line::parse_from([&["update", "cn1"], words].concat()).args;
        let args = words(&["--trait", "gpu=a100", "--remove-trait", "old", "--reserved", "true"]);
        let want = json!({ "reserved": true, "traits": { "ssd": true, "gpu": "a100" } });
        assert_eq!(Value::Object(change(&args, &server)), want);
        assert!(change(&words(&[]), &server).is_empty());
    }
}
