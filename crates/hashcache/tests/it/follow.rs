//! Followers: readers of a put that is still under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Follower, Keep, PolicyKind, Put, PutError, ReadError, Writer};

use super::support::{Gate, KIB, MIB, POLICIES, Value, content, get, memory, open, quiet};

fn store(policy: PolicyKind) -> Cache {
    open(quiet(memory(64 * MIB), policy))
}

fn begin(cache: &Cache, put: Put) -> Writer {
    cache.intend(b"name").unwrap().writer(put).unwrap()
}

/// The next piece, if it is available without waiting.
fn poll(follower: &mut Follower) -> Poll<Option<Result<Vec<u8>, ReadError>>> {
    let next = follower.poll_next(&mut Context::from_waker(Waker::noop()));
    next.map(|next| next.map(|piece| piece.map(|piece| piece.to_vec())))
}

/// All that is there without waiting.
fn drain(follower: &mut Follower) -> Vec<u8> {
    let mut all = Vec::new();
    while let Poll::Ready(Some(piece)) = poll(follower) {
        all.extend(piece.unwrap());
    }
    all
}

#[test]
fn followers_see_all_of_it_wherever_they_begin_and_however_fast_they_are() {
    for policy in POLICIES {
        let cache = store(policy);
        let whole = content(b"name", 1, 2 * MIB + 123);
        for piece in [7_000, 64 * KIB, 300_000] {
            let mut writer = begin(&cache, Put::metadata("m"));
            let mut fast = writer.follow(0);
            let mut seen = Vec::new();
            let mut waiting: Vec<_> = Vec::new();
            for (n, part) in whole.chunks(piece).enumerate() {
                writer.write(part).unwrap();
                seen.extend(drain(&mut fast));
                assert_eq!(seen.len() as u64, writer.written());
                if n % 4 == 0 {
                    // One from the start, that reads what is in the store already, one from midway.
                    let midway = writer.written() / 2;
                    for offset in [0, midway, writer.written()] {
                        let follower = writer.follow(offset);
                        waiting.push((offset, std::thread::spawn(move || follower.read_to_vec())));
                    }
                    if n % 8 == 0 {
                        assert!(cache.flush().wait());
                    }
                }
            }
            writer.commit().unwrap();
            assert!(seen == whole);
            assert_eq!(poll(&mut fast), Poll::Ready(None));
            for (offset, thread) in waiting {
                let rest = thread.join().unwrap().unwrap();
                let offset = usize::try_from(offset).unwrap();
                assert!(rest == whole[offset..], "{policy:?} from {offset}");
            }
        }
    }
}

#[test]
fn a_slow_follower_costs_no_memory() {
    let cache = store(PolicyKind::Log);
    let whole = content(b"name", 1, 8 * MIB);
    let mut writer = begin(&cache, Put::metadata("m"));
    let mut slow = writer.follow(0);
    assert!(poll(&mut slow).is_pending());
    for part in whole.chunks(64 * KIB) {
        while writer.write(part) == Err(PutError::Full) {
            assert!(cache.flush().wait());
        }
        let stats = cache.stats();
        assert!(stats.memory_used_bytes <= stats.memory_limit_bytes);
    }
    assert!(cache.flush().wait());
    // Nothing is pending, and the window holds less than a span.
    assert_eq!(cache.stats().pending_bytes, 0);
    writer.commit().unwrap();
    assert!(slow.read_to_vec().unwrap() == whole);
}

#[test]
fn the_rest_in_one_piece_is_given_only_of_a_committed_put_and_holds_its_memory() {
    let cache = store(PolicyKind::Log);
    let whole = content(b"name", 1, 5_000);
    let mut writer = begin(&cache, Put::metadata("m"));
    let [all, last, end, open] = [0, 4_096, 5_000, 0].map(|offset| writer.follow(offset));
    writer.write(&whole[..4_096]).unwrap();
    writer.write(&whole[4_096..]).unwrap();
    let open = open.into_rest().expect_err("the put is not committed");
    writer.commit().unwrap();
    // In two pieces.
    let all = all.into_rest().expect_err("it is in two pieces");
    assert!(all.read_to_vec().unwrap() == whole);
    assert!(open.read_to_vec().unwrap() == whole);
    assert!(end.into_rest().ok().expect("nothing is left").is_empty());
    let last = last.into_rest().ok().expect("it is one piece");
    assert!(last == whole[4_096..]);
    assert!(cache.flush().wait());
    let held = cache.stats().memory_used_bytes;
    drop(last);
    assert!(held - cache.stats().memory_used_bytes >= 900);
    let aborted = begin(&cache, Put::metadata("m"));
    let follower = aborted.follow(0);
    drop(aborted);
    assert!(follower.into_rest().is_err());
}

