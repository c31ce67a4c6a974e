//! Checking, merging and forgetting bans.

use super::*;
use crate::format::Fields;

impl Bans {
    fn judge_fields(&self, fields: &Fields, name: &[u8]) -> BanVerdict {
        let limits = self.limits(fields, name);
        BanVerdict {
            gone: fields.version.0 < limits.gone,
            stale: fields.confirmed.0 < limits.stale,
        }
    }
}

fn secret() -> Secret {
    Secret::from_bytes([5; 32])
}

fn bans(most: usize) -> Bans {
    Bans::new(&secret(), most)
}

fn add(bans: &Bans, ban: &Ban, version: u64) {
    let line = ban.line(&secret(), Version(version));
    bans.add(&[line], &Budget::new(1 << 20));
}

fn fields(version: u64, labels: &[Label]) -> Fields {
    Fields {
        kind: Kind::Head,
        key: secret().name(b"any"),
        version: Version(version),
        revision: 0,
        confirmed: Version(version),
        span: 0,
        incomplete: false,
        total: Some(0),
        span_pages: 4,
        mark: 0,
        group: 0,
        useless_after: 0,
        fresh_until: 0,
        labels: labels.iter().map(|label| label.0).collect(),
    }
}

fn judged(bans: &Bans, name: &[u8], version: u64, labels: &[Label]) -> (bool, bool) {
    let judged = bans.judge_fields(&fields(version, labels), name);
    (judged.gone, judged.stale)
}

const NOT: (bool, bool) = (false, false);
const GONE: (bool, bool) = (true, false);
const STALE: (bool, bool) = (false, true);

fn label(n: u64) -> Label {
    Label(secret().label(&n.to_le_bytes()))
}

#[test]
fn a_ban_takes_what_is_older_and_what_it_matches_and_nothing_else() {
    let bans = bans(100);
    add(&bans, &Ban::label(label(1)), 10);
    add(&bans, &Ban::prefix(b"host/a/").within(b"host/"), 20);
    add(&bans, &Ban::name(b"host/page").within(b"host/"), 30);
    for (name, version, labels, expected) in [
        (&b"x"[..], 9, &[label(1)][..], GONE),
        (b"x", 10, &[label(1)], NOT),
        (b"x", 9, &[label(2)], NOT),
        (b"x", 9, &[Label(LABEL_ANY)], GONE),
        (b"host/a/1", 19, &[], GONE),
        (b"host/a/", 19, &[], GONE),
        (b"host/a", 19, &[], NOT),
        (b"host/a/1", 20, &[], NOT),
        (b"host/page", 29, &[], GONE),
        (b"host/page\0variant", 29, &[], GONE),
        (b"host/page2", 29, &[], NOT),
        (b"host/pag", 29, &[], NOT),
        (b"", 1, &[], NOT),
    ] {
        assert_eq!(
            judged(&bans, name, version, labels),
            expected,
            "{name:?} {version}"
        );
    }
}

#[test]
fn a_soft_ban_makes_stale_until_it_is_confirmed() {
    let bans = bans(100);
    add(&bans, &Ban::label(label(1)).softly(), 10);
    assert_eq!(judged(&bans, b"x", 9, &[label(1)]), STALE);
    let confirmed = Fields {
        confirmed: Version(10),
        ..fields(9, &[label(1)])
    };
    assert!(!bans.judge_fields(&confirmed, b"x").is_barred());
    add(&bans, &Ban::label(label(1)), 11);
    assert!(bans.judge_fields(&confirmed, b"x").gone);
}

#[test]
fn a_prefix_that_is_not_within_what_it_says_is_found_all_the_same() {
    let bans = bans(100);
    add(&bans, &Ban::prefix(b"host/a").within(b"other/"), 10);
    assert_eq!(judged(&bans, b"host/a", 9, &[]), GONE);
    let long = [7; crate::object::MAX_NAME];
    add(&bans, &Ban::name(&long), 11);
    assert_eq!(judged(&bans, &long, 10, &[]), GONE);
    assert_eq!(judged(&bans, &long[1..], 10, &[]), NOT);
}

