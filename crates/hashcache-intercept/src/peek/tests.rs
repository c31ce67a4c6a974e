//! Whatever a client sends, in whatever pieces: it is given back whole, and soon.

use std::sync::Arc;

use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config};
use hashcache_base::share::Shares;
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncWriteExt as _, DuplexStream, duplex};

use super::super::client_hello::tests::{Made, named};
use super::*;

const LIMIT: Duration = Duration::from_secs(3);

fn cache() -> Cache {
    let config = Config {
        memory_bytes: 16 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    Cache::open(config).unwrap()
}

/// The result of a peek at these pieces and an end, and the bytes that are given back.
async fn peeked(cache: &Cache, pieces: &[&[u8]]) -> Peeked {
    let (mut client, mut server) = duplex(1 << 20);
    for piece in pieces {
        client.write_all(piece).await.unwrap();
    }
    drop(client);
    peek(&mut server, LIMIT, &Allowance::unbounded(cache)).await
}

fn pipe() -> (DuplexStream, DuplexStream) {
    duplex(1 << 20)
}

#[tokio::test(start_paused = true)]
async fn a_hello_is_seen_and_given_back_with_what_follows() {
    let hello = Made::usual("a.test").records(1 << 14);
    let cache = cache();
    for pieces in [
        vec![&hello[..]],
        vec![&hello[..1], &hello[1..6], &hello[6..]],
        vec![&hello[..], b"early data"],
    ] {
        let peeked = peeked(&cache, &pieces).await;
        assert_eq!(peeked.seen.unwrap().name.as_deref(), Some("a.test"));
        assert!(pieces.concat().starts_with(&peeked.bytes));
        assert!(peeked.bytes.len() >= hello.len());
    }
}

#[tokio::test(start_paused = true)]
async fn who_says_nothing_or_not_enough_is_waited_for_three_seconds_in_all() {
    let hello = Made::usual("a.test").records(1 << 14);
    let cache = cache();
    for length in [0, 1, 5, 50] {
        let (mut client, mut server) = pipe();
        client.write_all(&hello[..length]).await.unwrap();
        let since = Instant::now();
        let peeked = peek(&mut server, LIMIT, &Allowance::unbounded(&cache)).await;
        assert_eq!(peeked.seen, Err(Reason::Slow));
        assert_eq!(since.elapsed(), LIMIT);
        assert_eq!(peeked.bytes, hello[..length]);
    }
    // A byte now and then makes it no longer.
    let (mut client, mut server) = pipe();
    let dripping = async {
        for byte in &hello {
            client.write_all(&[*byte]).await.unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let allowance = Allowance::unbounded(&cache);
    let since = Instant::now();
    let peeked = tokio::select! {
        peeked = peek(&mut server, LIMIT, &allowance) => peeked,
        () = dripping => panic!("it waited for all of it"),
    };
    assert_eq!((peeked.seen, since.elapsed()), (Err(Reason::Slow), LIMIT));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_tls_is_known_by_its_first_byte() {
    let cache = cache();
    for first in (0..=255).filter(|first| *first != HANDSHAKE) {
        let (mut client, mut server) = pipe();
        client.write_all(&[first]).await.unwrap();
        let since = Instant::now();
        let peeked = peek(&mut server, LIMIT, &Allowance::unbounded(&cache)).await;
        assert_eq!(peeked.seen, Err(Reason::NotTls));
        assert_eq!(
            (since.elapsed(), &peeked.bytes[..]),
            (Duration::ZERO, &[first][..])
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_hello_without_end_is_given_up_at_its_bound() {
    // A message of 16 MiB in records that are whole.
    let head = [22, 3, 1, 0x40, 0];
    let first = [&head[..], &[1, 0xff, 0xff, 0xff], &[0; 0x3ffc]].concat();
    let more = [&head[..], &[0; 0x4000]].concat();
    let pieces: Vec<&[u8]> = [&first[..]].into_iter().chain([&more[..]; 10]).collect();
    let peeked = peeked(&cache(), &pieces).await;
    assert_eq!(peeked.seen, Err(Reason::Malformed));
    assert!(peeked.bytes.len() <= PEEK_BYTES);
    assert!(pieces.concat().starts_with(&peeked.bytes));
    // The largest that fits.
    let long = Made::usual("a.test").with((0x9999, vec![0; 60_000]));
    let records = long.records(1 << 14);
    let peeked = self::peeked(&cache(), &[&records]).await;
    assert!(peeked.seen.is_ok());
    assert_eq!(peeked.bytes, records);
}

#[tokio::test(start_paused = true)]
async fn a_long_hello_is_set_aside_for_or_not_read() {
    let cache = cache();
    let long = Made::usual("a.test").with((0x9999, vec![0; 30_000]));
    let records = long.records(1 << 14);
    let before = cache.stats().memory_used_bytes;
    let peeked = peeked(&cache, &[&records]).await;
    assert!(cache.stats().memory_used_bytes >= before + 2 * PEEK_BYTES as u64);
    drop(peeked);
    assert_eq!(cache.stats().memory_used_bytes, before);
    let mut held = Vec::new();
    while let Some(reservation) = cache.reserve(PEEK_BYTES as u64) {
        held.push(reservation);
    }
    let peeked = self::peeked(&cache, &[&records]).await;
    assert_eq!(peeked.seen, Err(Reason::Memory));
    assert!(records.starts_with(&peeked.bytes));
    let short = Made::usual("a.test").records(1 << 14);
    assert!(self::peeked(&cache, &[&short]).await.seen.is_ok());
}

#[tokio::test(start_paused = true)]
async fn long_hellos_take_no_more_than_the_share_of_their_client() {
    let cache = cache();
    let long = Made::usual("a.test").with((0x9999, vec![0; 30_000]));
    let records = long.records(1 << 14);
    let shares = Shares::new(2 * PEEK_BYTES as u64, 100);
    let [one, other] = [1, 2].map(|host| {
        let share = shares.of([192, 0, 2, host].into());
        Allowance::new(share, cache.clone())
    });
    let peeked = async |allowance: &Allowance| {
        let (mut client, mut server) = pipe();
        client.write_all(&records).await.unwrap();
        peek(&mut server, LIMIT, allowance).await
    };
    let first = peeked(&one).await;
    assert!(first.seen.is_ok());
    assert_eq!(peeked(&one).await.seen, Err(Reason::Memory));
    assert!(peeked(&other).await.seen.is_ok());
    drop(first);
    assert!(peeked(&one).await.seen.is_ok());
}

/// Feeds pieces of these sizes; what was fed up to the verdict, and the verdict.
fn fed(bytes: &[u8], sizes: &[usize]) -> (Peek, Option<Result<ParsedHello, Reason>>) {
    let mut peek = Peek::default();
    let mut rest = bytes;
    for size in sizes.iter().cycle() {
        let room = PEEK_BYTES - peek.bytes.len();
        let (piece, after) = rest.split_at(rest.len().min(*size).min(room));
        rest = after;
        let verdict = peek.feed(piece);
        if verdict.is_some() || rest.is_empty() {
            return (peek, verdict);
        }
    }
    unreachable!("there are sizes")
}

proptest! {
    #[test]
    fn whatever_comes_is_kept_whole_and_within_its_bound(
        bytes in vec(any::<u8>(), 1..300),
        is_handshake in any::<bool>(),
        sizes in vec(1usize..5000, 1..8),
    ) {
        let mut bytes = bytes;
        if is_handshake {
            bytes.splice(0..0, [HANDSHAKE, 3, 1]);
        }
        let (peek, _) = fed(&bytes, &sizes);
        prop_assert!(bytes.starts_with(&peek.bytes));
    }

    #[test]
    fn a_hello_that_is_changed_somewhere_breaks_nothing(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        record in 20usize..400,
        sizes in vec(1usize..400, 1..8),
    ) {
        let mut bytes = Made::usual("a.test").with(named("b.test")).records(record);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let (peek, verdict) = fed(&bytes, &sizes);
        prop_assert!(bytes.starts_with(&peek.bytes));
        // However it is cut, it is one and the same, unless more was there than a hello.
        let (_, whole) = fed(&bytes, &[PEEK_BYTES]);
        if let (Some(Ok(one)), Some(Ok(other))) = (verdict, whole) {
            prop_assert_eq!(one, other);
        }
    }

    #[test]
    fn endless_records_end_at_the_bound(
        kinds in vec(prop_oneof![Just(22u8), Just(21), Just(20), any::<u8>()], 1..20),
        lengths in vec(0usize..17_000, 1..20),
        sizes in vec(1usize..9000, 1..8),
    ) {
        let mut bytes = Vec::new();
        for (kind, length) in kinds.iter().zip(lengths.iter().cycle()) {
            let length = u16::try_from(*length).unwrap();
            bytes.extend_from_slice(&[*kind, 3, 3]);
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.resize(bytes.len() + usize::from(length), 1);
        }
        let (peek, verdict) = fed(&bytes, &sizes);
        prop_assert!(peek.bytes.len() <= PEEK_BYTES);
        prop_assert!(verdict.is_some() || peek.bytes.len() == bytes.len());
        prop_assert!(!matches!(verdict, Some(Ok(_))));
    }
}
