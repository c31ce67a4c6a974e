//! The laboratory is built as the product is: equal versions of dependencies, equal lints, an equal
//! dev profile.
//!
//! Cargo has no settings that two workspaces share. Where both manifests have a key, its value is
//! equal; where both lock files have a crate, they have equal versions of it. Then cargo compiles
//! most dependencies once for both. Release profiles are not compared: campaigns run binaries that
//! the product's workspace builds.

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use super::manifest::{LABORATORY, ROOT};
use super::{Finding, Tree};

const LOCK: &str = "Cargo.lock";
const LABORATORY_LOCK: &str = "lab/Cargo.lock";

/// Tables of a manifest whose keys are compared. A table inside one has a row of its own.
const COMPARED: [&[&str]; 6] = [
    &["workspace", "package"],
    &["workspace", "dependencies"],
    &["workspace", "lints", "rust"],
    &["workspace", "lints", "clippy"],
    &["profile", "dev"],
    &["profile", "dev", "package"],
];

/// Compares the manifests and the lock files of both workspaces.
pub fn laboratory(tree: &Tree) -> Vec<Finding> {
    // Trees in the tests of other rules have no laboratory.
    if tree.text(LABORATORY).is_none() && tree.text(LABORATORY_LOCK).is_none() {
        return vec![];
    }
    let mut findings = vec![];
    let mut read = |path: &str| match tree.text(path).map(str::parse::<Table>) {
        Some(Ok(table)) => table,
        Some(Err(error)) => {
            findings.push(Finding::new(path, 0, error.message()));
            Table::new()
        }
        None => {
            findings.push(Finding::new(path, 0, "is missing"));
            Table::new()
        }
    };
    let (root, own) = (read(ROOT), read(LABORATORY));
    let (root_lock, own_lock) = (read(LOCK), read(LABORATORY_LOCK));
    for place in COMPARED {
        let (Some(theirs), Some(ours)) = (inner(&root, place), inner(&own, place)) else {
            continue;
        };
        for (key, value) in ours {
            // A directory has another relative path from `lab/`.
            let is_path = value.get("path").is_some();
            let own_row = [place, &[key.as_str()]].concat();
            let has_row = COMPARED.contains(&own_row.as_slice());
            let differs = theirs.get(key).is_some_and(|other| other != value);
            if differs && !is_path && !has_row {
                let what = format!("`{}.{key}` is not that of {ROOT}", place.join("."));
                findings.push(Finding::new(LABORATORY, 0, what));
            }
        }
    }
    let theirs = versions(&root_lock);
    for ((name, series), versions) in versions(&own_lock) {
        let Some(others) = theirs.get(&(name.clone(), series)) else {
            continue;
        };
        if *others != versions {
            let what = format!(
                "`{name}` has version {}, and {} in {LOCK}: \
                 cargo update --manifest-path {LABORATORY} {name} --precise VERSION",
                listed(&versions),
                listed(others)
            );
            findings.push(Finding::new(LABORATORY_LOCK, 0, what));
        }
    }
    findings
}

fn inner<'a>(table: &'a Table, place: &[&str]) -> Option<&'a Table> {
    let mut inner = table;
    for name in place {
        inner = inner.get(*name)?.as_table()?;
    }
    Some(inner)
}

/// The versions of each crate in a lock file, by its name and what cargo takes for compatible: two
/// incompatible versions may stand beside each other, and only one workspace may need both.
fn versions(lock: &Table) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut found: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    let packages = lock.get("package").and_then(Value::as_array);
    for package in packages.into_iter().flatten() {
        let text = |key| package.get(key).and_then(Value::as_str);
        if let (Some(name), Some(version)) = (text("name"), text("version")) {
            let key = (name.to_owned(), series(version).to_owned());
            found.entry(key).or_default().insert(version.to_owned());
        }
    }
    found
}

/// The part of a version that compatible versions share: up to the first number that is not 0.
fn series(version: &str) -> &str {
    let mut end = 0;
    for part in version.split('.') {
        end += part.len();
        if part != "0" {
            break;
        }
        end += 1;
    }
    version.get(..end).unwrap_or(version)
}

fn listed(versions: &BTreeSet<String>) -> String {
    let names: Vec<&str> = versions.iter().map(String::as_str).collect();
    names.join(" and ")
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const MANIFEST: &str = "[workspace.package]\nversion = \"1.0.0\"\n\
                            [workspace.dependencies]\na = { version = \"1\", features = [\"x\"] }\n\
                            b = { path = \"b\" }\n\
                            [workspace.lints.rust]\nmissing_docs = \"deny\"\n\
                            [profile.dev.package.\"*\"]\nopt-level = 2\n";
    const LOCKED: &str = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\
                          [[package]]\nname = \"a\"\nversion = \"0.4.1\"\n";

    fn found(own: &str, own_lock: &str) -> Vec<String> {
        let files = [
            (ROOT, MANIFEST),
            (LOCK, LOCKED),
            (LABORATORY, own),
            (LABORATORY_LOCK, own_lock),
        ];
        findings(laboratory, &files)
    }

    #[test]
    fn equal_manifests_and_versions_are_fine_and_own_paths_may_differ() {
        let own = MANIFEST.replace("path = \"b\"", "path = \"../b\"");
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n\
                    [[package]]\nname = \"a\"\nversion = \"0.3.0\"\n\
                    [[package]]\nname = \"c\"\nversion = \"1.0.0\"\n";
        assert_eq!(found(&own, lock), [""; 0]);
    }

    #[test]
    fn a_setting_that_differs_is_found() {
        for (from, to, key) in [
            ("1.0.0", "1.0.1", "workspace.package.version"),
            ("\"x\"", "\"y\"", "workspace.dependencies.a"),
            ("deny", "warn", "workspace.lints.rust.missing_docs"),
            ("= 2", "= 1", "profile.dev.package.*"),
        ] {
            let own = MANIFEST.replace(from, to);
            let expected = format!("lab/Cargo.toml: `{key}` is not that of Cargo.toml");
            assert_eq!(found(&own, LOCKED), [expected]);
        }
    }

    #[test]
    fn a_version_that_differs_is_found() {
        for (from, to) in [("1.2.3", "1.3.0"), ("0.4.1", "0.4.2")] {
            let found = found(MANIFEST, &LOCKED.replace(from, to));
            let expected =
                format!("lab/Cargo.lock: `a` has version {to}, and {from} in Cargo.lock");
            assert_eq!(found.len(), 1);
            assert!(found[0].starts_with(&expected), "{found:?}");
        }
    }

    #[test]
    fn a_file_that_is_missing_or_no_toml_is_found() {
        let files = [(ROOT, MANIFEST), (LABORATORY, MANIFEST), (LOCK, LOCKED)];
        let missing = "lab/Cargo.lock: is missing";
        assert_eq!(findings(laboratory, &files), [missing]);
        assert_eq!(found("[workspace", LOCKED).len(), 1);
    }

    #[test]
    fn compatible_versions_are_of_one_series() {
        for (version, expected) in [
            ("1.2.3", "1"),
            ("0.4.1", "0.4"),
            ("0.0.3", "0.0.3"),
            ("1.1.6+spec-1.1.0", "1"),
            ("0", "0"),
        ] {
            assert_eq!(series(version), expected, "{version}");
        }
    }
}
