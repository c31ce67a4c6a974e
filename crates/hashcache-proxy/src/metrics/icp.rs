//! Counters of ICP: one set for all cores, because a query costs far more than a shared addition.
//!
//! Counted by `peers`, read by `exposition`.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashcache_peers::icp::{Answer, Ignored};

/// The counters.
#[derive(Debug, Default)]
pub(crate) struct IcpCounts {
    queries: AtomicU64,
    timeouts: AtomicU64,
    received: [AtomicU64; ANSWERS.len()],
    sent: [AtomicU64; ANSWERS.len()],
    ignored: [AtomicU64; Unanswered::ALL.len()],
}

/// Why a datagram was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Its sender is no peer.
    Stranger,
    /// It is no ICP message.
    Malformed,
    /// Another version of ICP.
    Version,
    /// Another opcode.
    Opcode,
    /// The peer sends too many.
    Rate,
    /// A reply that no query waits for, or of which number, address or URL differ.
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

    /// Queries sent.
    pub(crate) fn queries(&self) -> u64 {
        self.queries.load(Relaxed)
    }

    /// Queries that got no reply in time.
    pub(crate) fn timeouts(&self) -> u64 {
        self.timeouts.load(Relaxed)
    }

    /// Replies to our queries, by answer.
    pub(crate) fn replies_received(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.received.iter().zip(ANSWERS);
        counts.map(|(count, (_, name))| (name, count.load(Relaxed)))
    }

    /// Replies to peers' queries, by answer.
    pub(crate) fn replies_sent(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.sent.iter().zip(ANSWERS);
        counts.map(|(count, (_, name))| (name, count.load(Relaxed)))
    }

    /// Datagrams that were ignored, by reason.
    pub(crate) fn datagrams_ignored(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.ignored.iter().zip(Unanswered::ALL);
        counts.map(|(count, (_, name))| (name, count.load(Relaxed)))
    }
}
