//! Files that the program prints: their sources have not changed since `cargo xtask docs`.
//!
//! The reference page ends with a mark, a hash of the sources. Comparing it needs no build.

use super::{Finding, Tree};

/// The page with the mark.
pub const REFERENCE: &str = "docs/operate/reference.md";

/// The sources whose text is in these files.
const SOURCES: [&str; 6] = [
    "crates/hashcache-settings/src/example.rs",
    "crates/hashcache-settings/src/reference.rs",
    "crates/hashcache-settings/src/key.rs",
    "crates/hashcache-settings/src/keys/",
    "crates/hashcache-settings/src/tables.rs",
    "crates/hashcache-base/src/limits.rs",
];

/// The reference page, if it does not end with the mark of its sources.
pub fn printed(tree: &Tree) -> Vec<Finding> {
    let is_current = |text: &str| text.ends_with(&mark(tree));
    if tree.text(REFERENCE).is_some_and(is_current) {
        vec![]
    } else {
        vec![Finding::new(
            REFERENCE,
            0,
            "its sources have changed: run `cargo xtask docs`",
        )]
    }
}

/// The last line of the page that is made of the sources in `tree`.
pub fn mark(tree: &Tree) -> String {
    // FNV-1a: the same on every machine and in every version of Rust.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for source in SOURCES {
        for (path, text) in tree.below(source) {
            for byte in path.bytes().chain(text.bytes()) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    format!("\n<!-- made of sources {hash:016x} -->\n")
}

#[cfg(test)]
mod tests {
    use super::super::tests::{findings, tree};
    use super::*;

    #[test]
    fn a_changed_source_makes_the_page_old() {
        let limits = "crates/hashcache-base/src/limits.rs";
        let page = mark(&tree(&[(limits, "1")]));
        assert_eq!(
            findings(printed, &[(limits, "1"), (REFERENCE, &page)]),
            [""; 0]
        );
        for files in [
            vec![(limits, "2"), (REFERENCE, &*page)],
            vec![
                (limits, "1"),
                ("crates/hashcache-settings/src/keys/a.rs", ""),
                (REFERENCE, &*page),
            ],
            vec![(limits, "1")],
        ] {
            assert_eq!(findings(printed, &files).len(), 1, "{files:?}");
        }
    }
}
