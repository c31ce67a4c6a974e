//! Message fields in a fetch: fields sent upstream, fields stored, and fields sent to the client
//! (RFC 9110 7.6.1, RFC 9111 3.1).

use hashcache_http::{
    Space, Target, UnixTime, Upgrading, connection_spares_storing, covers_whole, ensure_date,
    is_multipart, parse_content_range, remove_broken_cache_status, strip_request, strip_response,
};
use hashcache_upstream::{RequestBody, set_target};
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, EXPECT, HOST, IF_MATCH, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, RANGE, SET_COOKIE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};

use crate::settings::Mode;
use crate::worker::Worker;

/// Copies a client's fields, with room for the fields that are added on the way to an origin: a map
/// that grows is rebuilt each time.
pub(super) fn copy_for_upstream(fields: &HeaderMap) -> HeaderMap {
    let mut copy = HeaderMap::with_capacity(fields.len() + ADDED_FIELDS);
    for (name, value) in fields {
        copy.append(name.clone(), value.clone());
    }
    copy
}

/// Via, CDN-Loop, the fields in which a site describes the client to the origins, and two
/// validators.
const ADDED_FIELDS: usize = 8;

/// The fields for a request to upstream.
pub(crate) fn upstream_fields(
    worker: &Worker,
    target: &Target,
    mut fields: HeaderMap,
    version: Version,
    upgrading: Upgrading,
) -> HeaderMap {
    if strip_request(&mut fields, upgrading).is_err() {
        // `hashcache-wire` refuses such requests. If a request gets here in another way, ignore the
        // connection options.
        fields.remove(CONNECTION);
    }
    let host = target.authority.host_field(target.scheme);
    if let Ok(host) = HeaderValue::from_str(&host) {
        fields.insert(HOST, host);
    }
    let via = &worker.common.via;
    via.append_via(&mut fields, version);
    if worker.common.mode == Mode::Reverse {
        // A proxy that removes Via must leave this field (RFC 8586), so it detects more loops.
        via.append_cdn_loop(&mut fields);
    }
    fields
}

/// A GET of the target.
pub(super) fn request(target: &Target, fields: HeaderMap) -> Request<RequestBody> {
    let mut request = Request::new(RequestBody::empty());
    *request.method_mut() = Method::GET;
    set_target(&mut request, &target.path_and_query);
    *request.headers_mut() = fields;
    request
}

/// A client's fields without conditions and ranges, for a range request by the proxy.
pub(super) fn part_fields(
    worker: &Worker,
    target: &Target,
    fields: &HeaderMap,
    version: Version,
) -> HeaderMap {
    let mut fields = upstream_fields(
        worker,
        target,
        copy_for_upstream(fields),
        version,
        Upgrading::No,
    );
    for name in [
        EXPECT,
        IF_NONE_MATCH,
        IF_MODIFIED_SINCE,
        IF_MATCH,
        IF_UNMODIFIED_SINCE,
        IF_RANGE,
        RANGE,
    ] {
        fields.remove(name);
    }
    fields
}

/// Removes the hop-by-hop fields from a response before it is judged: fields that `Connection`
/// names are neither stored nor obeyed. If a response may not be stored because of such a field, it
/// is left unchanged, so that `storable` finds the reason.
///
/// Set-Cookie is removed in a mirror: client cookies are not sent to the registry, so a cookie that
/// the registry sets would only identify the proxy.
pub(super) fn strip_for_storing(space: Space, response: &mut HeaderMap) {
    if matches!(space, Space::Mirror(_)) {
        response.remove(SET_COOKIE);
    }
    remove_broken_cache_status(response);
    if connection_spares_storing(response) {
        let _ = strip_response(response, Upgrading::No);
    }
}

/// Marks a 206 that was turned into a 200 because the range was the whole representation.
#[derive(Clone, Copy)]
pub(super) struct WasPart;

/// Turns a 206 with the whole representation into the equivalent 200 (RFC 9110 15.3.7.3), so that
/// it is stored as a whole response. Content longer than `length_max` stays a part, and so does
/// content with another length than the range, and content if `may_be_cut` returns true for that
/// length.
pub(super) fn whole_of_part<B: http_body::Body>(
    response: &mut Response<B>,
    length_max: u64,
    may_be_cut: impl Fn(u64) -> bool,
) {
    if response.status() != StatusCode::PARTIAL_CONTENT || is_multipart(response.headers()) {
        return;
    }
    let range = parse_content_range(response.headers());
    let Some(length) = range.and_then(|range| covers_whole(&range)) else {
        return;
    };
    let is_long = length > length_max || response.body().size_hint().exact() != Some(length);
    if is_long || may_be_cut(length) {
        return;
    }
    *response.status_mut() = StatusCode::OK;
    let fields = response.headers_mut();
    fields.remove(CONTENT_RANGE);
    fields.insert(CONTENT_LENGTH, HeaderValue::from(length));
    response.extensions_mut().insert(WasPart);
}

/// A response without the hop-by-hop fields of the connection.
pub(crate) fn passed_on<B>(
    mut response: Response<B>,
    response_time: UnixTime,
    upgrading: Upgrading,
) -> Response<B> {
    let granted = match response.status() {
        StatusCode::SWITCHING_PROTOCOLS => upgrading,
        _ => Upgrading::No,
    };
    let fields = response.headers_mut();
    if strip_response(fields, granted).is_err() {
        fields.remove(CONNECTION);
        let _ = strip_response(fields, granted);
    }
    remove_broken_cache_status(fields);
    ensure_date(fields, response_time);
    response
}
