//! A link's counters, on either side.
//!
//! Sockets and streams count here, on any thread; `server/links` in the proxy reads the counters.
//!
//! Cost: one atomic operation and one lock per socket read or write, two atomic operations per
//! stream.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use hashcache_wan::chunk::Carried;
use hashcache_wan::load::LinkLoad;
use serde_json::{Value, json};

use super::sites::SiteSavings;
use super::usage::CodingCounters;

/// A link's counters; they continue after a reconnect.
#[derive(Debug, Default)]
pub struct LinkCounters {
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    connections: AtomicU64,
    streams_begun: AtomicU64,
    streams_ended: AtomicU64,
    /// Tunnels that this side carries for the other.
    tunnels: AtomicUsize,
    /// Counters for coding: bytes, time, dictionaries.
    pub coding: CodingCounters,
    /// Savings by host.
    pub sites: SiteSavings,
    /// Link load: on a child from received bytes, on a parent from sent bytes.
    pub load: LinkLoad,
    /// Microseconds; 0: not measured.
    round_trip_us: AtomicU64,
    /// Tunnel content that passed unchanged.
    opaque: [AtomicU64; 2],
    chunks: [ChunkCounters; 2],
}

/// Streams in chunks, for one direction.
#[derive(Debug, Default)]
struct ChunkCounters {
    literal: AtomicU64,
    referred: AtomicU64,
    answered: AtomicU64,
    coded: AtomicU64,
}

/// Bytes carried on a link in one direction, in tunnels and in chunk streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkContents {
    /// Tunnel content that passed unchanged.
    pub opaque: u64,
    /// Stream content, before coding.
    pub chunks: Carried,
    /// Coded size on the link, with the questions and acknowledgements for the other direction.
    pub coded: u64,
}

impl LinkContents {
    /// Content bytes that were not sent.
    pub fn saved(&self) -> u64 {
        let content = self.chunks.literal + self.chunks.referred;
        content.saturating_sub(self.coded)
    }
}

/// Indices for the two directions in arrays: received.
pub const IN: usize = 0;
/// Sent; see [`IN`].
pub const OUT: usize = 1;

/// A request or a tunnel on a link, counted as open until it is dropped.
#[derive(Debug)]
pub struct OpenStream(Arc<LinkCounters>);

/// A tunnel that this side carries, counted until it is dropped.
#[derive(Debug)]
pub struct OpenTunnel(Arc<LinkCounters>);

impl LinkCounters {
    /// Notes bytes that the socket has received, with TLS.
    pub fn received(&self, bytes: usize) {
        self.bytes_in.fetch_add(bytes as u64, Relaxed);
    }

    /// Notes bytes that the socket has accepted, with TLS.
    pub fn sent(&self, bytes: usize) {
        self.bytes_out.fetch_add(bytes as u64, Relaxed);
    }

    /// Notes content bytes in a tunnel that passes unchanged.
    pub fn note_opaque(&self, direction: usize, bytes: usize) {
        self.opaque[direction].fetch_add(bytes as u64, Relaxed);
    }

    /// Notes the content that a stream in chunks has carried since `before`, and the coded bytes on
    /// the link, both received and sent.
    pub fn note_chunks(&self, before: &[Carried; 2], now: &[Carried; 2], coded: [u64; 2]) {
        for (direction, counters) in self.chunks.iter().enumerate() {
            let (before, now) = (&before[direction], &now[direction]);
            for (counter, bytes) in [
                (&counters.literal, now.literal - before.literal),
                (&counters.referred, now.referred - before.referred),
                (&counters.answered, now.answered - before.answered),
                (&counters.coded, coded[direction]),
            ] {
                counter.fetch_add(bytes, Relaxed);
            }
        }
    }

    /// Contents in tunnels and chunk streams: received, and sent.
    pub fn contents(&self) -> [LinkContents; 2] {
        [IN, OUT].map(|direction| {
            let chunks = &self.chunks[direction];
            LinkContents {
                opaque: self.opaque[direction].load(Relaxed),
                chunks: Carried {
                    literal: chunks.literal.load(Relaxed),
                    referred: chunks.referred.load(Relaxed),
                    answered: chunks.answered.load(Relaxed),
                },
                coded: chunks.coded.load(Relaxed),
            }
        })
    }

    /// Notes a new connection.
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    /// Notes the time from a PING to the answer, or the time for a handshake.
    pub fn note_round_trip(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.round_trip_us.store(us.max(1), Relaxed);
    }

    /// Counts a stream until the result is dropped.
    pub fn begin_stream(self: &Arc<Self>) -> OpenStream {
        self.streams_begun.fetch_add(1, Relaxed);
        OpenStream(Arc::clone(self))
    }

    /// Counts a tunnel until the result is dropped; `None` if there are already `most` tunnels.
    pub fn begin_tunnel(self: &Arc<Self>, most: usize) -> Option<OpenTunnel> {
        let fits = |tunnels| (tunnels < most).then_some(tunnels + 1);
        let begun = self.tunnels.fetch_update(Relaxed, Relaxed, fits);
        begun.ok().map(|_| OpenTunnel(Arc::clone(self)))
    }

    /// Bytes received, and bytes sent.
    pub fn bytes(&self) -> [u64; 2] {
        [&self.bytes_in, &self.bytes_out].map(|bytes| bytes.load(Relaxed))
    }

    /// The last measured round trip.
    pub fn round_trip(&self) -> Option<Duration> {
        let us = self.round_trip_us.load(Relaxed);
        (us != 0).then(|| Duration::from_micros(us))
    }

    /// The status fields.
    pub fn to_json(&self) -> Value {
        let [bytes_in, bytes_out] = self.bytes();
        // Load `ended` before `begun`, so that the difference is never negative.
        let ended = self.streams_ended.load(Relaxed);
        let begun = self.streams_begun.load(Relaxed);
        let contents = self.contents();
        let sum = |of: fn(&LinkContents) -> u64| contents.iter().map(of).sum::<u64>();
        let coding = self.coding.figures();
        json!({
            "opaque_bytes": sum(|it| it.opaque),
            "chunks": {
                "literal_bytes": sum(|it| it.chunks.literal),
                "reference_bytes": sum(|it| it.chunks.referred),
                "answer_bytes": sum(|it| it.chunks.answered),
                "coded_bytes": sum(|it| it.coded),
                "saved_bytes": sum(LinkContents::saved),
            },
            "content_in": coding.content[0],
            "content_out": coding.content[1],
            "sites": self.sites.top(),
            "bytes_in": bytes_in,
            "bytes_out": bytes_out,
            "connections": self.connections.load(Relaxed),
            "streams": begun.saturating_sub(ended),
            "streams_in_all": begun,
            "round_trip_seconds": self.round_trip().map(|time| time.as_secs_f64()),
        })
    }
}

impl OpenTunnel {
    /// Notes content bytes in this tunnel, if it passes unchanged.
    pub fn note_opaque(&self, direction: usize, bytes: usize) {
        self.0.note_opaque(direction, bytes);
    }
}

impl Drop for OpenTunnel {
    fn drop(&mut self) {
        self.0.tunnels.fetch_sub(1, Relaxed);
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams_ended.fetch_add(1, Relaxed);
    }
}
