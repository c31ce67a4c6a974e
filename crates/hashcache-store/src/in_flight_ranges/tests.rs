//! Which claim fetches which bytes, and which one follows.

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config, Put};

use super::*;

const PAGE: u64 = hashcache::PAGE as u64;

fn cache() -> Cache {
    let config = Config {
        memory_bytes: 64 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
    };
    Cache::open(config).unwrap()
}

/// An object of this many pages, all of them missing.
fn object(cache: &Cache, pages: u64) -> Hit {
    let put = Put {
        length: Some(pages * PAGE),
        span_pages: 1,
        ..Put::metadata(&b"m"[..])
    };
    cache.intend(b"name").unwrap().incomplete(put).unwrap()
}

fn lead(claimed: Result<ClaimOutcome, PutError>) -> (RangeClaim, AwaitedRange) {
    match claimed {
        Ok(ClaimOutcome::Leader(claim, awaited)) => (*claim, awaited),
        Ok(ClaimOutcome::Joined(_)) => panic!("joined"),
        Ok(ClaimOutcome::Stored) => panic!("stored"),
        Err(error) => panic!("{error}"),
    }
}

fn is_joined(claimed: &Result<ClaimOutcome, PutError>) -> bool {
    matches!(claimed, Ok(ClaimOutcome::Joined(_)))
}

fn extent(claim: &RangeClaim) -> Range<u64> {
    claim.guard.start()..claim.guard.end()
}

/// Stores these pages of it.
fn fill(hit: &Hit, pages: impl IntoIterator<Item = u64>) {
    for page in pages {
        hit.fill(page * PAGE, &[7; hashcache::PAGE]).unwrap();
    }
}

#[test]
fn who_lacks_what_another_fetches_joins_it() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    let (claim, _awaited) = lead(ranges.claim(&hit, 100, 3 * PAGE, Lack::Wanted));
    assert_eq!(extent(&claim), 0..3 * PAGE);
    assert!(is_joined(&ranges.claim(
        &hit,
        2 * PAGE + 1,
        8 * PAGE,
        Lack::Wanted
    )));
    // Bytes that this fetch does not cover belong to another fetch.
    let (behind, _) = lead(ranges.claim(&hit, 3 * PAGE, 8 * PAGE, Lack::Wanted));
    assert_eq!(extent(&behind), 3 * PAGE..8 * PAGE);
    drop(claim);
    let (again, _) = lead(ranges.claim(&hit, 0, 8 * PAGE, Lack::Wanted));
    assert_eq!(extent(&again), 0..3 * PAGE);
}

#[test]
fn what_came_before_the_claim_is_not_fetched_again() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    fill(&hit, [0, 1, 4]);
    let stored = ranges.claim(&hit, 10, 2 * PAGE, Lack::Wanted);
    assert!(matches!(stored, Ok(ClaimOutcome::Stored)));
    let (claim, _) = lead(ranges.claim(&hit, 2 * PAGE, 8 * PAGE, Lack::Wanted));
    assert_eq!(extent(&claim), 2 * PAGE..4 * PAGE);
}

#[test]
fn a_page_that_could_not_be_read_is_fetched_though_memory_says_it_is_there() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    fill(&hit, 0..8);
    let (claim, _) = lead(ranges.claim(&hit, PAGE + 5, 8 * PAGE, Lack::Lost { spans: 1 }));
    assert_eq!(extent(&claim), PAGE..2 * PAGE);
}

#[test]
fn a_lost_page_is_claimed_with_the_pages_behind_it_that_are_not_believed_in() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    fill(&hit, 0..8);
    let lost = |spans, end| lead(ranges.claim(&hit, PAGE + 5, end, Lack::Lost { spans })).0;
    assert_eq!(extent(&lost(3, 8 * PAGE)), PAGE..4 * PAGE);
    assert_eq!(extent(&lost(u64::MAX, 8 * PAGE)), PAGE..8 * PAGE);
    assert_eq!(extent(&lost(3, 2 * PAGE + 1)), PAGE..3 * PAGE);
}

