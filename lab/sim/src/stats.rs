//! What a trace has: requests, URLs, sizes, and the hits of a cache that never forgets.
//!
//! Such a cache bounds every other one from above: it misses what is requested for the first time
//! and what may not be stored. A hit counts with the size of its request, though the size of an URL
//! can change.
//!
//! Cost: about 40 bytes of memory for each URL and 20 for each client.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::ControlFlow;

use serde::Serialize;

use crate::source::{Source, SourceError, object_of};
use crate::trace::Request;
use crate::view::{Access, Sizes, View};

/// Figures of a trace. JSON has the same names.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Requests that count.
    pub requests: u64,
    /// Requests that do not: their size is not known.
    pub without_size: u64,
    /// Requests whose response may not be stored. They count as requests and as misses.
    pub uncacheable: u64,
    /// Distinct URLs.
    pub urls: u64,
    /// Distinct clients; 0 if the trace names none.
    pub clients: u64,
    /// Octets of all responses.
    pub bytes: u64,
    /// Octets of all URLs, each with its last size.
    pub working_set_bytes: u64,
    /// Hits of a cache that never forgets.
    pub hits: u64,
    /// Octets of those.
    pub hit_bytes: u64,
    /// Sizes of URLs.
    pub sizes: SizeFigures,
    /// From the first request to the last, seconds.
    pub seconds: f64,
}

/// Sizes of URLs, each with its last size: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SizeFigures {
    /// Half of them are no larger.
    pub median: u64,
    /// The sum by the number.
    pub mean: u64,
    /// 99 of 100 are no larger.
    pub percentile_99: u64,
    /// The largest.
    pub largest: u64,
}

impl Stats {
    /// Hits by requests.
    pub fn hit_ratio(&self) -> f64 {
        share(self.hits, self.requests)
    }

    /// Octets of hits by those of requests.
    pub fn byte_hit_ratio(&self) -> f64 {
        share(self.hit_bytes, self.bytes)
    }
}

/// `part` by `whole`; 0 if there is nothing.
pub fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// Counts all requests of `source`.
///
/// # Errors
/// Those of the source.
pub fn count(source: &mut dyn Source, view: View) -> Result<Stats, SourceError> {
    let sizes = Sizes::new(view, source)?;
    let mut counter = Counter::default();
    source.read(&mut |request| {
        counter.add(request, sizes.access(request));
        ControlFlow::Continue(())
    })?;
    Ok(counter.stats())
}

#[derive(Default)]
struct Counter {
    stats: Stats,
    seen: HashMap<u64, Seen, BuildHasherDefault<IsHash>>,
    clients: HashSet<u64, BuildHasherDefault<IsHash>>,
    /// Of the first request and of the last, microseconds.
    times: Option<(u64, u64)>,
}

struct Seen {
    bytes: u64,
    is_stored: bool,
}

impl Counter {
    fn add(&mut self, request: &Request<'_>, access: Option<Access>) {
        let Some(Access { object, bytes }) = access else {
            self.stats.without_size += 1;
            return;
        };
        let stats = &mut self.stats;
        stats.requests += 1;
        stats.bytes = stats.bytes.saturating_add(bytes);
        stats.uncacheable += u64::from(!request.may_be_stored);
        let seen = self.seen.entry(object).or_insert(Seen {
            bytes,
            is_stored: false,
        });
        if seen.is_stored && request.may_be_stored {
            stats.hits += 1;
            stats.hit_bytes = stats.hit_bytes.saturating_add(bytes);
        }
        seen.bytes = bytes;
        seen.is_stored |= request.may_be_stored;
        if !request.client.is_empty() {
            self.clients.insert(object_of(request.client));
        }
        let (first, last) = self.times.get_or_insert((request.time_us, request.time_us));
        *first = (*first).min(request.time_us);
        *last = (*last).max(request.time_us);
    }

