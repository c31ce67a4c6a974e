//! `hashcache plan`, run as a process, and the document that repeats its figures.

use std::fs;

use serde_json::Value;

use crate::Home;

fn json(home: &Home, arguments: &[&str]) -> Value {
    let outcome = home.hashcache(&[&["plan", "--json"], arguments].concat(), &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    serde_json::from_str(&outcome.stdout).expect("what --json prints is JSON")
}

#[test]
fn a_plan_is_a_table_with_a_pick() {
    let home = Home::new();
    let outcome = home.hashcache(&["plan", "--disk", "1TB", "--memory", "2GB"], &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    assert!(outcome.stdout.contains("\n> log "), "{outcome:?}");
    assert!(
        outcome.stdout.contains("\n> take --policy log --grouped\n"),
        "{outcome:?}"
    );
}

#[test]
fn a_disk_is_needed_and_a_size_must_be_one() {
    let home = Home::new();
    let outcome = home.hashcache(&["plan"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(outcome.stderr.contains("--disk"), "{outcome:?}");
    let outcome = home.hashcache(&["plan", "--disk", "much"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome.stderr.starts_with("hashcache: --disk: "),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("\nhint: "), "{outcome:?}");
}

#[test]
fn what_is_no_cache_is_not_probed_and_not_changed() {
    let home = Home::new();
    let letter = home.file("letter", &"dear reader ".repeat(1000));
    let outcome = home.hashcache(&["plan", "--disk", "1TB", "--probe", "letter"], &[]);
    assert_eq!(outcome.status, Some(2));
    assert!(
        outcome
            .stderr
            .starts_with("hashcache: cannot open letter: "),
        "{outcome:?}"
    );
    let text = fs::read_to_string(letter).expect("it is still there");
    assert_eq!(text, "dear reader ".repeat(1000));
}

/// The cells of the row that begins with `name` in the table "Every policy" of docs/PAPER.md.
fn row<'a>(document: &'a str, name: &str) -> Vec<&'a str> {
    let table = document.split("## Every policy").nth(1).unwrap_or_default();
    let line = table
        .lines()
        .find(|line| line.starts_with(&format!("| {name} |")))
        .unwrap_or_else(|| panic!("no row {name} in docs/PAPER.md"));
    line.split('|').map(str::trim).collect()
}

#[test]
fn the_document_has_the_figures_that_are_planned() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/PAPER.md");
    let document = fs::read_to_string(path).expect("docs/PAPER.md");
    let plan = json(&Home::new(), &["--disk", "1TB", "--seeks", "70"]);
    let policies = plan["policies"].as_array().expect("a list of policies");
    assert_eq!(policies.len(), 9);
    for policy in policies {
        let name = match policy["name"].as_str().expect("a name") {
            "set-mem-lru" => "`set-mem-lru`, 40 %".to_owned(),
            "log one-row" => "`log`, one row".to_owned(),
            name => match name.strip_suffix(" grouped") {
                Some(name) => format!("`{name}` grouped"),
                None => format!("`{name}`"),
            },
        };
        let cells = row(&document, &name);
        for (cell, key, scale, within) in [
            (2, "index_bytes", 1e6, 0.51),
            (3, "objects_found", 1e6, 0.51),
            (4, "bits_per_slot", 1.0, 0.051),
            (5, "bits_per_object", 1.0, 0.051),
            (6, "seeks_per_hit", 1.0, 0.0051),
            (7, "seeks_per_miss", 1.0, 0.0051),
            (8, "seeks_per_put", 1.0, 0.0051),
            (9, "requests_per_s", 1.0, 0.51),
        ] {
            let documented: f64 = cells[cell].parse().expect("a number");
            let planned = policy[key].as_f64().expect("a number") / scale;
            assert!(
                (documented - planned).abs() < within,
                "{name} {key}: {documented}, planned {planned}"
            );
        }
    }
}
