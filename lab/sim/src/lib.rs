//! Replays what clients of a web cache requested: through the engine itself on a modelled disk, and
//! through models of other caches.
//!
//! - `trace`, `source`, `view`: requests from logs of other programs; the files of a trace; which
//!   of their requests count, and with which size.
//! - `workload`: requests of benchmarks, from a seed.
//! - `stats`: what a trace has, and the hits of a cache that never forgets.
//! - `replay`: requests through the engine. `pages` says what belongs together, `content` what the
//!   objects' bytes are.
//! - `intervals`: what a replay did in each stretch of the log; `curves`: a picture of that, made
//!   of the parts in `svg`.
//! - `rival`: requests through models of Squid and Tiger.
//! - `two_level`: a cache in memory before a cache on disk, and what the disk has to do (WebCoSM,
//!   section 3.1).
//! - `timed_store`, `disks`, `disk_names`: a store of the engine on modelled disks, the time that
//!   they take, and their names. The bench uses them too.
//! - `median`: of several runs.
//! - `consistency`: how current what caches serve is, and what that costs (Harvest, section 4).
//!
//! Used by `hashcache sim` and by campaigns. Invariant: equal traces, settings and seeds give equal
//! results.

pub mod consistency;
pub mod content;
pub mod curves;
pub mod disk_names;
pub mod disks;
pub mod intervals;
pub mod lru;
pub mod median;
pub mod pages;
pub mod replay;
pub mod report;
pub mod rival;
pub mod source;
pub mod stats;
pub mod svg;
pub mod timed_store;
pub mod trace;
pub mod two_level;
pub mod view;
pub mod workload;