#[test]
fn the_rest_of_a_late_range_is_taken_over_once_and_followed_by_everyone() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    let (mut late, first) = lead(ranges.claim(&hit, 0, 8 * PAGE, Lack::Wanted));
    assert_eq!(first.patience(), Some(PATIENCE));
    late.writer.write(&[1; hashcache::PAGE + 10]).unwrap();
    // Written bytes are not late, whatever the disk does.
    let written = ranges.claim(&hit, PAGE + 5, 8 * PAGE, first.late());
    assert!(is_joined(&written));
    let (taken, second) = lead(ranges.claim(&hit, PAGE + 10, 8 * PAGE, first.late()));
    assert_eq!(second.patience(), Some(2 * PATIENCE));
    assert_eq!(extent(&late), 0..PAGE);
    assert_eq!(extent(&taken), PAGE..8 * PAGE);
    // Others have waited for the first fetch, too, and not for the second one.
    for lack in [first.late(), Lack::Wanted] {
        let next = ranges.claim(&hit, 2 * PAGE, 8 * PAGE, lack);
        assert!(is_joined(&next), "{lack:?}");
    }
}

#[test]
fn a_range_is_not_taken_over_without_end() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    let (mut claims, mut lack) = (Vec::new(), Lack::Wanted);
    loop {
        let (claim, awaited) = lead(ranges.claim(&hit, 0, 8 * PAGE, lack));
        claims.push(claim);
        lack = awaited.late();
        if awaited.patience().is_none() {
            break;
        }
        assert!(claims.len() <= TAKEOVERS_MAX as usize);
    }
}

#[test]
fn what_lies_far_ahead_of_a_fetch_is_a_piece_of_its_own() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let far = WAIT_AHEAD + PAGE;
    let hit = object(&cache, 2 * far / PAGE);
    let (claim, _) = lead(ranges.claim(&hit, 0, 2 * far, Lack::Wanted));
    assert!(is_joined(&ranges.claim(
        &hit,
        WAIT_AHEAD,
        2 * far,
        Lack::Wanted
    )));
    let (ahead, _) = lead(ranges.claim(&hit, far + 1, 2 * far, Lack::Wanted));
    assert_eq!(extent(&claim), 0..far);
    assert_eq!(extent(&ahead), far..2 * far);
}

#[test]
fn of_an_object_full_of_holes_all_is_fetched_up_to_the_last_of_them() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 64);
    let most = 2 * HOLES_MAX as u64;
    fill(&hit, (0..64).filter(|page| page % 2 == 1));
    let (few, _) = lead(ranges.claim(&hit, 0, most * PAGE, Lack::Wanted));
    assert_eq!(extent(&few), 0..PAGE);
    drop(few);
    let (many, _) = lead(ranges.claim(&hit, 0, (most + 2) * PAGE, Lack::Wanted));
    assert_eq!(extent(&many), 0..(most + 1) * PAGE);
}

#[tokio::test]
async fn those_who_wait_are_told_how_it_goes() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    let (claim, mut awaited) = lead(ranges.claim(&hit, 0, PAGE, Lack::Wanted));
    claim.guard.note_arriving();
    drop(claim);
    assert_eq!(awaited.answered().await, RangeStage::Arriving);
    let (claim, mut awaited) = lead(ranges.claim(&hit, 0, PAGE, Lack::Wanted));
    drop(claim);
    assert_eq!(awaited.answered().await, RangeStage::Failed);
    let (claim, mut awaited) = lead(ranges.claim(&hit, 0, PAGE, Lack::Wanted));
    claim.guard.note_gone();
    drop(claim);
    assert_eq!(awaited.answered().await, RangeStage::Gone);
}

#[test]
fn a_piece_that_has_ended_leaves_nothing_behind() {
    let (cache, ranges) = (cache(), Arc::new(InFlightRanges::default()));
    let hit = object(&cache, 8);
    let (claim, _) = lead(ranges.claim(&hit, 0, PAGE, Lack::Wanted));
    drop(claim);
    assert!(ranges.shard(hit.version().to_u64()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_comes_whole_only_is_remembered_for_a_while_and_not_without_bound() {
    let ranges = InFlightRanges::default();
    let now = Instant::now();
    let client = |n| Network::containing(std::net::IpAddr::from([192, 0, 2, n]));
    ranges.note_whole_only(b"a", client(1), now);
    assert!(ranges.is_whole_only(b"a", now));
    assert!(!ranges.is_whole_only(b"b", now));
    assert!(!ranges.is_whole_only(b"a", now + WHOLE_ONLY));
    ranges.note_range(b"a");
    assert!(!ranges.is_whole_only(b"a", now));
    ranges.note_whole_only(b"a", client(1), now);
    for number in 0..2 * REMEMBERED {
        ranges.note_whole_only(number.to_string().as_bytes(), client(2), now);
    }
    assert!(ranges.whole_only().len() <= REMEMBERED);
    assert!(ranges.is_whole_only(b"a", now), "it is another client's");
}
