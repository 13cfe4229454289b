//! `muster vm edit`: a machine's file in an editor, and what was changed in it as an update.

use std::path::Path;

use muster_shared::api::task::TaskStarted;
use muster_shared::vm::{CHANGES, LASTING, Reboot, SpecFile, VmChange};
use serde_json::{Map, Value, json};
use similar::TextDiff;

use crate::answer::Answer;
use crate::cell::safe_lines;
use crate::client::Client;
use crate::output::{Output, warn};
use crate::spec_file::{self, Named};
use crate::vm::Target;
use crate::wait::WaitArgs;
use crate::{CliError, confirm, vm_export_spec, vm_update};

const AFTER_HELP: &str = "\
The file is that of `muster vm export-spec`; image, disks, networks and brand are shown and stay
as they are. The editor is that of VISUAL, else of EDITOR, else vi. Examples:
  muster vm edit web1
  EDITOR='code --wait' muster vm edit web1 --reboot";

/// How often a change is offered to a machine that does something meanwhile.
const TRIES: usize = 5;
/// The code of a refusal because the record has another version.
const CHANGED: &str = "PreconditionFailed";

/// Above what is edited.
const HEADING: &str = "\
# Save and leave the editor to see what changes; without a change nothing is done.
# The fields are those of `muster vm create --file`.
";

#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[arg(help = crate::vm::MACHINE)]
    vm: String,

    /// Restarts the guest if the change needs it to take effect.
    #[arg(long)]
    reboot: bool,

    /// Skips the confirmation.
    #[arg(long, short)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let target = Target::find(client, &args.vm).await?;
    let images = vm_export_spec::image_names(client).await?;
    let whole: Value = client.get(&target.path(""), &[]).await?;
    let old = vm_export_spec::spec_of(&whole, &images);
    let before = format!("{HEADING}{}", vm_export_spec::yaml(&old)?);
    let new = edited(&before)?.unwrap_or_else(|| old.clone());
    let Some(mut change) = changed(&old, &new)? else {
        return output.done("nothing was changed", &json!({}));
    };
    let (shown, wanted) = (vm_export_spec::yaml(&old)?, vm_export_spec::yaml(&new)?);
    warn(safe_lines(&difference(&shown, &wanted)).trim_end());
    confirm::meant(&format!("Apply this to {}?", target.shown()), args.yes)?;
    if let Some(alias) = change.get("alias").and_then(Value::as_str) {
        vm_update::refuse_second(client, &target, alias).await?;
    }
    let reboot = if args.reboot { Reboot::Always } else { Reboot::Never };
    change = VmChange { reboot: Some(reboot), ..VmChange::default() }.over(change);
    let still = |whole: &Value| vm_export_spec::spec_of(whole, &images) == old;
    let answer = apply(client, &target, &Value::Object(change), still).await?;
    let title = format!("update {}", target.shown());
    target.follow(client, output, args.wait, &title, &answer).await
}

/// Applies a change if the machine still is what was edited: what somebody else changed meanwhile is
/// not overwritten.
async fn apply(
    client: &Client,
    target: &Target,
    change: &Value,
    still: impl Fn(&Value) -> bool,
) -> Result<Answer<TaskStarted>, CliError> {
    for _ in 0..TRIES {
        // Before the machine itself: a version that is too old is refused.
        let version = client.version(&format!("/vms/{}", target.uuid)).await?;
        if !still(&client.get(&target.path(""), &[]).await?) {
            break;
        }
        match client.post_to(version, &target.path("/update"), change).await {
            // It also changes when the machine itself does something.
            Err(CliError::Refused { code, .. }) if code == CHANGED => {}
            answer => return answer,
        }
    }
    let text =
        format!("{} was changed meanwhile; nothing was applied, edit it again", target.shown());
    Err(CliError::Ended(text))
}

fn difference(before: &str, after: &str) -> String {
    TextDiff::from_lines(before, after).unified_diff().context_radius(2).to_string()
}

/// What an editor made of a text; `None` if nothing. A file that can't be used stays where it is,
/// with the work that went into it.
fn edited(text: &str) -> Result<Option<SpecFile>, CliError> {
    let failed = |source| CliError::Terminal { action: "write a file to edit", source };
    let file = tempfile::Builder::new().prefix("muster-").suffix(".yaml").tempfile();
    let file = file.map_err(failed)?;
    std::fs::write(file.path(), text).map_err(failed)?;
    open(file.path())?;
    if spec_file::text(file.path())? == text {
        return Ok(None);
    }
    spec_file::read(file.path()).map(Some).or_else(|error| {
        let kept = file.keep().map_err(|error| failed(error.error))?.1;
        warn(&format!("your edits are kept in {}", kept.display()));
        Err(error)
    })
}

/// Runs the operator's editor to its end.
fn open(path: &Path) -> Result<(), CliError> {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    // By a shell, as it may have arguments.
    #[expect(clippy::disallowed_methods, reason = "the operator's own editor, on their terminal")]
    let mut command = std::process::Command::new("/bin/sh");
    command.arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path);
    let failed = |source| CliError::Terminal { action: "start an editor", source };
    let status = command.status().map_err(failed)?;
    if status.success() {
        return Ok(());
    }
    Err(CliError::Ended(format!("{editor} exited with {status}, nothing was changed")))
}

