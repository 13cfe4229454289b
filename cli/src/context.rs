//! `muster context`: coordinators by name, kept in a file of the person who runs the command.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cell::{Cell, Tone};
use crate::client::DEFAULT_URL;
use crate::output::{Item, Output};
use crate::table::{Column, ListArgs};
use crate::{CliError, Connection};

/// Largest file that is read, bytes.
const MAX_BYTES: u64 = 1024 * 1024;

#[derive(Debug, Subcommand)]
#[command(after_help = "\
A context is a coordinator's address with the certificates to use. Contexts are kept in
$XDG_CONFIG_HOME/muster/contexts.toml, or ~/.config/muster/contexts.toml. --url and MUSTER_URL
override --context and MUSTER_CONTEXT, which override the current one. Examples:
  muster context set prod --url https://muster.example:8480 --ca ca.pem --cert me.pem --key me.key
  muster context use prod
  muster --context lab vm list")]
pub(crate) enum Args {
    /// Lists the contexts.
    List {
        #[command(flatten)]
        list: ListArgs,
    },
    /// Switches to a context.
    Use {
        /// Name of the context; `-` for none.
        name: String,
    },
    /// Creates or changes a context from the --url, --ca, --cert and --key given.
    Set {
        /// Its name.
        name: String,
    },
    /// Removes a context.
    Remove {
        /// Its name.
        name: String,
    },
}

/// A coordinator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// Its address.
    pub(crate) url: String,
    /// CA certificate to check it against.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate to show.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cert: Option<PathBuf>,
    /// Key of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
}

/// The file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    /// The one in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// Fills what the arguments leave open from a context.
///
/// # Errors
/// [`CliError::NotFound`] if there is none of that name, [`CliError::Usage`] for a bad file.
pub(crate) fn apply(connection: &mut Connection) -> Result<(), CliError> {
    let named = connection.context.clone();
    // An address that is given means that coordinator, and shows it nothing of another one's.
    if named.is_none() && connection.url.is_some() {
        return Ok(());
    }
    let Some(path) = path() else { return Ok(()) };
    let all = read(&path)?;
    let Some(name) = named.or(all.current.clone()) else { return Ok(()) };
    let context = all.contexts.get(&name).cloned().ok_or_else(|| missing(&name, &all))?;
    connection.url.get_or_insert(context.url);
    connection.ca = connection.ca.take().or(context.ca);
    if connection.cert.is_none() && connection.key.is_none() {
        (connection.cert, connection.key) = (context.cert, context.key);
    }
    Ok(())
}

pub(crate) async fn run(
    connection: &Connection,
    output: &Output,
    args: Args,
) -> Result<(), CliError> {
    let path = path().ok_or_else(|| {
        CliError::Usage("contexts have nowhere to be kept: HOME is not set".to_owned())
    })?;
    let mut all = read(&path)?;
    match args {
        Args::List { list } => {
            let rows: Vec<Row> = all.contexts.iter().map(|pair| row(pair, &all)).collect();
            output.list(&list, async || Ok(rows.clone())).await
        }
        Args::Use { name } => {
            all.current = match name.as_str() {
                "-" => None,
                name if all.contexts.contains_key(name) => Some(name.to_owned()),
                name => return Err(missing(name, &all)),
            };
            write(&path, &all)?;
            let sentence = match &all.current {
                Some(name) => format!("switched to context {name}"),
                None => "no context is current any more".to_owned(),
            };
            output.done(&sentence, &json!({ "current": all.current }))
        }
        Args::Set { name } => {
            if name.is_empty() || name == "-" || name.chars().any(char::is_control) {
                return Err(CliError::Usage(format!("{name:?} is not a valid context name")));
            }
            let before = all.contexts.get(&name).cloned().unwrap_or_default();
            let context = changed(before, connection)?;
            let sentence = format!("context {name}: {}", context.url);
            let object = json!(context);
            all.contexts.insert(name.clone(), context);
            // The only one there is, is meant.
            if all.contexts.len() == 1 {
                all.current = Some(name);
            }
            write(&path, &all)?;
            output.done(&sentence, &object)
        }
        Args::Remove { name } => {
            if all.contexts.remove(&name).is_none() {
                return Err(missing(&name, &all));
            }
            all.current = all.current.take().filter(|current| *current != name);
            write(&path, &all)?;
            output.done(&format!("context {name} removed"), &json!({ "name": name }))
        }
    }
}

/// The context with what the arguments say of it; files by their whole path.
fn changed(before: Context, connection: &Connection) -> Result<Context, CliError> {
    let url = connection.url.clone().or(Some(before.url).filter(|url| !url.is_empty()));
    let whole = |path: &Option<PathBuf>, before: Option<PathBuf>| match path {
        None => Ok(before),
        Some(path) => {
            let failed = |source| CliError::File { action: "find", path: path.clone(), source };
            std::path::absolute(path).map(Some).map_err(failed)
        }
    };
    let context = Context {
        url: url.unwrap_or_else(|| DEFAULT_URL.to_owned()),
        ca: whole(&connection.ca, before.ca)?,
        cert: whole(&connection.cert, before.cert)?,
        key: whole(&connection.key, before.key)?,
    };
    // What could never be used is not kept.
    crate::client::Client::new(&Connection {
        url: Some(context.url.clone()),
        ca: context.ca.clone(),
        cert: context.cert.clone(),
        key: context.key.clone(),
        ..Connection::default()
    })?;
    Ok(context)
}

