//! The proxy's cache digest, for peers: `/squid-internal-periodic/store_digest`.
//!
//! Called for requests in origin-form, whatever Host they have, because Squid sends such requests.
//! Clients that are not peers get the same answer as if there were no such page.
//!
//! Cost: for a request in absolute-form, none; for any other request, one comparison.

use std::sync::Arc;

use hashcache_base::failure::Failure;
use hashcache_http::{Target, UnixTime, http_date, parse_http_date};
use hashcache_peers::digest::{CONTENT_TYPE as DIGEST, PATH};
use hashcache_store::summary::{DigestReader, Edition};
use hashcache_upstream::peer::learned::entity_tag;
use hashcache_wire::ClientBody;
use http::header::{CONTENT_TYPE, ETAG, EXPIRES, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};

use super::body::Body;
use super::own::not_allowed;
use super::transaction::Answer;
use crate::access_log::Outcome;
use crate::connection::Connection;
use crate::log_entry::LogEntryBuilder;

/// Answers a peer's request for an internal page of caches; `None`: the request is for another
/// path, or the client is not a peer.
pub(super) fn answer(
    connection: &Connection,
    request: &Request<ClientBody>,
    target: &Target,
    log_entry: &mut LogEntryBuilder,
) -> Option<Answer> {
    if !target.path().starts_with(INTERNAL) {
        return None;
    }
    connection.peer()?;
    log_entry.set_outcome(Outcome::Own);
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    Some(match target.path() {
        PATH if is_read => digest(connection, request),
        PATH => Ok(not_allowed()),
        // The other pages are about round trips between networks; Squid requests them from every
        // peer.
        _ => Err(not_found("this proxy has no page of this name")),
    })
}

fn digest(connection: &Connection, request: &Request<ClientBody>) -> Answer {
    let common = &connection.worker.common;
    let now = common.now();
    let Some(edition) = common.summary.edition(now) else {
        return Err(not_found("this proxy has no digest now; try again later"));
    };
    let mut response = if is_known(request.headers(), &edition, now) {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        // For HEAD, `hashcache-wire` takes the length from this body.
        let reader = DigestReader::new(Arc::clone(&common.summary), edition);
        Response::new(Body::digest(reader, edition.length()))
    };
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(DIGEST));
    fields.insert(ETAG, entity_tag(edition.position));
    let modified = edition.modified;
    // The number of changes can move Last-Modified ahead of the clock.
    let expires = UnixTime(modified.0.min(now.0).saturating_add(LIFETIME));
    fields.insert(LAST_MODIFIED, http_date(modified));
    fields.insert(EXPIRES, http_date(expires));
    Ok(response)
}

/// Returns true if the peer has this edition (RFC 9110, section 13.2.2).
fn is_known(fields: &HeaderMap, edition: &Edition, now: UnixTime) -> bool {
    if fields.contains_key(IF_NONE_MATCH) {
        let tag = entity_tag(edition.position);
        let mut lines = fields.get_all(IF_NONE_MATCH).iter();
        let is_same = |each: &[u8]| each.trim_ascii() == tag.as_bytes();
        return lines.any(|line| line.as_bytes().split(|&byte| byte == b',').any(is_same));
    }
    let since = fields.get(IF_MODIFIED_SINCE);
    let since = since.and_then(|since| parse_http_date(since.as_bytes(), now));
    since.is_some_and(|since| edition.modified <= since)
}

fn not_found(reason: &'static str) -> Failure {
    let status = StatusCode::NOT_FOUND;
    Failure::Refused { status, reason }
}

/// Paths with this prefix are for caches only.
const INTERNAL: &str = "/squid-internal-";
/// Stated lifetime of a digest, seconds. Peers fetch it again five minutes after that.
const LIFETIME: u64 = 5 * 60;
