//! Questions before what can't be undone.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use crate::CliError;
use crate::output::fitting;

/// Asks whether that is meant, on a terminal; without one nobody can be asked, and it is.
///
/// # Errors
/// [`CliError::Ended`]: it is not.
pub(crate) fn meant(question: &str, yes: bool) -> Result<(), CliError> {
    if yes || !std::io::stdin().is_terminal() {
        return Ok(());
    }
    let failed = |source| CliError::Terminal { action: "ask", source };
    // In one piece: an answer that was typed ahead must not come between.
    let asked = format!("{} ", fitting(&format!("{question} [y/N]")));
    eprint!("{asked}");
    std::io::stderr().flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).map_err(failed)?;
    if matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        Ok(())
    } else {
        Err(CliError::Ended("nothing was done".to_owned()))
    }
}
