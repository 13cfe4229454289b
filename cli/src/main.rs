//! The `muster` command.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use muster_cli::Args;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return ExitCode::from(muster_cli::report_usage(&error)),
    };
    let for_programs = args.is_for_programs();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("muster: cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let ended = runtime.block_on(muster_cli::run(args));
    // A thread may still wait for the terminal's next key; nobody waits for it.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.report(for_programs);
            ExitCode::from(error.exit_code())
        }
    }
}
