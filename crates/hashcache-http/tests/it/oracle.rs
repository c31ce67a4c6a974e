//! A comparison with another implementation, `http-cache-semantics` (which follows RFC 7234), and
//! each disagreement judged.
//!
//! Every combination of the lists below is an exchange and a second request some time later: is
//! that answered from the cache without asking? Where the two do not agree, one of `JUDGED` must
//! say why, and whose answer it is; what no combination shows any more does not stay listed.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use hashcache_http::*;
use http::{Method, Request, Response, StatusCode};
use http_cache_semantics::{BeforeRequest, CacheOptions, CachePolicy};

use crate::support::*;

/// The fields of the first response, besides Date.
const RESPONSES: [&[(&str, &str)]; 26] = [
    &[],
    &[("cache-control", "max-age=60")],
    &[("cache-control", "max-age=60"), ("age", "20")],
    &[("cache-control", "max-age=60"), ("expires", "0")],
    &[("cache-control", "s-maxage=60")],
    &[("cache-control", "s-maxage=60, max-age=5")],
    &[("cache-control", "max-age=60, must-revalidate")],
    &[("cache-control", "max-age=60, proxy-revalidate")],
    &[("cache-control", "max-age=60, public")],
    &[("cache-control", "max-age=60, private")],
    &[("cache-control", "max-age=60, private=\"x-a\"")],
    &[("cache-control", "max-age=60, no-cache")],
    &[("cache-control", "max-age=60, no-cache=\"x-a\"")],
    &[("cache-control", "max-age=60, no-store")],
    &[("cache-control", "max-age=60, no-store, must-understand")],
    &[("cache-control", "max-age=60, immutable")],
    &[("cache-control", "immutable")],
    &[("cache-control", "max-age=60, stale-while-revalidate=30")],
    &[("cache-control", "max-age=\"60\"")],
    &[("cache-control", "max-age=60s")],
    &[("cache-control", "max-age=60, max-age=5")],
    &[("cache-control", "MAX-AGE=60")],
    &[("cache-control", "max-age=60"), ("pragma", "no-cache")],
    &[("pragma", "no-cache"), ("expires", EXPIRES)],
    &[("expires", EXPIRES)],
    &[("last-modified", CHANGED)],
];

/// A minute after `T`; 600 seconds before it.
const EXPIRES: &str = "Fri, 15 Jan 2027 08:01:00 GMT";
const CHANGED: &str = "Fri, 15 Jan 2027 07:50:00 GMT";

const STATUSES: [u16; 6] = [200, 204, 302, 404, 429, 503];

/// The fields of the first request.
const FIRST: [&[(&str, &str)]; 3] = [
    &[],
    &[("authorization", "Basic x")],
    &[("cache-control", "no-store")],
];

/// The fields of the second request.
const SECOND: [&[(&str, &str)]; 9] = [
    &[],
    &[("cache-control", "no-cache")],
    &[("pragma", "no-cache")],
    &[("cache-control", "max-age=0")],
    &[("cache-control", "max-age=30")],
    &[("cache-control", "min-fresh=30")],
    &[("cache-control", "max-stale")],
    &[("cache-control", "max-stale=10")],
    &[("cache-control", "max-stale=10, max-age=65")],
];

const LATER: [u64; 8] = [0, 4, 30, 59, 60, 65, 70, 100];

/// One combination.
#[derive(Clone, Copy)]
struct Question {
    response: &'static [(&'static str, &'static str)],
    status: u16,
    first: &'static [(&'static str, &'static str)],
    second: &'static [(&'static str, &'static str)],
    later: u64,
}

impl Question {
    /// Returns true if a field of the first response contains this word.
    fn says(&self, word: &str) -> bool {
        self.response.iter().any(|(_, value)| value.contains(word))
    }

    fn describe(&self) -> String {
        let Self {
            response,
            status,
            first,
            second,
            later,
        } = self;
        format!("{status} {response:?} to {first:?}; after {later} s {second:?}")
    }

    /// Returns true if a field of the second request contains this word.
    fn wants(&self, word: &str) -> bool {
        self.second.iter().any(|(_, value)| value.contains(word))
    }
}

/// The decisions of both implementations about a first exchange.
struct Stored {
    ours: Option<StoredFacts>,
    theirs: Option<CachePolicy>,
}

fn request(lines: &[(&str, &str)]) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = "http://h/x".parse().unwrap();
    *request.headers_mut() = fields(lines);
    request
}

fn at(later: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(T + later)
}

impl Stored {
    fn new(lines: &[(&str, &str)], status: u16, first: &[(&str, &str)]) -> Stored {
        let mut case = response(lines)
            .status(status)
            .asked_with(first)
            .and("date", &date(0));
        // Without a validator much would not be worth storing, which is another matter.
        case = case.and("etag", "\"a\"");
        let ours = match case.storable() {
            Storable::Whole { facts, .. } => Some(facts),
            Storable::Partial { .. } | Storable::No(_) => None,
        };
        let mut response = Response::new(());
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        *response.headers_mut() = case.response;
        let options = CacheOptions::default();
        let policy = CachePolicy::new_options(&request(first), &response, at(0), options);
        let theirs = policy.is_storable().then_some(policy);
        Stored { ours, theirs }
    }

