//! No traces of the machine on which a file was written: its paths, its package mirror.

use super::{Finding, Tree, numbered};

/// Beginnings of absolute paths that exist on one machine only. Split in halves, since this file is
/// checked as well.
const MACHINE_PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/tm", "p/"),
    concat!("/ro", "ot/"),
    concat!("/hom", "e/"),
];

/// The source of packages, as `Cargo.lock` spells it; `cargo deny` checks the same for a build.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Settings of cargo that replace that source.
const REPLACEMENTS: [&str; 3] = ["[source.", "[registries", "replace-with"];

/// Finds both.
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = vec![];
    for (path, text) in tree.files() {
        for (number, line) in numbered(text) {
            if let Some(place) = MACHINE_PATHS.iter().find(|place| has_path(line, place)) {
                let what = format!("`{place}…` is a place on one machine");
                findings.push(Finding::new(path, number, what));
            }
            let is_lock_file = path.rsplit('/').next() == Some("Cargo.lock");
            if is_lock_file && line.starts_with("source = ") && !line.contains(REGISTRY) {
                findings.push(Finding::new(
                    path,
                    number,
                    "a package from elsewhere than the registry",
                ));
            }
            let is_cargo_config = path.contains(".cargo/");
            if is_cargo_config && REPLACEMENTS.iter().any(|word| line.contains(word)) {
                findings.push(Finding::new(
                    path,
                    number,
                    "the registry is replaced for everyone",
                ));
            }
        }
    }
    findings
}

/// Whether `line` has a path that begins with `place`: not a part of a longer path or URL.
fn has_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || "-_.~/$}".contains(c))
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    #[test]
    fn paths_of_a_machine_are_found_in_any_file() {
        for place in MACHINE_PATHS {
            for line in [
                format!("see {place}x"),
                format!("\"{place}x\""),
                format!("--a={place}x"),
            ] {
                assert_eq!(
                    findings(machine_paths, &[("docs/a.md", &line)]).len(),
                    1,
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn longer_paths_and_urls_that_only_contain_such_a_name_are_fine() {
        for place in MACHINE_PATHS {
            for line in [format!("/var{place}x"), format!("http://a.example{place}x")] {
                assert!(
                    findings(machine_paths, &[("a.md", &line)]).is_empty(),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn a_mirror_in_the_lock_file_is_found() {
        let good = format!("source = \"{REGISTRY}\"");
        let bad = "source = \"registry+https://mirror.example/index\"";
        for path in ["Cargo.lock", "lab/Cargo.lock"] {
            assert!(findings(machine_paths, &[(path, &good)]).is_empty());
            assert_eq!(findings(machine_paths, &[(path, bad)]).len(), 1);
        }
    }

    #[test]
    fn a_replaced_registry_is_found() {
        let text = "[source.crates-io]\nreplace-with = \"mirror\"\n";
        assert_eq!(
            findings(machine_paths, &[(".cargo/config.toml", text)]).len(),
            2
        );
    }
}
