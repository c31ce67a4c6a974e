//! HashCache: a cache storage engine that maps names to bytes.
//!
//! The disk is a hash table or a log; memory holds 0 to 54 bits per object. After a crash, a lookup
//! returns a whole object that was committed under that very name, or it misses. The cache may
//! forget an object, but never returns a wrong object.
//!
//! ```
//! use hashcache::{Cache, Config, Put};
//!
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("cache.img");
//! let mut config = Config::new(&path);
//! config.size_bytes = Some(64 << 20);
//! config.memory_bytes = 16 << 20;
//! let cache = Cache::open(config)?;
//! cache.put(b"name", Put::metadata(&b"text/plain"[..]), b"content")?;
//! let hit = cache.get(b"name").wait().expect("it was put a moment ago");
//! assert_eq!(hit.metadata(), &b"text/plain"[..]);
//! assert_eq!(hit.reader(0..7).read_to_vec()?, b"content");
//! cache.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Only calls named `wait`, reads by [`std::io::Read`], [`Reader::read_to_vec`], [`Scan`] steps,
//! [`Cache::open`] and [`Cache::close`] block. Results from memory are immediate. Results from disk
//! are plain [`std::future::Future`]s, completed by the engine's own threads:
//! `cache.get(name).await` works with any async runtime. More in `examples/`: ranges, removal by
//! label, an own device, a list of stored objects.

// Configuration and layout.
mod clock;
mod config;
mod error;
mod geometry;
mod hour;
mod object;
pub mod plan;
mod stats;

// Public interface.
mod cache;
mod measure;

// From names to places on disk.
mod address;
mod bans;
mod hidden;
mod key;
mod members;
mod membership;
mod observers;
mod placement;
mod policy;
mod shard;
mod shared;

// From places on disk to bytes.
mod disk;
mod record;
mod store;
mod stripe;
mod write_queue;
mod writer;

// Foundations.
mod completion;
pub mod device;
mod format;
mod io;
mod lanes;
mod memory;
mod sync;

#[cfg(all(test, loom))]
mod models;

pub use bans::{Ban, Label, MAX_BANS};
pub use cache::{
    Answer, Cache, FetchError, Fetched, Follower, GetOrFetch, Hit, HourChange, Intent, Keep,
    Lookup, LookupFuture, Paid, Payer, PendingLookup, Put, Reader, Remove, Scan, ScanStep, Stream,
    Update, Updated, Walk, WalkStep, WalkedObject, Writer,
};
pub use clock::Clock;
pub use completion::Outcome;
pub use config::{Config, Io, PolicyKind, Rows};
pub use error::{NoLists, OpenError, PutError, ReadError, RemoveError, Resize, ScanError};
pub use hour::Hour;
pub use measure::{MeasureError, Probe, ProbeError, measure, probe_blank, probe_written};
pub use memory::Reservation;
pub use object::{MAX_METADATA, MAX_NAME, MAX_SPAN_PAGES, PAGE, Storage, Version};
pub use observers::{Event, MarkedObject, Observation};
pub use placement::Placement;
pub use stats::{Health, Stats};
pub use store::{CheckReport, Inspection, MemberDevice, check, inspect};
