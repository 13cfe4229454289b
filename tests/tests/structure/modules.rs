//! The modules of a crate and which of them use which, read from its sources.
//!
//! A module is a file. It uses another if a path in it, in a `use` or in code, leads there; where
//! a name is only passed on (`pub use`), to the module that has it. Tests are left out. What no
//! path shows is not seen: a method called on a value of a type from elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};

/// A path as written, or made absolute: its segments.
type Segments = Vec<String>;
/// The arrows of a crate: from each module to those it uses.
pub(crate) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// Where a file stands in the crate: `["app", "tasks"]`; empty for the root.
type Place = Vec<String>;

/// What is read of one file.
#[derive(Debug, Default)]
struct File {
    children: BTreeSet<String>,
    /// Names brought in by `use`: what each stands for, and whether it is passed on.
    imports: BTreeMap<String, (Segments, bool)>,
    /// Paths in code.
    paths: Vec<Segments>,
}

/// A crate's files by place.
#[derive(Debug)]
pub(crate) struct Sources(BTreeMap<Place, File>);

impl Sources {
    /// Reads a crate from its root file on.
    pub(crate) fn read(root: &Path) -> Self {
        let mut files = BTreeMap::new();
        let folder = root.parent().expect("a file is in a folder");
        read_file(root, folder, &Vec::new(), &mut files);
        Self(files)
    }

    /// Which file uses which.
    pub(crate) fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (place, file) in &self.0 {
            let targets = arrows.entry(place.join("::")).or_default();
            for path in self.uses(place, file) {
                if let Some(target) = self.home(&path, 0).filter(|target| target != place) {
                    targets.insert(target.join("::"));
                }
            }
        }
        arrows
    }

    /// The absolute paths that a file uses.
    fn uses(&self, place: &Place, file: &File) -> Vec<Segments> {
        let used: BTreeSet<&str> =
            file.paths.iter().filter_map(|path| path.first()).map(String::as_str).collect();
        let imports = file.imports.iter();
        // What is passed on is no use of it, unless the file itself says the name.
        let imports = imports
            .filter(|(name, (_, passed_on))| !passed_on || used.contains(name.as_str()))
            .map(|(_, (path, _))| path);
        let absolute = |path: &Segments| self.absolute(place, path);
        imports.chain(&file.paths).filter_map(absolute).collect()
    }

    /// A path seen from the crate's root; `None` for another crate's or a local name.
    fn absolute(&self, place: &Place, path: &[String]) -> Option<Segments> {
        let (first, rest) = path.split_first()?;
        let mut base = place.clone();
        let mut rest = rest;
        match first.as_str() {
            "crate" => base.clear(),
            "self" => {}
            "super" => {
                base.pop()?;
                while let Some(("super", more)) =
                    rest.split_first().map(|(next, more)| (next.as_str(), more))
                {
                    base.pop()?;
                    rest = more;
                }
            }
            child if self.0.get(place)?.children.contains(child) => base.push(child.to_owned()),
            _ => return None,
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// The file that has what an absolute path names.
    fn home(&self, path: &[String], depth: usize) -> Option<Place> {
        let known = |length: &usize| self.0.contains_key(&path[..*length]);
        let length = (0..=path.len()).rev().find(known)?;
        let (place, rest) = path.split_at(length);
        let file = self.0.get(place)?;
        // A chain of names that are passed on is short; a longer one leads in a circle.
        if let Some((name, rest)) = rest.split_first()
            && let Some((import, _)) = file.imports.get(name)
            && depth < 8
        {
            let mut path = self.absolute(&place.to_vec(), import)?;
            path.extend(rest.iter().cloned());
            return self.home(&path, depth + 1);
        }
        Some(place.to_vec())
    }
}

fn read_file(path: &Path, folder: &Path, place: &Place, files: &mut BTreeMap<Place, File>) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut reader = Reader::default();
    reader.visit_file(&parsed);
    for child in &reader.file.children {
        let (beside, within) = (folder.join(format!("{child}.rs")), folder.join(child));
        let (path, folder): (PathBuf, PathBuf) =
            if beside.exists() { (beside, within) } else { (within.join("mod.rs"), within) };
        let place: Place = place.iter().chain([child]).cloned().collect();
        read_file(&path, &folder, &place, files);
    }
    files.insert(place.clone(), reader.file);
}

