//! Savings and costs from coding on a link: counters for operators, and values for the access log.
//!
//! Counted by `request/framed` in the proxy at the parent and `unframe` in `hashcache-upstream` at
//! the child.
//!
//! Cost: a few atomic operations per response.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hashcache_wan::stats::Totals;

/// How a dictionary was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DictionaryKind {
    /// The child offered the stored version under the same URL.
    Offered,
    /// The parent found it by content.
    Named,
}

/// Reason for repeating a request or resuming a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeReason {
    /// Frames were damaged.
    Frames,
    /// The dictionary was not found here.
    Dictionary,
    /// There was no memory for the frames.
    Memory,
}

/// Counters of one link.
#[derive(Debug, Default)]
pub struct CodingCounters {
    /// Content bytes received, and sent.
    content: [AtomicU64; 2],
    /// Frame bytes received, and sent, by [`CODINGS`].
    frames: [[AtomicU64; 4]; 2],
    /// Time for decoding, and for encoding, nanoseconds.
    work_ns: [AtomicU64; 2],
    /// By kind: used, and missed.
    dictionaries: [[AtomicU64; 2]; 2],
    resumed: [AtomicU64; 3],
    shed: AtomicU64,
    /// Objects fetched because of hints (child), or named in hints (parent).
    hints: [AtomicU64; 2],
}

/// The counter values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodingFigures {
    /// Content bytes received in frames, and sent in frames.
    pub content: [u64; 2],
    /// Frame bytes received, and sent, by [`CODINGS`].
    pub frames: [[u64; 4]; 2],
    /// Time for decoding, and for encoding.
    pub work: [Duration; 2],
    /// By kind: used, and missed.
    pub dictionaries: [[u64; 2]; 2],
    /// Repeated requests and resumed transfers, by [`ResumeReason`].
    pub resumed: [u64; 3],
    /// Dictionaries that were not used because the disk was busier than the link.
    pub shed: u64,
    /// Objects fetched because the parent named them, and objects named to the child.
    pub hints: [u64; 2],
}

impl CodingCounters {
    /// Notes content that was received in frames ([`IN`](super::counters::IN)) or sent in frames.
    pub fn carried(&self, direction: usize, totals: Totals, dictionary: Option<DictionaryKind>) {
        self.content[direction].fetch_add(totals.content_bytes, Relaxed);
        let coding = LinkUsage::new(totals, dictionary).coding;
        let frames = CODINGS.iter().position(|name| *name == coding);
        if let Some(at) = frames {
            self.frames[direction][at].fetch_add(totals.frame_bytes, Relaxed);
        }
    }

    /// Notes time for decoding ([`IN`](super::counters::IN)) or encoding.
    pub fn worked(&self, direction: usize, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.work_ns[direction].fetch_add(ns, Relaxed);
    }

    /// Notes a dictionary that is used, or is missing.
    pub fn dictionary(&self, kind: DictionaryKind, is_used: bool) {
        self.dictionaries[kind as usize][usize::from(!is_used)].fetch_add(1, Relaxed);
    }

    /// Notes a repeated request for the same content.
    pub fn resumed(&self, reason: ResumeReason) {
        self.resumed[reason as usize].fetch_add(1, Relaxed);
    }

    /// Notes a dictionary that was not used because the disk is busier than the link.
    pub fn shed(&self) {
        self.shed.fetch_add(1, Relaxed);
    }

    /// Notes an object that is fetched because the parent named it.
    pub fn hint_followed(&self) {
        self.hints[0].fetch_add(1, Relaxed);
    }

    /// Notes objects that were named to the child.
    pub fn hints_given(&self, objects: usize) {
        self.hints[1].fetch_add(objects as u64, Relaxed);
    }

    /// The current values.
    pub fn figures(&self) -> CodingFigures {
        let load = |counter: &AtomicU64| counter.load(Relaxed);
        CodingFigures {
            content: self.content.each_ref().map(load),
            frames: self.frames.each_ref().map(|all| all.each_ref().map(load)),
            work: self
                .work_ns
                .each_ref()
                .map(|ns| Duration::from_nanos(load(ns))),
            dictionaries: self
                .dictionaries
                .each_ref()
                .map(|kind| kind.each_ref().map(load)),
            resumed: self.resumed.each_ref().map(load),
            shed: load(&self.shed),
            hints: self.hints.each_ref().map(load),
        }
    }
}

/// A response's frames, for the access log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkUsage {
    /// Bytes in frames.
    pub bytes: u64,
    /// A coding from [`CODINGS`].
    pub coding: &'static str,
}

impl LinkUsage {
    /// The usage for a response with these totals, for the log.
    pub fn new(totals: Totals, dictionary: Option<DictionaryKind>) -> Self {
        let is_raw = totals.raw_bytes == totals.content_bytes;
        Self {
            bytes: totals.frame_bytes,
            coding: match dictionary {
                Some(DictionaryKind::Offered) => "offered",
                Some(DictionaryKind::Named) => "named",
                None if is_raw => "raw",
                None => "zstd",
            },
        }
    }
}

/// Content unchanged, compressed, or with a dictionary that the child offered or the parent named.
pub const CODINGS: [&str; 4] = ["raw", "zstd", "offered", "named"];
