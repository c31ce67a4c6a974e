//! The mark of a stored response: the key hash with which summaries announce it to other caches.
//!
//! Called by `judge`, and by `variant` when stored fields change. Not every stored response is
//! announced: a sibling requests the resource here in place of the origin, so the response must be
//! the same for all clients, and fresh for long enough that a summary is of use.

use hashcache::Hour;
use hashcache_http::{Space, StoredFacts, Target, UnixTime};
use hashcache_peers::key::Key;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, VARY};
use http::{HeaderMap, HeaderValue};

/// The mark for a response with these facts and fields; 0: it is not announced. `known` is the key
/// hash of the URL if it was computed before.
pub(super) fn mark(
    (space, target): (Space, &Target),
    request: &HeaderMap,
    (facts, response): (&StoredFacts, &HeaderMap),
    (known, now): (Option<&Key>, UnixTime),
) -> u128 {
    let is_announced = space == Space::Own
        && !request.contains_key(AUTHORIZATION)
        && matches!(facts.status.as_u16(), 200 | 203 | 301 | 308 | 404 | 410)
        && facts.ttl(now) >= FRESH_MIN
        && response.get_all(VARY).iter().all(varies_by_coding_only);
    if !is_announced {
        return 0;
    }
    let compute = || Key::of_get(target.to_string().as_bytes());
    let key = known.copied().unwrap_or_else(compute);
    u128::from_be_bytes(key.octets())
}

/// The hour until which a response with these facts is fresh, for the lists of the engine.
pub(super) fn fresh_until(facts: &StoredFacts, now: UnixTime) -> Option<Hour> {
    let ttl = u64::try_from(facts.ttl(now)).ok()?;
    Hour::from_unix_seconds(now.0.saturating_add(ttl))
}

fn varies_by_coding_only(vary: &HeaderValue) -> bool {
    let mut names = vary.as_bytes().split(|&byte| byte == b',');
    names.all(|name| {
        let name = name.trim_ascii();
        name.is_empty() || name.eq_ignore_ascii_case(ACCEPT_ENCODING.as_str().as_bytes())
    })
}

/// Shortest remaining lifetime of a response that is announced, seconds.
const FRESH_MIN: i64 = 600;

#[cfg(test)]
mod tests {
    use hashcache_http::{Exchange, Storable, StoreOptions, storable};
    use http::{Method, StatusCode};

    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    /// The mark of a response to GET for this URL with these fields.
    fn marked(url: &str, status: u16, response: &[(&'static str, &'static str)]) -> u128 {
        let target = Target::parse_url(url).unwrap();
        let fields = response.iter().map(|&(name, value)| {
            let name: http::HeaderName = name.parse().unwrap();
            (name, HeaderValue::from_static(value))
        });
        let response: HeaderMap = fields.collect();
        let request = HeaderMap::new();
        let exchange = Exchange {
            target: &target,
            method: &Method::GET,
            request: &request,
            exempt: hashcache_http::Exempt::default(),
            status: StatusCode::from_u16(status).unwrap(),
            response: &response,
            request_time: NOW,
            response_time: NOW,
        };
        let Storable::Whole { facts, .. } = storable(&exchange, &StoreOptions::default()) else {
            panic!("{url} is not stored");
        };
        mark(
            (Space::Own, &target),
            &request,
            (&facts, &response),
            (None, NOW),
        )
    }

    #[test]
    fn the_mark_is_the_key_by_which_squid_knows_the_url() {
        let fields = [("cache-control", "max-age=600")];
        // printf '\001http://example.com/' | md5sum
        let expected = 0x5c91_0903_4c1d_089f_b6d9_2f72_58b2_f5c3;
        assert_eq!(marked("http://example.com:80/", 200, &fields), expected);
        assert_ne!(marked("http://example.com/?q", 200, &fields), expected);
        assert_ne!(marked("http://example.com/?q", 404, &fields), 0);
    }

    #[test]
    fn short_lives_and_variants_are_not_announced() {
        let url = "http://example.com/";
        let long = ("cache-control", "max-age=600");
        assert_eq!(marked(url, 200, &[("cache-control", "max-age=599")]), 0);
        assert_eq!(marked(url, 200, &[long, ("vary", "accept-language")]), 0);
        assert_ne!(marked(url, 200, &[long, ("vary", "Accept-Encoding,")]), 0);
    }
}