/// Collects what a file uses.
#[derive(Default)]
struct Reader {
    file: File,
    /// Modules within the file around what is read.
    depth: usize,
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => {
            list.path.is_ident("cfg") && list.tokens.to_string().contains("test")
        }
        _ => attribute.path().is_ident("test"),
    })
}

impl Reader {
    /// Notes a path of code; one from within the file's own modules as if it stood outside.
    fn path(&mut self, mut path: Segments) {
        for _ in 0..self.depth {
            if path.first().is_some_and(|first| first == "super") {
                path.remove(0);
            }
        }
        if !path.is_empty() {
            self.file.paths.push(path);
        }
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &[String], passed_on: bool) {
        let with = |name: &syn::Ident| -> Segments {
            before.iter().cloned().chain([name.to_string()]).collect()
        };
        match tree {
            syn::UseTree::Path(path) => self.tree(&path.tree, &with(&path.ident), passed_on),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(tree, before, passed_on));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                self.import(before.last().cloned(), before.to_vec(), passed_on);
            }
            syn::UseTree::Name(name) => {
                self.import(Some(name.ident.to_string()), with(&name.ident), passed_on);
            }
            syn::UseTree::Rename(name) => {
                self.import(Some(name.rename.to_string()), with(&name.ident), passed_on);
            }
            syn::UseTree::Glob(_) => self.path(before.to_vec()),
        }
    }

    fn import(&mut self, name: Option<String>, path: Segments, passed_on: bool) {
        match name {
            // `use … as _` is for methods, and names nothing.
            Some(name) if self.depth == 0 && name != "_" => {
                self.file.imports.insert(name, (path, passed_on));
            }
            _ => self.path(path),
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if item.content.is_none() {
            self.file.children.insert(item.ident.to_string());
            return;
        }
        self.depth += 1;
        visit::visit_item_mod(self, item);
        self.depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let passed_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&item.tree, &[], passed_on);
    }

    /// `pub(in …)` says who may use something, and uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.path(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    /// The inside of a macro is no code yet: words with `::` between them are paths.
    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        let text = call.tokens.to_string();
        let mut path: Segments = Vec::new();
        let mut joined = false;
        for token in text.split_whitespace() {
            let word = token.chars().all(|c| c.is_alphanumeric() || c == '_');
            if word && (joined || path.is_empty()) {
                path.push(token.to_owned());
            } else if token != "::" {
                self.path(std::mem::take(&mut path));
                path.extend(word.then(|| token.to_owned()));
            }
            joined = token == "::";
        }
        self.path(path);
    }
}

/// Puts modules together under other names; those without a name are left out.
pub(crate) fn grouped(arrows: &Arrows, name: impl Fn(&str) -> Option<String>) -> Arrows {
    let mut grouped = Arrows::new();
    for (from, targets) in arrows {
        let Some(from) = name(from) else { continue };
        let targets = targets.iter().filter_map(|target| name(target));
        let targets: Vec<String> = targets.filter(|target| *target != from).collect();
        grouped.entry(from).or_default().extend(targets);
    }
    grouped
}

/// The circles: sets of modules of which each leads to each other.
pub(crate) fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&String, BTreeSet<&String>> =
        arrows.keys().map(|from| (from, reached(arrows, from))).collect();
    let mut circles: Vec<BTreeSet<String>> = Vec::new();
    for (from, targets) in &reach {
        let back = |to: &&&String| reach.get(**to).is_some_and(|back| back.contains(from));
        let circle: BTreeSet<String> =
            targets.iter().filter(back).map(|to| (*to).clone()).collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

fn reached<'a>(arrows: &'a Arrows, from: &'a String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        let new = arrows.get(at).into_iter().flatten().filter(|to| reached.insert(*to));
        open.extend(new);
    }
    reached
}
