//! Who fetches what, and who waits for it.

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

/// An object of this many pages of which nothing has come.
fn object(cache: &Cache, pages: u64) -> Hit {
    let put = Put {
        length: Some(pages * PAGE),
        span_pages: 1,
        ..Put::metadata(&b"m"[..])
    };
    cache.intend(b"name").unwrap().incomplete(put).unwrap()
}

fn lead(claimed: Result<Claimed, PutError>) -> (Claim, Awaited) {
    match claimed {
        Ok(Claimed::Lead(claim, awaited)) => (*claim, awaited),
        Ok(Claimed::Joined(_)) => panic!("joined"),
        Ok(Claimed::Stored) => panic!("stored"),
        Err(error) => panic!("{error}"),
    }
}

fn is_joined(claimed: &Result<Claimed, PutError>) -> bool {
    matches!(claimed, Ok(Claimed::Joined(_)))
}

fn extent(claim: &Claim) -> Range<u64> {
    claim.ticket.start()..claim.ticket.end()
}

/// Stores these pages of it.
fn fill(hit: &Hit, pages: impl IntoIterator<Item = u64>) {
    for page in pages {
        hit.fill(page * PAGE, &[7; hashcache::PAGE]).unwrap();
    }
}

#[test]
fn who_lacks_what_another_fetches_joins_it() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let hit = object(&cache, 8);
    let (claim, _awaited) = lead(pieces.claim(&hit, 100, 3 * PAGE, false));
    assert_eq!(extent(&claim), 0..3 * PAGE);
    assert!(is_joined(&pieces.claim(
        &hit,
        2 * PAGE + 1,
        8 * PAGE,
        false
    )));
    // What it does not bring is somebody else's.
    let (behind, _) = lead(pieces.claim(&hit, 3 * PAGE, 8 * PAGE, false));
    assert_eq!(extent(&behind), 3 * PAGE..8 * PAGE);
    drop(claim);
    let (again, _) = lead(pieces.claim(&hit, 0, 8 * PAGE, false));
    assert_eq!(extent(&again), 0..3 * PAGE);
}

#[test]
fn what_came_before_the_claim_is_not_fetched_again() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let hit = object(&cache, 8);
    fill(&hit, [0, 1, 4]);
    let stored = pieces.claim(&hit, 10, 2 * PAGE, false);
    assert!(matches!(stored, Ok(Claimed::Stored)));
    let (claim, _) = lead(pieces.claim(&hit, 2 * PAGE, 8 * PAGE, false));
    assert_eq!(extent(&claim), 2 * PAGE..4 * PAGE);
}

#[test]
fn a_page_that_could_not_be_read_is_fetched_though_memory_says_it_is_there() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let hit = object(&cache, 8);
    fill(&hit, 0..8);
    let (claim, _) = lead(pieces.claim(&hit, PAGE + 5, 8 * PAGE, true));
    assert_eq!(extent(&claim), PAGE..2 * PAGE);
}

#[test]
fn what_lies_far_ahead_of_a_fetch_is_a_piece_of_its_own() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let far = WAIT_AHEAD + PAGE;
    let hit = object(&cache, 2 * far / PAGE);
    let (claim, _) = lead(pieces.claim(&hit, 0, 2 * far, false));
    assert!(is_joined(&pieces.claim(&hit, WAIT_AHEAD, 2 * far, false)));
    let (ahead, _) = lead(pieces.claim(&hit, far + 1, 2 * far, false));
    assert_eq!(extent(&claim), 0..far);
    assert_eq!(extent(&ahead), far..2 * far);
}

#[test]
fn of_an_object_full_of_holes_all_is_fetched_up_to_the_last_of_them() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let hit = object(&cache, 64);
    let most = 2 * HOLES_MAX as u64;
    fill(&hit, (0..64).filter(|page| page % 2 == 1));
    let (few, _) = lead(pieces.claim(&hit, 0, most * PAGE, false));
    assert_eq!(extent(&few), 0..PAGE);
    drop(few);
    let (many, _) = lead(pieces.claim(&hit, 0, (most + 2) * PAGE, false));
    assert_eq!(extent(&many), 0..(most + 1) * PAGE);
}

#[tokio::test]
async fn those_who_wait_are_told_how_it_goes() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let hit = object(&cache, 8);
    let (claim, mut awaited) = lead(pieces.claim(&hit, 0, PAGE, false));
    claim.ticket.comes();
    drop(claim);
    assert_eq!(awaited.answered().await, Stage::Coming);
    let (claim, mut awaited) = lead(pieces.claim(&hit, 0, PAGE, false));
    drop(claim);
    assert_eq!(awaited.answered().await, Stage::Failed);
    let (claim, mut awaited) = lead(pieces.claim(&hit, 0, PAGE, false));
    claim.ticket.over();
    drop(claim);
    assert_eq!(awaited.answered().await, Stage::Over);
}

#[test]
fn a_piece_that_has_ended_leaves_nothing_behind() {
    let (cache, pieces) = (cache(), Arc::new(Pieces::default()));
    let hit = object(&cache, 8);
    let (claim, _) = lead(pieces.claim(&hit, 0, PAGE, false));
    drop(claim);
    assert!(pieces.shard(hit.version().to_u64()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_key_that_comes_whole_only_is_remembered_for_a_while_and_not_without_bound() {
    let pieces = Pieces::default();
    let now = Instant::now();
    pieces.note_whole_only(b"a", WholeOnly::Yes, now);
    assert!(pieces.comes_whole_only(b"a", now));
    assert!(!pieces.comes_whole_only(b"b", now));
    assert!(!pieces.comes_whole_only(b"a", now + WHOLE_ONLY));
    pieces.note_whole_only(b"a", WholeOnly::No, now);
    assert!(!pieces.comes_whole_only(b"a", now));
    for number in 0..2 * REMEMBERED {
        pieces.note_whole_only(number.to_string().as_bytes(), WholeOnly::Yes, now);
    }
    assert!(pieces.whole_only().len() <= REMEMBERED);
}
