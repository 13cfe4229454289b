//! `muster man`: pages for man, made from the commands' own help.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory as _};
use serde_json::json;

use crate::CliError;
use crate::output::Output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  muster man /usr/local/share/man/man1 && man muster-vm-create")]
pub(crate) struct Args {
    /// Folder for the pages; created if missing.
    folder: PathBuf,
}

pub(crate) fn run(output: &Output, args: &Args) -> Result<(), CliError> {
    let failed = |action: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| CliError::File { action, path, source }
    };
    std::fs::create_dir_all(&args.folder).map_err(failed("make", &args.folder))?;
    let pages = pages();
    for (name, page) in &pages {
        let path = args.folder.join(format!("{name}.1"));
        std::fs::write(&path, page).map_err(failed("write", &path))?;
    }
    let folder = args.folder.display();
    let object = json!({ "folder": args.folder, "pages": pages.len() });
    output.done(&format!("{} pages are in {folder}", pages.len()), &object)
}

/// A page for each command, by its name.
fn pages() -> Vec<(String, Vec<u8>)> {
    let mut command = crate::Args::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&mut pages, &command, "muster");
    pages
}

fn add(pages: &mut Vec<(String, Vec<u8>)>, command: &Command, name: &str) {
    let mut page = Vec::new();
    let whole = command.clone().version(env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(whole).render(&mut page).expect("a Vec takes every write");
    pages.push((name.to_owned(), page));
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        add(pages, inner, &format!("{name}-{}", inner.get_name()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page() {
        let pages = pages();
        for name in ["muster", "muster-vm", "muster-vm-create", "muster-context-use"] {
            let page = pages.iter().find(|(of, _)| of == name).map(|(_, page)| page);
            let page = String::from_utf8_lossy(page.unwrap_or_else(|| panic!("no {name}")));
            assert!(page.contains(".SH SYNOPSIS") && page.contains(".TH muster"), "{page}");
        }
    }
}
