//! Many clients, one large object, random ranges: each byte is fetched once, and two versions are
//! never mixed.
//!
//! The origin serves generated content in ranges and counts the bytes sent. Ranges start and stop
//! at any byte, so nearly every range shares a page with ranges that other clients request at the
//! same time.
//!
//! Invariant: a body is judged by the entity tag of the response: each byte must belong to that
//! version. If a body breaks off, the bytes before the break must be correct.

use std::io;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Verdict;
use crate::content::{self, Content};
use crate::{BodyEnd, Client, Origin, RawRequest, Response, Script};

/// The origin's entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tag {
    /// Strong, and unchanged during the run.
    Strong,
    /// Strong; after half of the requests another tag and other content.
    Changing,
    /// Weak.
    Weak,
}

/// Parameters for a run.
#[derive(Clone, Copy, Debug)]
pub struct Storm {
    /// Proxy address.
    pub proxy: SocketAddr,
    /// Concurrent clients.
    pub clients: u64,
    /// Ranges that each client requests, one after the other.
    pub ranges: u64,
    /// Object size, bytes.
    pub object_bytes: u64,
    /// Range size, bytes.
    pub range_bytes: u64,
    /// The origin's entity tag.
    pub tag: Tag,
}

/// Limit for the bytes that the origin sends, as a multiple of the bytes requested.
const ORIGIN_SHARE_MAX: f64 = 1.02;
const PAGE: u64 = 64 << 10;
const SEED: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of the whole object that the origin sends before it breaks off, because no client requests
/// the whole object.
const WHOLE_SENT: u64 = 64 << 10;

/// Origin state and counters.
struct Source {
    storm: Storm,
    path: String,
    version: AtomicU64,
    asked: AtomicU64,
    sent_bytes: AtomicU64,
    /// Ranges served, with or without If-Range.
    parts: AtomicU64,
    combined: AtomicU64,
    /// Responses with the whole object, broken off.
    wholes: AtomicU64,
}

impl Source {
    fn content(&self, version: u64) -> Content {
        content::body_for(SEED, &self.path, version, self.storm.object_bytes)
    }

    fn tag(&self, version: u64) -> String {
        let strong = content::etag(version, self.storm.object_bytes);
        match self.storm.tag {
            Tag::Strong | Tag::Changing => strong,
            Tag::Weak => format!("W/{strong}"),
        }
    }

    fn answer(&self, request: &RawRequest) -> Script {
        let length = self.storm.object_bytes;
        let version = self.version.load(Ordering::Relaxed);
        let tag = self.tag(version);
        let fields = [
            ("ETag", tag.as_str()),
            ("Cache-Control", "max-age=3600"),
            ("Content-Type", "application/octet-stream"),
        ];
        let condition = request.field("if-range");
        self.combined
            .fetch_add(u64::from(condition.is_some()), Ordering::Relaxed);
        let range = request
            .field("range")
            .and_then(|range| parse(range, length));
        let holds = condition.is_none_or(|condition| condition == tag && !tag.starts_with('W'));
        let Some(range) = range.filter(|_| holds) else {
            self.wholes.fetch_add(1, Ordering::Relaxed);
            self.sent_bytes.fetch_add(WHOLE_SENT, Ordering::Relaxed);
            let told = length.to_string();
            let mut begun = vec![0; usize::try_from(WHOLE_SENT).unwrap_or(0)];
            self.content(version).fill(0, &mut begun);
            let fields = [&fields[..], &[("Content-Length", told.as_str())]].concat();
            return Script::new().head(200, &fields).bytes(begun).close();
        };
        let size = range.end() - range.start() + 1;
        self.parts.fetch_add(1, Ordering::Relaxed);
        self.sent_bytes.fetch_add(size, Ordering::Relaxed);
        let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
        self.content(version).fill(*range.start(), &mut bytes);
        let told = format!("bytes {}-{}/{length}", range.start(), range.end());
        let fields = [&fields[..], &[("Content-Range", told.as_str())]].concat();
        Script::response(206, &fields, bytes)
    }
}

/// Parses `bytes=first-last` and limits the range to the content.
fn parse(range: &str, length: u64) -> Option<RangeInclusive<u64>> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && first < length).then(|| first..=last.min(length - 1))
}

/// Results for one client.
#[derive(Default)]
struct Seen {
    whole: u64,
    broken: u64,
    faults: Vec<String>,
    asked: Vec<RangeInclusive<u64>>,
}

