//! The allowed dependencies between our crates: the arrows of ARCHITECTURE.md, as a table.
//!
//! A new arrow needs a commit of its own that gives the reason.

use super::manifest::manifests;
use super::{Finding, Tree};

/// A crate, what it may use, and what its tests may use besides.
struct Row {
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
}

const ACCESS: &str = "hashcache-access";
const BASE: &str = "hashcache-base";
const ENGINE: &str = "hashcache";
const HTTP: &str = "hashcache-http";
const IMPORT: &str = "hashcache-import";
const LAYOUTS: &str = "hashcache-layouts";
const INTERCEPT: &str = "hashcache-intercept";
const LINK: &str = "hashcache-link";
const PEERS: &str = "hashcache-peers";
const PROXY: &str = "hashcache-proxy";
const SETTINGS: &str = "hashcache-settings";
const SIM: &str = "hashcache-sim";
const SITE: &str = "hashcache-site";
const STORE: &str = "hashcache-store";
const TESTKIT: &str = "hashcache-testkit";
const UPSTREAM: &str = "hashcache-upstream";
const WAN: &str = "hashcache-wan";
const WIRE: &str = "hashcache-wire";
const WORKLOAD: &str = "hashcache-workload";

const ARROWS: [Row; 22] = [
    Row {
        name: ENGINE,
        uses: &[],
        tests_use: &[],
    },
    Row {
        name: HTTP,
        uses: &[],
        tests_use: &[],
    },
    // Like `http`: bytes in, bytes out, so that fuzzers and tests reach it without a proxy.
    Row {
        name: PEERS,
        uses: &[],
        tests_use: &[],
    },
    Row {
        name: TESTKIT,
        uses: &[],
        tests_use: &[],
    },
    // A codec: bytes in, bytes out. What it reads and stores lies in the engine, as tests show.
    Row {
        name: WAN,
        uses: &[],
        tests_use: &[ENGINE],
    },
    // Requests from a seed: the bench sends them to the engine, campaigns send them to proxies.
    Row {
        name: WORKLOAD,
        uses: &[],
        tests_use: &[],
    },
    // Replays go through the engine; only the command and campaigns start them.
    Row {
        name: SIM,
        uses: &[ENGINE, HTTP, WORKLOAD],
        tests_use: &[],
    },
    // Layouts of other caches lie in files; requests and cache sizes are those of replays.
    Row {
        name: LAYOUTS,
        uses: &[ENGINE, SIM, WORKLOAD],
        tests_use: &[],
    },
    // Clients share the engine's memory.
    Row {
        name: BASE,
        uses: &[ENGINE, HTTP],
        tests_use: &[],
    },
    // Lists and quotas lie in the engine's memory.
    Row {
        name: ACCESS,
        uses: &[BASE, ENGINE, HTTP],
        tests_use: &[BASE],
    },
    // A response as an object of the engine, whose pages are packed by the codec of the link; and
    // what is fetched into it and purged from it. Its filter is the digest for peers.
    Row {
        name: STORE,
        uses: &[BASE, ENGINE, HTTP, PEERS, WAN],
        tests_use: &[BASE],
    },
    // What both ends of a link share. Stored responses are its dictionaries.
    Row {
        name: LINK,
        uses: &[BASE, ENGINE, HTTP, STORE, WAN],
        tests_use: &[BASE],
    },
    // Tunnels of a link are streams of its connection.
    Row {
        name: WIRE,
        uses: &[BASE, HTTP, LINK],
        tests_use: &[BASE, ENGINE],
    },
    // Peers are reached as origins are; FTP and Gopher servers are origins, too.
    Row {
        name: UPSTREAM,
        uses: &[BASE, ENGINE, HTTP, LINK, PEERS, WAN, WIRE],
        tests_use: &[BASE],
    },
    // The origins of a site are endpoints.
    Row {
        name: SITE,
        uses: &[BASE, ENGINE, HTTP, UPSTREAM],
        tests_use: &[BASE],
    },
    // Certificates of leaves lie in the memory of the engine.
    Row {
        name: INTERCEPT,
        uses: &[BASE, ENGINE, HTTP],
        tests_use: &[BASE],
    },
    // Its tests use the clocks and certificates for tests, a feature of the base.
    Row {
        name: PROXY,
        uses: &[
            ACCESS, BASE, ENGINE, HTTP, INTERCEPT, LINK, PEERS, SITE, STORE, UPSTREAM, WAN, WIRE,
        ],
        tests_use: &[BASE, TESTKIT],
    },
    // The rows of settings write to the proxy's settings, with its origin and its freshness rules.
    Row {
        name: SETTINGS,
        uses: &[ENGINE, HTTP, PROXY],
        tests_use: &[],
    },
    // The importer writes the keys of the settings, and checks hosts and users as the proxy does.
    Row {
        name: IMPORT,
        uses: &[HTTP, PROXY, SETTINGS],
        tests_use: &[],
    },
    Row {
        name: "hashcache-cli",
        uses: &[ENGINE, HTTP, IMPORT, PROXY, SETTINGS, SIM, WORKLOAD],
        // Tests play peers, which send datagrams.
        tests_use: &[PEERS, TESTKIT],
    },
    // Nothing depends on the campaigns and they are not published: they may measure anything.
    Row {
        name: "campaigns",
        uses: &[
            ENGINE, HTTP, LAYOUTS, PEERS, PROXY, SIM, TESTKIT, WAN, WORKLOAD,
        ],
        tests_use: &[],
    },
    // The checks must be built in seconds.
    Row {
        name: "xtask",
        uses: &[],
        tests_use: &[],
    },
];

