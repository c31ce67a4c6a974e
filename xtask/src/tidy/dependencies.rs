//! Every dependency is used by the crate that names it and explained in `docs/decisions`.

use std::collections::BTreeSet;

use super::manifest::{LABORATORY, Manifest, ROOT, manifests, of_workspace};
use super::{Finding, Tree, backticked, words};

/// The document that names each dependency and explains why it is needed.
const EXPLANATIONS: &str = "docs/decisions/dependencies.md";

/// Finds dependencies that are unused, unexplained, or listed by the workspace but used by no
/// crate.
pub fn dependencies(tree: &Tree) -> Vec<Finding> {
    let (manifests, mut findings) = manifests(tree);
    let explained: BTreeSet<&str> = tree
        .text(EXPLANATIONS)
        .into_iter()
        .flat_map(str::lines)
        .flat_map(backticked)
        .collect();
    if tree.text(EXPLANATIONS).is_none() {
        findings.push(Finding::new(EXPLANATIONS, 0, "is missing"));
    }
    let is_ours = |name: &str| manifests.iter().any(|manifest| manifest.name == name);
    for manifest in &manifests {
        let used = words_of(tree, manifest);
        for name in manifest.all() {
            let mut find = |what: String| findings.push(Finding::new(&manifest.path, 0, what));
            if !used.contains(name.replace('-', "_").as_str()) {
                find(format!("`{name}` is not used"));
            }
            if !is_ours(name) && !explained.contains(name) {
                find(format!(
                    "`{name}` is not in {EXPLANATIONS} with what it saves"
                ));
            }
        }
    }
    for (workspace, is_laboratory) in [(ROOT, false), (LABORATORY, true)] {
        let members = manifests
            .iter()
            .filter(|manifest| manifest.path.starts_with("lab/") == is_laboratory);
        let wanted: BTreeSet<&str> = members.flat_map(Manifest::all).collect();
        for name in of_workspace(tree, workspace) {
            if !wanted.contains(name.as_str()) {
                findings.push(Finding::new(
                    workspace,
                    0,
                    format!("no crate uses `{name}`"),
                ));
            }
        }
    }
    findings
}

/// The words of a crate's code without comments, which may mention unused crates.
fn words_of<'a>(tree: &'a Tree, manifest: &'a Manifest) -> BTreeSet<&'a str> {
    tree.below(manifest.directory())
        .filter(|(path, _)| path.ends_with(".rs"))
        .flat_map(|(_, text)| text.lines())
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(words)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    const MANIFEST: (&str, &str) = (
        "crates/a/Cargo.toml",
        "[package]\nname = \"a\"\n[dependencies]\nserde-json = \"1\"\n",
    );
    const EXPLAINED: (&str, &str) = (EXPLANATIONS, "- `serde-json`: reads JSON\n");

    #[test]
    fn a_dependency_that_is_used_and_explained_is_fine() {
        let used = ("crates/a/src/lib.rs", "use serde_json::Value;\n");
        assert!(findings(dependencies, &[MANIFEST, EXPLAINED, used]).is_empty());
    }

    #[test]
    fn a_dependency_that_only_comments_or_other_crates_name_is_not_used() {
        let comment = ("crates/a/src/lib.rs", "//! Uses serde_json.\n");
        let other = ("crates/ab/src/lib.rs", "use serde_json::Value;\n");
        let found = findings(dependencies, &[MANIFEST, EXPLAINED, comment, other]);
        assert_eq!(found, ["crates/a/Cargo.toml: `serde-json` is not used"]);
    }

    #[test]
    fn a_dependency_that_is_not_explained_is_found() {
        let used = ("crates/a/src/lib.rs", "use serde_json::Value;\n");
        let prose = (EXPLANATIONS, "We use serde-json without backticks.\n");
        assert_eq!(findings(dependencies, &[MANIFEST, prose, used]).len(), 1);
        assert_eq!(findings(dependencies, &[MANIFEST, used]).len(), 2);
    }

    #[test]
    fn what_the_workspace_lists_in_vain_is_found() {
        let root = ("Cargo.toml", "[workspace.dependencies]\nold = \"1\"\n");
        let explained = (EXPLANATIONS, "");
        let found = findings(dependencies, &[root, explained]);
        assert_eq!(found, ["Cargo.toml: no crate uses `old`"]);
        // A crate of the product does not count in the laboratory.
        let used = (
            "crates/a/Cargo.toml",
            "[package]\nname = \"a\"\n[dependencies]\nold.workspace = true\n",
        );
        let code = ("crates/a/src/lib.rs", "use old;\n");
        let laboratory = ("lab/Cargo.toml", root.1);
        let explained = (EXPLANATIONS, "`old`\n");
        let found = findings(dependencies, &[root, laboratory, used, code, explained]);
        assert_eq!(found, ["lab/Cargo.toml: no crate uses `old`"]);
    }
}
