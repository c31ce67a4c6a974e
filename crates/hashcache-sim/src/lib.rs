//! Replays what clients of a web cache requested: through the engine itself on a modelled disk, and
//! through models of other caches.
//!
//! - `trace`: requests, from the logs of other programs.
//! - `two_level`: a cache in memory before a cache on disk, and what the disk has to do (WebCoSM,
//!   section 3.1).
//! - `disk_names`: the disks that can be named.
//! - `consistency`: how current what caches serve is, and what that costs (Harvest, section 4).
//! - `layout`: how objects lie in files, by WebCoSM; `modelled_disk` (feature `fuse`): a disk that
//!   is as slow as a model, for the file system under them.
//!
//! Used by `hashcache sim` and by campaigns. Invariant: equal traces, settings and seeds give equal
//! results on every machine.

pub mod consistency;
pub mod disk_names;
pub mod layout;
#[cfg(feature = "fuse")]
pub mod modelled_disk;
pub mod trace;
pub mod two_level;