/// Plays the scenario.
pub async fn play(storm: Storm) -> Verdict {
    let mut verdict = Verdict::new(format!(
        "{:?} tag, {} clients × {} ranges of {} kB in {} MB",
        storm.tag,
        storm.clients,
        storm.ranges,
        storm.range_bytes / 1000,
        storm.object_bytes / 1_000_000
    ));
    if let Err(error) = storm_over(storm, &mut verdict).await {
        verdict.fault(format!("the play itself failed: {error}"));
    }
    verdict
}

async fn storm_over(storm: Storm, verdict: &mut Verdict) -> io::Result<()> {
    let source = Arc::new(Source {
        storm,
        path: format!("/storm-{:?}-{}", storm.tag, storm.ranges),
        version: AtomicU64::new(1),
        asked: AtomicU64::new(0),
        sent_bytes: AtomicU64::new(0),
        parts: AtomicU64::new(0),
        combined: AtomicU64::new(0),
        wholes: AtomicU64::new(0),
    });
    let served = Arc::clone(&source);
    let origin = Origin::start(move |request: &RawRequest| served.answer(request)).await?;
    let url = origin.url(&source.path);
    let mut clients = JoinSet::new();
    for number in 0..storm.clients {
        clients.spawn(client(Arc::clone(&source), url.clone(), number));
    }
    let mut all = Seen::default();
    while let Some(seen) = clients.join_next().await {
        let mut seen = seen.map_err(io::Error::other)?;
        all.whole += seen.whole;
        all.broken += seen.broken;
        all.faults.append(&mut seen.faults);
        all.asked.append(&mut seen.asked);
    }
    judge(&source, all, verdict);
    Ok(())
}

fn judge(source: &Source, all: Seen, verdict: &mut Verdict) {
    let storm = &source.storm;
    let union = union_bytes(all.asked, storm.object_bytes);
    let sent = source.sent_bytes.load(Ordering::Relaxed);
    let share = sent as f64 / union as f64;
    let (parts, combined) = (&source.parts, &source.combined);
    let (parts, combined) = (
        parts.load(Ordering::Relaxed),
        combined.load(Ordering::Relaxed),
    );
    verdict.seen = format!(
        "{} whole, {} broken off; the origin sent {share:.3} of the {} kB asked in {parts} parts",
        all.whole,
        all.broken,
        union / 1000,
    );
    verdict.figure("origin_share", share);
    verdict.figure("broken", all.broken as f64);
    for fault in all.faults.iter().take(FAULTS_SHOWN) {
        verdict.fault(fault.clone());
    }
    let hidden = all.faults.len().saturating_sub(FAULTS_SHOWN);
    verdict.expect(hidden == 0, || format!("and {hidden} more"));
    match storm.tag {
        Tag::Strong => {
            verdict.expect(all.broken == 0, || "answers broke off".to_owned());
            verdict.expect(share <= ORIGIN_SHARE_MAX, || {
                format!("more than {ORIGIN_SHARE_MAX} of what was asked for left the origin")
            });
        }
        Tag::Changing => {
            let few = storm.clients * 2;
            verdict.expect(all.broken <= few, || "many answers broke off".to_owned());
        }
        Tag::Weak => {
            verdict.expect(all.broken == 0, || "answers broke off".to_owned());
            verdict.expect(combined == 0, || {
                format!("{combined} requests were to be combined")
            });
            let asked = storm.clients * storm.ranges;
            verdict.expect(parts >= asked, || {
                format!("{parts} parts came for {asked} requests: some were kept")
            });
        }
    }
}

const FAULTS_SHOWN: usize = 5;

/// Size of the union of all `ranges`, each extended to whole pages.
fn union_bytes(ranges: Vec<RangeInclusive<u64>>, length: u64) -> u64 {
    let pages = usize::try_from(length.div_ceil(PAGE)).unwrap_or(0);
    let mut asked = vec![false; pages];
    for range in ranges {
        let first = usize::try_from(range.start() / PAGE).unwrap_or(0);
        let last = usize::try_from(range.end() / PAGE).unwrap_or(0);
        asked[first..=last].fill(true);
    }
    asked.iter().filter(|page| **page).count() as u64 * PAGE
}