#[test]
fn a_wider_ban_takes_the_place_of_those_it_says_too() {
    let bans = bans(100);
    for n in 0..20 {
        let prefix = format!("host/{n}");
        add(
            &bans,
            &Ban::prefix(prefix.as_bytes()).within(b"host/"),
            10 + n,
        );
    }
    add(&bans, &Ban::label(label(1)), 40);
    assert_eq!(bans.count(), 21);
    // A soft ban removes less than these bans, so they stay.
    add(&bans, &Ban::prefix(b"host/").softly(), 50);
    assert_eq!(bans.count(), 22);
    add(&bans, &Ban::prefix(b"host/"), 51);
    assert_eq!(bans.count(), 2);
    add(&bans, &Ban::prefix(b""), 52);
    assert_eq!(bans.count(), 1);
    assert_eq!(judged(&bans, b"x", 51, &[]), GONE);
}

#[test]
fn too_many_bans_become_wider_and_never_take_less() {
    let bans = bans(50);
    let mut random = fastrand::Rng::with_seed(3);
    let mut made: Vec<(Vec<u8>, Label, u64, bool)> = Vec::new();
    for version in 1..2_000 {
        let host = format!("host{}/", random.u32(..60));
        let name = format!("{host}{}", random.u32(..1_000)).into_bytes();
        let (label, by_label) = (label(random.u64(..300)), random.bool());
        let ban = if by_label {
            Ban::label(label)
        } else {
            Ban::prefix(&name).within(host.as_bytes())
        };
        add(&bans, &ban, version);
        made.push((name, label, version, by_label));
        assert!(bans.count() <= 50);
    }
    for (name, label, version, by_label) in made {
        let (name, labels) = if by_label {
            (&b"elsewhere"[..], &[label][..])
        } else {
            (&name[..], &[][..])
        };
        assert_eq!(judged(&bans, name, version - 1, labels), GONE);
    }
    assert_eq!(judged(&bans, b"host1/1", 2_000, &[]), NOT);
}

#[test]
fn prefixes_of_one_host_become_the_host_before_hosts_become_everything() {
    let bans = bans(10);
    for n in 0..8u64 {
        let prefix = format!("much/{n}");
        add(
            &bans,
            &Ban::prefix(prefix.as_bytes()).within(b"much/"),
            10 + n,
        );
    }
    for n in 0..9u64 {
        add(&bans, &Ban::label(label(n)), 30 + n);
    }
    assert_eq!(judged(&bans, b"much/else", 9, &[]), GONE);
    assert_eq!(judged(&bans, b"other/", 9, &[]), NOT);
    assert_eq!(bans.count(), 10);
    add(&bans, &Ban::label(label(9)), 50);
    assert_eq!(judged(&bans, b"other/", 9, &[]), GONE);
}

#[test]
fn bans_come_back_from_their_lines() {
    let (first, second) = (bans(100), bans(100));
    add(&first, &Ban::label(label(1)).within(b"a/"), 10);
    add(&first, &Ban::prefix(b"a/b").within(b"a/").softly(), 11);
    second.add(&first.lines(), &Budget::new(1 << 20));
    assert_eq!(second.lines(), first.lines());
    assert_eq!(judged(&second, b"a/bc", 9, &[label(1)]), (true, true));
}

#[test]
fn a_ban_is_outlived_when_all_that_was_under_way_is_on_disk_and_overwritten() {
    let bans = bans(100);
    add(&bans, &Ban::prefix(b"a"), 10);
    let at = |stamp| (stamp, Duration::from_secs(stamp));
    // A put with version 9 is in progress.
    bans.settle(Version(9), 5, 5, at(20));
    assert!(!bans.any_outlived(u64::MAX));
    // The record is in the queue and not written.
    bans.settle(Version(12), 6, 5, at(21));
    bans.settle(Version(12), 6, 5, at(22));
    assert!(!bans.any_outlived(u64::MAX));
    bans.settle(Version(12), 7, 6, at(23));
    assert!(!bans.any_unsettled());
    assert!(!bans.any_outlived(23));
    assert!(bans.any_outlived(24));
    bans.forget_outlived(24);
    assert_eq!(bans.count(), 0);
    assert_eq!(judged(&bans, b"a", 9, &[]), NOT);
}
