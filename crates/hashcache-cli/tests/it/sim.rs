//! `hashcache sim`, run as a process.

use std::env;

use serde_json::Value;

use crate::Home;

fn json(home: &Home, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(home, arguments)).expect("what --json prints is JSON")
}

fn text(home: &Home, arguments: &[&str]) -> String {
    let outcome = home.hashcache(&[&["sim"], arguments].concat(), &[]);
    assert_eq!((outcome.status, outcome.stderr.as_str()), (Some(0), ""));
    outcome.stdout
}

/// Three requests of a log of Squid, and a line that was cut off.
const LOG: &str = "\
100.000 5 10.0.0.1 TCP_MISS/200 1000 GET http://a.test/ - HIER_DIRECT/1.2.3.4 text/html
101.000 5 10.0.0.2 TCP_HIT/200 3000 GET http://a.test/ - HIER_NONE/- text/html
102.500 5 10.0.0.2 TCP_MI
160.000 5 10.0.0.2 TCP_MISS/200 500 POST http://a.test/form - HIER_DIRECT/1.2.3.4 -
";

#[test]
fn a_log_is_counted_and_a_damaged_line_is_named() {
    let home = Home::new();
    home.file("access.log", LOG);
    let arguments = ["sim", "stats", "access.log"];
    let outcome = home.hashcache(&arguments, &[]);
    assert_eq!(outcome.status, Some(0));
    let damage = "hashcache: access.log:3: it does not have the 10 fields of the format\n";
    assert_eq!(outcome.stderr, damage);
    for line in [
        "requests              3\n",
        "not to be stored      1\n",
        "damaged lines         1\n",
        "URLs                  2\n",
        "clients               2\n",
        "time                  60.0 seconds\n",
        "cache without bounds  33.3 % of requests are hits, 66.7 % of bytes\n",
    ] {
        assert!(outcome.stdout.contains(line), "{line}{}", outcome.stdout);
    }
    let strict = home.hashcache(&[&arguments[..], &["--strict"]].concat(), &[]);
    assert_eq!((strict.status, strict.stdout.as_str()), (Some(2), ""));
    assert_eq!(strict.stderr, damage);
}

#[test]
fn what_cannot_be_read_is_told_with_status_2() {
    let home = Home::new();
    home.file("notes.txt", "no log\n");
    let refused = |arguments: &[&str], why: &str| {
        let outcome = home.hashcache(&[&["sim"], arguments].concat(), &[]);
        assert_eq!(outcome.status, Some(2), "{outcome:?}");
        assert!(outcome.stderr.starts_with(why), "{outcome:?}");
    };
    refused(&["stats", "gone.log"], "hashcache: cannot open gone.log: ");
    let unknown = "hashcache: cannot read notes.txt: the format is not recognised";
    refused(&["stats", "notes.txt"], unknown);
    let twice = "hashcache: standard input cannot be read twice\nhint: ";
    refused(&["stats", "-", "--view", "big"], twice);
    refused(&["stats", "-", "notes.txt", "-"], twice);
    let pipe = "hashcache: /dev/null cannot be read twice\nhint: ";
    refused(&["replay", "/dev/null", "--policy", "all"], pipe);
    refused(
        &["stats", "/dev/null"],
        "hashcache: cannot read /dev/null: it is empty",
    );
    refused(
        &["replay", "notes.txt", "--device-model", "drum"],
        "hashcache: --device-model: ",
    );
    home.file("access.log", LOG);
    let small = [
        "replay",
        "access.log",
        "--memory",
        "1KiB",
        "--disk-size",
        "64MiB",
    ];
    refused(&small, "hashcache: --memory: the index of `log` takes ");
    let replay = |flag, size| ["replay", "access.log", flag, size];
    for size in ["1", "1MiB"] {
        let small = format!("hashcache: --disk-size: {size} is too small for a cache\nhint: ");
        refused(&replay("--disk-size", size), &small);
    }
    for flag in ["--disk-size", "--memory"] {
        let both = "hashcache: --disk-size, --memory: ";
        refused(&replay(flag, "1000TB"), both);
    }
}

#[test]
fn a_damaged_line_is_named_also_when_a_later_log_cannot_be_read() {
    let home = Home::new();
    home.file("access.log", LOG);
    home.file("rotated.log", "");
    let arguments = ["sim", "stats", "rotated.log", "access.log", "gone.log"];
    let outcome = home.hashcache(&arguments, &[]);
    assert_eq!(outcome.status, Some(2));
    let (damage, error) = outcome.stderr.split_once('\n').unwrap();
    let wanted = "hashcache: access.log:3: it does not have the 10 fields of the format";
    assert_eq!(damage, wanted);
    assert!(
        error.starts_with("hashcache: cannot open gone.log: "),
        "{error}"
    );
}

