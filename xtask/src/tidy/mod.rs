//! `cargo xtask tidy`: the rules of this repository that no other tool checks, each in a file of
//! its own.
//!
//! A rule is a pure function from a [`Tree`] of texts to findings, so its tests can pass it bad
//! trees. Invariant: a rule reads only the tree, and reports what it cannot parse, so that a
//! document or table in a new form is not left unchecked.

mod arrows;
mod circles;
mod dependencies;
mod folder_table;
mod laboratory;
mod links;
mod manifest;
mod places;
pub mod printed;
mod source;
mod voice;

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, bail};

/// Arguments of `tidy`.
#[derive(clap::Args)]
pub struct Args {}

/// A rule: returns all findings in a tree.
type Rule = fn(&Tree) -> Vec<Finding>;

const RULES: [Rule; 13] = [
    source::heads,
    source::columns,
    source::notes_to_self,
    source::unsafe_places,
    places::machine_paths,
    arrows::arrows,
    circles::circles,
    dependencies::dependencies,
    folder_table::folder_table,
    laboratory::laboratory,
    links::links,
    printed::printed,
    voice::voice,
];

/// Directories that hold no source of ours. In a linked worktree `.git` is a file.
const SKIPPED: [&str; 5] = [".git", "target", "corpus", "artifacts", "node_modules"];
/// Larger files are data, not text that people read.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The texts of the workspace by path from its root, with `/` on every system.
#[derive(Debug, Default)]
pub struct Tree(pub BTreeMap<String, String>);

impl Tree {
    /// Reads the tree at `root`; what is not UTF-8 is no text and left out.
    pub fn read(root: &Path) -> anyhow::Result<Self> {
        let mut tree = Self::default();
        tree.read_directory(root, "")?;
        Ok(tree)
    }

    fn read_directory(&mut self, directory: &Path, prefix: &str) -> anyhow::Result<()> {
        let place = || format!("cannot read {}", directory.display());
        for entry in fs::read_dir(directory).with_context(place)? {
            let entry = entry.with_context(place)?;
            let file_name = entry.file_name();
            let Some(name) = file_name.to_str() else {
                bail!("{file_name:?} is no UTF-8 name")
            };
            let path = format!("{prefix}{name}");
            if SKIPPED.contains(&name) {
                continue;
            }
            let kind = entry.file_type().with_context(place)?;
            if kind.is_dir() {
                self.read_directory(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && entry.metadata()?.len() <= TEXT_BYTES_MAX {
                let bytes =
                    fs::read(entry.path()).with_context(|| format!("cannot read {path}"))?;
                if let Ok(text) = String::from_utf8(bytes) {
                    self.0.insert(path, text);
                }
            }
        }
        Ok(())
    }

    /// The text at `path`.
    fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(String::as_str)
    }

    /// Every file with a name that ends in `ending`.
    fn ending<'a>(&'a self, ending: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files().filter(move |(path, _)| path.ends_with(ending))
    }

    /// Every file whose path begins with `directory`.
    pub fn below<'a>(&'a self, directory: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.files()
            .filter(move |(path, _)| path.starts_with(directory))
    }

    /// Every file.
    fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }
}

/// Something that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    /// Counted from 1; 0 means the file as a whole.
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// Applies every rule to the workspace.
pub fn run(_: &Args) -> anyhow::Result<()> {
    let tree = Tree::read(&crate::root())?;
    let mut findings: Vec<Finding> = RULES.iter().flat_map(|rule| rule(&tree)).collect();
    findings.sort();
    for finding in &findings {
        eprintln!("{finding}");
    }
    if !findings.is_empty() {
        let plural = if findings.len() == 1 { "" } else { "s" };
        bail!("tidy: {} finding{plural}", findings.len());
    }
    Ok(())
}

/// Lines of `text` with their numbers, counted from 1.
fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line))
}

/// Words of `text`: what identifiers and keywords are made of.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// The parts of `line` that stand in backticks.
fn backticked(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of these paths and texts.
    pub fn tree(files: &[(&str, &str)]) -> Tree {
        Tree(
            files
                .iter()
                .map(|&(path, text)| (path.to_owned(), text.to_owned()))
                .collect(),
        )
    }

    /// The findings of `rule` in these files, as they are printed.
    pub fn findings(rule: Rule, files: &[(&str, &str)]) -> Vec<String> {
        rule(&tree(files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reading_skips_what_is_built_and_what_is_no_text() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("a/target")).unwrap();
        fs::write(root.join("a/b.rs"), "//! b").unwrap();
        fs::write(root.join("a/target/c.rs"), "c").unwrap();
        fs::write(root.join("d"), [0xff, 0x00]).unwrap();
        assert_eq!(Tree::read(root).unwrap().0, tree(&[("a/b.rs", "//! b")]).0);
    }

    #[test]
    fn the_tree_that_is_read_holds_this_very_file() {
        let tree = Tree::read(&crate::root()).unwrap();
        assert!(
            tree.text("xtask/src/tidy/mod.rs")
                .unwrap()
                .contains("the_tree_that_is_read")
        );
    }

    #[test]
    fn backticks_mark_every_other_part() {
        assert_eq!(backticked("a `b` c `d`").collect::<Vec<_>>(), ["b", "d"]);
    }
}
