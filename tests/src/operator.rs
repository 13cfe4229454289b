//! An operator, who types commands at a terminal of 80 columns.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::CommandFactory as _;
use tempfile::TempDir;

use crate::cli;
use crate::daemon::Coordinator;
use crate::terminal::{Screen, Terminal};

/// The longest single command: an emulated guest on busy cores.
pub const LIMIT: Duration = Duration::from_secs(240);

/// An operator at a terminal.
#[derive(Debug)]
pub struct Operator {
    /// What the commands ask.
    pub coordinator: Coordinator,
    /// Its home folder.
    pub home: TempDir,
    /// Commands that were typed, without their arguments.
    pub tried: BTreeSet<String>,
    /// All that is wrong: one run, which takes its time, tells everything.
    problems: Vec<String>,
}

impl Operator {
    /// At a terminal of this coordinator's; has tried nothing.
    ///
    /// # Panics
    /// If there is no folder for its home.
    #[must_use]
    pub fn new(coordinator: Coordinator) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        Self { coordinator, home, tried: BTreeSet::new(), problems: Vec::new() }
    }

    /// Types a command; what is done with it next is the caller's business, up to [`Self::end`].
    pub fn start(&mut self, words: &[&str]) -> Terminal {
        let mut command = muster_cli::Args::command();
        let mut path = Vec::new();
        for word in words {
            if let Some(inner) = command.find_subcommand(word) {
                path.push(inner.get_name().to_owned());
                command = inner.clone();
            }
        }
        self.tried.insert(path.join(" "));
        Terminal::start(&self.coordinator, self.home.path(), words, LIMIT)
    }

    /// What is shown of a command that needs no keys.
    pub fn see(&mut self, words: &[&str], code: i32) -> String {
        let terminal = self.start(words);
        self.end(terminal, words, code)
    }

    /// What is shown must hold a text, too.
    pub fn find(&mut self, words: &[&str], code: i32, text: &str) {
        let shown = self.see(words, code);
        if !shown.contains(text) {
            self.problems.push(format!("{words:?} without {text:?}: {shown}"));
        }
    }

    /// Answers a question.
    pub fn answer(&mut self, words: &[&str], keys: &str, code: i32) -> String {
        let mut terminal = self.start(words);
        terminal.until(0, "[y/N] ");
        terminal.press(keys);
        self.end(terminal, words, code)
    }

    /// Waits for the end of a command, which has to end so; what was shown.
    pub fn end(&mut self, terminal: Terminal, words: &[&str], code: i32) -> String {
        let (ended_with, bytes) = terminal.end();
        let Screen { text, flaws, .. } = Screen::of(&bytes);
        println!("$ muster {}\n{text}[exit {ended_with}]\n", words.join(" "));
        self.problems.extend(flaws.iter().map(|flaw| format!("{words:?}: {flaw}")));
        if ended_with != code {
            self.problems.push(format!("{words:?} ends with {ended_with} and not {code}: {text}"));
        }
        text
    }

    /// Nothing was wrong.
    ///
    /// # Panics
    /// With everything that was.
    #[track_caller]
    pub fn assert_sound(&self) {
        assert!(self.problems.is_empty(), "{:#?}", self.problems);
    }

    /// The only member of this name in what a command answers programs, e.g. an id.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn member(&self, words: &[&str], name: &str) -> String {
        let answer = cli::json(&self.coordinator, words);
        let object = answer.as_array().map_or(&answer, |items| &items[0]);
        object[name].as_str().unwrap_or_else(|| panic!("{words:?}: {answer:#}")).to_owned()
    }
}
