//! Reads from a `Cargo.toml` what the rules on dependencies need.

use toml::{Table, Value};

use super::{Finding, Tree};

/// The manifest of the product's workspace.
pub const ROOT: &str = "Cargo.toml";
/// The manifest of the laboratory's workspace.
pub const LABORATORY: &str = "lab/Cargo.toml";

/// The manifest of one crate.
#[derive(Debug)]
pub struct Manifest {
    /// Its path.
    pub path: String,
    /// The crate's name.
    pub name: String,
    /// Names in `[dependencies]` and `[build-dependencies]`, for every target.
    pub dependencies: Vec<String>,
    /// Names in `[dev-dependencies]`.
    pub dev_dependencies: Vec<String>,
}

impl Manifest {
    /// The directory of the crate, with a slash at its end.
    pub fn directory(&self) -> &str {
        self.path.strip_suffix("Cargo.toml").unwrap_or(&self.path)
    }

    /// Every name the crate depends on in any way.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        self.dependencies
            .iter()
            .chain(&self.dev_dependencies)
            .map(String::as_str)
    }
}

/// The manifests of the workspace's crates; those that cannot be read are findings.
pub fn manifests(tree: &Tree) -> (Vec<Manifest>, Vec<Finding>) {
    let mut manifests = vec![];
    let mut findings = vec![];
    for (path, text) in tree.ending("/Cargo.toml") {
        // cargo-fuzz needs a workspace of its own; it is not shipped.
        if path.starts_with("fuzz/") {
            continue;
        }
        match text.parse::<Table>() {
            // The laboratory's workspace has no package of its own.
            Ok(table) if !table.contains_key("package") && table.contains_key("workspace") => {}
            Ok(table) => manifests.push(of_crate(path, &table)),
            Err(error) => findings.push(Finding::new(path, 0, error.message())),
        }
    }
    (manifests, findings)
}

/// Names in `[workspace.dependencies]` of the manifest at `path`.
pub fn of_workspace(tree: &Tree, path: &str) -> Vec<String> {
    let table = tree.text(path).and_then(|text| text.parse::<Table>().ok());
    let workspace = table
        .as_ref()
        .and_then(|table| table.get("workspace")?.as_table());
    workspace
        .map(|workspace| names(workspace, "dependencies"))
        .unwrap_or_default()
}

fn of_crate(path: &str, table: &Table) -> Manifest {
    let name = table
        .get("package")
        .and_then(|package| package.get("name")?.as_str());
    let targets = table
        .get("target")
        .and_then(Value::as_table)
        .into_iter()
        .flatten();
    let sections: Vec<&Table> = std::iter::once(table)
        .chain(targets.filter_map(|(_, section)| section.as_table()))
        .collect();
    let all = |kinds: &[&str]| {
        sections
            .iter()
            .flat_map(|&table| kinds.iter().flat_map(|kind| names(table, kind)))
            .collect()
    };
    Manifest {
        path: path.to_owned(),
        name: name.unwrap_or(path).to_owned(),
        dependencies: all(&["dependencies", "build-dependencies"]),
        dev_dependencies: all(&["dev-dependencies"]),
    }
}

fn names(table: &Table, section: &str) -> Vec<String> {
    let section = table.get(section).and_then(Value::as_table);
    section
        .map(|section| section.keys().cloned().collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn dependencies_of_every_kind_and_target_are_read() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nb = \"1\"\n\
                    [build-dependencies]\nc = \"1\"\n[dev-dependencies]\nd.workspace = true\n\
                    [target.'cfg(unix)'.dependencies]\ne = \"1\"\n";
        let (manifests, findings) = manifests(&tree(&[("crates/a/Cargo.toml", text)]));
        assert_eq!(findings, []);
        assert_eq!(manifests[0].name, "a");
        assert_eq!(manifests[0].directory(), "crates/a/");
        assert_eq!(manifests[0].dependencies, ["b", "c", "e"]);
        assert_eq!(manifests[0].dev_dependencies, ["d"]);
    }

    #[test]
    fn a_manifest_that_is_no_toml_is_a_finding() {
        assert_eq!(
            manifests(&tree(&[("crates/a/Cargo.toml", "[package")]))
                .1
                .len(),
            1
        );
    }

    #[test]
    fn the_list_of_the_workspace_is_read() {
        let text = "[workspace.dependencies]\na = \"1\"\nb = { path = \"b\" }\n";
        let tree = tree(&[("Cargo.toml", text), ("lab/Cargo.toml", text)]);
        for path in ["Cargo.toml", "lab/Cargo.toml"] {
            assert_eq!(of_workspace(&tree, path), ["a", "b"]);
        }
        assert_eq!(manifests(&tree).0.len(), 0, "a workspace is no crate");
    }
}
