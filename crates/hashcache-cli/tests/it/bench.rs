//! `hashcache bench engine`, run as a process.

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

/// Checks that hold on every workload.
fn check_policies(bench: &Value) {
    let figure = |name, key| figure(bench, name, key);
    let rate = |name| figure(name, "requests_per_s");
    let (basic, set) = (rate("basic"), rate("set"));
    assert!((0.75..1.33).contains(&(set / basic)), "{set} to {basic}");
    assert!(1.25 * basic.max(set) < rate("set-mem"), "{bench}");
    assert!(1.2 * rate("set-mem") < rate("log-lru"), "{bench}");
    assert!(0.97 * rate("log-lru") < rate("log"), "{bench}");
    // Requests per second times seeks per request must give the modelled disk's 70 seeks per
    // second.
    let seeks = rate("set") * figure("set", "seeks_per_request");
    assert!((64.0..71.0).contains(&seeks), "{seeks}");
    // 11 bits beside those of a window's number, of which a small store needs few.
    let bits = figure("log", "bits_per_slot").round();
    assert!((20.0..32.0).contains(&bits), "{bits}");
    assert_eq!(figure("log one-row", "bits_per_slot").round(), bits - 1.0);
    for (name, per_miss) in [
        ("set", 0.99..1.01),
        ("set-mem", 0.0..0.06),
        ("log", 0.0..0.06),
    ] {
        let reads = figure(name, "reads_per_miss");
        assert!(per_miss.contains(&reads), "{name}: {reads}");
        // The working set fits: almost nothing is lost.
        let lost = figure(name, "offered_hit_ratio") - figure(name, "hit_ratio");
        assert!((-0.001..0.02).contains(&lost), "{name}: {lost}");
    }
    // With a working set as large as the store, a Disk Table has fewer slots, so it loses hits.
    let lost = |name| figure(name, "full_offered_hit_ratio") - figure(name, "full_hit_ratio");
    assert!((0.004..0.15).contains(&lost("log")), "{}", lost("log"));
    assert!(lost("set-mem") > 2.0 * lost("log"), "{bench}");
    assert!(lost("basic") > lost("set"), "{bench}");
}

#[test]
fn on_pages_the_policies_stand_as_in_the_paper() {
    let arguments = ["--workload", "pages", "--objects", "8000"];
    let bench = json(&Home::new(), &arguments);
    check_policies(&bench);
    let figure = |name, key| figure(&bench, name, key);
    let rate = |name| figure(name, "requests_per_s");
    assert!(3.5 * rate("set-mem") < rate("log grouped"), "{bench}");
    assert!(1.5 * rate("log-lru") < rate("log-lru grouped"), "{bench}");
    for name in ["set", "set-mem", "log"] {
        // A hit that is not in memory takes one read, or two if it is larger than a slot.
        let hits = figure(name, "hits");
        let asked = hits - figure(name, "hits_from_memory");
        let per_hit = figure(name, "reads_per_hit") * hits / asked;
        assert!((1.0..1.3).contains(&per_hit), "{name}: {per_hit}");
    }
}

#[test]
fn on_polymix_the_policies_stand_as_in_the_paper() {
    let bench = json(&Home::new(), &["--objects", "8000"]);
    assert_eq!(bench["workload"], "polymix");
    check_policies(&bench);
    let rate = |name| figure(&bench, name, "requests_per_s");
    assert!(2.2 * rate("set-mem") < rate("log grouped"), "{bench}");
}

#[test]
fn groups_are_worth_most_for_pages_less_with_shared_images_and_nothing_without_pages() {
    let gain = |workload| {
        let line = format!("--workload {workload} --objects 4000 --policy log");
        let arguments: Vec<&str> = line.split(' ').collect();
        let grouped = json(&Home::new(), &[&arguments[..], &["--grouped"]].concat());
        let plain = json(&Home::new(), &arguments);
        figure(&grouped, "log grouped", "requests_per_s") / figure(&plain, "log", "requests_per_s")
    };
    let (polymix, shared, singles) = (gain("polymix"), gain("shared"), gain("singles"));
    assert!(polymix > 1.3, "{polymix}");
    assert!(shared < polymix, "{shared} and {polymix}");
    assert!((0.9..1.1).contains(&singles), "{singles}");
}

#[test]
fn equal_seeds_give_equal_counts() {
    for (objects, policy) in [
        (3000, "set-mem"),
        (3000, "log --grouped"),
        (9000, "log --grouped --devices 3"),
    ] {
        let run = |seed| {
            let line = format!("--objects {objects} --size-model fixed:6KiB --policy {policy}");
            let line = format!("{line} --seed {seed}");
            json(&Home::new(), &line.split(' ').collect::<Vec<_>>())
        };
        assert_eq!(run(7), run(7));
        let rate = |bench: &Value| bench["policies"][0]["requests_per_s"].clone();
        assert_ne!(rate(&run(7)), rate(&run(8)));
    }
}

