//! `config check` and `config show`, the same in both daemons.

use serde_json::json;

use super::effective::{Setting, show};

/// Looks at a configuration; starts nothing.
#[derive(Clone, Copy, Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// Checks the configuration and the certificates and keys it names. Exit status 64 if something
    /// is wrong.
    Check,
    /// Prints every key with its value and where that came from. Passwords are masked.
    Show {
        /// Only keys that are not at their default.
        #[arg(long)]
        changed: bool,
        /// Prints JSON instead of TOML.
        #[arg(long)]
        json: bool,
    },
}

impl ConfigCommand {
    /// What is printed of a sound configuration. `warnings`: what is allowed and hardly meant.
    #[must_use]
    pub fn page(self, settings: &[Setting], warnings: &[String]) -> String {
        match self {
            Self::Check => {
                let lines = warnings.iter().map(|warning| format!("warning: {warning}\n"));
                lines.chain(["the configuration is valid\n".to_owned()]).collect()
            }
            Self::Show { changed, json } => {
                let wanted = |it: &&Setting| !changed || it.is_changed();
                let settings: Vec<Setting> = settings.iter().filter(wanted).cloned().collect();
                if json { format!("{:#}\n", json!(settings)) } else { show(&settings) }
            }
        }
    }
}
