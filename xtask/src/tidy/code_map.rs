//! The code map of ARCHITECTURE.md names every folder, and no module that does not exist.
//!
//! Its form: a section `## Code map`, in it a heading `### ` with the crate's directory in
//! backticks (`crates/hashcache`), below it rows or items that begin with modules in backticks,
//! several with commas between them: ``- `policy`, `disk/health`: …``. A folder is a directory
//! right below `src` with a source file that is not a test. Single files may be named too, but need
//! not be: few people would read a map of every file.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree, numbered};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Code map";

/// Compares the map with the tree.
pub fn code_map(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(ARCHITECTURE) else {
        return vec![Finding::new(ARCHITECTURE, 0, "is missing")];
    };
    let existing = modules(tree);
    let mut named: BTreeSet<(String, String)> = BTreeSet::new();
    let mut headings: BTreeSet<String> = BTreeSet::new();
    let mut findings = vec![];
    let mut is_inside = false;
    let mut in_crate = String::new();
    for (number, line) in numbered(text) {
        if line.starts_with("## ") {
            is_inside = line.trim_end() == SECTION;
        } else if is_inside && line.starts_with("### ") {
            in_crate = leading_names(line).into_iter().next().unwrap_or_default();
            if !existing.keys().any(|(of_crate, _)| *of_crate == in_crate) {
                let what = format!("`{in_crate}` is no crate with modules");
                findings.push(Finding::new(ARCHITECTURE, number, what));
            }
            headings.insert(in_crate.clone());
        } else if is_inside {
            for name in leading_names(line) {
                let module = (in_crate.clone(), name.trim_end_matches('/').to_owned());
                if !existing.contains_key(&module) {
                    let what = format!("`{in_crate}` has no module `{name}`");
                    findings.push(Finding::new(ARCHITECTURE, number, what));
                }
                named.insert(module);
            }
        }
    }
    let crates: BTreeSet<&String> = existing.keys().map(|(of_crate, _)| of_crate).collect();
    for of_crate in crates.into_iter().filter(|it| !headings.contains(*it)) {
        let what = format!("`{of_crate}` has no heading in the code map");
        findings.push(Finding::new(ARCHITECTURE, 0, what));
    }
    for (of_crate, folder) in folders(&existing) {
        if !named.contains(&(of_crate.clone(), folder.clone())) {
            findings.push(Finding::new(
                &format!("{of_crate}/src/{folder}"),
                0,
                format!("is not in the code map of {ARCHITECTURE}"),
            ));
        }
    }
    findings
}

/// The crate and name of every directory right below `src` that holds one of `modules`.
fn folders(modules: &BTreeMap<(String, String), String>) -> BTreeSet<(String, String)> {
    let folder = |((of_crate, _), path): (&(String, String), &String)| {
        let (_, file) = path.split_once("/src/")?;
        let (folder, _) = file.split_once('/')?;
        Some((of_crate.clone(), folder.to_owned()))
    };
    modules.iter().filter_map(folder).collect()
}

/// Every module by its crate's directory and its own name, with its path.
fn modules(tree: &Tree) -> BTreeMap<(String, String), String> {
    let mut modules = BTreeMap::new();
    for (path, _) in tree.ending(".rs") {
        let Some((of_crate, file)) = path.split_once("/src/") else {
            continue;
        };
        let module = file.strip_suffix(".rs").unwrap_or(file);
        let module = module.strip_suffix("/mod").unwrap_or(module);
        let last = module.rsplit('/').next().unwrap_or(module);
        let is_test = last == "tests" || last.ends_with("_tests") || module.contains("/tests/");
        if !is_test && !["lib", "main"].contains(&module) && !of_crate.starts_with("fuzz") {
            modules.insert((of_crate.to_owned(), module.to_owned()), path.to_owned());
        }
    }
    modules
}

/// The names in backticks with which a heading, item or row begins.
fn leading_names(line: &str) -> Vec<String> {
    let mut rest = line
        .trim_start()
        .trim_start_matches(['#', '-', '*', '|'])
        .trim_start();
    let mut names = vec![];
    while let Some((name, tail)) = rest.strip_prefix('`').and_then(|rest| rest.split_once('`')) {
        names.push(name.to_owned());
        match tail.strip_prefix(',') {
            Some(tail) => rest = tail.trim_start(),
            None => break,
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const FILES: [(&str, &str); 10] = [
        ("crates/a/src/lib.rs", ""),
        ("crates/a/src/key.rs", ""),
        ("crates/a/src/key/tests.rs", ""),
        ("crates/a/src/policy/mod.rs", ""),
        ("crates/a/src/policy/log.rs", ""),
        ("crates/a/src/policy/tests.rs", ""),
        ("crates/a/src/disk.rs", ""),
        ("crates/a/src/disk/log.rs", ""),
        ("crates/a/tests/it/main.rs", ""),
        ("fuzz/src/format.rs", ""),
    ];

    fn found(map: &str) -> Vec<String> {
        let mut files = FILES.to_vec();
        files.push((ARCHITECTURE, map));
        findings(code_map, &files)
    }

    #[test]
    fn a_map_of_items_or_of_rows_that_names_all_folders_is_fine() {
        let head = "## Code map\n### `crates/a`, the engine\nProse.\n";
        let items = "- `policy/`, `key`: where `nothing` goes\n- `disk/log`, `disk`: x\n\
                     ## Next\n- `b`\n";
        let rows = "| folder | what |\n|---|---|\n| `disk` | a |\n| `policy` | b |\n";
        for body in [items, rows] {
            assert_eq!(found(&format!("{head}{body}")), [""; 0]);
        }
    }

    #[test]
    fn a_folder_that_is_not_named_is_found_and_one_of_tests_is_not_asked_for() {
        let map = "## Code map\n### `crates/a`\n- `disk`: x\n- `policy/log`: one of its files\n";
        let expected = "crates/a/src/policy: is not in the code map of ARCHITECTURE.md";
        assert_eq!(found(map), [expected]);
    }

    #[test]
    fn a_module_or_crate_that_is_gone_is_found() {
        let map = "## Code map\n### `crates/a`\n- `disk`, `policy`, `policy/gone`, `gone`: x\n\
                   ### `crates/b`\n";
        assert_eq!(
            found(map),
            [
                "ARCHITECTURE.md:3: `crates/a` has no module `policy/gone`",
                "ARCHITECTURE.md:3: `crates/a` has no module `gone`",
                "ARCHITECTURE.md:4: `crates/b` is no crate with modules"
            ]
        );
    }

    #[test]
    fn without_a_map_every_crate_and_folder_is_found() {
        assert_eq!(
            found("# Architecture\n"),
            [
                "ARCHITECTURE.md: `crates/a` has no heading in the code map",
                "crates/a/src/disk: is not in the code map of ARCHITECTURE.md",
                "crates/a/src/policy: is not in the code map of ARCHITECTURE.md"
            ]
        );
        assert_eq!(findings(code_map, &FILES), ["ARCHITECTURE.md: is missing"]);
    }
}
