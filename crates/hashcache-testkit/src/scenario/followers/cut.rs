//! An origin that breaks off: the proxy fetches the rest if that is safe, otherwise every client
//! can detect the break.
//!
//! Invariant: bytes of two versions are never joined; a transfer is not resumed if the proxy cannot
//! prove that the content is the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::crowd::Crowd;
use super::{PATIENCE, Play};
use crate::content::{self, Content};
use crate::scenario::Verdict;
use crate::{BodyEnd, Gate, RawRequest, Script};

/// Response framing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Content-Length.
    Length,
    /// Chunks.
    Chunks,
    /// Connection close.
    Close,
}

/// Validators and ranges that the origin offers for resuming a broken transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offers {
    /// A strong ETag and ranges: no client may notice the cut.
    All,
    /// As `All`, but the rest is cut once more, halfway.
    AllCutTwice,
    /// No validator; each response is another version.
    Nothing,
    /// A weak ETag, which does not promise equal bytes.
    Weak,
    /// A strong ETag, but the next request meets another version.
    Changed,
    /// A strong ETag, but ranges are ignored: the whole content is sent again.
    Whole,
    /// A strong ETag, but a range other than the requested range.
    OtherRange,
    /// A strong ETag, but an error instead of the rest.
    Error,
}

/// A way to break off.
#[derive(Clone, Copy, Debug)]
pub struct Cutting {
    told: Told,
    reset: bool,
    /// Content bytes before the break.
    at: u64,
    length: u64,
    offers: Offers,
}

impl Cutting {
    /// All ways, for an object of `length` bytes.
    pub fn all(length: u64) -> Vec<Self> {
        let ats = [
            0,
            1,
            (64 << 10) - 1,
            64 << 10,
            length / 2,
            length / 10 * 9 + 1,
            length - 1,
        ];
        let mut all = vec![];
        for told in [Told::Length, Told::Chunks] {
            for reset in [false, true] {
                for offers in [Offers::All, Offers::Nothing] {
                    for at in ats {
                        all.push(Self {
                            told,
                            reset,
                            at,
                            length,
                            offers,
                        });
                    }
                }
                for offers in [
                    Offers::AllCutTwice,
                    Offers::Weak,
                    Offers::Changed,
                    Offers::Whole,
                    Offers::OtherRange,
                    Offers::Error,
                ] {
                    all.push(Self {
                        told,
                        reset,
                        at: length / 3,
                        length,
                        offers,
                    });
                }
            }
        }
        // In such a body a FIN is always a valid end, whatever the origin intended; only a reset
        // can be detected.
        for offers in [Offers::All, Offers::Nothing] {
            let (told, reset, at) = (Told::Close, true, length / 2);
            all.push(Self {
                told,
                reset,
                at,
                length,
                offers,
            });
        }
        all
    }

    /// A few cases for quick tests: each offer, with one kind of break for each framing.
    pub fn few(length: u64) -> Vec<Self> {
        let all = Self::all(length);
        let is_few = |cutting: &&Self| {
            let somewhere = cutting.at == length / 2 || cutting.at == length / 3;
            somewhere && cutting.reset == (cutting.told != Told::Chunks)
        };
        all.iter().filter(is_few).copied().collect()
    }

    /// One way, for an object that fits into no buffer.
    pub fn of_a_large_object(length: u64) -> Self {
        let (told, reset, offers) = (Told::Length, true, Offers::All);
        Self {
            told,
            reset,
            at: length / 2,
            length,
            offers,
        }
    }

    /// Returns true if every client must get the complete content.
    fn must_succeed(&self) -> bool {
        matches!(self.offers, Offers::All | Offers::AllCutTwice) && self.told != Told::Close
    }

    fn name(&self) -> String {
        let Self {
            told,
            reset,
            at,
            length,
            offers,
        } = self;
        let end = if *reset { "RST" } else { "FIN" };
        format!("{told:?} cut by {end} at {at} of {length}, origin offers {offers:?}")
    }
}

/// Plays one way.
pub async fn play(play: &Play, cutting: &Cutting) -> Verdict {
    let mut verdict = Verdict::new(cutting.name());
    let target = "/cut";
    let versions: Vec<Content> = (0..VERSIONS)
        .map(|version| content::body_for(SEED, target, version, cutting.length))
        .collect();
    let (everybody, asked) = (Gate::new(), Arc::new(AtomicUsize::new(0)));
    let script = {
        let (cutting, versions) = (*cutting, versions.clone());
        // Built in advance: if a response head is late, the proxy lets the followers go.
        let first = cutting.cut_off(&versions[0].bytes(), &everybody);
        move |request: &RawRequest| match asked.fetch_add(1, Ordering::Relaxed) {
            0 => first.clone(),
            number => cutting.answer(request, number, &versions),
        }
    };
    let origin = match super::origin(play, script).await {
        Ok(origin) => origin,
        Err(error) => {
            verdict.fault(format!("no origin: {error}"));
            return verdict;
        }
    };
    let before = (origin.request_count(), origin.bytes_written());
    let crowd = Crowd::new(play.proxy, origin.url(target), play.cut_clients, versions);
    let asking = crowd.ask();
    // The break follows when all clients have received content, or after a time limit if they
    // cannot be counted.
    let breaking = async {
        let patience = if cutting.at > 0 {
            BREAK_AFTER_MAX
        } else {
            BREAK_AFTER
        };
        let _ = tokio::time::timeout(patience, crowd.begun().opened()).await;
        everybody.open();
    };
    let (outcomes, ()) = tokio::join!(asking, breaking);
    let requests = origin.request_count() - before.0;
    verdict.seen = format!("{requests} requests at the origin; {}", outcomes.describe());
    outcomes.expect_no_lie(&mut verdict);
    for outcome in &outcomes.outcomes {
        let broken_off = outcome.end == BodyEnd::Truncated && outcome.bytes > 0;
        verdict.expect(!broken_off || outcome.content.is_some(), || {
            format!("bytes of two versions: {outcome:?}")
        });
    }
    if cutting.must_succeed() {
        outcomes.expect_all_whole(&mut verdict);
        let most = if cutting.offers == Offers::AllCutTwice {
            3
        } else {
            2
        };
        verdict.expect(requests <= most, || {
            "the whole was fetched again".to_owned()
        });
        let sent = origin.bytes_written() - before.1;
        // A reset discards bytes in flight, so all content before the break may be sent again.
        let again = if cutting.reset { cutting.at } else { 0 };
        verdict.expect(
            sent <= cutting.length + again + cutting.length / 4 + SLACK,
            || format!("{sent} bytes from the origin"),
        );
    }
    // The response to a later request may be complete and stored; nothing else may be stored.
    let stored = crowd.only_if_cached().await;
    verdict.expect(stored.status == 504 || stored.is_whole_and_right(), || {
        format!("the cache tells {stored:?}")
    });
    let again = tokio::time::timeout(PATIENCE, crowd.one("1.1", "")).await;
    verdict.expect(
        matches!(&again, Ok(outcome) if outcome.is_whole_and_right()),
        || format!("asked again: {again:?}"),
    );
    for complaint in origin.complaints() {
        verdict.fault(format!("a doubtful request: {complaint}"));
    }
    verdict
}

