//! The terminal in raw mode, and the escape that leaves a console.

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
            eprintln!("muster: the terminal stays in raw mode; `reset` repairs it");
        }
    }
}

/// Finds `~.` at the start of a line in what is typed; `~~` types one `~`.
#[derive(Debug)]
pub(crate) struct Escape {
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    LineStart,
    Tilde,
    Inside,
}

impl Escape {
    /// At the start of a line.
    pub(crate) fn new() -> Self {
        Self { state: State::LineStart }
    }

    /// What of the typed bytes goes to the guest, and whether to leave after that.
    pub(crate) fn filter(&mut self, typed: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(typed.len() + 1);
        for &byte in typed {
            self.state = match (self.state, byte) {
                (State::LineStart, b'~') => State::Tilde,
                (State::Tilde, b'.') => return (passed, true),
                (State::Tilde, b'~') => {
                    passed.push(b'~');
                    State::Inside
                }
                (before, byte) => {
                    if before == State::Tilde {
                        passed.push(b'~');
                    }
                    passed.push(byte);
                    let line_end = matches!(byte, b'\r' | b'\n');
                    if line_end { State::LineStart } else { State::Inside }
                }
            };
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(typed: &[&str], passed: &str, leaves: bool) {
        let mut escape = Escape::new();
        let mut all = Vec::new();
        let mut left = false;
        for part in typed {
            let (bytes, leave) = escape.filter(part.as_bytes());
            all.extend(bytes);
            left |= leave;
        }
        assert_eq!((String::from_utf8(all).unwrap().as_str(), left), (passed, leaves), "{typed:?}");
    }

    #[test]
    fn only_a_tilde_and_dot_at_the_start_of_a_line_leave() {
        check(&["~."], "", true);
        check(&["ls\r", "~", "."], "ls\r", true);
        check(&["a~."], "a~.", false);
        check(&["~~."], "~.", false);
        check(&["~a."], "~a.", false);
        check(&["~\r~."], "~\r", true);
    }
}
