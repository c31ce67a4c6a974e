//! Links between documents lead somewhere: the file exists, and so does the heading.
//!
//! Checked are links of Markdown to other Markdown files and to headings, and documents that code
//! names by their path (`docs/FORMAT.md`), so that a document that moves takes its readers along.

use std::collections::BTreeSet;

use super::{Finding, Tree, numbered};

/// This crate's own tests name documents that do not exist.
const UNCHECKED: &str = "xtask/";

/// Finds links and names of documents that lead nowhere.
pub fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![];
    for (path, text) in tree.ending(".md") {
        for (number, line) in prose(text) {
            for target in targets(line) {
                if let Some(what) = broken(tree, path, target) {
                    findings.push(Finding::new(path, number, what));
                }
            }
        }
    }
    for (path, text) in tree
        .ending(".rs")
        .filter(|(path, _)| !path.starts_with(UNCHECKED))
    {
        for (number, line) in numbered(text) {
            for name in documents(line).filter(|name| tree.text(name).is_none()) {
                findings.push(Finding::new(path, number, format!("there is no {name}")));
            }
        }
    }
    findings
}

/// The lines that are not code: neither indented by four spaces nor within a fence.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_fence = false;
    numbered(text).filter(move |(_, line)| {
        let is_fence = line.starts_with("```");
        in_fence ^= is_fence;
        !is_fence && !in_fence && !line.starts_with("    ")
    })
}

/// What the links of a line lead to.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// Why a link of the document at `from` leads nowhere.
fn broken(tree: &Tree, from: &str, target: &str) -> Option<String> {
    if target.contains("://") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let to = if file.is_empty() {
        from.to_owned()
    } else {
        beside(from, file)
    };
    // Pictures are no text, so the tree does not have them.
    if !to.ends_with(".md") {
        return None;
    }
    let Some(text) = tree.text(&to) else {
        return Some(format!("the link `{target}` leads to no file"));
    };
    let exists = heading.is_empty() || headings(text).contains(heading);
    (!exists).then(|| format!("the link `{target}` leads to no heading"))
}

/// The path from the root of what the document at `from` calls `file`.
fn beside(from: &str, file: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in file.split('/') {
        match part {
            ".." => {
                parts.pop();
            }
            "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// The names by which links lead to headings: small letters, `-` for a space, no punctuation.
fn headings(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|it| it.is_alphanumeric() || " -_".contains(*it));
            kept.collect::<String>().replace(' ', "-")
        })
        .collect()
}

/// The documents below `docs` that a line names by their path.
fn documents(line: &str) -> impl Iterator<Item = &str> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || "/_-.".contains(it);
    line.split(move |it| !is_part(it))
        .map(|word| word.trim_start_matches("../").trim_start_matches('/'))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.starts_with("docs/") && word.ends_with(".md"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    #[test]
    fn a_link_that_leads_somewhere_is_fine_and_code_is_not_read() {
        let a = "# A\n[b](docs/b.md#the-b-1) [x](https://a.test/b.md) ![p](p.png)\n\n\
                 \x20   [c](c.md)\n```\n[d](d.md)\n```\n";
        let files = [
            ("a.md", a),
            ("docs/b.md", "# B\n## The `b`, 1\n[a](../a.md) [b](#b)\n"),
        ];
        assert!(findings(links, &files).is_empty());
    }

    #[test]
    fn a_link_to_a_file_or_heading_that_does_not_exist_is_found() {
        let files = [(
            "docs/a.md",
            "# A\n[b](b.md) and [c](#c), [a](../docs/a.md#a)\n",
        )];
        assert_eq!(
            findings(links, &files),
            [
                "docs/a.md:2: the link `b.md` leads to no file",
                "docs/a.md:2: the link `#c` leads to no heading"
            ]
        );
    }

    #[test]
    fn a_document_that_code_names_and_that_does_not_exist_is_found() {
        let code = "//! See docs/a.md, `docs/b.md`.\nconst C: &str = \"../../docs/c.md\";\n";
        let files = [("docs/a.md", "# A\n"), ("crates/a/src/a.rs", code)];
        assert_eq!(
            findings(links, &files),
            [
                "crates/a/src/a.rs:1: there is no docs/b.md",
                "crates/a/src/a.rs:2: there is no docs/c.md"
            ]
        );
    }
}
