//! Counters of HTCP: one set for all cores, because a message costs far more than a shared
//! addition.
//!
//! Counted by `peers` and `queries`, read by `exposition`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashcache_peers::htcp::Ignored;

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct HtcpCounts {
    queries: AtomicU64,
    timeouts: AtomicU64,
    received: [AtomicU64; REPLIES.len()],
    sent: [AtomicU64; ANSWERS.len()],
    ignored: [AtomicU64; IGNORED.len()],
    clears: [AtomicU64; CLEARS.len()],
    clears_sent: [AtomicU64; CLEARS.len()],
}

/// A peer's reply to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HtcpReply {
    Hit,
    Miss,
    /// The peer refuses the query as a whole.
    Refused,
}

const REPLIES: [&str; 3] = ["hit", "miss", "refused"];

/// Our reply to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HtcpAnswer {
    Hit,
    Miss,
    Nop,
    /// To CLR.
    Clear,
    /// The message must be signed, or its signature is not accepted.
    Unauthenticated,
    /// The peer may not do this.
    Disallowed,
    NotImplemented,
}

const ANSWERS: [&str; 7] = [
    "hit",
    "miss",
    "nop",
    "clr",
    "unauthenticated",
    "disallowed",
    "not_implemented",
];

/// Why a datagram had no effect and got no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HtcpIgnored {
    /// Its sender is no peer.
    Stranger,
    /// It is no HTCP message.
    Malformed,
    /// Another version of HTCP.
    Version,
    /// The peer sends too many.
    Rate,
    /// A reply that no query waits for, or of which number or address differ.
    Unasked,
    /// A reply whose signature is missing or not accepted.
    Signature,
    /// A question that wants no reply.
    Unanswerable,
}

const IGNORED: [&str; 7] = [
    "stranger",
    "malformed",
    "version",
    "rate",
    "unasked",
    "signature",
    "unanswerable",
];

impl From<Ignored> for HtcpIgnored {
    fn from(ignored: Ignored) -> Self {
        match ignored {
            Ignored::Version { .. } => Self::Version,
            _ => Self::Malformed,
        }
    }
}

/// What became of a CLR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearResult {
    /// The response is gone.
    Gone,
    /// It stays stored.
    Kept,
    /// It was not stored.
    Absent,
    /// The receiver does not obey this sender.
    Refused,
    /// The sender sends too many. Only received ones.
    Rate,
    /// Nothing was heard of it. Only sent ones.
    NoReply,
    /// There were too many at once, or the URL was too long. Only sent ones.
    Unsent,
}

const CLEARS: [&str; 7] = [
    "gone", "kept", "absent", "refused", "rate", "no_reply", "unsent",
];

impl HtcpCounts {
    pub(crate) fn asked(&self) {
        self.queries.fetch_add(1, Relaxed);
    }

    pub(crate) fn timed_out(&self) {
        self.timeouts.fetch_add(1, Relaxed);
    }

    pub(crate) fn received(&self, reply: HtcpReply) {
        self.received[reply as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn sent(&self, answer: HtcpAnswer) {
        self.sent[answer as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn ignored(&self, reason: HtcpIgnored) {
        self.ignored[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts a CLR of a peer.
    pub(crate) fn cleared(&self, result: ClearResult) {
        self.clears[result as usize].fetch_add(1, Relaxed);
    }

    /// Counts a CLR that was sent.
    pub(crate) fn clear_sent(&self, result: ClearResult) {
        self.clears_sent[result as usize].fetch_add(1, Relaxed);
    }

    /// Queries sent.
    pub(crate) fn queries(&self) -> u64 {
        self.queries.load(Relaxed)
    }

    /// Queries that got no reply in time.
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.load(Relaxed)
    }

    /// Replies to our queries, by reply.
    pub(crate) fn replies_received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&REPLIES, &self.received)
    }

    /// Our replies to peers, by reply.
    pub(crate) fn replies_sent(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&ANSWERS, &self.sent)
    }

    /// Datagrams that were ignored, by reason.
    pub(crate) fn datagrams_ignored(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&IGNORED, &self.ignored)
    }

    /// CLR requests of peers, by result.
    pub(crate) fn clears_received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&CLEARS[..CLEARS_RECEIVED], &self.clears)
    }

    /// CLR requests to peers, by result.
    pub(crate) fn clears_sent(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_sent = |(name, _): &(&str, u64)| *name != "rate";
        named(&CLEARS, &self.clears_sent).filter(is_sent)
    }
}

/// How many of [`CLEARS`] can be results of received ones.
const CLEARS_RECEIVED: usize = 5;

fn named(
    names: &'static [&'static str],
    counts: &[AtomicU64],
) -> impl Iterator<Item = (&'static str, u64)> {
    let counts = names.iter().zip(counts);
    counts.map(|(name, count)| (*name, count.load(Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_the_name_of_its_kind() {
        let counts = HtcpCounts::default();
        counts.received(HtcpReply::Refused);
        counts.sent(HtcpAnswer::NotImplemented);
        counts.ignored(HtcpIgnored::Unanswerable);
        counts.cleared(ClearResult::Rate);
        counts.clear_sent(ClearResult::Unsent);
        assert!(counts.replies_received().any(|it| it == ("refused", 1)));
        let mut sent = counts.replies_sent();
        assert!(sent.any(|it| it == ("not_implemented", 1)));
        let mut ignored = counts.datagrams_ignored();
        assert!(ignored.any(|it| it == ("unanswerable", 1)));
        assert!(counts.clears_received().any(|it| it == ("rate", 1)));
        assert!(counts.clears_sent().any(|it| it == ("unsent", 1)));
    }
}
