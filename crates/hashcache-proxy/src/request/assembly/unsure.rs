//! Finds out whether bytes of an incomplete object are stored: policies without an index know it
//! only after a read.
//!
//! Called by `assembly` before the head of a response is sent: a response with a length must not be
//! started if the last bytes are neither stored nor known to arrive.
//!
//! Invariant: `None` only if every span of the range was read.
//! Cost: one read per checked span, at most [`READS_MAX`] and the steps of a binary search. Only
//! incomplete objects of such policies cost anything.

use std::future::poll_fn;
use std::ops::Range;

use hashcache::Hit;

/// Spans that are read to find that an incomplete object has all of a range. After this number the
/// last span is fetched again, even if it is stored: then the origin confirms that it still has
/// this version.
const READS_MAX: usize = 64;

/// The first byte of a span that must be fetched before `range` can be promised; `None`: the whole
/// range is stored.
pub(super) async fn first_to_fetch(hit: &Hit, range: &Range<u64>) -> Option<u64> {
    if range.is_empty() {
        return None;
    }
    let last = hit.whole_spans(range.end - 1..range.end).start;
    let last = last.max(range.start);
    // Check the last span first, because a transfer that broke off lacks it.
    if !is_stored(hit, last).await {
        return Some(edge(hit, range.start, last).await);
    }
    let mut at = range.start;
    for _ in 0..READS_MAX {
        if at >= last {
            return None;
        }
        if !is_stored(hit, at).await {
            return Some(at);
        }
        at = hit.whole_spans(at..at).end;
    }
    Some(last)
}

/// The start of a missing span that directly follows a stored span, or `from` if the search finds
/// no stored span; `missing` is the start of a missing span.
async fn edge(hit: &Hit, from: u64, mut missing: u64) -> u64 {
    let mut stored = from;
    while stored < missing {
        let span = hit.whole_spans({
            let middle = stored + (missing - stored) / 2;
            middle..middle
        });
        if is_stored(hit, span.start.max(from)).await {
            stored = span.end;
        } else {
            missing = span.start.max(from);
        }
    }
    missing
}

async fn is_stored(hit: &Hit, at: u64) -> bool {
    let mut reader = hit.reader(at..at + 1);
    let piece = poll_fn(|context| reader.poll_next(context)).await;
    matches!(piece, Some(Ok(_)))
}