#[test]
fn a_put_that_is_given_up_is_never_the_end_of_the_content() {
    for policy in POLICIES {
        let cache = store(policy);
        for length in [0, 1, 64 * KIB, 400_000] {
            let whole = content(b"name", 1, length);
            let mut writer = begin(&cache, Put::metadata("m"));
            let mut follower = writer.follow(0);
            let thread = {
                let follower = writer.follow(0);
                std::thread::spawn(move || follower.read_to_vec())
            };
            let stream = writer.stream();
            writer.write(&whole).unwrap();
            assert!(drain(&mut follower) == whole);
            assert_eq!(poll(&mut follower), Poll::Pending);
            drop(writer);
            let aborted = ReadError::Aborted {
                offset: length as u64,
            };
            assert_eq!(poll(&mut follower), Poll::Ready(Some(Err(aborted))));
            assert_eq!(thread.join().unwrap(), Err(aborted));
            assert!(stream.follow(0).is_none());
            assert!(cache.get(b"name").wait().is_none());
        }
    }
}

#[test]
fn a_put_that_is_kept_in_part_is_given_up_for_its_followers() {
    let cache = store(PolicyKind::Log);
    let put = Put {
        keep: Keep::Partial,
        length: Some(9_000_000),
        ..Put::metadata("m")
    };
    let mut writer = begin(&cache, put);
    let mut follower = writer.follow(0);
    writer.write(&[5; 400_000]).unwrap();
    assert!(writer.keep());
    assert_eq!(
        drain_until_error(&mut follower),
        (400_000, ReadError::Aborted { offset: 400_000 })
    );
}

