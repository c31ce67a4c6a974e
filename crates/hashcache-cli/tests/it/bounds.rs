//! `docs/BOUNDS.md` against the sources: each bound that belongs to all is in the code as the table
//! says, has a share and a test that shows it, and no bound of the code is missing there.

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
    share: String,
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
            share: cells[2].to_owned(),
            tests: quoted(cells[4]),
        }
    })
    .collect()
}

/// Calls `visit` with the path and the text of each source file below `directory`.
fn sources(directory: &Path, visit: &mut dyn FnMut(&Path, &str)) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, visit);
        } else if path.extension().is_some_and(|it| it == "rs") {
            visit(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

/// The names of the tests in a source file: functions behind a line with `test]` or `test(`, with
/// other attributes at most in between.
fn tests_of(text: &str) -> impl Iterator<Item = String> {
    let mut is_test = false;
    text.lines().filter_map(move |line| {
        let line = line.trim_start();
        if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
            return None;
        }
        let rest = line.strip_prefix("async ").unwrap_or(line);
        let name = rest.strip_prefix("fn ")?.split('(').next()?.to_owned();
        std::mem::take(&mut is_test).then_some(name)
    })
}

#[test]
fn every_bound_of_the_document_is_in_the_code_and_has_a_test() {
    let mut tests = HashSet::new();
    for directory in fs::read_dir(crates()).unwrap() {
        for part in ["src", "tests"] {
            let directory = directory.as_ref().unwrap().path().join(part);
            if directory.exists() {
                sources(&directory, &mut |_, text| tests.extend(tests_of(text)));
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
        let share = bound.share.trim();
        assert!(
            !share.is_empty() && !share.starts_with("none"),
            "{name}: no share"
        );
        assert!(!bound.tests.is_empty(), "{name}: no test");
        for test in &bound.tests {
            assert!(tests.contains(test), "{name}: no test {test}");
        }
    }
}

/// Limits that do not belong to all: of one request, connection, file or page of an operator.
const OF_ONE: &[(&str, &[&str])] = &[
    ("hashcache-access/src/list.rs", &["FIRST_MAX"]),
    (
        "hashcache-access/src/rules.rs",
        &["LISTS_MAX", "LIMITS_MAX"],
    ),
    (
        "hashcache-access/src/users/basic.rs",
        &["USER_MAX", "VALUE_MAX"],
    ),
    (
        "hashcache-access/src/users/htpasswd.rs",
        &["CRYPT_LENGTH", "USER_MAX"],
    ),
    ("hashcache-proxy/src/admin/purge.rs", &["MOST"]),
    ("hashcache-proxy/src/admin/token.rs", &["TOKEN_MIN"]),
    ("hashcache-upstream/src/gateway/gopher.rs", &["ERROR_MAX"]),
    (
        "hashcache-upstream/src/gateway/gopher_menu.rs",
        &["ITEMS_MAX", "SELECTOR_MAX"],
    ),
    ("hashcache-upstream/src/gateway/listing.rs", &["NAMES_MAX"]),
    ("hashcache-upstream/src/gateway/mod.rs", &["TEXT_MAX"]),
    ("hashcache-proxy/src/history/name.rs", &["CUT"]),
    ("hashcache-proxy/src/inventory.rs", &["OBJECTS_MAX"]),
    ("hashcache-link/src/turns.rs", &["ACKS_WAITING"]),
    ("hashcache-proxy/src/metrics/origins.rs", &["ORIGINS_SHOWN"]),
    ("hashcache-proxy/src/peers/udp.rs", &["ADDRESSES_MAX"]),
    ("hashcache-store/src/purge.rs", &["LABELS_MAX"]),
    ("hashcache-proxy/src/request/purge.rs", &["MOST"]),
    ("hashcache-site/src/forwarded_check.rs", &["ELEMENTS_MAX"]),
    ("hashcache-store/src/lib.rs", &["MAX_METADATA"]),
    ("hashcache-store/src/summary.rs", &["COMPARED_MAX"]),
    ("hashcache-upstream/src/dns/source.rs", &["ADDRESSES_MAX"]),
    ("hashcache-upstream/src/http1/head.rs", &["COPIED_MAX"]),
    (
        "hashcache-upstream/src/kept_content.rs",
        &["COPIED_MAX", "PARTS_MAX"],
    ),
    ("hashcache-upstream/src/proxied.rs", &["HEAD_MAX"]),
    ("hashcache-wire/src/cell.rs", &["INTERIM_MAX"]),
    (
        "hashcache-wire/src/http2/interim.rs",
        &["PREFIX", "QUEUE_MAX"],
    ),
    ("hashcache-wire/src/stream.rs", &["HELD_FREE"]),
];

/// Crates that know no clients, or are not part of the proxy. The engine's limits are in the
/// document where clients reach them.
const WITHOUT_CLIENTS: [&str; 8] = [
    "hashcache",
    "hashcache-cli",
    "hashcache-http",
    "hashcache-import",
    "hashcache-peers",
    "hashcache-settings",
    "hashcache-testkit",
    "hashcache-wan",
];

/// Ends of the names of limits of one line, name or buffer, in bytes.
const OF_BYTES: [&str; 5] = ["_BYTES", "BYTES_MAX", "LINE_MAX", "NAME_MAX", "NAME_CHARS"];

/// The constant in the first words of `text`, without a path.
fn constant(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '_' | ':'));
    let name = text[..end.unwrap_or(text.len())].rsplit("::").next()?;
    let is_constant = name.len() > 2 && name.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    is_constant.then_some(name)
}

/// The constants that `text` compares with a length, or makes something with that has room for as
/// many.
fn limits_of(text: &str) -> impl Iterator<Item = &str> {
    let lengths = ["len() ", "count() ", "sum::<usize>() "].into_iter();
    let compared = lengths.flat_map(move |length| {
        let behind = text.split(length).skip(1);
        behind.filter_map(|it| constant(it.trim_start_matches(['<', '>', '=']).trim_start()))
    });
    let makers = ["FairTable::new(", "Semaphore::new(", "FairPermits::new("].into_iter();
    let made = makers.chain(["LruCache::new("]).flat_map(move |maker| {
        let behind = text.split(maker).skip(1);
        behind.filter_map(|it| constant(it.trim_start()))
    });
    compared.chain(made)
}

#[test]
fn every_limit_of_a_collection_is_in_the_document() {
    let named: HashSet<(String, String)> = bounds()
        .into_iter()
        .flat_map(|bound| bound.limits)
        .flat_map(|(file, names)| names.into_iter().map(move |name| (file.clone(), name)))
        .collect();
    let of_one = |file: &str, name: &str| {
        let listed = OF_ONE.iter().find(|(of, _)| *of == file);
        OF_BYTES.iter().any(|end| name.ends_with(end))
            || listed.is_some_and(|(_, names)| names.contains(&name))
    };
    let (mut missing, mut found) = (vec![], 0);
    for directory in fs::read_dir(crates()).unwrap() {
        let directory = directory.unwrap();
        if WITHOUT_CLIENTS.contains(&directory.file_name().to_str().unwrap()) {
            continue;
        }
        sources(&directory.path().join("src"), &mut |path, text| {
            let file = path.strip_prefix(crates()).unwrap().to_str().unwrap();
            let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
            if file.ends_with("tests.rs") || file.contains("/tests/") {
                return;
            }
            for name in limits_of(code) {
                found += 1;
                let is_named = named.contains(&(file.to_owned(), name.to_owned()));
                if !is_named && !of_one(file, name) {
                    missing.push(format!("{file}: {name}"));
                }
            }
        });
    }
    missing.dedup();
    assert!(
        missing.is_empty(),
        "not in docs/BOUNDS.md:\n{}",
        missing.join("\n")
    );
    assert!(found >= 60, "{found} limits found");
}