#[test]
fn numbers_out_of_range_are_refused_before_the_work_begins() {
    let home = Home::new();
    let pages = ["generate", "--workload", "pages", "--working-set"];
    let consistency = |flag, value| ["consistency", flag, value];
    for (arguments, flag) in [
        ([&pages[..], &["0"]].concat(), "--working-set"),
        ([&pages[..], &["100000001"]].concat(), "--working-set"),
        (consistency("--lifetimes", "nan").to_vec(), "--lifetimes"),
        (consistency("--lifetimes", "1,inf").to_vec(), "--lifetimes"),
        (consistency("--lifetimes", "24856").to_vec(), "--lifetimes"),
        (vec!["consistency", "--lifetimes=-1"], "--lifetimes"),
        (
            consistency("--requests-per-day", "0").to_vec(),
            "--requests-per-day",
        ),
        (
            consistency("--requests-per-day", "100001").to_vec(),
            "--requests-per-day",
        ),
        (
            ["consistency", "--fan-out", "16", "--objects", "7683"].to_vec(),
            "4368 caches of 7683 objects have 33559344 copies, more than 33554432\nhint: ",
        ),
    ] {
        let outcome = home.hashcache(&[&["sim"], &arguments[..]].concat(), &[]);
        assert_eq!(outcome.status, Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains(flag), "{outcome:?}");
    }
    // The working set follows from the number of requests, however small it is.
    let few = ["generate", "--workload", "pages", "--requests", "3"];
    assert_eq!(text(&home, &few).lines().count(), 4);
    // Seeds follow each other in a circle.
    let seed = u64::MAX.to_string();
    let last = [
        "consistency",
        "--objects",
        "5",
        "--sites",
        "2",
        "--levels",
        "1",
    ];
    text(
        &home,
        &[
            &last[..],
            &["--lifetimes", "0", "--runs", "2", "--seed", &seed],
        ]
        .concat(),
    );
}

#[test]
fn the_figures_over_the_log_are_drawn() {
    let home = Home::new();
    let log = text(
        &home,
        &["generate", "--workload", "foxy", "--requests", "9000"],
    );
    home.file("foxy.csv", &log);
    let replay = [
        "replay",
        "foxy.csv",
        "--policy",
        "all",
        "--disk-size",
        "128MiB",
    ];
    let draw = ["--memory", "2MiB", "--svg", "curves.svg"];
    let report = json(&home, &[&replay[..], &draw, &["--json"]].concat());
    let picture = std::fs::read_to_string(home.path().join("curves.svg")).unwrap();
    let curves = picture.lines().filter(|line| line.starts_with("<polyline"));
    // A stroke of the legend and four curves for each of six policies.
    assert_eq!(curves.count(), 6 * 5);
    for words in ["Replay of foxy.csv", "set-mem-lru", "hits, % of requests"] {
        assert!(picture.contains(&format!(">{words}<")), "{words}");
    }
    for run in report["runs"].as_array().unwrap() {
        let intervals = run["intervals"].as_array().unwrap();
        let sum = |name: &str| -> u64 {
            let figures = intervals.iter().map(|it| it[name].as_u64().unwrap());
            figures.sum()
        };
        assert_eq!(sum("requests"), 9000);
        assert_eq!(sum("reads"), run["disk"]["reads"].as_u64().unwrap());
    }
    let nowhere = [
        "sim", "replay", "foxy.csv", "--index", "tiger", "--svg", "no/x.svg",
    ];
    let outcome = home.hashcache(&nowhere, &[]);
    assert_eq!(outcome.status, Some(2));
    let wanted = "hashcache: --svg: cannot write no/x.svg: ";
    assert!(outcome.stderr.starts_with(wanted), "{outcome:?}");
    assert_eq!(outcome.stdout, "", "it is noticed before the replay");
    for flag in ["--grouped", "--rows=1", "--block=4KiB"] {
        let flags = ["sim", "replay", "foxy.csv", "--index", "squid", flag];
        let outcome = home.hashcache(&flags, &[]);
        assert_eq!(outcome.status, Some(2));
        let name = flag.split('=').next().unwrap();
        let wanted = format!("hashcache: {name}: has no effect on models");
        assert!(outcome.stderr.starts_with(&wanted), "{outcome:?}");
    }
}