impl Cutting {
    /// Returns the origin's action for request `number`, which is not the first.
    fn answer(&self, request: &RawRequest, number: usize, versions: &[Content]) -> Script {
        let changes = matches!(
            self.offers,
            Offers::Nothing | Offers::Weak | Offers::Changed
        );
        let version = if changes {
            number.min(versions.len() - 1)
        } else {
            0
        };
        let body = versions[version].bytes();
        let range = request.field("Range").and_then(first_of_range);
        let tag = self.tag(version);
        let same = request
            .field("If-Range")
            .is_none_or(|asked| tag.as_deref() == Some(asked));
        let mut fields = vec![("Cache-Control", "max-age=3600".to_owned())];
        fields.extend(tag.map(|tag| ("ETag", tag)));
        match (self.offers, range.filter(|_| same)) {
            (Offers::Error, Some(_)) => {
                Script::response(500, &[("Content-Length", "0")], "").close()
            }
            (Offers::OtherRange, Some(first)) => partial(&fields, &body, first / 2),
            (Offers::AllCutTwice, Some(first)) if number == 1 => {
                let middle = first + (body.len() - first) / 2;
                let range = format!("bytes {first}-{}/{}", body.len() - 1, body.len());
                fields.push(("Content-Range", range));
                fields.push(("Content-Length", (body.len() - first).to_string()));
                head(206, &fields).bytes(&body[first..middle]).close()
            }
            (Offers::All | Offers::AllCutTwice, Some(first)) => partial(&fields, &body, first),
            _ => {
                fields.push(("Content-Length", body.len().to_string()));
                head(200, &fields).bytes(&body)
            }
        }
    }

    fn tag(&self, version: usize) -> Option<String> {
        match self.offers {
            Offers::Nothing => None,
            Offers::Weak => Some("W/\"v\"".to_owned()),
            _ => Some(format!("\"v{version}\"")),
        }
    }

    /// The first response, which breaks off when all clients have received content.
    fn cut_off(&self, body: &[u8], everybody: &Gate) -> Script {
        let mut fields = vec![("Cache-Control", "max-age=3600".to_owned())];
        fields.extend(self.tag(0).map(|tag| ("ETag", tag)));
        let sent = usize::try_from(self.at).map_or(body.len(), |at| at.min(body.len()));
        match self.told {
            Told::Length => fields.push(("Content-Length", body.len().to_string())),
            Told::Chunks => fields.push(("Transfer-Encoding", "chunked".to_owned())),
            Told::Close => fields.push(("Connection", "close".to_owned())),
        }
        let mut script = head(200, &fields);
        if self.told == Told::Chunks {
            for part in body[..sent].chunks(CHUNK) {
                script = script.chunk(part);
            }
        } else {
            script = script.bytes(&body[..sent]);
        }
        let script = script.wait(everybody);
        if self.reset {
            script.reset()
        } else {
            script.close()
        }
    }
}

/// The content from byte `first`, as 206.
fn partial(fields: &[(&str, String)], body: &[u8], first: usize) -> Script {
    let mut fields = fields.to_vec();
    let first = first.min(body.len() - 1);
    let range = format!("bytes {first}-{}/{}", body.len() - 1, body.len());
    fields.push(("Content-Range", range));
    fields.push(("Content-Length", (body.len() - first).to_string()));
    head(206, &fields).bytes(&body[first..])
}

fn head(status: u16, fields: &[(&str, String)]) -> Script {
    let fields: Vec<(&str, &str)> = fields
        .iter()
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    Script::new().head(status, &fields)
}

/// Returns the first byte of `bytes=FIRST-…`.
fn first_of_range(range: &str) -> Option<usize> {
    range
        .strip_prefix("bytes=")?
        .split('-')
        .next()?
        .parse()
        .ok()
}

const SEED: u64 = 11;
/// More versions than any part fetches.
const VERSIONS: u64 = 6;
const CHUNK: usize = 60_000;
/// Heads, and bytes that were in flight when the connection broke.
const SLACK: u64 = 1 << 20;
/// If no byte of content is sent, only time can show that the clients are connected.
const BREAK_AFTER: std::time::Duration = std::time::Duration::from_millis(150);
const BREAK_AFTER_MAX: std::time::Duration = std::time::Duration::from_secs(2);
