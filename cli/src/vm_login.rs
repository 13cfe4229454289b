//! `muster vm set-login`: passwords and keys of a machine's users.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client::Client;
use crate::output::Output;
use crate::vm::{MACHINE, Target};
use crate::{CliError, spec_file};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Needs the guest agent in the guest (package qemu-guest-agent). For keys and passwords from the first start
on use `muster vm create --ssh-key`. Examples:
  muster vm set-login web1 --user debian --ssh-key ~/.ssh/id_ed25519.pub
  echo 'new password' | muster vm set-login web1 --user root --password-file -")]
pub(crate) struct Args {
    #[arg(help = MACHINE)]
    vm: String,

    /// User of the guest.
    #[arg(long)]
    user: String,

    /// File whose first line is the new password, `-` for stdin.
    #[arg(long, value_name = "FILE", required_unless_present = "ssh_keys")]
    password_file: Option<PathBuf>,

    /// File with public keys that the user may log in with from now on; may be repeated.
    #[arg(long = "ssh-key", value_name = "FILE")]
    ssh_keys: Vec<PathBuf>,

    /// Removes the user's other keys.
    #[arg(long, requires = "ssh_keys")]
    replace_keys: bool,
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    let mut body = json!({ "user": args.user, "replace_keys": args.replace_keys });
    if let Some(path) = &args.password_file {
        let text = spec_file::text(path)?;
        body["password"] = json!(text.lines().next().unwrap_or_default());
    }
    let mut keys: Vec<String> = Vec::new();
    for path in &args.ssh_keys {
        keys.extend(self::keys(&spec_file::text(path)?));
    }
    if !args.ssh_keys.is_empty() {
        body["ssh_keys"] = json!(keys);
    }
    let target = Target::find(client, &args.vm).await?;
    client.post::<()>(&target.path("/login"), &body).await?;
    let sentence = format!("{}: the login of {} is set", target.shown(), args.user);
    output.done(
        &sentence,
        &json!({ "vm_uuid": target.uuid, "user": args.user, "done": Value::Bool(true) }),
    )
}

/// One a line, as in `authorized_keys`.
fn keys(text: &str) -> impl Iterator<Item = String> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_lines() {
        let read: Vec<String> = keys("# me\nssh-ed25519 A a\n\n ssh-rsa B b \n").collect();
        assert_eq!(read, ["ssh-ed25519 A a", "ssh-rsa B b"]);
    }
}