    /// For each implementation, ours first: true if it answers from the cache.
    fn answers(&self, second: &[(&str, &str)], later: u64) -> (bool, bool) {
        let ours = self.ours.is_some_and(|facts| {
            let decision = decide(&facts, later, second);
            matches!(decision, Reuse::Fresh { .. } | Reuse::Stale { .. })
        });
        let theirs = self.theirs.as_ref().is_some_and(|policy| {
            let answer = policy.before_request(&request(second), at(later));
            matches!(answer, BeforeRequest::Fresh(_))
        });
        (ours, theirs)
    }
}

/// All questions, each with the implementation that answers it from the cache.
fn all() -> Vec<(Question, (bool, bool))> {
    let mut out = Vec::new();
    for response in RESPONSES {
        for status in STATUSES {
            for first in FIRST {
                let stored = Stored::new(response, status, first);
                for second in SECOND {
                    for later in LATER {
                        let question = Question {
                            response,
                            status,
                            first,
                            second,
                            later,
                        };
                        out.push((question, stored.answers(second, later)));
                    }
                }
            }
        }
    }
    out
}

/// The implementation that answers from the cache where the other does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    We,
    They,
}

type Applies = fn(&Question) -> bool;

/// Each kind of disagreement: which implementation answers, when it applies, and why we keep our
/// answer.
const JUDGED: [(Only, Applies, &str); 16] = [
    (
        Only::They,
        |question| question.wants("max-age=0"),
        "a request's max-age=0 asks for a validation even of what came this very second (ours)",
    ),
    (
        Only::They,
        |question| question.says("proxy-revalidate") || question.says("s-maxage"),
        "RFC 9111 5.2.2.8, 5.2.2.10: not stale from a shared cache, whatever max-stale says",
    ),
    (
        Only::We,
        |question| question.says("proxy-revalidate"),
        "RFC 9111 5.2.2.8: it is to be validated once it is stale, not before",
    ),
    (
        Only::We,
        |question| question.says("MAX-AGE"),
        "RFC 9111 5.2: names of directives are compared without regard to case",
    ),
    (
        Only::We,
        |question| question.says("max-age=60, max-age=5"),
        "RFC 9111 4.2.1: of two lifetimes the first counts, as if the other were not there",
    ),
    (
        Only::We,
        |question| question.says("private=") || question.says("no-cache=\""),
        "RFC 9111 5.2.2.4, 5.2.2.7: with field names, only these fields are withheld",
    ),
    (
        Only::We,
        |question| question.says("must-understand"),
        "RFC 9111 5.2.2.3: beside must-understand, no-store is for those who do not know it",
    ),
    (
        Only::We,
        |question| question.response.iter().any(|(name, _)| *name == "pragma"),
        "RFC 9111 5.4: Pragma means nothing in a response",
    ),
    (
        Only::We,
        |question| matches!(question.status, 204 | 302 | 429 | 503),
        "RFC 9111 3: any final status may be stored with an explicit lifetime",
    ),
    (
        Only::We,
        |question| question.says("immutable") && question.wants("max-age="),
        "RFC 8246 2: what is immutable is not validated while it is fresh",
    ),
    (
        Only::They,
        |question| question.says("immutable"),
        "immutable is no lifetime of its own (RFC 8246 2)",
    ),
    (
        Only::We,
        |question| question.says("stale-while-revalidate"),
        "RFC 5861 3: within the window stale is served and validated meanwhile",
    ),
    (
        Only::We,
        |question| question.wants("max-stale=10"),
        "RFC 9111 5.2.1.2: no more than the number, so the number itself will do",
    ),
    (
        Only::They,
        |question| question.says("max-age=60, max-age=5") && !question.first.is_empty(),
        "RFC 9111 3.5: two lifetimes are no leave to share an answer to credentials",
    ),
    (
        Only::We,
        |question| question.status == 404 && question.response.is_empty(),
        "what is not there is remembered for a minute (ours; RFC 9111 4.2.2 lets a cache guess)",
    ),
    (
        Only::They,
        |question| question.wants("max-stale"),
        "RFC 9111 4.2.4: what may not be used unasked is not served stale either",
    ),
];

#[test]
fn each_disagreement_with_another_implementation_is_judged() {
    let mut unjudged = Vec::new();
    let mut seen = BTreeSet::new();
    let (mut asked, mut agreed) = (0, 0);
    for (question, answers) in all() {
        asked += 1;
        let only = match answers {
            (true, false) => Only::We,
            (false, true) => Only::They,
            _ => {
                agreed += 1;
                continue;
            }
        };
        let judged = JUDGED
            .iter()
            .position(|(who, applies, _)| *who == only && applies(&question));
        match judged {
            Some(at) => {
                seen.insert(at);
            }
            None => unjudged.push(format!("{only:?}: {}", question.describe())),
        }
    }
    let shown = unjudged.len().min(20);
    let few = &unjudged[..shown];
    assert!(
        unjudged.is_empty(),
        "{} of {asked}: {few:#?}",
        unjudged.len()
    );
    let idle = (0..JUDGED.len()).filter(|at| !seen.contains(at));
    let idle: Vec<&str> = idle.map(|at| JUDGED[at].2).collect();
    assert!(idle.is_empty(), "no question shows it any more: {idle:#?}");
    assert!(agreed * 10 > asked * 8, "{agreed} of {asked}");
}
