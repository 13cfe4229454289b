//! `muster completion`: scripts for shells.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::CliError;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example, for bash:
  muster completion bash > /etc/bash_completion.d/muster")]
pub(crate) struct Args {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::Args::command(), "muster", &mut script);
    crate::output::print(String::from_utf8_lossy(&script).trim_end())
}