    fn stats(self) -> Stats {
        let mut sizes: Vec<u64> = self.seen.values().map(|seen| seen.bytes).collect();
        sizes.sort_unstable();
        let sum = sizes
            .iter()
            .fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
        let at = |part: usize| sizes.get(sizes.len() * part / 100).copied();
        let seconds = self.times.map(|(first, last)| (last - first) as f64 / 1e6);
        Stats {
            urls: sizes.len() as u64,
            clients: self.clients.len() as u64,
            working_set_bytes: sum,
            sizes: SizeFigures {
                median: at(50).unwrap_or(0),
                mean: sum / (sizes.len() as u64).max(1),
                percentile_99: at(99).unwrap_or(0),
                largest: sizes.last().copied().unwrap_or(0),
            },
            seconds: seconds.unwrap_or(0.0),
            ..self.stats
        }
    }
}

/// Keys of the maps above are hashes already.
#[derive(Default)]
struct IsHash(u64);

impl Hasher for IsHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = object_of(bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read};

    use super::*;
    use crate::source::{Files, OnDamage};

    /// Twelve lines in the form of the BU trace, with what the two views make of each.
    const SAMPLE: &str = "\
        1.0\tm\t1\t1\thttp://a/\t100\t0.1\n\
        2.0\tm\t1\t1\thttp://a/i.gif\t40\t0.1\n\
        3.0\tm\t2\t1\thttp://a/\t110\t0.1\n\
        4.0\tm\t1\t1\thttp://a/\t0\t0.0\n\
        5.0\tm\t1\t1\thttp://b/\t0\t0.0\n\
        6.0\tm\t2\t1\thttp://b/\t1000\t0.1\n\
        7.0\tm\t2\t1\thttp://c/\t0\t0.0\n\
        8.0\tm\t1\t1\thttp://a/\t90\t0.1\n";

    fn counted(text: &'static str, view: View) -> Stats {
        let open = move |_: &std::path::Path| {
            Ok(Box::new(Cursor::new(text.as_bytes())) as Box<dyn Read + Send>)
        };
        let paths = vec!["sample".into()];
        count(
            &mut Files::new(paths, None, OnDamage::Stop, Box::new(open)),
            view,
        )
        .unwrap()
    }

    #[test]
    fn a_proxy_sees_the_requests_with_a_size_and_each_with_its_own() {
        let stats = counted(SAMPLE, View::Proxy);
        // /: 100, 110, 90; i.gif: 40; b: 1000. Hits are the second and third of /.
        let wanted = Stats {
            requests: 5,
            without_size: 3,
            uncacheable: 0,
            urls: 3,
            clients: 2,
            bytes: 1340,
            working_set_bytes: 90 + 40 + 1000,
            hits: 2,
            hit_bytes: 200,
            sizes: SizeFigures {
                median: 90,
                mean: 376,
                percentile_99: 1000,
                largest: 1000,
            },
            seconds: 7.0,
        };
        assert_eq!(stats, wanted);
        assert_eq!(stats.hit_ratio(), 0.4);
    }

    #[test]
    fn in_the_big_view_every_request_has_the_last_size_of_its_url() {
        let stats = counted(SAMPLE, View::Big);
        // /: four of 90; i.gif: one of 40; b: two of 1000; c has no size at all.
        assert_eq!((stats.requests, stats.without_size), (7, 1));
        assert_eq!((stats.bytes, stats.hits), (2400, 4));
        assert_eq!((stats.hit_bytes, stats.working_set_bytes), (1270, 1130));
    }

    #[test]
    fn what_may_not_be_stored_is_no_hit() {
        let text = "url,bytes,cacheable\n/a,1,0\n/a,1,1\n/a,1,0\n/a,1,1\n";
        let stats = counted(text, View::Proxy);
        assert_eq!((stats.requests, stats.uncacheable, stats.hits), (4, 2, 1));
        assert_eq!((stats.urls, stats.clients), (1, 0));
    }

    #[test]
    fn a_trace_without_requests_has_zeros() {
        let stats = counted("url,bytes\n", View::Big);
        assert_eq!(stats, Stats::default());
        assert_eq!(stats.byte_hit_ratio(), 0.0);
    }
}
