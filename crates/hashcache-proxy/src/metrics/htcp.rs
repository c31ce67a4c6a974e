//! HTCP counters: all cores share them, because a message costs far more than a shared addition.
//!
//! Counted by `peers` and `queries`, read by `exposition`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashcache_peers::htcp::Ignored;

/// HTCP counters.
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
    /// Reply to CLR.
    Clear,
    /// The message must be signed, or its signature is not accepted.
    Unauthenticated,
    /// The peer may not do this operation.
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
    /// The sender is not a peer.
    Stranger,
    /// The datagram is not an HTCP message.
    Malformed,
    /// The message has another HTCP version.
    Version,
    /// The peer sends too many messages.
    Rate,
    /// A reply to no pending query, or with another number or address.
    Unasked,
    /// A reply whose signature is missing or not accepted.
    Signature,
    /// A request that wants no reply.
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

/// CLR result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearResult {
    /// The response was removed.
    Gone,
    /// The response stays stored.
    Kept,
    /// The response was not stored.
    Absent,
    /// The receiver does not obey this sender.
    Refused,
    /// The sender sends too many messages. Only for received CLRs.
    Rate,
    /// No reply arrived. Only for sent CLRs.
    NoReply,
    /// There were too many CLRs at once, or the URL was too long. Only for sent CLRs.
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

    /// Counts a CLR that a peer sent.
    pub(crate) fn cleared(&self, result: ClearResult) {
        self.clears[result as usize].fetch_add(1, Relaxed);
    }

    /// Counts a CLR to a peer.
    pub(crate) fn clear_sent(&self, result: ClearResult) {
        self.clears_sent[result as usize].fetch_add(1, Relaxed);
    }

    /// Returns how many queries were sent.
    pub(crate) fn queries(&self) -> u64 {
        self.queries.load(Relaxed)
    }

    /// Returns how many queries got no reply in time.
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.load(Relaxed)
    }

    /// Returns replies to our queries, by reply.
    pub(crate) fn replies_received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&REPLIES, &self.received)
    }

    /// Returns our replies to peers, by reply.
    pub(crate) fn replies_sent(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&ANSWERS, &self.sent)
    }

    /// Returns ignored datagrams, by reason.
    pub(crate) fn datagrams_ignored(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&IGNORED, &self.ignored)
    }

    /// Returns CLR requests from peers, by result.
    pub(crate) fn clears_received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        named(&CLEARS[..CLEARS_RECEIVED], &self.clears)
    }

    /// Returns CLR requests to peers, by result.
    pub(crate) fn clears_sent(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let is_sent = |(name, _): &(&str, u64)| *name != "rate";
        named(&CLEARS, &self.clears_sent).filter(is_sent)
    }
}

/// How many entries in [`CLEARS`] can be results for received CLRs.
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
