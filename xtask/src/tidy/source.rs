//! Rules for single source files: their first line, their width, notes to self, `unsafe`.

use super::{Finding, Tree, numbered, words};

/// Widest line of a source file, in characters.
const COLUMNS_MAX: usize = 100;

/// Notes to self belong in the issues. Split in halves, since this file is checked as well.
const NOTES: [&str; 3] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("X", "XX"),
];

/// Files that may contain `unsafe`.
const UNSAFE_PLACES: [&str; 2] = [
    "crates/hashcache/src/device/uring.rs",
    "crates/hashcache/src/memory/",
];

/// Every module begins with a description.
pub fn heads(tree: &Tree) -> Vec<Finding> {
    tree.ending(".rs")
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| {
            Finding::new(
                path,
                1,
                "does not begin with a `//!` line that says what it is",
            )
        })
        .collect()
}

/// Two files fit beside each other on a screen. rustfmt does not wrap comments and strings. Tables
/// that rustfmt skips may be wide: one row per line is easier to read than four lines.
pub fn columns(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![];
    for (path, text) in tree.ending(".rs") {
        let mut in_table = false;
        for (number, line) in numbered(text) {
            match line {
                "#[rustfmt::skip]" => in_table = true,
                "];" => in_table = false,
                _ => {}
            }
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !in_table {
                let what = format!("{columns} columns; {COLUMNS_MAX} fit");
                findings.push(Finding::new(path, number, what));
            }
        }
    }
    findings
}

/// No notes to self, in code or documents.
pub fn notes_to_self(tree: &Tree) -> Vec<Finding> {
    let check = |line: &str| {
        let note = words(line).find(|word| NOTES.contains(word))?;
        Some(format!("`{note}`: file an issue instead"))
    };
    [".rs", ".md", ".toml", ".sh", ".ci/run"]
        .iter()
        .flat_map(|ending| each_line(tree, ending, check))
        .collect()
}

/// `unsafe` is allowed only in a few known files. The lint denies it; this rule restricts the
/// exceptions from the lint (`allow`, `expect`) to the same files.
pub fn unsafe_places(tree: &Tree) -> Vec<Finding> {
    let check = |line: &str| {
        let code = without_comment(line);
        let is_kept = code.contains("deny(unsafe_code") || code.contains("forbid(unsafe_code");
        let is_lifted = code.contains("unsafe_code") && !is_kept;
        let is_used = words(&without_strings(code)).any(|word| word == "unsafe");
        (is_lifted || is_used).then(|| "`unsafe` outside `device/uring` and `memory`".to_owned())
    };
    let mut findings = each_line(tree, ".rs", check);
    findings.retain(|finding| {
        !UNSAFE_PLACES.iter().any(|place| finding.path.starts_with(place))
            // This file has to name what it searches for.
            && finding.path != "xtask/src/tidy/source.rs"
    });
    findings
}

/// Whether a file, by its path below `src`, has nothing but tests.
pub fn is_of_tests(file: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file);
    name == "tests.rs" || name.ends_with("_tests.rs") || file.split('/').any(|it| it == "tests")
}

fn each_line(tree: &Tree, ending: &str, check: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = vec![];
    for (path, text) in tree.ending(ending) {
        for (number, line) in numbered(text) {
            findings.extend(check(line).map(|what| Finding::new(path, number, what)));
        }
    }
    findings
}

fn without_comment(line: &str) -> &str {
    line.split_once("//").map_or(line, |(code, _)| code)
}

/// The line without what stands between double quotes.
fn without_strings(line: &str) -> String {
    line.split('"').step_by(2).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    #[test]
    fn a_file_without_a_head_is_found() {
        let files = [
            ("a.rs", "//! A.\n"),
            ("b.rs", "use c;\n//! Late.\n"),
            ("c.rs", "//!\n"),
        ];
        let found = findings(heads, &files);
        assert_eq!(found.len(), 2);
        assert!(
            found[0].starts_with("b.rs:1: ") && found[1].starts_with("c.rs:1: "),
            "{found:?}"
        );
    }

    #[test]
    fn a_line_of_101_characters_is_found_and_one_of_100_is_not() {
        let (fits, wide) = ("é".repeat(100), "é".repeat(101));
        let found = findings(columns, &[("a.rs", &format!("{fits}\n{wide}\n"))]);
        assert_eq!(found, ["a.rs:2: 101 columns; 100 fit"]);
        assert!(findings(columns, &[("a.md", &wide)]).is_empty());
        let table = format!("#[rustfmt::skip]\nconst T: T = &[\n{wide}\n];\n{wide}\n");
        let found = findings(columns, &[("a.rs", &table)]);
        assert_eq!(found, ["a.rs:5: 101 columns; 100 fit"]);
    }

    #[test]
    fn notes_to_self_are_found_in_code_and_documents() {
        for note in NOTES {
            for path in ["a.rs", "docs/a.md", "Cargo.toml", ".ci/run"] {
                let found = findings(notes_to_self, &[(path, &format!("ok\n// {note}: later\n"))]);
                assert_eq!(
                    found,
                    [format!("{path}:2: `{note}`: file an issue instead")]
                );
            }
        }
        let longer = format!("mktemp a.{}X", NOTES[2]);
        assert!(findings(notes_to_self, &[("a.sh", &longer)]).is_empty());
    }

    #[test]
    fn unsafe_is_found_outside_its_places_in_every_form() {
        for line in [
            "unsafe { read(p) }",
            "pub unsafe fn f() {}",
            "unsafe impl Send for A {}",
            "#[allow(unsafe_code)]",
            "#![expect(unsafe_code, reason = \"fast\")]",
        ] {
            let path = "crates/hashcache/src/cache/mod.rs";
            assert_eq!(findings(unsafe_places, &[(path, line)]).len(), 1, "{line}");
            let path = "crates/hashcache/src/device/uring.rs";
            assert!(
                findings(unsafe_places, &[(path, line)]).is_empty(),
                "{line}"
            );
        }
    }

    #[test]
    fn talk_of_unsafe_is_no_use_of_it() {
        for line in [
            "// unsafe methods invalidate",
            "let a = \"unsafe\";",
            "fn is_unsafe() {}",
            "#![forbid(unsafe_code)]",
        ] {
            assert!(
                findings(unsafe_places, &[("a.rs", line)]).is_empty(),
                "{line}"
            );
        }
    }
}
