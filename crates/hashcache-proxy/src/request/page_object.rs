//! Decides which responses are objects of a page, so that a parent names them to children.
//!
//! Called by `linked` for responses to children, and by `miss` and `request` for responses to other
//! clients that are stored, or are from the store.
//!
//! Invariants: an object has the same origin as the page, and a shared cache may store it. Nothing
//! is recorded for a request with a cookie, credentials or a field that is not known to be
//! harmless, nor for a response that sets a cookie, because such a URL may be known to a single
//! user only. A request without cookies, with the few fields that a child copies from the page
//! request, gets the same response.

use hashcache_http::{Exempt, FieldKinds, ResponseDirectives, Space, Target};
use hashcache_link::hints::PageObject;
use hashcache_store::page_groups::{PageFields, is_html, wants_page};
use http::HeaderMap;
use http::header::{ORIGIN, SET_COOKIE, VARY};
use tokio::time::Instant;

use crate::connection::Connection;
use crate::fetch::{HINTED_BYTES_MAX, HINTED_FIELDS};

/// Records the object that a client, not a child, has requested. The response has status 200 and is
/// stored.
pub(super) fn note_object(
    connection: &Connection,
    (space, target): (Space, &Target),
    request: &HeaderMap,
    stored: (&HeaderMap, Option<u64>),
) {
    let worker = &connection.worker;
    if space != Space::Own || worker.common.live().link.is_none() {
        return;
    }
    if let Some((page, length)) = page_of(target, request, stored)
        && let Some(pages) = worker.common.children.pages(&worker.cache)
    {
        let object = PageObject {
            target,
            length,
            client: connection.allowance.share().network(),
        };
        pages.note(&page, &object, Instant::now());
    }
}

/// The page that uses a requested object, and the length of the object, if it is worth naming; the
/// response is given by the fields and the content length.
pub(super) fn page_of(
    target: &Target,
    request: &HeaderMap,
    (response, length): (&HeaderMap, Option<u64>),
) -> Option<(Target, u64)> {
    let of_user = FieldKinds::COOKIE
        .and(FieldKinds::AUTHORIZATION)
        .and(FieldKinds::OVERRIDE)
        .and(FieldKinds::UNKNOWN);
    let kinds = FieldKinds::new(request, Exempt::default(), &[], &[]);
    if kinds.has(of_user) || response.contains_key(SET_COOKIE) {
        return None;
    }
    let referer = PageFields::from_fields(request).referer()?;
    let is_page = wants_page(request) == Some(true) || is_html(response);
    // An origin may answer a script's request in another way, without listing that in Vary.
    let is_alike = !request.contains_key(ORIGIN) && varies_by_known_fields(response);
    let length = length.filter(|length| *length <= HINTED_BYTES_MAX)?;
    let is_named =
        referer.same_origin(target) && !is_page && is_alike && !is_stale_at_once(response);
    is_named.then_some((referer, length))
}

/// Returns true if a response varies at most by fields that a child copies into its request.
fn varies_by_known_fields(response: &HeaderMap) -> bool {
    let lines = response.get_all(VARY).iter().map(|value| value.as_bytes());
    let mut names = lines.flat_map(|line| line.split(|octet| *octet == b','));
    names.all(|name| {
        let name = name.trim_ascii();
        let is_it = |known: &http::HeaderName| name.eq_ignore_ascii_case(known.as_str().as_bytes());
        name.is_empty() || HINTED_FIELDS.iter().any(is_it)
    })
}

/// Returns true if each request must validate the response: then it is of no use to have it before
/// the client requests it.
fn is_stale_at_once(response: &HeaderMap) -> bool {
    let directives = ResponseDirectives::parse(response);
    let lifetime = directives.s_maxage.or(directives.max_age);
    directives.no_cache.is_response() || lifetime.is_some_and(|lifetime| lifetime.get() == 0)
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn fields(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        fields.collect()
    }

    #[test]
    fn only_what_any_client_of_the_page_gets_is_an_object_of_it() {
        let of_page = ("referer", "http://a/p#x");
        let (css, fresh) = (("content-type", "text/css"), ("cache-control", "max-age=9"));
        let stale = ("cache-control", "max-age=0");
        let (cookie, secret) = (("cookie", "a=b"), ("authorization", "Basic eA=="));
        let of_user = ("set-cookie", "a=b");
        let (key, other_url) = (("x-api-key", "s"), ("x-original-url", "/s"));
        for (url, request, response, length, expected) in [
            (
                "http://a/s",
                &[of_page][..],
                &[css, fresh][..],
                Some(9),
                true,
            ),
            ("http://a/s", &[of_page, cookie], &[css], Some(9), false),
            ("http://a/s", &[of_page, secret], &[css], Some(9), false),
            ("http://a/s", &[of_page, key], &[css], Some(9), false),
            ("http://a/s", &[of_page, other_url], &[css], Some(9), false),
            ("http://a/s", &[of_page], &[css, of_user], Some(9), false),
            ("http://a/s?v=1", &[of_page], &[css], Some(9), true),
            ("http://a/s?v=1", &[of_page, cookie], &[css], Some(9), false),
            ("http://b/s", &[of_page], &[css], Some(9), false),
            ("https://a/s", &[of_page], &[css], Some(9), false),
            ("http://a/s", &[], &[css], Some(9), false),
            ("http://a/s", &[of_page], &[css, stale], Some(9), false),
            ("http://a/s", &[of_page], &[css], Some(2 << 20), false),
            ("http://a/s", &[of_page], &[css], None, false),
            (
                "http://a/s",
                &[of_page, ("origin", "http://a")],
                &[css],
                Some(9),
                false,
            ),
            (
                "http://a/s",
                &[of_page],
                &[css, ("vary", "Accept")],
                Some(9),
                false,
            ),
            (
                "http://a/s",
                &[of_page],
                &[css, ("vary", "accept-Encoding, User-Agent")],
                Some(9),
                true,
            ),
            (
                "http://a/s",
                &[of_page],
                &[css, ("vary", "*")],
                Some(9),
                false,
            ),
            // A script may ask for a page as for anything else.
            (
                "http://a/q",
                &[of_page, ("sec-fetch-dest", "image")],
                &[("content-type", "text/html")],
                Some(9),
                false,
            ),
            (
                "http://a/q",
                &[of_page, ("sec-fetch-dest", "iframe")],
                &[css],
                Some(9),
                false,
            ),
        ] {
            let (request, response) = (fields(request), fields(response));
            let page = page_of(
                &Target::parse_url(url).unwrap(),
                &request,
                (&response, length),
            );
            assert_eq!(
                page.is_some(),
                expected,
                "{url} {request:?} {response:?} {length:?}"
            );
            if let Some((page, length)) = page {
                assert_eq!((page.to_string().as_str(), length), ("http://a/p", 9));
            }
        }
    }
}
