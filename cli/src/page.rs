//! A description for people: a line that tells the most, then groups of names and values.

use jiff::Timestamp;
use muster_shared::clock::{Clock as _, SystemClock};

use crate::CliError;
use crate::cell::{ago, safe, safe_lines};
use crate::output::{terminal_width, write_out};
use crate::wrap::{pairs, wrapped};

/// Before the lines of a group.
const INDENT: usize = 2;

/// A group: its title, and its lines.
#[derive(Debug)]
struct Group {
    title: &'static str,
    lines: Vec<[String; 2]>,
}

/// A description that is being written.
#[derive(Debug)]
pub(crate) struct Page {
    head: String,
    groups: Vec<Group>,
    /// What to do next: commands, and what each shows.
    next: Vec<String>,
}

impl Page {
    /// Begins with what matters most.
    pub(crate) fn new(head: impl AsRef<str>) -> Self {
        Self { head: safe(head.as_ref()), groups: Vec::new(), next: Vec::new() }
    }

    /// Begins a group; one that stays empty is not shown.
    pub(crate) fn group(&mut self, title: &'static str) -> &mut Self {
        self.groups.push(Group { title, lines: Vec::new() });
        self
    }

    /// A line of the group.
    pub(crate) fn line(&mut self, name: &str, value: impl AsRef<str>) -> &mut Self {
        if let Some(group) = self.groups.last_mut() {
            group.lines.push([safe(name), safe(value.as_ref())]);
        }
        self
    }

    /// A line, if there is something to say.
    pub(crate) fn maybe(&mut self, name: &str, value: Option<impl AsRef<str>>) -> &mut Self {
        match value {
            Some(value) => self.line(name, value),
            None => self,
        }
    }

    /// A command that helps.
    pub(crate) fn next(&mut self, command: impl AsRef<str>) -> &mut Self {
        self.next.push(safe(command.as_ref()));
        self
    }

    /// Prints it.
    pub(crate) fn print(&self) -> Result<(), CliError> {
        write_out(&safe_lines(&self.text(terminal_width())))
    }

    /// Its text, in a terminal of this width.
    pub(crate) fn text(&self, width: Option<usize>) -> String {
        let mut text = wrapped(&self.head, width);
        for group in self.groups.iter().filter(|group| !group.lines.is_empty()) {
            text.push_str(&format!("\n\n{}\n", group.title));
            text.push_str(&table(&group.lines, width));
        }
        if !self.next.is_empty() {
            text.push_str("\n\nNext\n");
            let lines: Vec<String> = self.next.iter().map(|line| format!("  {line}")).collect();
            text.push_str(&wrapped(&lines.join("\n"), width));
        }
        text
    }
}

/// The lines of a group, indented.
fn table(lines: &[[String; 2]], width: Option<usize>) -> String {
    let text = pairs(lines, width.map(|width| width.saturating_sub(INDENT)));
    let lines: Vec<String> = text.lines().map(|line| format!("  {line}")).collect();
    lines.join("\n")
}

/// A time in ISO form, and how long ago that was.
pub(crate) fn when(time: &str) -> String {
    match time.parse::<Timestamp>() {
        Ok(at) => {
            let seconds = SystemClock::new().wall().duration_since(at).as_secs();
            format!("{} ({time})", ago(seconds))
        }
        Err(_) => time.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use unicode_width::UnicodeWidthStr as _;

    use super::*;

    fn page() -> Page {
        let mut page = Page::new("web1 is running\u{1b}[31m");
        page.group("Empty");
        page.group("Machine").line("State", "running").line("Image", "debian@12");
        page.maybe("Reason", None::<&str>);
        page.line("Text", "a rather long text, which has to go on in another line of the page");
        page.next("muster why vm web1");
        page
    }

    #[test]
    fn the_head_comes_first_and_empty_groups_are_left_out() {
        let text = page().text(None);
        let want = "web1 is running\\u{1b}[31m\n\nMachine\n  State  running\n  Image  debian@12\n";
        assert!(text.starts_with(want), "{text}");
        assert!(text.ends_with("\n\nNext\n  muster why vm web1"), "{text}");
        assert!(!text.contains("Empty") && !text.contains("Reason"), "{text}");
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        let text = page().text(Some(40));
        assert!(text.lines().all(|line| line.width() <= 40), "{text}");
        assert!(text.contains("another"), "nothing is cut: {text}");
    }
}
