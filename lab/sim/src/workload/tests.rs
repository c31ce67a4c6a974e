//! Generated requests have the figures that their benchmarks state.

use super::*;
use crate::stats::{self, Stats};
use crate::trace::Writer;
use crate::view::View;

fn settings(name: Name) -> Settings {
    Settings::new(name, 1, 60_000)
}

fn counted(settings: Settings) -> Stats {
    stats::count(&mut Generated(settings), View::Proxy).unwrap()
}

fn text(settings: Settings) -> Vec<u8> {
    let mut writer = Writer::new(vec![]).unwrap();
    let mut source = Generated(settings);
    let read = source.read(&mut |request| {
        writer.write(request).unwrap();
        ControlFlow::Continue(())
    });
    read.unwrap();
    writer.finish().unwrap()
}

const ALL: [Name; 6] = [
    Name::Wisconsin,
    Name::Foxy,
    Name::Polymix,
    Name::Shared,
    Name::Singles,
    Name::Pages,
];

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    for name in ALL {
        let of = |seed| text(Settings::new(name, seed, 2_000));
        assert!(of(1) == of(1), "{name:?}");
        assert!(of(1) != of(2), "{name:?}");
    }
}

#[test]
fn half_of_wisconsins_requests_are_new_and_the_rest_hits_as_told() {
    let stats = counted(settings(Name::Wisconsin));
    assert_eq!((stats.requests, stats.clients), (60_000, 30));
    let offered = 0.45 / 2.0;
    assert!(
        (stats.hit_ratio() - offered).abs() < 0.01,
        "{}",
        stats.hit_ratio()
    );
    // 99 % of 20 KB and 1 % of 1 MB.
    let mean = stats.sizes.mean / 1024;
    assert!((28..33).contains(&mean), "{mean} KB");
    assert_eq!(stats.sizes.largest, 1 << 20);
}

#[test]
fn wisconsin_repeats_recent_requests_most() {
    let mut workload = Wisconsin::new(&Settings {
        clients: 1,
        ..settings(Name::Wisconsin)
    });
    let ages: Vec<usize> = (0..20_000).map(|_| workload.age(1_000)).collect();
    assert!(ages.iter().all(|age| (1..=1_000).contains(age)));
    // Sums of 1/t up to 1, 31 and 1,000: 1, 4.03 and 7.49.
    let share = |most: usize| {
        let found = ages.iter().filter(|age| **age <= most).count();
        found as f64 / ages.len() as f64
    };
    assert!((share(1) - 1.0 / 7.485).abs() < 0.01, "{}", share(1));
    assert!((share(31) - 4.027 / 7.485).abs() < 0.01, "{}", share(31));
}

#[test]
fn wisconsins_files_of_neighbouring_seeds_do_not_have_the_same_sizes() {
    let sizes = |seed| {
        let workload = Wisconsin::new(&Settings::new(Name::Wisconsin, seed, 1));
        let mut sizes: Vec<u64> = (0..1024).map(|file| workload.bytes(0, file)).collect();
        sizes.sort_unstable();
        sizes
    };
    let (one, two) = (sizes(6), sizes(7));
    let same = one.iter().zip(&two).filter(|(one, two)| one == two);
    // The large ones have one size.
    assert!(same.count() < 100);
}

#[test]
fn files_by_pareto_are_3_kb_or_more_with_the_median_of_the_law() {
    let stats = counted(Settings {
        sizes: WisconsinSizes::Pareto,
        ..settings(Name::Wisconsin)
    });
    // 3 KB times 2^(1 / 1.1).
    let wanted = 5769.0;
    let median = stats.sizes.median as f64;
    assert!((median / wanted - 1.0).abs() < 0.03, "{median}");
    assert!(stats.sizes.percentile_99 > 180_000);
}

#[test]
fn foxys_requests_hit_in_40_of_100_cases_and_are_5_kb_on_average() {
    let stats = counted(settings(Name::Foxy));
    assert!(
        (stats.hit_ratio() - 0.4).abs() < 0.01,
        "{}",
        stats.hit_ratio()
    );
    let mean = stats.sizes.mean as f64 / 1024.0;
    assert!((mean - 5.0).abs() < 0.1, "{mean} KB");
    assert_eq!(stats.clients, 100);
}

#[test]
fn one_in_ten_of_foxys_hits_is_for_the_first_hundredth_part_of_the_ranks_and_more() {
    let mut workload = Foxy::new(1, FOXY_HIT_RATIO);
    while workload.objects < 10_000 {
        workload.object();
    }
    let first = (0..20_000).filter(|_| workload.rank() < 100).count() as f64 / 20_000.0;
    // (1 / 100)^0.4
    assert!((first - 0.158).abs() < 0.01, "{first}");
}

#[test]
fn polymix_offers_its_hits_and_says_what_may_not_be_stored() {
    let stats = counted(settings(Name::Polymix));
    let uncacheable = stats.uncacheable as f64 / stats.requests as f64;
    // 20 % of the objects, but repeats prefer others.
    assert!((0.13..0.21).contains(&uncacheable), "{uncacheable}");
    assert!(
        (0.45..0.62).contains(&stats.hit_ratio()),
        "{}",
        stats.hit_ratio()
    );
}

#[test]
fn a_replay_puts_the_objects_of_a_generated_page_into_one_group() {
    let mut pages = crate::pages::Pages::default();
    let mut groups: std::collections::HashMap<Vec<u8>, u64> = std::collections::HashMap::new();
    let mut again = 0;
    let mut source = Generated(Settings::new(Name::Polymix, 1, 2_000));
    let read = source.read(&mut |request| {
        let group = pages.group(request);
        if !request.group.is_empty() {
            let first = *groups.entry(request.group.to_owned()).or_insert(group);
            assert_eq!(first, group, "{:?}", String::from_utf8_lossy(request.name));
            again += 1;
        }
        ControlFlow::Continue(())
    });
    read.unwrap();
    assert!(
        again > groups.len() * 2,
        "{again} objects of {} pages",
        groups.len()
    );
}
