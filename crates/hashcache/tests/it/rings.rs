//! Reads by io_uring and by threads: the same answers from both, whatever fails.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hashcache::device::{Device, FileDevice};
use hashcache::{Cache, Config, Io, Lookup, OpenError, PolicyKind};

use crate::support::{MIB, Value, get};

fn config(path: &Path, io: Io) -> Config {
    Config {
        size_bytes: Some(48 * MIB as u64),
        memory_bytes: 16 * MIB as u64,
        // Each answer is to be read.
        hot_bytes_max: 0,
        io,
        open_patience: Duration::from_secs(3600),
        ..Config::new(path)
    }
}

/// Returns true if this kernel permits io_uring; otherwise a line is printed.
fn is_allowed() -> bool {
    let directory = tempfile::tempdir().unwrap();
    match Cache::open(config(&directory.path().join("try"), Io::Uring)) {
        Ok(_) => true,
        Err(OpenError::System { what, source }) => {
            eprintln!("skipped: the kernel refuses {what}: {source}");
            false
        }
        Err(error) => panic!("{error}"),
    }
}

fn name(value: &Value) -> Vec<u8> {
    format!("{}", value.put).into_bytes()
}

/// Of all lengths that take one read, two, and further spans.
fn fill(cache: &Cache) -> Vec<Value> {
    let length = |n: u64| usize::try_from(n * n * 60).unwrap();
    let values: Vec<Value> = (0..60).map(|n| Value::new(n, length(n))).collect();
    for value in &values {
        value.store(cache, &name(value)).unwrap();
    }
    assert!(cache.flush().wait());
    values
}

/// Asks for all at once, and not on this thread.
fn ask(cache: &Cache, values: &[Value]) -> Vec<Lookup> {
    let names: Vec<Vec<u8>> = values.iter().map(name).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    cache.get_many(&names)
}

#[test]
fn answers_are_the_same_whoever_reads() {
    let ways = if is_allowed() {
        &[Io::Uring, Io::Threads, Io::Auto][..]
    } else {
        &[Io::Threads, Io::Auto]
    };
    let directory = tempfile::tempdir().unwrap();
    for policy in PolicyKind::ALL {
        let path = directory.path().join(policy.name());
        let with = |io| Config {
            policy,
            ..config(&path, io)
        };
        let cache = Cache::open(with(Io::Threads)).unwrap();
        let values = fill(&cache);
        let here = |cache: &Cache| -> Vec<bool> {
            values
                .iter()
                .map(|it| get(cache, &name(it)) == Some(*it))
                .collect()
        };
        // Some policies forget what others do not.
        let expected = here(&cache);
        assert!(expected.iter().filter(|is| **is).count() > 20, "{policy:?}");
        cache.close();
        for io in ways {
            let cache = Cache::open(with(*io)).unwrap();
            assert_eq!(
                cache.stats().devices_uring == 1,
                *io != Io::Threads && ways.len() == 3
            );
            let asked = ask(&cache, &values).into_iter();
            let found: Vec<bool> = asked.map(|it| it.wait().is_some()).collect();
            // A head may be there although one of its spans is forgotten.
            let mut both = found.iter().zip(&expected);
            assert!(both.all(|(found, whole)| *found || !whole), "{io:?}");
            assert_eq!(here(&cache), expected, "{io:?}");
            assert_eq!(cache.stats().damaged, 0);
            cache.close();
        }
    }
}

/// A device whose file the kernel cannot read for us.
struct WriteOnly {
    inner: FileDevice,
    file: File,
}

impl WriteOnly {
    fn new(path: &Path) -> Arc<Self> {
        let inner = FileDevice::open(path, Some(48 * MIB as u64)).unwrap();
        let file = OpenOptions::new().write(true).open(path).unwrap();
        Arc::new(Self { inner, file })
    }
}

impl Device for WriteOnly {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn file(&self) -> Option<&File> {
        Some(&self.file)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buffer)
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

#[test]
fn where_a_ring_is_refused_threads_read_unless_it_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let device: Arc<dyn Device> = WriteOnly::new(&directory.path().join("cache.img"));
    let config = |io| Config {
        memory_bytes: 16 * MIB as u64,
        hot_bytes_max: 0,
        io,
        ..Config::on_device(Arc::clone(&device))
    };
    let refused = Cache::open(config(Io::Uring)).map(drop).unwrap_err();
    assert!(
        matches!(
            refused,
            OpenError::System {
                what: "io_uring",
                ..
            }
        ),
        "{refused}"
    );
    let cache = Cache::open(config(Io::Auto)).unwrap();
    assert_eq!(cache.stats().devices_uring, 0);
    let values = fill(&cache);
    let asked = ask(&cache, &values);
    assert!(asked.into_iter().all(|it| it.wait().is_some()));
}

#[test]
fn a_cache_that_goes_waits_for_its_reads_and_leaves_nobody_waiting() {
    if !is_allowed() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let config = config(&directory.path().join("cache.img"), Io::Uring);
    let cache = Cache::open(config.clone()).unwrap();
    let values = fill(&cache);
    cache.close();
    for round in 0..30 {
        let cache = Cache::open(config.clone()).unwrap();
        let asked = ask(&cache, &values);
        match round % 3 {
            // With the waiting callers still there, ...
            0 => {
                cache.close();
                for (lookup, value) in asked.into_iter().zip(&values) {
                    // Lookups that were under way are answered, others are misses.
                    let length = lookup.wait().and_then(|hit| hit.content_len());
                    assert!(length.is_none_or(|length| length == value.length as u64));
                }
            }
            // ... without them, ...
            1 => {
                drop(asked);
                cache.close();
            }
            // ... and with one of them as the last that holds it.
            _ => {
                drop(cache);
                drop(asked);
            }
        }
    }
    let cache = Cache::open(config).unwrap();
    assert!(values.iter().all(|it| get(&cache, &name(it)) == Some(*it)));
}

#[test]
fn what_the_kernel_cannot_read_is_a_miss_and_is_counted() {
    let directory = tempfile::tempdir().unwrap();
    for io in [Io::Auto, Io::Threads] {
        let path = directory.path().join(format!("{io:?}"));
        let cache = Cache::open(config(&path, io)).unwrap();
        let values = fill(&cache);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        // Superblocks stay, the log is gone.
        file.set_len(64 << 10).unwrap();
        let lookups = ask(&cache, &values[..3]);
        assert!(lookups.into_iter().all(|it| it.wait().is_none()), "{io:?}");
        assert_eq!(cache.stats().read_errors, 3, "{io:?}");
        // From as many places in a row as take a device out.
        assert!(
            ask(&cache, &values[3..])
                .into_iter()
                .all(|it| it.wait().is_none())
        );
        assert_eq!(cache.stats().devices_out, 1, "{io:?}");
        file.set_len(length).unwrap();
    }
}
