//! ICP counters: all cores share them, because a query costs far more than a shared addition.
//!
//! Counted by `peers`, read by `exposition`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashcache_peers::icp::{Answer, Ignored};

/// ICP counters.
#[derive(Debug, Default)]
pub(crate) struct IcpCounts {
    queries: AtomicU64,
    timeouts: AtomicU64,
    received: [AtomicU64; ANSWERS.len()],
    sent: [AtomicU64; ANSWERS.len()],
    ignored: [AtomicU64; Unanswered::ALL.len()],
}

/// Reason why a datagram was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// The sender is not a peer.
    Stranger,
    /// The datagram is not an ICP message.
    Malformed,
    /// The message has another ICP version.
    Version,
    /// The message has an unexpected opcode.
    Opcode,
    /// The peer sends too many messages.
    Rate,
    /// A reply to no pending query, or with another number, address or URL.
    Unasked,
}

impl Unanswered {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Stranger, "stranger"),
        (Self::Malformed, "malformed"),
        (Self::Version, "version"),
        (Self::Opcode, "opcode"),
        (Self::Rate, "rate"),
        (Self::Unasked, "unasked"),
    ];
}

impl From<Ignored> for Unanswered {
    fn from(ignored: Ignored) -> Self {
        match ignored {
            Ignored::Version(_) => Self::Version,
            Ignored::Opcode(_) => Self::Opcode,
            _ => Self::Malformed,
        }
    }
}

const ANSWERS: [(Answer, &str); 5] = [
    (Answer::Hit, "hit"),
    (Answer::Miss, "miss"),
    (Answer::Err, "err"),
    (Answer::Denied, "denied"),
    (Answer::MissNoFetch, "miss_nofetch"),
];

fn place(answer: Answer) -> usize {
    let mut answers = ANSWERS.iter();
    let place = answers.position(|(each, _)| *each == answer);
    place.expect("the table has all answers")
}

impl IcpCounts {
    pub(crate) fn asked(&self) {
        self.queries.fetch_add(1, Relaxed);
    }

    pub(crate) fn timed_out(&self) {
        self.timeouts.fetch_add(1, Relaxed);
    }

    pub(crate) fn received(&self, answer: Answer) {
        self.received[place(answer)].fetch_add(1, Relaxed);
    }

    pub(crate) fn sent(&self, answer: Answer) {
        self.sent[place(answer)].fetch_add(1, Relaxed);
    }

    pub(crate) fn ignored(&self, reason: Unanswered) {
        let mut reasons = Unanswered::ALL.iter();
        if let Some(at) = reasons.position(|(each, _)| *each == reason) {
            self.ignored[at].fetch_add(1, Relaxed);
        }
    }

    /// Returns how many queries were sent.
    pub(crate) fn queries(&self) -> u64 {
        self.queries.load(Relaxed)
    }

    /// Returns how many queries got no reply in time.
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.load(Relaxed)
    }

    /// Returns replies to our queries, by answer.
    pub(crate) fn replies_received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.received.iter().zip(ANSWERS);
        counts.map(|(count, (_, name))| (name, count.load(Relaxed)))
    }

    /// Returns replies to peers' queries, by answer.
    pub(crate) fn replies_sent(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.sent.iter().zip(ANSWERS);
        counts.map(|(count, (_, name))| (name, count.load(Relaxed)))
    }

    /// Returns ignored datagrams, by reason.
    pub(crate) fn datagrams_ignored(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.ignored.iter().zip(Unanswered::ALL);
        counts.map(|(count, (_, name))| (name, count.load(Relaxed)))
    }
}