/// Compares every manifest with the table.
pub fn arrows(tree: &Tree) -> Vec<Finding> {
    let (manifests, mut findings) = manifests(tree);
    let is_ours = |name: &&str| manifests.iter().any(|manifest| manifest.name == **name);
    for manifest in &manifests {
        let mut find = |what: String| findings.push(Finding::new(&manifest.path, 0, what));
        let Some(row) = ARROWS.iter().find(|row| row.name == manifest.name) else {
            find(format!(
                "`{}` has no row among the arrows in xtask",
                manifest.name
            ));
            continue;
        };
        for used in manifest
            .dependencies
            .iter()
            .map(String::as_str)
            .filter(is_ours)
        {
            if !row.uses.contains(&used) {
                find(format!("no arrow leads from `{}` to `{used}`", row.name));
            }
        }
        for used in manifest
            .dev_dependencies
            .iter()
            .map(String::as_str)
            .filter(is_ours)
        {
            if !row.uses.contains(&used) && !row.tests_use.contains(&used) {
                find(format!(
                    "no arrow leads from the tests of `{}` to `{used}`",
                    row.name
                ));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings;
    use super::*;

    fn manifest(name: &str, rest: &str) -> (String, String) {
        (
            format!("crates/{name}/Cargo.toml"),
            format!("[package]\nname = \"{name}\"\n{rest}"),
        )
    }

    fn found(manifests: &[(String, String)]) -> Vec<String> {
        let files: Vec<(&str, &str)> = manifests
            .iter()
            .map(|(path, text)| (path.as_str(), text.as_str()))
            .collect();
        findings(arrows, &files)
    }

    #[test]
    fn an_arrow_against_the_direction_is_found() {
        let http = manifest(
            HTTP,
            "[dependencies]\nhashcache.workspace = true\nserde = \"1\"\n",
        );
        assert_eq!(
            found(&[http, manifest(ENGINE, "")]),
            ["crates/hashcache-http/Cargo.toml: \
                no arrow leads from `hashcache-http` to `hashcache`"]
        );
    }

    #[test]
    fn the_testkit_is_for_tests_only() {
        let kit = manifest(TESTKIT, "");
        let used = manifest(
            PROXY,
            "[dependencies]\nhashcache-testkit.workspace = true\n",
        );
        assert_eq!(found(&[used, kit.clone()]).len(), 1);
        let tested = manifest(
            PROXY,
            "[dev-dependencies]\nhashcache-testkit.workspace = true\n",
        );
        assert!(found(&[tested, kit]).is_empty());
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert_eq!(found(&[manifest("hashcache-new", "")]).len(), 1);
    }
}
