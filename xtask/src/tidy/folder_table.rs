//! The table of folders in ARCHITECTURE.md names every folder of the large crates, and no module
//! that does not exist.
//!
//! Its form: a section `## The folders`, in it indented lines with the directory of a crate
//! (`    crates/hashcache/src`), and below each of these rows that are indented further. A row
//! begins with modules, several with commas between them, and two spaces end them. A folder is a
//! directory right below `src` with a source file that is not a test. Single files may be named
//! too, but need not be: few people would read a list of every file.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree, numbered};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const SECTION: &str = "## The folders";
/// A crate with more folders than these is too large to be read without a table of them.
const UNLISTED_FOLDERS_MAX: usize = 12;

/// Compares the table with the tree.
pub fn folder_table(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(ARCHITECTURE) else {
        return vec![Finding::new(ARCHITECTURE, 0, "is missing")];
    };
    let existing = modules(tree);
    let mut named: BTreeSet<(String, String)> = BTreeSet::new();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    let mut findings = vec![];
    let mut is_inside = false;
    let mut in_crate = String::new();
    for (number, line) in numbered(text) {
        if line.starts_with("## ") {
            is_inside = line.trim_end() == SECTION;
        } else if is_inside && line.starts_with("        ") {
            for name in row_modules(line) {
                let module = (in_crate.clone(), name.to_owned());
                if !existing.contains_key(&module) {
                    let what = format!("`{in_crate}` has no module `{name}`");
                    findings.push(Finding::new(ARCHITECTURE, number, what));
                }
                named.insert(module);
            }
        } else if is_inside && let Some(directory) = line.strip_prefix("    ") {
            let directory = directory.trim_end();
            in_crate = directory
                .strip_suffix("/src")
                .unwrap_or(directory)
                .to_owned();
            // The picture of the crates is in another section, so each such line names a crate.
            if !existing.keys().any(|(of_crate, _)| *of_crate == in_crate) {
                let what = format!("`{in_crate}` is no crate with modules");
                findings.push(Finding::new(ARCHITECTURE, number, what));
            }
            listed.insert(in_crate.clone());
        }
    }
    let folders = folders(&existing);
    let crates: BTreeSet<&String> = folders.iter().map(|(of_crate, _)| of_crate).collect();
    for of_crate in crates {
        let count = folders.iter().filter(|(it, _)| it == of_crate).count();
        let is_large = of_crate.starts_with("crates/") && count > UNLISTED_FOLDERS_MAX;
        if is_large && !listed.contains(of_crate) {
            let what = format!("`{of_crate}` has {count} folders and no table of them");
            findings.push(Finding::new(ARCHITECTURE, 0, what));
        }
    }
    for (of_crate, folder) in folders {
        if listed.contains(&of_crate) && !named.contains(&(of_crate.clone(), folder.clone())) {
            findings.push(Finding::new(
                &format!("{of_crate}/src/{folder}"),
                0,
                format!("is not in the table of folders of {ARCHITECTURE}"),
            ));
        }
    }
    findings
}

/// The modules with which a row begins.
fn row_modules(line: &str) -> impl Iterator<Item = &str> {
    let row = line.trim();
    let modules = row.split_once("  ").map_or(row, |(modules, _)| modules);
    modules.split(", ").map(str::trim)
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

    fn found(table: &str) -> Vec<String> {
        let mut files = FILES.to_vec();
        files.push((ARCHITECTURE, table));
        findings(folder_table, &files)
    }

    #[test]
    fn a_table_that_names_all_folders_is_fine() {
        let table = "## The folders\nProse.\n\n    crates/a/src\n        policy, key  where\n\
                     \x20       disk  what\n## Next\n    crates/b/src\n";
        assert_eq!(found(table), [""; 0]);
    }

    #[test]
    fn a_folder_that_is_not_named_is_found_and_one_of_tests_is_not_asked_for() {
        let table = "## The folders\n    crates/a/src\n        disk  x\n";
        let expected = "crates/a/src/policy: is not in the table of folders of ARCHITECTURE.md";
        assert_eq!(found(table), [expected]);
    }

    #[test]
    fn a_module_or_crate_that_is_gone_is_found() {
        let table = "## The folders\n    crates/a/src\n        disk, policy, policy/gone, gone  x\n\
                     \x20   crates/b/src\n";
        assert_eq!(
            found(table),
            [
                "ARCHITECTURE.md:3: `crates/a` has no module `policy/gone`",
                "ARCHITECTURE.md:3: `crates/a` has no module `gone`",
                "ARCHITECTURE.md:4: `crates/b` is no crate with modules"
            ]
        );
    }

    #[test]
    fn a_large_crate_without_a_table_is_found_and_a_small_one_is_not() {
        assert_eq!(found("# Architecture\n"), [""; 0]);
        let paths: Vec<String> = (0..=UNLISTED_FOLDERS_MAX)
            .map(|n| format!("crates/b/src/folder{n}/mod.rs"))
            .collect();
        let mut files: Vec<(&str, &str)> = paths.iter().map(|path| (&**path, "")).collect();
        files.push((ARCHITECTURE, "# Architecture\n"));
        assert_eq!(
            findings(folder_table, &files),
            ["ARCHITECTURE.md: `crates/b` has 13 folders and no table of them"]
        );
        assert_eq!(
            findings(folder_table, &FILES),
            ["ARCHITECTURE.md: is missing"]
        );
    }
}
