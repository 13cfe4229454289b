//! The pages that people read: their links and their blocks of commands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;

use crate::repository;

/// A page.
#[derive(Clone, Debug)]
pub struct Page {
    /// Its path below the repository.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    text: String,
}

/// A block between fences.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where it begins, counted from 1.
    pub line: usize,
    /// The first word after the fence.
    pub language: String,
    /// The other words.
    pub marks: Vec<String>,
    /// What is in it.
    pub text: String,
}

impl Page {
    /// One page, by its path below the repository.
    ///
    /// # Panics
    /// If it can't be read.
    #[must_use]
    pub fn read(name: &str) -> Self {
        let path = repository().join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        Self { name: name.to_owned(), path, text }
    }

    /// `README.md` and everything in `docs/`.
    ///
    /// # Panics
    /// If they can't be read.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let docs = std::fs::read_dir(repository().join("docs")).expect("docs/ is there");
        let names = docs.map(|entry| entry.expect("an entry").file_name());
        let names = names.filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}")).collect();
        names.sort();
        names.insert(0, "README.md".to_owned());
        names.iter().map(|name| Self::read(name)).collect()
    }

    /// Lines outside of blocks.
    fn prose(&self) -> Vec<&str> {
        let mut inside = false;
        let mut lines = Vec::new();
        for line in self.text.lines() {
            if line.trim_start().starts_with("```") {
                inside = !inside;
            } else if !inside {
                lines.push(line);
            }
        }
        lines
    }

    /// The blocks between fences.
    #[must_use]
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut inside = false;
        for (number, line) in self.text.lines().enumerate() {
            match line.trim_start().strip_prefix("```") {
                Some(_) if inside => inside = false,
                Some(words) => {
                    inside = true;
                    let mut words = words.split_whitespace().map(str::to_owned);
                    let language = words.next().unwrap_or_default();
                    let marks = words.collect();
                    blocks.push(Block { line: number + 1, language, marks, text: String::new() });
                }
                None if inside => {
                    let block = blocks.last_mut().expect("a fence was before");
                    block.text += line;
                    block.text.push('\n');
                }
                None => {}
            }
        }
        blocks
    }

    /// The names under which headings can be linked to, as web pages of repositories make them.
    #[must_use]
    pub fn anchors(&self) -> BTreeSet<String> {
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        let mut anchors = BTreeSet::new();
        for heading in self.prose().into_iter().filter(|line| line.starts_with('#')) {
            let name = slug(heading.trim_start_matches('#').trim());
            let count = seen.entry(name.clone()).or_default();
            anchors.insert(if *count == 0 { name } else { format!("{name}-{count}") });
            *count += 1;
        }
        anchors
    }

    /// The targets of its links, those to other sites left out.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        let code = Regex::new("`[^`]*`").expect("a pattern");
        let link = Regex::new(r"\]\(([^)\s]+)\)").expect("a pattern");
        let prose = self.prose().join(" ");
        let prose = code.replace_all(&prose, "");
        let targets = link.captures_iter(&prose).map(|found| found[1].to_owned());
        targets.filter(|target| !target.contains("://")).collect()
    }

    /// The file and the anchor that a link of this page leads to.
    ///
    /// # Panics
    /// Never: a page lies in a folder.
    #[must_use]
    pub fn target(&self, link: &str) -> (PathBuf, Option<String>) {
        let (file, anchor) = match link.split_once('#') {
            Some((file, anchor)) => (file, Some(anchor.to_owned())),
            None => (link, None),
        };
        let folder = self.path.parent().expect("a folder");
        let path = if file.is_empty() { self.path.clone() } else { plain(&folder.join(file)) };
        (path, anchor)
    }
}

/// Without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            other => plain.push(other),
        }
    }
    plain
}

fn slug(heading: &str) -> String {
    static LINK: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\[([^\]]*)\]\([^)]*\)").expect("a pattern"));
    let text = LINK.replace_all(heading, "$1").to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}
