//! The reference page `docs/cli.md`, written from the commands themselves.

use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};

/// Width the help texts are wrapped at.
const WIDTH: usize = 100;

/// The whole page.
#[must_use]
pub fn page() -> String {
    let mut page = String::from(
        "# The `muster` command\n\nWritten by `make docs` from the command's own help; `muster \
         COMMAND --help` prints the same.\n",
    );
    // Built, so that flags of all commands are in each command's help.
    let mut command = crate::Args::command().term_width(WIDTH);
    command.build();
    section(&mut page, &mut command, "muster");
    page
}

fn section(page: &mut String, command: &mut Command, name: &str) {
    let help = command.render_help().to_string();
    // The options of every command are shown once, at the top.
    let shared = help.find("\nConnection:").filter(|_| name != "muster");
    let rest = shared.map(|at| &help[at + 1..]).and_then(|it| it.split_once("\n\n"));
    let text = match (shared, rest) {
        (Some(at), Some((_, rest))) => format!("{}\n{rest}", &help[..at]),
        (Some(at), None) => help[..at].to_owned(),
        (None, _) => help,
    };
    let lines: Vec<_> = text.lines().map(str::trim_end).collect();
    let text = lines.join("\n");
    write!(page, "\n## `{name}`\n\n```text\n{}\n```\n", text.trim())
        .expect("a String takes every write");
    let subcommands = command.get_subcommands_mut();
    for subcommand in subcommands.filter(|it| it.get_name() != "help" && !it.is_hide_set()) {
        let name = format!("{name} {}", subcommand.get_name());
        let mut subcommand = subcommand.clone().term_width(WIDTH);
        section(page, &mut subcommand, &name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_well_formed() {
        crate::Args::command().debug_assert();
    }

    /// `MUSTER_WRITE_DOCS=1` (as in `make docs`) writes the page instead.
    #[test]
    fn commands_are_documented() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
        if std::env::var_os("MUSTER_WRITE_DOCS").is_some() {
            std::fs::write(path, page()).unwrap();
        }
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == page(), "docs/cli.md is out of date: run `make docs`");
    }
}
