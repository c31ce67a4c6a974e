//! Has a layout serve requests: a cache in memory, one on disk behind it, and the layout for that.
//!
//! WebCoSM, section 3.1 and Figure 5: what memory does not answer is read from the disk, or fetched
//! and written there. Objects have contents, and every content that is read is compared with what
//! was put.
//!
//! What the kernel does by the clock of the machine is done here by that of the disk: what was
//! written is synced after 30 s, or when so much waits that a kernel would begin.

use std::io;
use std::time::Duration;

use super::distances::Distances;
use super::requests::Request;
use super::watermarks::Watermarks;
use super::{Kind, Layout, Object, Settings, length};
use hashcache_sim::lru::Lru;
use hashcache_sim::two_level::DiskOperation;

pub use super::watermarks::Marks;

/// What lies around a layout.
pub trait Surroundings {
    /// The time by the clock of the disk.
    fn now(&mut self) -> io::Result<Duration>;

    /// Waits until all that was written to files lies on the disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// How a layout is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplaySettings {
    /// Bytes of objects that the cache in memory holds.
    pub memory_bytes: u64,
    /// What the disk keeps.
    pub marks: Marks,
    /// Bytes that may be written between two syncs.
    pub unsynced_max: u64,
}

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of clients.
    pub requests: u64,
    /// Those that memory answered.
    pub memory_hits: u64,
    /// Objects that were read from the disk.
    pub reads: u64,
    /// Objects that were put.
    pub writes: u64,
    /// Objects that were removed.
    pub deletes: u64,
    /// Bytes of objects that were read.
    pub read_bytes: u64,
    /// Bytes of objects that were put.
    pub written_bytes: u64,
    /// Contents that the layout has returned: `reads` at the end.
    pub found: u64,
    /// Their bytes: `read_bytes` at the end.
    pub found_bytes: u64,
}

/// See the module's head.
pub struct Replay<S> {
    layout: Box<dyn Layout>,
    surroundings: S,
    settings: ReplaySettings,
    memory: Lru,
    disk: Watermarks,
    contents: Contents,
    counts: Counts,
    distances: Distances,
    synced_at: Duration,
    unsynced_bytes: u64,
}

impl<S: Surroundings> Replay<S> {
    /// A layout in the empty directory `root`, and empty caches.
    pub fn new(
        kind: Kind,
        root: &std::path::Path,
        layout: &Settings,
        settings: ReplaySettings,
        surroundings: S,
    ) -> io::Result<Self> {
        Ok(Self {
            layout: kind.open(root, layout)?,
            surroundings,
            settings,
            memory: Lru::new(settings.memory_bytes),
            disk: Watermarks::new(settings.marks),
            contents: Contents::new(settings.marks.object_max)?,
            counts: Counts::default(),
            distances: Distances::default(),
            synced_at: Duration::ZERO,
            unsynced_bytes: 0,
        })
    }

    /// Serves one request.
    pub fn request(&mut self, request: Request) -> io::Result<()> {
        self.counts.requests += 1;
        let Object { number, server } = request.object;
        if self.memory.touch(number).is_some() {
            self.counts.memory_hits += 1;
            return Ok(());
        }
        let mut operations = vec![];
        self.disk.request(number, request.bytes, |operation| {
            operations.push(operation);
        });
        for operation in operations {
            self.operate(operation, server)?;
        }
        self.memory.insert(number, request.bytes, |_, _| ());
        self.sync_if_due()
    }

    /// Has the layout do what it has put off, and syncs.
    ///
    /// # Errors
    /// Also if a content that was to be read was not.
    pub fn finish(&mut self) -> io::Result<()> {
        let Self {
            layout,
            contents,
            counts,
            ..
        } = self;
        layout.finish(&mut |number, content| contents.check(counts, number, content))?;
        let expected = (counts.reads, counts.read_bytes);
        if (counts.found, counts.found_bytes) != expected {
            return Err(io::Error::other(format!("reads are missing: {counts:?}")));
        }
        self.surroundings.sync()
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Mean length of a piece of free space, see [`Layout::mean_free_bytes`].
    pub fn mean_free_bytes(&self) -> Option<u64> {
        self.layout.mean_free_bytes()
    }

    /// How far apart reads of the disk are that follow each other.
    pub fn distances(&self) -> Distances {
        self.distances
    }

    fn operate(&mut self, operation: DiskOperation, server: u32) -> io::Result<()> {
        let Self {
            layout,
            contents,
            counts,
            distances,
            ..
        } = self;
        match operation {
            DiskOperation::Read { object, bytes } => {
                counts.reads += 1;
                counts.read_bytes += bytes;
                if let Some(slots) = layout.slots_of(object) {
                    distances.read(slots);
                }
                let now = self.surroundings.now()?;
                layout.get(object, now, &mut |number, content| {
                    contents.check(counts, number, content)
                })
            }
            DiskOperation::Write { object, bytes } => {
                counts.writes += 1;
                counts.written_bytes += bytes;
                self.unsynced_bytes += bytes;
                let number = object;
                layout.put(Object { number, server }, contents.of(number, bytes)?)
            }
            DiskOperation::Delete { object, .. } => {
                counts.deletes += 1;
                layout.remove(object, &mut |number, content| {
                    contents.check(counts, number, content)
                })
            }
        }
    }

    /// Syncs as a kernel would, and has the layout do the reads that have waited long enough.
    fn sync_if_due(&mut self) -> io::Result<()> {
        let now = self.surroundings.now()?;
        let Self {
            layout,
            contents,
            counts,
            ..
        } = self;
        layout.due(now, &mut |number, content| {
            contents.check(counts, number, content)
        })?;
        let waited = now.saturating_sub(self.synced_at);
        if waited < SYNC_TIME && self.unsynced_bytes < self.settings.unsynced_max {
            return Ok(());
        }
        self.surroundings.sync()?;
        self.synced_at = self.surroundings.now()?;
        self.unsynced_bytes = 0;
        Ok(())
    }
}

/// Contents of all objects: stretches of the same random bytes.
struct Contents {
    pool: Vec<u8>,
}

impl Contents {
    fn new(object_max: u64) -> io::Result<Self> {
        let mut pool = vec![0; POOL_BYTES + length(object_max)?];
        fastrand::Rng::with_seed(0).fill(&mut pool);
        Ok(Self { pool })
    }

    fn of(&self, number: u64, bytes: u64) -> io::Result<&[u8]> {
        // An odd factor: no two of 2^20 neighbours have the same place.
        let start = length(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % POOL_BYTES as u64)?;
        Ok(&self.pool[start..start + length(bytes)?])
    }

    fn check(&self, counts: &mut Counts, number: u64, content: &[u8]) -> io::Result<()> {
        counts.found += 1;
        counts.found_bytes += content.len() as u64;
        if content == self.of(number, content.len() as u64)? {
            return Ok(());
        }
        let what = format!("object {number} is not what was put");
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }
}

const POOL_BYTES: usize = 1 << 20;
/// How long Linux and Solaris leave what was written in memory.
const SYNC_TIME: Duration = Duration::from_secs(30);