/// Names of all contexts; none if the file can't be read.
pub(crate) fn names() -> Vec<String> {
    let all = path().and_then(|path| read(&path).ok()).unwrap_or_default();
    all.contexts.into_keys().collect()
}

fn path() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = set("XDG_CONFIG_HOME").map(PathBuf::from);
    let folder = folder.or_else(|| Some(PathBuf::from(set("HOME")?).join(".config")))?;
    Some(folder.join("muster/contexts.toml"))
}

fn missing(name: &str, all: &Contexts) -> CliError {
    let names: Vec<&str> = all.contexts.keys().map(String::as_str).collect();
    let there = match names.as_slice() {
        [] => "there are none; `muster context set NAME --url URL` creates one".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    CliError::NotFound(format!("there is no context {name:?}; {there}"))
}

fn read(path: &Path) -> Result<Contexts, CliError> {
    let failed = |source| CliError::File { action: "read", path: path.to_owned(), source };
    match std::fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Contexts::default());
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => {
            return Ok(Contexts::default());
        }
        Err(error) => return Err(failed(error)),
        Ok(found) if found.len() > MAX_BYTES => {
            return Err(CliError::Usage(format!("{} is too large", path.display())));
        }
        Ok(_) => {}
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    toml::from_str(&text)
        .map_err(|error| CliError::Usage(format!("{}: {}", path.display(), error.message())))
}

/// Writes a new file beside it and puts that in its place, so that nobody finds half of it.
fn write(path: &Path, all: &Contexts) -> Result<(), CliError> {
    let failed = |source| CliError::File { action: "write", path: path.to_owned(), source };
    let text = toml::to_string_pretty(all)
        .map_err(|error| CliError::Usage(format!("cannot write contexts: {error}")))?;
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    let new = path.with_extension("toml.new");
    let mut options = std::fs::File::options();
    let mut file =
        options.write(true).create(true).truncate(true).mode(0o600).open(&new).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(0o600);
    let written = file.set_permissions(mode).and_then(|()| file.write_all(text.as_bytes()));
    written.and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}

/// A context in the list.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    context: Context,
    current: bool,
    json: Value,
}

fn row((name, context): (&String, &Context), all: &Contexts) -> Row {
    let current = all.current.as_ref() == Some(name);
    let mut json = json!(context);
    json["name"] = json!(name);
    json["current"] = json!(current);
    Row { name: name.clone(), context: context.clone(), current, json }
}

impl Item for Row {
    const COLUMNS: &'static [Column<Self>] = &[
        Column::new("NAME", |row: &Self| Cell::text(&row.name)).cut(),
        Column::new("USED", |row: &Self| match row.current {
            true => Cell::text("yes").tone(Tone::Good),
            false => Cell::text("no").tone(Tone::Faint),
        }),
        Column::new("URL", |row: &Self| Cell::text(&row.context.url)).cut(),
        Column::new("CA", |row: &Self| file(row.context.ca.as_deref())).cut().spare(1),
        Column::new("CERTIFICATE", |row: &Self| file(row.context.cert.as_deref())).cut().spare(2),
    ];

    fn id(&self) -> String {
        self.name.clone()
    }

    fn json(&self) -> &Value {
        &self.json
    }
}

fn file(path: Option<&Path>) -> Cell {
    Cell::maybe(path.map(|path| path.display().to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_survive_their_file_and_only_their_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/contexts.toml");
        assert_eq!(read(&path).unwrap(), Contexts::default());
        let prod = Context {
            url: "https://host:8480".to_owned(),
            ca: Some("/etc/ca.pem".into()),
            ..Context::default()
        };
        let all = Contexts {
            current: Some("prod".to_owned()),
            contexts: BTreeMap::from([("prod".to_owned(), prod)]),
        };
        write(&path, &all).unwrap();
        write(&path, &all).unwrap();
        assert_eq!(read(&path).unwrap(), all);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "[contexts.x]\nurl = 'http://x'\nurll = 1").unwrap();
        let error = read(&path).unwrap_err();
        assert!(error.exit_code() == 2 && error.to_string().contains("urll"), "{error}");
    }

    #[test]
    fn a_context_that_could_not_be_used_is_refused() {
        let of = |url: &str| Connection { url: Some(url.to_owned()), ..Connection::default() };
        let bad = changed(Context::default(), &of("host:1")).unwrap_err();
        assert!(bad.to_string().contains("did you mean"), "{bad}");
        let kept = changed(Context::default(), &of("http://host:1")).unwrap();
        assert_eq!(kept.url, "http://host:1");
        // What is not said stays.
        assert_eq!(changed(kept.clone(), &Connection::default()).unwrap(), kept);
    }
}
