//! What a cache makes of a response and of a request, by the functions of `hashcache-http`.

use hashcache_http::{
    Exchange, RequestFacts, RequestTarget, Reuse, ReuseOptions, Scheme as UrlScheme, Storable,
    StoreOptions, StoredFacts, Target, UnixTime, confirmed_lifetime, http_date, parse_target,
    reuse, storable,
};
use http::header::{AGE, DATE, ETAG, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::scheme::Scheme;

/// A stored response.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    pub version: u32,
    pub changed_at: UnixTime,
    facts: StoredFacts,
}

/// What a cache or an origin answers with.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    pub version: u32,
    pub changed_at: UnixTime,
    /// When the origin sent it, or last confirmed it.
    pub date: UnixTime,
    /// Seconds for which caches have had it.
    pub age: u32,
}

/// What to do with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Serve,
    ServeAndRevalidate,
    Ask,
}

pub struct Rules {
    target: Target,
    store: StoreOptions,
    reuse: ReuseOptions,
}

impl Rules {
    pub fn new(scheme: Scheme) -> Self {
        let target = parse_target(&Method::GET, "/object", Some("a.example"), UrlScheme::Http);
        let Ok(RequestTarget::Resource(target)) = target else {
            unreachable!("the target is written above");
        };
        Self {
            target,
            store: scheme.store_options(),
            reuse: scheme.reuse_options(),
        }
    }

    /// How a request for this copy is answered.
    pub fn use_of(&self, copy: &Stored, now: UnixTime) -> Use {
        match reuse(&RequestFacts::PLAIN_GET, &copy.facts, now, &self.reuse) {
            Reuse::Fresh { .. } => Use::Serve,
            Reuse::Stale { .. } => Use::ServeAndRevalidate,
            Reuse::Validate { .. } | Reuse::Miss { .. } | Reuse::Unsatisfiable => Use::Ask,
        }
    }

    /// What is stored of an answer that arrives `now`. `before` is the copy that it confirms.
    pub fn store(&self, answer: &Answer, before: Option<&Stored>, now: UnixTime) -> Option<Stored> {
        let fields = fields(answer);
        let nothing = HeaderMap::new();
        let exchange = Exchange {
            target: &self.target,
            method: &Method::GET,
            request: &nothing,
            exempt: hashcache_http::Exempt::default(),
            status: StatusCode::OK,
            response: &fields,
            request_time: now,
            response_time: now,
        };
        let Storable::Whole { mut facts, .. } = storable(&exchange, &self.store) else {
            return None;
        };
        if let Some(before) = before {
            let lifetime = before.facts.lifetime;
            facts.lifetime = confirmed_lifetime(&exchange, lifetime, facts.lifetime, &self.store);
        }
        Some(Stored {
            version: answer.version,
            changed_at: answer.changed_at,
            facts,
        })
    }
}

impl Stored {
    /// What a cache with this copy answers with.
    pub fn answer(&self, now: UnixTime) -> Answer {
        Answer {
            version: self.version,
            changed_at: self.changed_at,
            date: self.facts.date,
            age: self.facts.age(now).get(),
        }
    }
}

fn fields(answer: &Answer) -> HeaderMap {
    let mut fields = HeaderMap::with_capacity(4);
    fields.insert(DATE, http_date(answer.date));
    fields.insert(LAST_MODIFIED, http_date(answer.changed_at));
    fields.insert(AGE, HeaderValue::from(answer.age));
    let tag = format!("\"{}\"", answer.version);
    let tag = HeaderValue::from_str(&tag).expect("digits in quotation marks");
    fields.insert(ETAG, tag);
    fields
}
