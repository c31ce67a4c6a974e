//! `hashcache bench engine` as a shell sees it.

use std::fs;

use serde_json::Value;

use crate::Home;

fn json(home: &Home, arguments: &[&str]) -> Value {
    let arguments = [&["bench", "engine", "--json"], arguments].concat();
    let outcome = home.hashcache(&arguments, &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    serde_json::from_str(&outcome.stdout).expect("what --json prints is JSON")
}

fn figure(bench: &Value, name: &str, key: &str) -> f64 {
    let policies = bench["policies"].as_array().expect("a list of policies");
    let policy = policies.iter().find(|policy| policy["name"] == name);
    let figure = policy.and_then(|policy| policy[key].as_f64());
    figure.unwrap_or_else(|| panic!("no {key} of {name} in {bench}"))
}

#[test]
fn on_a_modelled_disk_the_policies_stand_as_in_the_paper() {
    let bench = json(&Home::new(), &["--objects", "8000"]);
    let figure = |name, key| figure(&bench, name, key);
    let rate = |name| figure(name, "requests_per_s");
    let (basic, set) = (rate("basic"), rate("set"));
    assert!((0.75..1.33).contains(&(set / basic)), "{set} to {basic}");
    assert!(1.3 * basic.max(set) < rate("set-mem"), "{bench}");
    assert!(1.2 * rate("set-mem") < rate("log-lru"), "{bench}");
    assert!(0.97 * rate("log-lru") < rate("log"), "{bench}");
    assert!(3.5 * rate("set-mem") < rate("log grouped"), "{bench}");
    assert!(1.5 * rate("log-lru") < rate("log-lru grouped"), "{bench}");
    // 70 seeks a second are 70 seeks a second.
    let seeks = rate("set") * figure("set", "seeks_per_request");
    assert!((66.0..71.0).contains(&seeks), "{seeks}");
    assert_eq!(figure("log one-row", "bits_per_slot").round(), 47.0);
    assert_eq!(figure("log", "bits_per_slot").round(), 48.0);
    for (name, per_miss) in [
        ("set", 0.99..1.01),
        ("set-mem", 0.0..0.06),
        ("log", 0.0..0.06),
    ] {
        let reads = figure(name, "reads_per_miss");
        assert!(per_miss.contains(&reads), "{name}: {reads}");
        // Those that memory did not answer take one, or two where they are larger than a block.
        let hits = figure(name, "hits");
        let asked = hits - figure(name, "hits_from_memory");
        let per_hit = figure(name, "reads_per_hit") * hits / asked;
        assert!((1.0..1.3).contains(&per_hit), "{name}: {per_hit}");
        let lost = figure(name, "offered_hit_ratio") - figure(name, "hit_ratio");
        assert!((0.0..0.02).contains(&lost), "{name}: {lost}");
    }
}

#[test]
fn a_bench_on_a_file_is_a_table_and_leaves_nothing_behind() {
    let home = Home::new();
    let line = "bench engine --objects 2000 --policy log --device file --directory .";
    let arguments: Vec<&str> = line.split(' ').collect();
    let outcome = home.hashcache(&arguments, &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    assert!(outcome.stdout.contains("\nlog  "), "{outcome:?}");
    assert!(
        outcome.stdout.lines().all(|line| line.len() <= 80),
        "{outcome:?}"
    );
    let left: Vec<_> = fs::read_dir(home.path()).expect("a home").collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_cannot_be_measured_is_refused_with_a_hint() {
    let home = Home::new();
    for (flag, value) in [
        ("--policy", "lru"),
        ("--size-model", "tiny"),
        ("--size-model", "fixed:2GiB"),
        ("--device", "ssd"),
        ("--objects", "3"),
        ("--block", "3000"),
    ] {
        let outcome = home.hashcache(&["bench", "engine", flag, value], &[]);
        assert_eq!(outcome.status, Some(2), "{flag} {value}");
        let expected = format!("hashcache: {flag}: ");
        assert!(outcome.stderr.starts_with(&expected), "{outcome:?}");
        assert!(outcome.stderr.contains("\nhint: "), "{outcome:?}");
    }
}