#[test]
fn a_generated_log_replays_to_the_same_bytes_with_every_policy() {
    let home = Home::new();
    let generate = ["generate", "--workload", "wisconsin", "--requests", "3000"];
    let log = text(&home, &generate);
    assert_eq!(log, text(&home, &generate));
    home.file("wisconsin.csv", &log);
    let replay = [
        "replay",
        "wisconsin.csv",
        "--policy",
        "all",
        "--memory",
        "1MiB",
    ];
    let replay = [&replay[..], &["--disk-size", "128MiB", "--json"]].concat();
    let printed = text(&home, &replay);
    assert_eq!(printed, text(&home, &replay));
    let report: Value = serde_json::from_str(&printed).unwrap();
    let stats = json(&home, &["stats", "wisconsin.csv", "--json"]);
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 6);
    for run in runs {
        assert_eq!(run["requests"], 3000);
        let hits = |of: &Value| of["hit_ratio"].as_f64().unwrap();
        assert!(hits(run) > 0.0 && hits(run) <= hits(&stats), "{run}");
        assert!(run["disk"]["seconds"].as_f64().unwrap() > 0.0, "{run}");
    }
}

#[test]
fn models_of_other_caches_and_two_levels_replay_the_same_log() {
    let home = Home::new();
    let log = text(
        &home,
        &["generate", "--workload", "foxy", "--requests", "5000"],
    );
    home.file("foxy.csv", &log);
    let bound = json(&home, &["stats", "foxy.csv", "--json"])["hits"].clone();
    for (index, bits) in [("squid", 560.0), ("tiger", 232.0)] {
        let report = json(&home, &["replay", "foxy.csv", "--index", index, "--json"]);
        let run = &report["runs"][0];
        assert_eq!(
            (&run["name"], &run["memory_hits"]),
            (&Value::from(index), &bound)
        );
        assert_eq!(run["index"]["bits_per_slot"], bits);
    }
    let levels = ["replay", "foxy.csv", "--two-level", "--memory", "1MB"];
    let levels = json(&home, &[&levels[..], &["--json"]].concat());
    let count = |name: &str| levels[name].as_u64().unwrap();
    assert_eq!(
        count("reads") + count("writes") + count("memory_hits"),
        5000
    );
    assert_eq!(
        count("reads") + count("memory_hits"),
        bound.as_u64().unwrap()
    );
    assert!(
        count("reads") > 100 && count("memory_hits") > 100,
        "{levels}"
    );
}

/// `HASHCACHE_BU_TRACE=…/bu-www-client-1994-95.tsv.zst cargo test --release -p hashcache-cli --test
/// it -- --ignored bu_trace`
#[test]
#[ignore = "needs the BU trace, which the variable HASHCACHE_BU_TRACE names"]
fn the_bu_trace_through_a_cache_without_bounds_has_the_figures_of_both_views() {
    let trace = env::var("HASHCACHE_BU_TRACE").expect("HASHCACHE_BU_TRACE names the trace");
    let home = Home::new();
    for (view, requests, hits, bytes) in [
        ("proxy", 290_282, "64.7", "44.9"),
        ("big", 1_124_929, "90.9", "65.0"),
    ] {
        let stats = json(
            &home,
            &["stats", &trace, "--view", view, "--strict", "--json"],
        );
        assert_eq!(stats["requests"], requests);
        assert_eq!(stats["urls"], 102_357);
        assert_eq!(stats["clients"], 762);
        let percent = |name: &str| format!("{:.1}", stats[name].as_f64().unwrap() * 100.0);
        assert_eq!(
            (percent("hit_ratio"), percent("byte_hit_ratio")),
            (hits.into(), bytes.into())
        );
    }
}

#[test]
fn schemes_that_keep_caches_current_are_compared() {
    let home = Home::new();
    let arguments = [
        "consistency",
        "--objects",
        "200",
        "--sites",
        "40",
        "--levels",
        "2",
    ];
    let arguments = [
        &arguments[..],
        &["--fan-out", "2", "--lifetimes", "2,20", "--json"],
    ]
    .concat();
    let report = json(&home, &arguments);
    let schemes = report["schemes"].as_array().expect("schemes");
    assert_eq!(schemes.len(), 5 * 2 + 2);
    let figure = |name: &str, days: Option<f64>, figure: &str| {
        let row = |row: &&Value| row["scheme"] == name && row["lifetime_days"].as_f64() == days;
        let row = schemes.iter().find(row).expect("a row");
        row[figure].as_f64().expect("a figure")
    };
    assert!(figure("invalidation", None, "stale_share").abs() < f64::EPSILON);
    let stale = |days| figure("fixed", Some(days), "stale_share");
    assert!(0.0 < stale(2.0) && stale(2.0) < stale(20.0));
    assert_eq!(text(&home, &arguments), text(&home, &arguments));
}
