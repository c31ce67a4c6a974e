//! The code map of ARCHITECTURE.md names every module, and none that is gone.
//!
//! Its form: a section `## Code map`, in it a heading `### ` with the crate's directory in
//! backticks (`crates/hashcache`), below it rows or items that begin with their modules in
//! backticks, several with commas between them: ``- `policy/log`, `policy/set`: …``. `lib.rs`,
//! `main.rs` and tests are not listed: they are where everyone begins anyway.

use std::collections::BTreeMap;

use super::{Finding, Tree, numbered};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const SECTION: &str = "## Code map";

/// Compares the map with the tree.
pub fn code_map(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(ARCHITECTURE) else {
        return vec![Finding::new(ARCHITECTURE, 0, "is missing")];
    };
    let existing = modules(tree);
    let mut named: BTreeMap<(String, String), usize> = BTreeMap::new();
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
        } else if is_inside {
            for name in leading_names(line) {
                let module = (in_crate.clone(), name.trim_end_matches('/').to_owned());
                if !existing.contains_key(&module) {
                    let what = format!("`{in_crate}` has no module `{name}`");
                    findings.push(Finding::new(ARCHITECTURE, number, what));
                }
                named.insert(module, number);
            }
        }
    }
    for ((of_crate, module), path) in existing {
        if !named.contains_key(&(of_crate, module)) {
            findings.push(Finding::new(
                &path,
                0,
                format!("is not in the code map of {ARCHITECTURE}"),
            ));
        }
    }
    findings
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

    const FILES: [(&str, &str); 7] = [
        ("crates/a/src/lib.rs", ""),
        ("crates/a/src/key.rs", ""),
        ("crates/a/src/policy/mod.rs", ""),
        ("crates/a/src/policy/log.rs", ""),
        ("crates/a/src/policy/tests.rs", ""),
        ("crates/a/tests/it/main.rs", ""),
        ("fuzz/src/format.rs", ""),
    ];

    fn found(map: &str) -> Vec<String> {
        let mut files = FILES.to_vec();
        files.push((ARCHITECTURE, map));
        findings(code_map, &files)
    }

    #[test]
    fn a_map_of_items_or_of_rows_that_names_all_is_fine() {
        let head = "## Code map\n### `crates/a`, the engine\nProse.\n";
        let items =
            "- `key`: hashes\n- `policy/`, `policy/log`: where `nothing` goes\n## Next\n- `b`\n";
        let rows =
            "| module | what |\n|---|---|\n| `key` | a |\n| `policy` | b |\n| `policy/log` | c |\n";
        for body in [items, rows] {
            assert_eq!(found(&format!("{head}{body}")), [""; 0]);
        }
    }

    #[test]
    fn a_module_that_is_not_named_is_found() {
        let map = "## Code map\n### `crates/a`\n- `key`: hashes\n- `policy/`: where\n";
        let expected = "crates/a/src/policy/log.rs: is not in the code map of ARCHITECTURE.md";
        assert_eq!(found(map), [expected]);
    }

    #[test]
    fn a_module_or_crate_that_is_gone_is_found() {
        let map = "## Code map\n### `crates/a`\n- `key`, `policy`, `policy/log`, `gone`: x\n\
                   ### `crates/b`\n";
        assert_eq!(
            found(map),
            [
                "ARCHITECTURE.md:3: `crates/a` has no module `gone`",
                "ARCHITECTURE.md:4: `crates/b` is no crate with modules"
            ]
        );
    }

    #[test]
    fn without_a_map_every_module_is_found() {
        assert_eq!(found("# Architecture\n").len(), 3);
        assert_eq!(findings(code_map, &FILES), ["ARCHITECTURE.md: is missing"]);
    }
}
