//! The interfaces that the ecosystem expects of a lookup and its content: `.await`,
//! `std::io::Read`, a stream.

use std::future::IntoFuture;
use std::io::Read;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use hashcache::{Cache, Lookup, PAGE, ReadError};

use super::support::{KIB, MIB, POLICIES, Value, content, copy, memory, open, quiet, read};

/// Runs `future` on this thread.
fn block_on<F: IntoFuture>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future.into_future());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A store with `value` under `name` on disk and nothing in memory, and its device.
fn reopened(
    policy: hashcache::PolicyKind,
    value: Value,
    name: &[u8],
) -> (Cache, Arc<hashcache::device::MemoryDevice>) {
    let device = memory(64 * MIB);
    let cache = open(quiet(device.clone(), policy));
    value.store(&cache, name).unwrap();
    cache.close();
    let device = copy(device.to_bytes());
    (open(quiet(device.clone(), policy)), device)
}

#[test]
fn a_lookup_is_awaited_whether_memory_or_disk_answers() {
    for policy in POLICIES {
        let value = Value::new(1, 200 * KIB);
        let (cache, _) = reopened(policy, value, b"name");
        let from_disk = cache.get(b"name");
        assert!(matches!(from_disk, Lookup::Pending(_)), "{policy:?}");
        let hit = block_on(from_disk).expect("it was put before the close");
        assert_eq!(read(&hit, b"name"), Some(value));
        let later = Value::new(2, 10);
        later.store(&cache, b"name").unwrap();
        let from_memory = cache.get(b"name");
        assert!(matches!(from_memory, Lookup::Hit(_)), "{policy:?}");
        let hit = block_on(from_memory).expect("it was put a moment ago");
        assert_eq!(read(&hit, b"name"), Some(later));
        cache.remove(b"name").wait().unwrap();
        assert!(block_on(cache.get(b"name")).is_none(), "{policy:?}");
        assert!(block_on(cache.get(b"")).is_none(), "{policy:?}");
    }
}

#[test]
fn reads_of_any_size_give_what_a_slice_would() {
    for policy in POLICIES {
        let value = Value::new(3, MIB + 77);
        let (cache, _) = reopened(policy, value, b"name");
        let whole = value.content(b"name");
        let hit = cache.get(b"name").wait().unwrap();
        let mut random = fastrand::Rng::with_seed(11);
        for round in 0..50 {
            let from = random.usize(..whole.len());
            let to = random.usize(from..=whole.len());
            let mut reader = hit.reader(from as u64..to as u64);
            let mut at = from;
            loop {
                let mut buffer = vec![0; random.usize(1..200 * KIB)];
                let length = reader.read(&mut buffer).unwrap();
                assert!(buffer[..length] == whole[at..at + length], "round {round}");
                at += length;
                assert_eq!(reader.offset(), at as u64);
                if length == 0 {
                    break;
                }
            }
            assert_eq!(at, to, "{policy:?}, round {round}");
        }
    }
}

#[test]
fn pieces_go_on_where_a_read_has_ended() {
    let cache = open(quiet(memory(64 * MIB), POLICIES[0]));
    let whole = content(b"name", 7, 300 * KIB);
    cache
        .put(b"name", hashcache::Put::metadata(""), &whole)
        .unwrap();
    let mut reader = cache.get(b"name").wait().unwrap().reader(0..u64::MAX);
    let mut start = [0; 1000];
    reader.read_exact(&mut start).unwrap();
    assert_eq!(reader.read(&mut []).unwrap(), 0);
    assert!(start[..] == whole[..1000]);
    assert!(reader.read_to_vec().unwrap() == whole[1000..]);
}

#[test]
fn a_reader_stays_with_the_version_it_was_made_for() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let old = Value::new(1, 500 * KIB);
        old.store(&cache, b"name").unwrap();
        let mut reader = cache.get(b"name").wait().unwrap().reader(0..u64::MAX);
        let mut back = vec![0; 100_000];
        reader.read_exact(&mut back).unwrap();
        Value::new(2, 400 * KIB).store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        cache.remove(b"name").wait().unwrap();
        reader.read_to_end(&mut back).unwrap();
        assert!(back == old.content(b"name"), "{policy:?}");
    }
}

#[test]
fn a_read_of_lost_content_is_an_error_that_says_where() {
    for policy in POLICIES {
        let value = Value::new(1, 500 * KIB);
        let (cache, device) = reopened(policy, value, b"name");
        let mut reader = cache.get(b"name").wait().unwrap().reader(0..u64::MAX);
        device.alter(|bytes| bytes.fill(0));
        let mut back = Vec::new();
        let error = reader.read_to_end(&mut back).unwrap_err();
        assert!(value.content(b"name").starts_with(&back));
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let offset = PAGE as u64;
        assert_eq!(inner, Some(&ReadError::Missing { offset }), "{policy:?}");
    }
}

#[cfg(feature = "stream")]
#[test]
fn a_stream_gives_all_content_and_ends_after_an_error() {
    use futures_core::Stream as _;
    let pieces = |reader: hashcache::Reader| {
        let mut reader = pin!(reader);
        let mut pieces = Vec::new();
        // Twice the pieces there are: a stream that does not end is found too.
        for _ in 0..20 {
            let next = block_on(std::future::poll_fn(|it| reader.as_mut().poll_next(it)));
            pieces.extend(next);
        }
        pieces
    };
    for policy in POLICIES {
        let value = Value::new(1, 500 * KIB);
        let (cache, device) = reopened(policy, value, b"name");
        let hit = cache.get(b"name").wait().unwrap();
        let all: Result<Vec<_>, _> = pieces(hit.reader(0..u64::MAX)).into_iter().collect();
        assert!(
            all.unwrap().concat() == value.content(b"name"),
            "{policy:?}"
        );
        let (cache, lost) = reopened(policy, value, b"name");
        let reader = cache.get(b"name").wait().unwrap().reader(0..u64::MAX);
        lost.alter(|bytes| bytes.fill(0));
        let errors = pieces(reader).into_iter().filter(Result::is_err).count();
        assert_eq!(errors, 1, "{policy:?}");
        drop(device);
    }
}
