//! `muster boot`: what servers boot, and with which parameters.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Map, Value, json};

use crate::client::Client;
use crate::output::Output;
use crate::table::ListArgs;
use crate::{CliError, boot_get, pick};

#[derive(Debug, Subcommand)]
pub(crate) enum Args {
    /// Shows boot parameters.
    Get {
        /// Uuid, its beginning, or hostname; `default` for the parameters of new servers.
        server: String,
    },
    /// Changes boot parameters; anything not mentioned stays.
    Set {
        /// Uuid, its beginning, or hostname; `default` for the parameters of new servers.
        server: String,
        /// Platform of the next boot, see `muster boot platforms`.
        #[arg(long)]
        platform: Option<String>,
        /// Kernel argument `NAME=VALUE`, or `NAME=` to remove it; may be repeated.
        #[arg(long = "arg", value_name = "NAME=VALUE")]
        args: Vec<String>,
        /// Kernel flag `NAME=VALUE`, or `NAME=` to remove it; may be repeated.
        #[arg(long = "flag", value_name = "NAME=VALUE")]
        flags: Vec<String>,
        /// Console of the next boot, e.g. `serial` or `vga`.
        #[arg(long, value_name = "CONSOLE")]
        default_console: Option<String>,
        /// Serial device of the next boot, e.g. `ttyb`.
        #[arg(long)]
        serial: Option<String>,
        /// JSON file with the change, in the form of `POST /boot/:server_uuid`.
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
        /// Replaces all parameters instead of changing some.
        #[arg(long)]
        replace: bool,
    },
    /// Lists the platforms that servers can boot.
    Platforms {
        #[command(flatten)]
        list: ListArgs,
    },
}

pub(crate) async fn run(client: &Client, output: &Output, args: Args) -> Result<(), CliError> {
    match args {
        Args::Get { server } => {
            let (path, name) = path(client, &server).await?;
            boot_get::params(client, output, &path, name.as_deref()).await
        }
        Args::Set { server, platform, args, flags, default_console, serial, file, replace } => {
            let mut body = match file {
                Some(path) => from_file(&path)?,
                None => Map::new(),
            };
            let texts =
                [("platform", platform), ("default_console", default_console), ("serial", serial)];
            for (name, value) in texts {
                body.extend(value.map(|value| (name.to_owned(), json!(value))));
            }
            for (name, pairs) in [("kernel_args", args), ("kernel_flags", flags)] {
                if !pairs.is_empty() {
                    body.insert(name.to_owned(), Value::Object(members(&pairs)?));
                }
            }
            if body.is_empty() && !replace {
                let text = "nothing to change; see `muster boot set --help`";
                return Err(CliError::Usage(text.to_owned()));
            }
            let (path, _) = path(client, &server).await?;
            let body = Value::Object(body);
            if replace {
                client.put::<()>(&path, &body).await?;
            } else {
                client.post::<()>(&path, &body).await?;
            }
            let now = client.get(&path, &[]).await?;
            output.done(&format!("boot parameters of {server} changed"), &now)
        }
        Args::Platforms { list } => boot_get::platforms(client, output, &list).await,
    }
}

/// The path of a server's parameters and what the server is called; nobody has the default ones.
async fn path(client: &Client, server: &str) -> Result<(String, Option<String>), CliError> {
    if server == "default" {
        return Ok(("/boot/default".to_owned(), None));
    }
    let server = pick::server(client, server).await?;
    Ok((format!("/boot/{}", server.record.uuid), Some(server.record.hostname.clone())))
}

fn from_file(path: &Path) -> Result<Map<String, Value>, CliError> {
    let text = std::fs::read_to_string(path);
    let text =
        text.map_err(|source| CliError::File { action: "read", path: path.to_owned(), source })?;
    serde_json::from_str(&text).map_err(|error| {
        CliError::Usage(format!("{} is not a JSON object: {error}", path.display()))
    })
}

fn members(pairs: &[String]) -> Result<Map<String, Value>, CliError> {
    let member = |pair: &String| {
        let (name, value) = pair
            .split_once('=')
            .filter(|(name, _)| !name.is_empty())
            .ok_or_else(|| CliError::Usage(format!("{pair:?}: expected NAME=VALUE")))?;
        let value = match value {
            "" => Value::Null,
            "true" => json!(true),
            "false" => json!(false),
            text => json!(text),
        };
        Ok((name.to_owned(), value))
    };
    pairs.iter().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_become_members() {
        let pairs = ["a=1", "b=", "c=true", "d=x=y"].map(str::to_owned);
        let expected = json!({ "a": "1", "b": null, "c": true, "d": "x=y" });
        assert_eq!(Value::Object(members(&pairs).unwrap()), expected);
        for bad in ["a", "=x"] {
            assert_eq!(members(&[bad.to_owned()]).unwrap_err().exit_code(), 2);
        }
    }
}
