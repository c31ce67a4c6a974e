//! Figures for queries to peers, and for peers' digests.

use std::time::Duration;

use hashcache_upstream::peer::learned::LearnedCounts;
use tokio::time::Instant;

use super::moment::Moment;
use super::table::{
    AddLine, Figure, Number,
    Values::{Lines, Whole, Words},
    counter, gauge,
};

/// ICP figures.
pub(super) static ICP: &[Figure] = &[
    counter(
        "hashcache_icp_queries",
        "ICP queries sent to peers",
        Whole(|it| it.exposition.metrics.icp().queries()),
    ),
    counter(
        "hashcache_icp_timeouts",
        "ICP queries that got no reply in time",
        Whole(|it| it.exposition.metrics.icp().timeouts()),
    ),
    counter(
        "hashcache_icp_replies",
        "ICP replies of peers to our queries, by reply",
        Words("reply", |it| {
            it.exposition.metrics.icp().replies_received().collect()
        }),
    ),
    counter(
        "hashcache_icp_answers",
        "ICP replies sent to peers, by reply",
        Words("reply", |it| {
            it.exposition.metrics.icp().replies_sent().collect()
        }),
    ),
    counter(
        "hashcache_icp_ignored",
        "ICP datagrams that got no reply, by reason",
        Words("reason", |it| {
            it.exposition.metrics.icp().datagrams_ignored().collect()
        }),
    ),
    counter(
        "hashcache_peer_false_hits",
        "Responses that siblings had by ICP, HTCP or their digest, and then did not give",
        Whole(|it| it.sum(|worker| &worker.false_hits)),
    ),
];

/// HTCP figures.
pub(super) static HTCP: &[Figure] = &[
    counter(
        "hashcache_htcp_queries",
        "HTCP queries (TST) sent to peers",
        Whole(|it| it.exposition.metrics.htcp().queries()),
    ),
    counter(
        "hashcache_htcp_timeouts",
        "HTCP queries that got no reply in time",
        Whole(|it| it.exposition.metrics.htcp().timeouts()),
    ),
    counter(
        "hashcache_htcp_replies",
        "HTCP replies of peers to our queries, by reply",
        Words("reply", |it| {
            it.exposition.metrics.htcp().replies_received().collect()
        }),
    ),
    counter(
        "hashcache_htcp_answers",
        "HTCP replies sent to peers, by reply",
        Words("reply", |it| {
            it.exposition.metrics.htcp().replies_sent().collect()
        }),
    ),
    counter(
        "hashcache_htcp_ignored",
        "HTCP datagrams that had no effect and got no reply, by reason",
        Words("reason", |it| {
            it.exposition.metrics.htcp().datagrams_ignored().collect()
        }),
    ),
    counter(
        "hashcache_htcp_clears",
        "CLR requests of peers, by result",
        Words("result", |it| {
            it.exposition.metrics.htcp().clears_received().collect()
        }),
    ),
    counter(
        "hashcache_htcp_clears_sent",
        "CLR requests sent to peers after a PURGE, by result",
        Words("result", |it| {
            it.exposition.metrics.htcp().clears_sent().collect()
        }),
    ),
];

/// Figures for digests and summary updates.
pub(super) static DIGESTS: &[Figure] = &[
    gauge(
        "hashcache_peer_digest_entries",
        "Objects in the cache digest of the peer",
        Lines(|it, add| digests(it, add, |(entries, _)| entries.into())),
    ),
    gauge(
        "hashcache_peer_digest_age_seconds",
        "Seconds since the cache digest of the peer was fetched or found unchanged",
        Lines(|it, add| digests(it, add, |(_, age)| age.as_secs())),
    ),
    counter(
        "hashcache_peer_digest_false_hits",
        "Requests to the peer whose response it had by its digest, and did not give",
        Lines(|it, add| learned(it, add, |counts| counts.false_hits)),
    ),
    counter(
        "hashcache_peer_updates_sent",
        "Updates of our summary sent to the peer",
        Lines(|it, add| learned(it, add, |counts| counts.updates_sent)),
    ),
    counter(
        "hashcache_peer_updates_received",
        "Updates of the peer's summary that were applied",
        Lines(|it, add| learned(it, add, |counts| counts.updates_received)),
    ),
    counter(
        "hashcache_peer_updates_missed",
        "Updates of the peer's summary that came after a gap, so that its digest is fetched",
        Lines(|it, add| learned(it, add, |counts| counts.updates_missed)),
    ),
];

/// Adds a line for each peer with a known digest: the entry count or the age.
fn digests(moment: &Moment<'_>, add: &mut AddLine<'_>, value: fn((u32, Duration)) -> u64) {
    let now = Instant::now();
    for peer in moment.summary_peers() {
        if let Some(known) = peer.learned.size_and_age(now) {
            add(&[("peer", peer.name())], Number::Whole(value(known)));
        }
    }
}

/// Adds a line for each peer that exchanges digests.
fn learned(moment: &Moment<'_>, add: &mut AddLine<'_>, count: fn(LearnedCounts) -> u64) {
    for peer in moment.summary_peers() {
        let count = count(peer.learned.counts());
        add(&[("peer", peer.name())], Number::Whole(count));
    }
}