#[test]
fn two_disks_answer_nearly_twice_as_many_requests_if_many_clients_ask() {
    let bench = |devices, clients| {
        let line = format!("--objects 8000 --policy log --devices {devices} --clients {clients}");
        json(&Home::new(), &line.split(' ').collect::<Vec<_>>())
    };
    let rate = |bench: &Value| figure(bench, "log", "requests_per_s");
    let (one, two, alone) = (bench(1, 32), bench(2, 32), bench(2, 1));
    let gain = rate(&two) / rate(&one);
    assert!((1.6..2.1).contains(&gain), "{gain}");
    // A single client keeps one disk busy at a time, but for what is written.
    assert!(rate(&alone) < 0.8 * rate(&two), "{alone} {two}");
    assert_eq!(figure(&one, "log", "disks_busy"), 1.0);
    let busy = figure(&two, "log", "disks_busy");
    assert!((0.75..1.0).contains(&busy), "{busy}");
    assert!(figure(&alone, "log", "disks_busy") < busy, "{alone}");
    assert_eq!(two["devices"], 2);
}

#[test]
fn pages_that_lie_on_one_of_two_disks_are_answered_twice_as_fast_as_by_one_disk() {
    let rate = |devices, placement| {
        let line = "--workload pages --objects 8000 --policy log --grouped --clients 64";
        let line = format!("{line} --devices {devices} --placement {placement}");
        let bench = json(&Home::new(), &line.split(' ').collect::<Vec<_>>());
        assert_eq!(bench["placement"], placement);
        figure(&bench, "log grouped", "requests_per_s")
    };
    let (one, by_name, by_host) = (rate(1, "name"), rate(2, "name"), rate(2, "host"));
    assert!(by_host > 1.7 * one, "{by_host} and {one}");
    assert!(by_host > 1.15 * by_name, "{by_host} and {by_name}");
}

#[test]
fn what_memory_holds_decides_how_often_sets_are_read_for_misses() {
    let reads = |share| {
        let line = format!("--objects 3000 --policy set-mem-lru --held-share {share}");
        let bench = json(&Home::new(), &line.split(' ').collect::<Vec<_>>());
        assert_eq!(bench["held_share"], share);
        figure(&bench, "set-mem-lru", "reads_per_miss")
    };
    let (few, most) = (reads(10), reads(90));
    assert!(most < 0.5 * few, "{most} and {few}");
}

#[test]
fn several_runs_give_the_median_and_the_range_of_the_single_ones() {
    let home = Home::new();
    let line = "--objects 3000 --policy set-mem --size-model fixed:6KiB --seed 4";
    let arguments: Vec<&str> = line.split(' ').collect();
    let without_seed = arguments.len() - 2;
    let all = json(&home, &[&arguments[..], &["--runs", "3"]].concat());
    let mut rates: Vec<f64> = ["4", "5", "6"]
        .map(|seed| {
            let arguments = [&arguments[..without_seed], &["--seed", seed]].concat();
            figure(&json(&home, &arguments), "set-mem", "requests_per_s")
        })
        .into();
    rates.sort_by(f64::total_cmp);
    assert_eq!(figure(&all, "set-mem", "requests_per_s"), rates[1]);
    let range = &all["policies"][0]["range"]["requests_per_s"];
    assert_eq!((&range[0], &range[1]), (&rates[0].into(), &rates[2].into()));

    let table = [&["bench", "engine", "--runs", "2"], &arguments[..]].concat();
    let outcome = home.hashcache(&table, &[]);
    let fits = outcome.stdout.lines().all(|line| line.len() <= 80);
    assert!(fits, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("median (range)"), "{outcome:?}");
    let disk = "70 seeks/s, transfer 210 to 100 MB/s, syncs free";
    assert!(outcome.stdout.contains(disk), "{outcome:?}");
}

#[test]
fn a_bench_on_a_file_is_a_table_and_leaves_nothing_behind() {
    let home = Home::new();
    let line = "bench engine --objects 3000 --policy log --device file --directory .";
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
    for line in [
        "--policy lru",
        "--size-model tiny",
        "--size-model fixed:2GiB",
        "--device ssd",
        "--devices 2 --device memory",
        "--objects 3",
        "--objects 5000 --devices 2",
        "--held-share 30 --policy log",
        "--block 3000",
        "--related 5",
        "--placement host",
        "--hosts 3",
    ] {
        let words: Vec<&str> = line.split(' ').collect();
        let outcome = home.hashcache(&[&["bench", "engine"], &words[..]].concat(), &[]);
        assert_eq!(outcome.status, Some(2), "{line}");
        let flag = words[0];
        let expected = format!("hashcache: {flag}: ");
        assert!(outcome.stderr.starts_with(&expected), "{outcome:?}");
        assert!(outcome.stderr.contains("\nhint: "), "{outcome:?}");
    }
}