fn drain_until_error(follower: &mut Follower) -> (usize, ReadError) {
    let mut length = 0;
    loop {
        match poll(follower) {
            Poll::Ready(Some(Ok(piece))) => length += piece.len(),
            Poll::Ready(Some(Err(error))) => return (length, error),
            Poll::Ready(None) => panic!("taken for the end after {length} bytes"),
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

#[test]
fn a_wrong_length_is_an_abort_for_followers() {
    let cache = store(PolicyKind::Log);
    let mut writer = begin(
        &cache,
        Put {
            length: Some(10),
            ..Put::metadata("m")
        },
    );
    let mut follower = writer.follow(0);
    writer.write(b"12345").unwrap();
    assert!(writer.commit().is_err());
    assert_eq!(
        drain_until_error(&mut follower),
        (5, ReadError::Aborted { offset: 5 })
    );
}

#[test]
fn a_bypassed_write_passes_everything_on_and_stores_nothing() {
    for policy in POLICIES {
        let cache = store(policy);
        let whole = content(b"name", 1, 3 * MIB);
        for bypassed_at in [0, 30_000, 65_536, 1 << 20] {
            let mut writer = begin(&cache, Put::metadata("m"));
            let mut followers = [writer.follow(0), writer.follow(0)];
            let mut seen = [Vec::new(), Vec::new()];
            for part in whole.chunks(10_000) {
                if writer.written() >= bypassed_at {
                    writer.bypass();
                }
                writer.write(part).unwrap();
                for (follower, seen) in followers.iter_mut().zip(&mut seen) {
                    // The second one stays behind by some.
                    if seen.len() + 200_000 * usize::from(seen.len() % 3 == 1) < whole.len() {
                        while let Poll::Ready(Some(piece)) = poll(follower) {
                            seen.extend(piece.unwrap());
                        }
                    }
                }
            }
            assert!(!writer.is_stored());
            assert_eq!(writer.commit(), Err(PutError::Bypassed));
            for (mut follower, mut seen) in followers.into_iter().zip(seen) {
                loop {
                    match poll(&mut follower) {
                        Poll::Ready(Some(piece)) => seen.extend(piece.unwrap()),
                        Poll::Ready(None) => break,
                        Poll::Pending => std::thread::yield_now(),
                    }
                }
                assert!(seen == whole, "{policy:?} bypassed at {bypassed_at}");
            }
            assert!(cache.get(b"name").wait().is_none());
        }
        assert!(cache.flush().wait());
    }
}

#[test]
fn a_bypassed_write_without_followers_holds_no_memory() {
    let cache = store(PolicyKind::Log);
    let mut writer = begin(&cache, Put::metadata("m"));
    writer.bypass();
    for _ in 0..2_000 {
        writer.write(&[7; 64 * KIB]).unwrap();
    }
    assert_eq!(writer.commit(), Err(PutError::Bypassed));
    assert!(cache.flush().wait());
    assert_eq!(
        cache.stats().memory_used_bytes,
        cache.stats().memory_used_bytes.min(1 << 20)
    );
}

#[test]
fn a_write_that_is_bypassed_keeps_nothing_that_its_followers_have() {
    for (length, written) in [(Some(10 << 20), 200_000), (None, 200_000), (None, 10_000)] {
        let cache = store(PolicyKind::Log);
        let at_rest = cache.stats().memory_used_bytes;
        let put = Put {
            length,
            ..Put::metadata("m")
        };
        let mut writer = begin(&cache, put);
        let mut follower = writer.follow(0);
        writer.write(&content(b"name", 1, written)).unwrap();
        assert_eq!(drain(&mut follower).len(), written);
        let before = cache.stats().memory_used_bytes;
        // The writer may have to wait for memory now; until then it is to hold next to none.
        writer.bypass();
        assert!(before - at_rest >= written as u64, "{before} {at_rest}");
        // Empty slabs keep their pages until the memory is wanted.
        let rest = cache.stats().memory_limit_bytes - at_rest - 2 * 64 * KIB as u64;
        let after = cache.reserve(rest).map(|rest| rest.bytes());
        assert_eq!(after, Some(rest), "{}", cache.stats().memory_used_bytes);
        writer.write(&[7; 50_000]).unwrap();
        assert_eq!(drain(&mut follower).len(), 50_000);
    }
}

#[test]
fn who_comes_too_late_to_a_bypassed_write_is_told_at_once() {
    for (written, late) in [(30_000, 20_000), (200_000, 0), (200_000, 150_000)] {
        let cache = store(PolicyKind::Log);
        let mut writer = begin(&cache, Put::metadata("m"));
        let mut follower = writer.follow(0);
        writer.write(&content(b"name", 1, written)).unwrap();
        let stream = writer.stream();
        writer.bypass();
        // Everything is there still.
        let from = stream.follow(late).expect("nobody has read it");
        drop(from);
        assert_eq!(drain(&mut follower).len(), written);
        assert!(stream.follow(late).is_none());
        assert!(stream.follow(written as u64).is_some());
    }
}

#[test]
fn with_memory_full_a_writer_waits_or_passes_on_and_followers_go_on() {
    let gate = Arc::new(Gate::new(MemoryDevice::new(64 * MIB)));
    let cache = open(quiet(gate.clone() as Arc<dyn Device>, PolicyKind::Log));
    gate.shut();
    let whole = content(b"name", 1, 12 * MIB);
    let mut writer = begin(&cache, Put::metadata("m"));
    let mut follower = writer.follow(0);
    let (mut seen, mut refused) = (Vec::new(), 0);
    for part in whole.chunks(50_000) {
        while let Err(error) = writer.write(part) {
            assert_eq!(error, PutError::Full);
            refused += 1;
            writer.bypass();
            seen.extend(drain(&mut follower));
        }
    }
    seen.extend(drain(&mut follower));
    assert!(refused > 0 && seen == whole);
    assert_eq!(writer.commit(), Err(PutError::Bypassed));
    gate.open();
    assert!(cache.flush().wait());
    assert_eq!(cache.get(b"name").wait().map(|hit| hit.version()), None);
    Value::new(2, 100_000).store(&cache, b"name").unwrap();
    assert_eq!(get(&cache, b"name"), Some(Value::new(2, 100_000)));
}

#[test]
fn a_refused_writer_is_woken_when_memory_is_released() {
    let gate = Arc::new(Gate::new(MemoryDevice::new(64 * MIB)));
    let cache = open(quiet(gate.clone() as Arc<dyn Device>, PolicyKind::Log));
    gate.shut();
    let mut writer = begin(&cache, Put::metadata("m"));
    while writer.write(&[1; 64 * KIB]).is_ok() {}
    let released = writer.released();
    gate.wait_for_write();
    let waiter = std::thread::spawn(move || wait(released));
    gate.open();
    let flushed = cache.flush();
    waiter.join().unwrap();
    assert!(flushed.wait());
    writer.write(&[1; 64 * KIB]).unwrap();
    // Released between the refusal and the question: no wait at all.
    gate.shut();
    while writer.write(&[1; 64 * KIB]).is_ok() {}
    gate.open();
    assert!(cache.flush().wait());
    wait(writer.released());
}

/// Blocks until the future is ready.
fn wait(future: impl Future<Output = ()>) {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    while future
        .as_mut()
        .poll(&mut Context::from_waker(&waker))
        .is_pending()
    {
        std::thread::park();
    }
}

#[test]
fn a_writer_is_told_when_its_followers_are_far_behind() {
    let cache = store(PolicyKind::Log);
    let mut context = Context::from_waker(Waker::noop());
    let mut writer = begin(&cache, Put::metadata("m"));
    writer.write(&[1; 300_000]).unwrap();
    assert!(
        writer.poll_room(&mut context, 100_000).is_ready(),
        "without followers it goes on"
    );
    let mut fast = writer.follow(0);
    let slow = writer.follow(0);
    assert!(writer.poll_room(&mut context, 100_000).is_pending());
    assert_eq!(drain(&mut fast).len(), 300_000);
    // What is stored waits for nobody but the fastest, what is passed on for the slowest.
    assert!(writer.poll_room(&mut context, 100_000).is_ready());
    writer.bypass();
    assert!(writer.poll_room(&mut context, 100_000).is_pending());
    drop(slow);
    assert!(writer.poll_room(&mut context, 100_000).is_ready());
    assert_eq!(writer.stream().followers(), 1);
}

#[test]
fn a_follower_that_joins_ahead_of_the_others_wakes_a_writer_that_waits_for_them() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let cache = store(PolicyKind::Log);
    let woken = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    let mut writer = begin(&cache, Put::metadata("m"));
    writer.write(&[1; 300_000]).unwrap();
    let slow = writer.follow(0);
    assert!(!slow.waits_for_writer());
    assert!(writer.poll_room(&mut context, 100_000).is_pending());
    assert_eq!(woken.0.load(Ordering::Relaxed), 0);
    let ahead = writer.stream().follow(400_000).unwrap();
    assert!(ahead.waits_for_writer());
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    assert!(writer.poll_room(&mut context, 100_000).is_ready());
}

#[test]
fn a_follower_that_skips_is_as_far_as_where_it_goes_on() {
    let cache = store(PolicyKind::Log);
    let mut context = Context::from_waker(Waker::noop());
    let whole = content(b"name", 1, 300_000);
    let mut writer = begin(&cache, Put::metadata("m"));
    let mut follower = writer.follow(0);
    writer.write(&whole[..200_000]).unwrap();
    assert!(writer.poll_room(&mut context, 100_000).is_pending());
    follower.skip_to(150_000);
    assert!(writer.poll_room(&mut context, 100_000).is_ready());
    follower.skip_to(10);
    assert_eq!(follower.offset(), 150_000, "it does not go back");
    assert!(drain(&mut follower) == whole[150_000..200_000]);
    writer.write(&whole[200_000..]).unwrap();
    follower.skip_to(299_999);
    writer.commit().unwrap();
    assert!(follower.read_to_vec().unwrap() == whole[299_999..]);
}

#[test]
fn a_hit_whose_content_is_wrong_is_removed_by_its_reader() {
    let cache = store(PolicyKind::Log);
    Value::new(1, 100_000).store(&cache, b"name").unwrap();
    let hit = cache.get(b"name").wait().unwrap();
    hit.invalidate();
    assert!(get(&cache, b"name").is_none());
    assert_eq!(
        cache.put(b"name", Put::metadata("m"), b"new").map(drop),
        Ok(())
    );
    assert!(
        cache.get(b"name").wait().is_some(),
        "what is put later is found"
    );
}

#[test]
fn an_upstream_that_sends_byte_by_byte_costs_no_handle_a_byte() {
    let cache = store(PolicyKind::Log);
    let whole = content(b"name", 1, 200_000);
    let mut writer = begin(&cache, Put::metadata("m"));
    let late = writer.follow(0);
    for byte in &whole {
        writer.write(std::slice::from_ref(byte)).unwrap();
    }
    // A late follower gets it in large pieces: the small ones were put together.
    let (mut pieces, mut seen, mut follower) = (0, Vec::new(), writer.follow(0));
    while let Poll::Ready(Some(piece)) = poll(&mut follower) {
        seen.extend(piece.unwrap());
        pieces += 1;
    }
    assert!(seen == whole && pieces < 500, "{pieces} pieces");
    writer.commit().unwrap();
    assert!(late.read_to_vec().unwrap() == whole);
    let hit = cache.get(b"name").wait().unwrap();
    assert!(hit.reader(0..u64::MAX).read_to_vec().unwrap() == whole);
}
