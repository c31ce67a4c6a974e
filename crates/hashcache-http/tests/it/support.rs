//! An exchange built in a line, and what the rules make of it.

use hashcache_http::*;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

/// The arrival time of the responses in these tests: Fri, 15 Jan 2027 08:00:00 GMT.
pub const T: u64 = 1_800_000_000;

pub fn fields(lines: &[(&str, &str)]) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for (name, value) in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        fields.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    fields
}

/// A date this many seconds from `T`, as a field value.
pub fn date(offset: i64) -> String {
    let time = T.checked_add_signed(offset).unwrap();
    http_date(UnixTime(time)).to_str().unwrap().to_owned()
}

/// A GET for `http://h/x` and its 200, unless changed.
#[derive(Clone)]
pub struct Case {
    pub url: &'static str,
    pub method: Method,
    pub request: HeaderMap,
    pub status: u16,
    pub response: HeaderMap,
    pub request_time: u64,
    pub options: StoreOptions,
}

/// A case whose response has these fields.
pub fn response(lines: &[(&str, &str)]) -> Case {
    Case {
        url: "http://h/x",
        method: Method::GET,
        request: HeaderMap::new(),
        status: 200,
        response: fields(lines),
        request_time: T,
        options: StoreOptions {
            rules: Rules::none(),
            ..StoreOptions::default()
        },
    }
}

/// A case whose response has this Cache-Control.
pub fn cache_control(value: &str) -> Case {
    response(&[("cache-control", value)])
}

impl Case {
    pub fn status(mut self, status: u16) -> Case {
        self.status = status;
        self
    }

    pub fn url(mut self, url: &'static str) -> Case {
        self.url = url;
        self
    }

    pub fn asked_with(mut self, lines: &[(&str, &str)]) -> Case {
        self.request = fields(lines);
        self
    }

    pub fn and(mut self, name: &'static str, value: &str) -> Case {
        self.response.append(name, value.parse().unwrap());
        self
    }

    pub fn storable(&self) -> Storable {
        let exchange = Exchange {
            target: &Target::parse_url(self.url).unwrap(),
            method: &self.method,
            request: &self.request,
            exempt: Exempt::default(),
            status: StatusCode::from_u16(self.status).unwrap(),
            response: &self.response,
            request_time: UnixTime(self.request_time),
            response_time: UnixTime(T),
        };
        storable(&exchange, &self.options)
    }

    pub fn facts(&self) -> StoredFacts {
        match self.storable() {
            Storable::Whole { facts, .. } => facts,
            other => panic!("not stored whole: {other:?}"),
        }
    }

    pub fn not_stored(&self) -> NotStored {
        match self.storable() {
            Storable::No(reason) => reason,
            other => panic!("stored: {other:?}"),
        }
    }

    /// The lifetime in seconds and where it is from.
    pub fn lifetime(&self) -> (u32, LifetimeSource) {
        let lifetime = self.facts().lifetime;
        (lifetime.seconds.get(), lifetime.source)
    }

    /// The facts after a 304 with these fields, if the response stays stored.
    pub fn confirmed(&self, facts: &StoredFacts, newer: &[(&str, &str)]) -> Option<StoredFacts> {
        let confirmation = Confirmation {
            target: &Target::parse_url(self.url).unwrap(),
            newer: &fields(newer),
            request_time: UnixTime(T),
            response_time: UnixTime(T),
        };
        let mut stored = self.response.clone();
        confirmed(&confirmation, (facts, &mut stored), &self.options)
    }

    /// The outcome of a GET with these fields, this many seconds after the response arrived.
    pub fn then(&self, later: u64, request: &[(&str, &str)]) -> Reuse {
        decide(&self.facts(), later, request)
    }
}

pub fn decide(facts: &StoredFacts, later: u64, request: &[(&str, &str)]) -> Reuse {
    let request = RequestFacts::new(&Method::GET, &fields(request));
    reuse(
        &request,
        facts,
        UnixTime(T + later),
        &ReuseOptions::default(),
    )
}

pub fn fresh(age: u64, ttl: i64) -> Reuse {
    Reuse::Fresh {
        age: Seconds::new(age),
        ttl,
    }
}

pub fn stale(age: u64, ttl: i64, allowed_by: StaleAllowance) -> Reuse {
    Reuse::Stale {
        age: Seconds::new(age),
        ttl,
        allowed_by,
    }
}

pub fn validate(forward: Forward, on_error: OnError) -> Reuse {
    Reuse::Validate { forward, on_error }
}

/// Validated because it is stale; may stand in for an upstream that cannot be reached.
pub fn validate_stale() -> Reuse {
    validate(Forward::Stale, OnError::ServeIfUnreachable)
}

/// Validated because the request wants it; may stand in for an upstream that cannot be reached.
pub fn validate_as_requested() -> Reuse {
    validate(Forward::Request, OnError::ServeIfUnreachable)
}
