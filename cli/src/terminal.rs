//! The terminal in raw mode.

use std::io::IsTerminal as _;

use nix::sys::termios::{self, SetArg, Termios};

use crate::CliError;

/// Puts the terminal into raw mode until dropped. On anything else than a terminal: nothing.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Option<Termios>,
}

impl RawMode {
    /// Switches.
    pub(crate) fn enter() -> Result<Self, CliError> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return Ok(Self { before: None });
        }
        let failed = |errno: nix::Error| CliError::Terminal {
            action: "switch the terminal to raw mode",
            source: errno.into(),
        };
        let before = termios::tcgetattr(&stdin).map_err(failed)?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(&stdin, SetArg::TCSANOW, &raw).map_err(failed)?;
        Ok(Self { before: Some(before) })
    }

    /// Whether the terminal was switched, so that lines must end in CR LF.
    pub(crate) fn is_raw(&self) -> bool {
        self.before.is_some()
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && termios::tcsetattr(std::io::stdin(), SetArg::TCSANOW, before).is_err()
        {
            eprintln!("muster: the terminal is still in raw mode; `reset` repairs it");
        }
    }
}