/// The update that makes one of the other; `None` if they are the same.
fn changed(old: &SpecFile, new: &SpecFile) -> Result<Option<Map<String, Value>>, CliError> {
    for (field, same, instead) in [
        ("image", old.image == new.image, "use `muster vm reprovision`"),
        ("cdrom", old.cdrom == new.cdrom, "CDs cannot be exchanged"),
        (
            "package",
            old.package == new.package,
            "packages only size new VMs; change the sizes themselves",
        ),
        (
            "disks",
            old.disks == new.disks,
            "grow a disk with update_disks in `muster vm update --file`",
        ),
        (
            "networks",
            old.networks == new.networks,
            "use add_nics, update_nics and remove_nics in `muster vm update --file`",
        ),
        ("brand", old.brand == new.brand, "the type of a VM is fixed"),
    ] {
        if !same {
            return Err(CliError::Usage(format!("{field} cannot be edited: {instead}")));
        }
    }
    // Both as a create would have them, where defaults are filled in.
    let members = |spec: &SpecFile| spec_file::payload(spec, &Named::default()).into_members();
    let (old, new) = (members(old), members(new));
    let none = json!({});
    let mut change = Map::new();
    for name in old.keys().chain(new.keys()) {
        let (before, after) = (old.get(name), new.get(name));
        if before == after || change.contains_key(name) {
            continue;
        }
        let set = format!("set_{name}");
        if CHANGES.iter().any(|change| change.name == set) {
            let (before, after) = (before.unwrap_or(&none), after.unwrap_or(&none));
            members_changed(name, before, after, &mut change);
        } else if LASTING.iter().any(|property| property.name == name) {
            change.insert(name.clone(), after.cloned().unwrap_or_else(|| absent(name)));
        } else {
            let text = format!("{name} cannot be changed after creation");
            return Err(CliError::Usage(text));
        }
    }
    Ok((!change.is_empty()).then_some(change))
}

/// What stands for a property that a file does not name any more.
fn absent(name: &str) -> Value {
    // This one is on unless somebody says otherwise.
    if name == "autoboot" { json!(true) } else { Value::Null }
}

/// Which members of an object are set, and which removed.
fn members_changed(name: &str, before: &Value, after: &Value, change: &mut Map<String, Value>) {
    let members = |of: &Value| of.as_object().cloned().unwrap_or_default();
    let (before, after) = (members(before), members(after));
    let gone: Vec<&String> = before.keys().filter(|key| !after.contains_key(*key)).collect();
    if !gone.is_empty() {
        change.insert(format!("remove_{name}"), json!(gone));
    }
    let mut set = after.clone();
    set.retain(|key, value| before.get(key) != Some(value));
    if !set.is_empty() {
        change.insert(format!("set_{name}"), Value::Object(set));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(file: Value) -> SpecFile {
        serde_json::from_value(file).unwrap()
    }

    #[track_caller]
    fn check(old: Value, new: Value, expected: &Value) {
        let change = changed(&spec(old), &spec(new)).unwrap();
        assert_eq!(change.map_or(Value::Null, Value::Object), *expected);
    }

    #[test]
    fn what_was_edited_becomes_an_update() {
        check(json!({ "name": "a" }), json!({ "name": "a" }), &Value::Null);
        check(json!({ "name": "a" }), json!({ "name": "b" }), &json!({ "alias": "b" }));
        let wanted = &json!({ "vcpus": 2, "cpu_cap": 200 });
        check(json!({}), json!({ "vcpus": 2 }), wanted);
        check(json!({ "ram": "1GiB" }), json!({}), &json!({ "ram": 256 }));
        check(json!({ "autostart": false }), json!({}), &json!({ "autoboot": true }));
        let shares = |n: u64| json!({ "properties": { "cpu_shares": n } });
        check(shares(1), shares(2), &json!({ "cpu_shares": 2 }));
        check(shares(1), json!({}), &json!({ "cpu_shares": null }));
        let uefi = json!({ "firmware": "uefi" });
        check(uefi, json!({}), &json!({ "bootrom": null }));
    }

    #[test]
    fn members_of_objects_are_set_and_removed() {
        let old = json!({
            "tags": { "a": 1, "b": 2 }, "ssh_keys": ["k"], "publish": ["2222:22"], "restart": "always",
            "properties": { "internal_metadata": { "x": "y" } },
        });
        let new = json!({ "tags": { "a": 1, "c": 3 }, "user_script": "s", "restart": "never",
            "properties": { "internal_metadata": { "x": "z" } } });
        let expected = json!({
            "remove_tags": ["b"], "set_tags": { "c": 3 },
            "remove_customer_metadata": ["root_authorized_keys"],
            "set_customer_metadata": { "user-script": "s" },
            "remove_internal_metadata": ["muster:hostfwd"],
            "set_internal_metadata": { "x": "z", "muster:restart_policy": "never" },
        });
        check(old, new, &expected);
    }

    #[test]
    fn what_stays_as_it_is_is_refused_with_what_helps() {
        for (field, value, instead) in [
            ("image", json!("b"), "reprovision"),
            ("cdrom", json!("b"), "exchanged"),
            ("disks", json!([{ "size": "9GiB" }]), "update_disks"),
            ("networks", json!([{ "name": "b" }]), "add_nics"),
            ("brand", json!("bhyve"), "fixed"),
            ("properties", json!({ "zpool": "b" }), "after creation"),
        ] {
            let refused = changed(&spec(json!({})), &spec(json!({ field: value }))).unwrap_err();
            assert!(refused.to_string().contains(instead), "{field}: {refused}");
        }
    }

    #[test]
    fn a_difference_shows_the_lines() {
        let shown = difference("name: a\nram: 1GiB\n", "name: b\nram: 1GiB\n");
        assert!(shown.contains("-name: a\n+name: b\n ram: 1GiB"), "{shown}");
    }
}
