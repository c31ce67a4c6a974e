//! The log wraps while a read is under way: the bytes read are not believed.

use std::io;
use std::sync::{Arc, Condvar, Mutex};

use hashcache::device::{Device, MemoryDevice};
use hashcache::{Cache, Hit, PolicyKind, Put};

use super::support::{Call, KIB, MIB, Recorder, content, forged, open, quiet};

/// On which side of the medium a read is held up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Before,
    Behind,
}

#[derive(Default)]
struct Hold {
    /// Reads to let pass before one is held up, and where.
    wanted: Option<(usize, Side)>,
    held: bool,
    released: bool,
}

/// A device that holds up one read.
pub struct Holding {
    inner: Recorder<MemoryDevice>,
    hold: Mutex<Hold>,
    changed: Condvar,
}

impl Holding {
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: Recorder::new(MemoryDevice::new(bytes)),
            hold: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Holds up the read after `pass` others.
    pub fn hold(&self, pass: usize, side: Side) {
        self.hold.lock().unwrap().wanted = Some((pass, side));
    }

    pub fn wait_until_held(&self) {
        let hold = self.hold.lock().unwrap();
        drop(self.changed.wait_while(hold, |hold| !hold.held).unwrap());
    }

    pub fn release(&self) {
        self.hold.lock().unwrap().released = true;
        self.changed.notify_all();
    }

    /// Returns the side if this is the read to hold up.
    fn is_it(&self) -> Option<Side> {
        let mut hold = self.hold.lock().unwrap();
        match &mut hold.wanted {
            Some((0, side)) => {
                let side = *side;
                hold.wanted = None;
                Some(side)
            }
            Some((pass, _)) => {
                *pass -= 1;
                None
            }
            None => None,
        }
    }

    fn wait(&self) {
        let mut hold = self.hold.lock().unwrap();
        hold.held = true;
        self.changed.notify_all();
        drop(
            self.changed
                .wait_while(hold, |hold| !hold.released)
                .unwrap(),
        );
    }
}

impl Device for Holding {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let side = self.is_it();
        if side == Some(Side::Before) {
            self.wait();
        }
        self.inner.read_at(offset, buffer)?;
        if side == Some(Side::Behind) {
            self.wait();
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, buffer)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }
}

/// Puts an object in a batch of its own.
fn put(cache: &Cache, name: &str, bytes: &[u8]) {
    cache
        .put(name.as_bytes(), Put::metadata("m"), bytes)
        .unwrap();
    assert!(cache.flush().wait());
}

/// Asks for the first object of a store of 8 MiB, holds up read number `pass` of the answer, lets
/// `filler` overwrite it, and returns the answer.
fn overtaken(first: &[u8], filler: &[u8], pass: usize, side: Side) -> (Cache, Option<Hit>) {
    let device = Holding::new(8 * MIB);
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    put(&cache, "object/0000", first);
    cache.close();
    // Opened anew nothing is hot.
    let cache = open(quiet(device.clone(), PolicyKind::Log));
    device.inner.take_reads();
    device.hold(pass, side);
    // In a batch, it is read before anybody waits for it.
    let lookup = cache.get_many(&[b"object/0000"]).remove(0);
    device.wait_until_held();
    let at = device.inner.take_reads()[0].offset;
    device.inner.take_writes();
    let covers = |write: &Call| (write.offset..write.offset + write.length as u64).contains(&at);
    let came_round = (1..1_000).any(|n| {
        put(&cache, &format!("object/{n:04}"), filler);
        device.inner.take_writes().iter().any(covers)
    });
    device.release();
    assert!(came_round);
    let hit = lookup.wait();
    (cache, hit)
}

#[test]
fn what_was_read_before_the_head_passed_it_is_a_miss_when_it_is_complete_after() {
    let bytes = content(b"first", 1, 3_000);
    let (cache, hit) = overtaken(&bytes, &content(b"filler", 2, 50_000), 0, Side::Behind);
    assert!(hit.is_none());
    // The log had wrapped, and was not damaged.
    assert_eq!(cache.stats().damaged, 0);
}

#[test]
fn a_forged_rest_under_an_old_header_is_never_served() {
    let bytes = content(b"first", 1, 50_000);
    let other = forged(&bytes, 40 * KIB);
    assert!(bytes != other);
    assert_eq!(crc32c::crc32c(&bytes), crc32c::crc32c(&other));
    // The header is read, the log wraps with content of the same checksum at the same place, and
    // then the rest is read.
    let (cache, hit) = overtaken(&bytes, &other, 1, Side::Before);
    assert!(hit.is_none());
    assert_eq!(cache.stats().damaged, 0);
}