async fn client(source: Arc<Source>, url: String, number: u64) -> Seen {
    let mut seen = Seen::default();
    let mut random = Random::for_client(number);
    let mut connection = None;
    let storm = &source.storm;
    for _ in 0..storm.ranges {
        let asked = source.asked.fetch_add(1, Ordering::Relaxed);
        if storm.tag == Tag::Changing && asked == storm.clients * storm.ranges / 2 {
            source.version.store(2, Ordering::Relaxed);
        }
        let first = random.below(storm.object_bytes - storm.range_bytes);
        let range = first..=first + storm.range_bytes - 1;
        seen.asked.push(range.clone());
        let got = ask(&mut connection, storm.proxy, &url, &range).await;
        match got {
            Ok(response) => {
                let whole = response.end == BodyEnd::Complete;
                if let Err(fault) = check(&source, &range, &response) {
                    seen.faults
                        .push(format!("client {number}, {range:?}: {fault}"));
                }
                if whole {
                    seen.whole += 1;
                } else {
                    seen.broken += 1;
                    connection = None;
                }
            }
            Err(error) => {
                seen.faults
                    .push(format!("client {number}, {range:?}: {error}"));
                connection = None;
            }
        }
    }
    seen
}

async fn ask(
    connection: &mut Option<Client>,
    proxy: SocketAddr,
    url: &str,
    range: &RangeInclusive<u64>,
) -> io::Result<Response> {
    let client = match connection {
        Some(client) => client,
        None => connection.insert(Client::connect(proxy).await?),
    };
    let range = format!("bytes={}-{}", range.start(), range.end());
    let fields = [("Range", range.as_str())];
    let answer = timeout(PATIENCE, client.get(url, &fields)).await;
    answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

/// Checks that a response is the requested range, of the version that the entity tag names.
fn check(source: &Source, range: &RangeInclusive<u64>, response: &Response) -> Result<(), String> {
    if response.status != 206 {
        return Err(format!("status {}", response.status));
    }
    let told = response.field("content-range").unwrap_or_default();
    let length = source.storm.object_bytes;
    if told != format!("bytes {}-{}/{length}", range.start(), range.end()) {
        return Err(format!("Content-Range {told:?}"));
    }
    let tag = response.field("etag").unwrap_or_default();
    let version = [1, 2]
        .into_iter()
        .find(|version| source.tag(*version) == tag);
    let Some(version) = version else {
        return Err(format!("entity tag {tag:?}"));
    };
    let size = range.end() - range.start() + 1;
    let got = response.body.len() as u64;
    if got > size || (got < size && response.end == BodyEnd::Complete) {
        return Err(format!("{got} bytes"));
    }
    content::verify(&source.content(version), *range.start(), &response.body)
        .map_err(|at| format!("the byte at {at} is not of version {version}"))
}

/// SplitMix64.
struct Random(u64);

impl Random {
    /// Random numbers for a client. Seeds that differ by one step would give all clients the same
    /// numbers, shifted by one request for each client.
    fn for_client(client: u64) -> Self {
        Self(Self(SEED ^ client.rotate_left(32)).below(u64::MAX))
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_asked_for_twice_counts_once() {
        let ranges = vec![0..=PAGE, PAGE..=2 * PAGE - 1, 5 * PAGE..=5 * PAGE];
        assert_eq!(union_bytes(ranges, 8 * PAGE), 3 * PAGE);
    }

    #[test]
    fn no_client_asks_for_what_another_has_asked_for() {
        let mut seen = std::collections::HashSet::new();
        for client in 0..50 {
            let mut random = Random::for_client(client);
            for _ in 0..40 {
                assert!(seen.insert(random.below(1 << 40)), "client {client}");
            }
        }
    }

    #[tokio::test]
    async fn an_origin_without_a_proxy_that_stores_sends_more_than_is_allowed() {
        let source = Source {
            storm: Storm {
                proxy: SocketAddr::from(([127, 0, 0, 1], 1)),
                clients: 1,
                ranges: 2,
                object_bytes: 4 * PAGE,
                range_bytes: PAGE,
                tag: Tag::Strong,
            },
            path: "/x".to_owned(),
            version: AtomicU64::new(1),
            asked: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(4 * PAGE),
            parts: AtomicU64::new(2),
            combined: AtomicU64::new(0),
            wholes: AtomicU64::new(0),
        };
        let seen = Seen {
            whole: 2,
            asked: vec![0..=PAGE - 1, 0..=PAGE - 1],
            ..Seen::default()
        };
        let mut verdict = Verdict::new("x");
        judge(&source, seen, &mut verdict);
        assert!(!verdict.is_well(), "{verdict}");
    }
}
