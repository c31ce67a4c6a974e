//! Objects as files: what `std::io` promises, and what a cache does.

use std::io::{BufRead, Cursor, ErrorKind, Read, Seek, SeekFrom, Write};

use hashcache::{Cache, CachedFile, OpenFile, PAGE, Put, PutError, ReadError};

use super::support::{KIB, MIB, POLICIES, Value, content, copy, get, memory, open, quiet};

fn to_write(cache: &Cache, name: &[u8], put: Put) -> CachedFile {
    cache.open_file(name, OpenFile::Write(put)).unwrap()
}

fn to_read(cache: &Cache, name: &[u8]) -> CachedFile {
    cache.open_file(name, OpenFile::Read).unwrap()
}

fn kind<T>(outcome: std::io::Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

#[test]
fn what_is_written_to_a_file_and_closed_is_read_from_it() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        for (put, length) in (0..).zip([0, 1, PAGE, PAGE + 1, 320 * KIB, 3 * MIB]) {
            let name = format!("file of {length}");
            let name = name.as_bytes();
            let value = Value::new(put, length);
            let mut file = to_write(&cache, name, Put::metadata(value.metadata()));
            assert!(file.hit().is_none());
            file.write_all(&value.content(name)).unwrap();
            file.flush().unwrap();
            let version = file.close().unwrap();
            for _ in 0..2 {
                let mut file = to_read(&cache, name);
                assert_eq!(file.hit().unwrap().metadata(), &value.metadata());
                let mut back = Vec::new();
                file.read_to_end(&mut back).unwrap();
                assert!(back == value.content(name), "{policy:?} {length}");
                assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
                assert_eq!(file.close().unwrap(), version);
                assert!(cache.flush().wait());
            }
        }
    }
}

#[test]
fn a_file_dropped_before_it_is_closed_was_never_written() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        Value::new(1, 1000).store(&cache, b"name").unwrap();
        let mut file = to_write(&cache, b"name", Put::metadata(""));
        file.write_all(&[7; 200 * KIB]).unwrap();
        assert_eq!(get(&cache, b"name"), Some(Value::new(1, 1000)));
        drop(file);
        assert_eq!(get(&cache, b"name"), Some(Value::new(1, 1000)));
    }
}

#[test]
fn reads_and_seeks_in_any_order_give_what_a_slice_would() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let value = Value::new(3, MIB + 77);
        value.store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        let mut file = to_read(&cache, b"name");
        let mut slice = Cursor::new(value.content(b"name"));
        let length = value.length as i64;
        let mut random = fastrand::Rng::with_seed(11);
        for round in 0..2000 {
            let by = random.i64(-length - 10..length + 100);
            let seek = match random.u8(..8) {
                0 => SeekFrom::Start(by.unsigned_abs()),
                1 => SeekFrom::Current(by),
                2 => SeekFrom::End(by),
                3 => SeekFrom::Current(by % 1000),
                _ => {
                    let wanted = random.usize(..100 * KIB);
                    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                    let limit = wanted as u64;
                    (&mut file).take(limit).read_to_end(&mut ours).unwrap();
                    (&mut slice).take(limit).read_to_end(&mut theirs).unwrap();
                    assert!(ours == theirs, "{policy:?}, round {round}");
                    continue;
                }
            };
            let (ours, theirs) = (file.seek(seek), slice.seek(seek));
            assert_eq!(ours.is_ok(), theirs.is_ok(), "{seek:?}, round {round}");
            assert_eq!(
                file.stream_position().unwrap(),
                slice.stream_position().unwrap()
            );
        }
    }
}

#[test]
fn lines_are_read_without_a_buffer_of_ones_own() {
    let cache = open(quiet(memory(64 * MIB), POLICIES[0]));
    let line = |n: usize| format!("{n}{}", "x".repeat(n % 100));
    let text: String = (0..5000).map(|n| line(n) + "\n").collect();
    cache
        .put(b"text", Put::metadata(""), text.as_bytes())
        .unwrap();
    let lines: Vec<String> = to_read(&cache, b"text")
        .lines()
        .map(Result::unwrap)
        .collect();
    assert_eq!(lines.len(), 5000);
    assert!((0..).zip(lines).all(|(n, found)| found == line(n)));
}

#[test]
fn a_miss_is_not_found_and_the_wrong_use_of_a_file_is_refused() {
    let cache = open(quiet(memory(64 * MIB), POLICIES[0]));
    let missing = cache.open_file(b"none", OpenFile::Read);
    assert_eq!(kind(missing), Some(ErrorKind::NotFound));
    let nameless = cache.open_file(b"", OpenFile::Write(Put::metadata("")));
    assert_eq!(kind(nameless), Some(ErrorKind::InvalidInput));

    let mut file = to_write(&cache, b"name", Put::metadata(""));
    file.write_all(b"0123456789").unwrap();
    assert_eq!(kind(file.read(&mut [0; 4])), Some(ErrorKind::Unsupported));
    assert_eq!(kind(file.rewind()), Some(ErrorKind::Unsupported));
    assert_eq!(file.stream_position().unwrap(), 10);
    file.close().unwrap();

    let mut file = to_read(&cache, b"name");
    assert_eq!(kind(file.write(b"more")), Some(ErrorKind::Unsupported));
    let before_the_start = file.seek(SeekFrom::End(-11));
    assert_eq!(kind(before_the_start), Some(ErrorKind::InvalidInput));
    assert_eq!(file.stream_position().unwrap(), 0);
}

