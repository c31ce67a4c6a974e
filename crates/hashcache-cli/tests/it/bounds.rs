//! `docs/BOUNDS.md` against the sources: each bound that belongs to all is in the code as the table
//! says, and a test shows whose share it has.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers do is part of the tests"
)]

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A row of the document.
struct Bound {
    name: String,
    /// Files with the names that define the limit there.
    limits: Vec<(String, Vec<String>)>,
    tests: Vec<String>,
}

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The words in backticks.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

fn bounds() -> Vec<Bound> {
    let text = fs::read_to_string(crates().join("../docs/BOUNDS.md")).unwrap();
    let rows = text.lines().filter_map(|line| {
        let cells = line.strip_prefix("| ")?.strip_suffix(" |")?;
        let cells: Vec<&str> = cells.split(" | ").collect();
        assert_eq!(cells.len(), 5, "five columns: {line}");
        (!cells[0].starts_with("---") && cells[0] != "bound").then_some(cells)
    });
    rows.map(|cells| {
        let mut limits: Vec<(String, Vec<String>)> = vec![];
        for word in quoted(cells[1]) {
            match (word.ends_with(".rs"), limits.last_mut()) {
                (true, _) => limits.push((word, vec![])),
                (false, Some((_, names))) => names.push(word),
                // A setting on which the limit depends.
                (false, None) => {}
            }
        }
        Bound {
            name: cells[0].to_owned(),
            limits,
            tests: quoted(cells[4]),
        }
    })
    .collect()
}

/// The names of all functions below `directory`.
fn functions(directory: &Path, names: &mut HashSet<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, names);
        } else if path.extension().is_some_and(|it| it == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let after_fn = text.split("fn ").skip(1);
            names.extend(after_fn.filter_map(|rest| {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
                rest[end..]
                    .starts_with("()")
                    .then(|| rest[..end].to_owned())
            }));
        }
    }
}

#[test]
fn every_bound_of_the_document_is_in_the_code_and_has_a_test() {
    let mut tests = HashSet::new();
    for directory in fs::read_dir(crates()).unwrap() {
        for part in ["src", "tests"] {
            let directory = directory.as_ref().unwrap().path().join(part);
            if directory.exists() {
                functions(&directory, &mut tests);
            }
        }
    }
    let bounds = bounds();
    assert!(bounds.len() >= 40, "{} rows", bounds.len());
    for bound in bounds {
        let name = &bound.name;
        assert!(!bound.limits.is_empty(), "{name}: no file");
        for (file, names) in &bound.limits {
            let text = fs::read_to_string(crates().join(file));
            let text = text.unwrap_or_else(|error| panic!("{name}: {file}: {error}"));
            assert!(!names.is_empty(), "{name}: {file} names nothing");
            for limit in names {
                assert!(text.contains(limit), "{name}: {file} has no {limit}");
            }
        }
        assert!(!bound.tests.is_empty(), "{name}: no test");
        for test in &bound.tests {
            assert!(tests.contains(test), "{name}: no test {test}");
        }
    }
}
