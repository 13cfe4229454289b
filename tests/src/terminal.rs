//! A pseudo-terminal with the operator's command in it: what people see, and what they type.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use parking_lot::{Condvar, Mutex};

use crate::binary;
use crate::daemon::Coordinator;

/// Columns of the terminal.
pub const COLUMNS: usize = 80;

#[derive(Debug, Default)]
struct Shown {
    bytes: Vec<u8>,
    ended: bool,
}

/// A running command.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keys: File,
    shown: Arc<(Mutex<Shown>, Condvar)>,
    deadline: Instant,
}

impl Terminal {
    /// Starts `muster` against a coordinator, for a person whose files are in `home`; all must be over
    /// after `limit`.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    pub fn start(coordinator: &Coordinator, home: &Path, words: &[&str], limit: Duration) -> Self {
        Self::at(&format!("http://{}", coordinator.address()), home, words, limit)
    }

    /// Likewise, against what answers at a URL.
    ///
    /// # Panics
    /// If it can't be started.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "black-box tests start the real binaries")]
    pub fn at(url: &str, home: &Path, words: &[&str], limit: Duration) -> Self {
        let columns = u16::try_from(COLUMNS).expect("it is small");
        let size = Winsize { ws_row: 40, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a pseudo-terminal");
        let end = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        let mut command = Command::new(binary("muster"));
        command.args(["--url", url]).args(words);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("MUSTER_OUTPUT");
        command.env("XDG_CONFIG_HOME", home);
        // For commands that open one; a test writes it.
        command.env("VISUAL", home.join("editor"));
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().expect("muster runs");
        // With the command's last end the terminal closes, and reading it fails.
        drop(command);
        drop(pty.slave);
        let keys = File::from(pty.master);
        let mut screen = keys.try_clone().expect("a descriptor");
        let shown = Arc::new((Mutex::new(Shown::default()), Condvar::new()));
        let output = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            loop {
                let count = screen.read(&mut buffer).unwrap_or(0);
                let mut shown = output.0.lock();
                shown.bytes.extend_from_slice(&buffer[..count]);
                shown.ended = count == 0;
                output.1.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        Self { child, keys, shown, deadline: Instant::now() + limit }
    }

    /// Types.
    ///
    /// # Panics
    /// If the terminal is gone.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// What Ctrl-C at a person's terminal does to the command.
    ///
    /// # Panics
    /// If the command has ended.
    pub fn interrupt(&self) {
        let pid = i32::try_from(self.child.id()).expect("process ids fit an i32");
        kill(Pid::from_raw(pid), Signal::SIGINT).expect("the command runs");
    }

    /// Waits until a text is shown after the first `from` bytes; where it ends.
    ///
    /// # Panics
    /// If it never is.
    pub fn until(&self, from: usize, text: &str) -> usize {
        let mut shown = self.shown.0.lock();
        loop {
            let all =
                String::from_utf8_lossy(&shown.bytes[from.min(shown.bytes.len())..]).into_owned();
            if let Some(at) = all.find(text) {
                return from + at + text.len();
            }
            let late = self.shown.1.wait_until(&mut shown, self.deadline).timed_out();
            assert!(!shown.ended, "it ends without {text:?}: {all}");
            assert!(!late, "no {text:?} in time: {all}");
        }
    }

    /// What was shown between two places.
    #[must_use]
    pub fn text(&self, from: usize, to: usize) -> String {
        String::from_utf8_lossy(&self.shown.0.lock().bytes[from..to]).into_owned()
    }

    /// Waits for its end; the exit code and all that was shown.
    ///
    /// # Panics
    /// If it does not end.
    #[must_use]
    pub fn end(mut self) -> (i32, Vec<u8>) {
        let mut shown = self.shown.0.lock();
        while !shown.ended {
            let late = self.shown.1.wait_until(&mut shown, self.deadline).timed_out();
            assert!(!late, "it does not end: {}", String::from_utf8_lossy(&shown.bytes));
        }
        let bytes = std::mem::take(&mut shown.bytes);
        drop(shown);
        let status = self.child.wait().expect("the child can be waited for");
        (status.code().expect("no signal ended it"), bytes)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended, unless the test failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What a terminal would make of the output: its lines without colours, and what it should not have
/// been sent.
#[derive(Debug, Default)]
pub struct Screen {
    /// The text.
    pub text: String,
    /// Lines that wrapped, and characters that control a terminal and are neither colours nor those
    /// of a progress bar.
    pub flaws: Vec<String>,
    column: usize,
    line: String,
}

impl Screen {
    /// Reads all that was shown.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut screen = Self::default();
        let text = String::from_utf8_lossy(bytes).into_owned();
        let mut rest = text.chars();
        while let Some(c) = rest.next() {
            match c {
                '\u{1b}' => screen.sequence(&mut rest),
                '\r' => screen.column = 0,
                '\n' => {
                    screen.text.push('\n');
                    screen.line.clear();
                }
                c if c.is_control() => screen.flaws.push(format!("{c:?} after {:?}", screen.line)),
                c => screen.put(c),
            }
        }
        screen
    }

    fn put(&mut self, c: char) {
        self.text.push(c);
        self.line.push(c);
        // What is wider or narrower than one column is not in these tests.
        self.column += 1;
        if self.column == COLUMNS + 1 {
            self.flaws.push(format!("a line wraps: {:?}", self.line));
        }
    }

    /// A control sequence: colours, and what moves a progress bar or draws a screen anew.
    fn sequence(&mut self, rest: &mut std::str::Chars<'_>) {
        if rest.next() != Some('[') {
            self.flaws.push(format!("an escape sequence after {:?}", self.line));
            return;
        }
        let mut sequence = String::new();
        for c in rest.by_ref() {
            sequence.push(c);
            if matches!(c, '\u{40}'..='\u{7e}') {
                break;
            }
        }
        match sequence.chars().last() {
            Some('m' | 'A' | 'B' | 'K' | 'J') => {}
            Some('H' | 'G') => self.column = 0,
            _ if matches!(sequence.as_str(), "?25l" | "?25h") => {}
            _ => self.flaws.push(format!("CSI {sequence:?} after {:?}", self.line)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flaws_are_found() {
        let flaws = |text: &str| Screen::of(text.as_bytes()).flaws.len();
        assert_eq!(flaws("a\r\n\u{1b}[31mred\u{1b}[0m\r\n\u{1b}[2K\u{1b}[1A"), 0);
        assert_eq!(flaws(&"x".repeat(COLUMNS)), 0);
        assert_eq!(flaws(&"x".repeat(COLUMNS + 1)), 1);
        // Without a return the next line goes on where the last ended.
        assert_eq!(flaws(&format!("{0}\n{0}", "x".repeat(50))), 1);
        for bad in ["\u{7}", "\u{9b}31m", "\u{1b}]0;title\u{7}", "\u{1b}[6n", "\t"] {
            assert_ne!(flaws(bad), 0, "{bad:?}");
        }
        assert_eq!(Screen::of(b"\x1b[32mok\x1b[0m\r\nx").text, "ok\nx");
    }
}