#[test]
fn a_file_shorter_than_announced_is_not_stored() {
    let cache = open(quiet(memory(64 * MIB), POLICIES[0]));
    let announced = Put {
        length: Some(10),
        ..Put::metadata("")
    };
    let mut file = to_write(&cache, b"name", announced.clone());
    file.write_all(b"short").unwrap();
    let error = file.close().unwrap_err();
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let (written, announced_length) = (5, 10);
    let wanted = PutError::Length {
        written,
        announced: announced_length,
    };
    assert_eq!(inner, Some(&wanted));
    assert!(cache.get(b"name").wait().is_none());

    let mut file = to_write(&cache, b"name", announced);
    let too_long = file.write_all(b"longer than that");
    assert_eq!(kind(too_long), Some(ErrorKind::InvalidInput));
}

#[test]
fn an_open_file_stays_the_version_it_was_opened_as() {
    for policy in POLICIES {
        let cache = open(quiet(memory(64 * MIB), policy));
        let old = Value::new(1, 500 * KIB);
        old.store(&cache, b"name").unwrap();
        let mut file = to_read(&cache, b"name");
        let mut back = vec![0; 100_000];
        file.read_exact(&mut back).unwrap();
        Value::new(2, 400 * KIB).store(&cache, b"name").unwrap();
        assert!(cache.flush().wait());
        cache.remove(b"name").wait().unwrap();
        file.read_to_end(&mut back).unwrap();
        assert!(back == old.content(b"name"), "{policy:?}");
        let removed = cache.open_file(b"name", OpenFile::Read);
        assert_eq!(kind(removed), Some(ErrorKind::NotFound));
    }
}

#[test]
fn a_file_larger_than_memory_is_written_at_the_pace_of_the_disk() {
    for policy in POLICIES {
        // Nothing is written unasked here: without the wait for the disk this could not end well.
        let cache = open(quiet(memory(128 * MIB), policy));
        let value = Value::new(1, 40 * MIB);
        let whole = content(b"large", 1, value.length);
        let mut file = to_write(&cache, b"large", Put::metadata(value.metadata()));
        file.write_all(&whole).unwrap();
        file.close().unwrap();
        assert!(cache.stats().memory_used_bytes <= cache.stats().memory_limit_bytes);
        let mut back = Vec::new();
        to_read(&cache, b"large").read_to_end(&mut back).unwrap();
        assert!(back == whole, "{policy:?}");
    }
}

#[test]
fn without_memory_that_the_disk_could_free_a_write_ends_in_an_error() {
    let cache = open(quiet(memory(64 * MIB), POLICIES[0]));
    let mut file = to_write(&cache, b"name", Put::metadata(""));
    let mut held = Vec::new();
    for bytes in [MIB as u64, 4 * KIB as u64, 1] {
        while let Some(reservation) = cache.reserve(bytes) {
            held.push(reservation);
        }
    }
    let refused = file.write(&[1; 1000]);
    assert_eq!(kind(refused), Some(ErrorKind::OutOfMemory));
    drop(held);
    file.write_all(&[1; 1000]).unwrap();
    file.close().unwrap();
}

#[test]
fn content_that_has_gone_is_an_error_that_says_where() {
    for policy in POLICIES {
        let device = memory(64 * MIB);
        let cache = open(quiet(device.clone(), policy));
        let value = Value::new(1, 500 * KIB);
        value.store(&cache, b"name").unwrap();
        cache.close();
        let device = copy(device.to_bytes());
        let cache = open(quiet(device.clone(), policy));
        let mut file = to_read(&cache, b"name");
        device.alter(|bytes| bytes.fill(0));
        let mut back = Vec::new();
        let error = file.read_to_end(&mut back).unwrap_err();
        assert!(value.content(b"name").starts_with(&back));
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
        let offset = PAGE as u64;
        assert_eq!(inner, Some(&ReadError::Missing { offset }), "{policy:?}");
    }
}

#[test]
fn a_file_of_a_closed_cache_is_not_stored_and_says_so() {
    let cache = open(quiet(memory(64 * MIB), POLICIES[0]));
    let mut file = to_write(&cache, b"name", Put::metadata(""));
    cache.clone().close();
    let written = file.write_all(&[1; MIB]);
    assert!(written.is_err() || file.close().is_err());
    assert!(
        cache
            .open_file(b"other", OpenFile::Write(Put::metadata("")))
            .is_err()
    );
}
