//! The fields of messages on their way through a fetch: what goes upstream, what is stored, what is
//! passed on (RFC 9110 7.6.1, RFC 9111 3.1).

use hashcache_http::{
    Space, Target, UnixTime, Upgrading, connection_spares_storing, ensure_date, strip_request,
    strip_response,
};
use http::header::{
    CONNECTION, EXPECT, HOST, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, RANGE, SET_COOKIE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};

use crate::upstream::RequestBody;
use crate::worker::Worker;

/// The fields of a request as they go upstream; an error is the client's.
pub(crate) fn upstream_fields(
    worker: &Worker,
    target: &Target,
    mut fields: HeaderMap,
    version: Version,
    upgrading: Upgrading,
) -> HeaderMap {
    if strip_request(&mut fields, upgrading).is_err() {
        // `wire` refuses such requests; if one comes another way, its options are not followed.
        fields.remove(CONNECTION);
    }
    let host = Worker::host_field(target);
    if let Ok(host) = HeaderValue::from_str(&host) {
        fields.insert(HOST, host);
    }
    worker.common.via.append_via(&mut fields, version);
    fields
}

/// A GET of the target.
pub(super) fn request(target: &Target, fields: HeaderMap) -> Option<Request<RequestBody>> {
    let mut request = Request::new(RequestBody::empty());
    *request.method_mut() = Method::GET;
    *request.uri_mut() = http::Uri::try_from(&*target.path_and_query).ok()?;
    *request.headers_mut() = fields;
    Some(request)
}

/// A client's fields, to ask for a part by conditions of our own.
pub(super) fn part_fields(
    worker: &Worker,
    target: &Target,
    fields: &HeaderMap,
    version: Version,
) -> HeaderMap {
    let mut fields = upstream_fields(worker, target, fields.clone(), version, Upgrading::No);
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

/// Takes from a response what belongs to the connection it came by, before it is judged: what
/// `Connection` names is neither stored nor heeded. A response that may not be stored for what it
/// names there is left as it is, so that `storable` says so.
///
/// Below a mirror there are no cookies: those of clients do not go to the registry, so one that it
/// sets is about the proxy, and no client gets it.
pub(super) fn strip_for_storing(space: Space, response: &mut HeaderMap) {
    if matches!(space, Space::Mirror(_)) {
        response.remove(SET_COOKIE);
    }
    if connection_spares_storing(response) {
        let _ = strip_response(response, Upgrading::No);
    }
}

/// A response freed of what belongs to the connection it came by.
pub(crate) fn passed_on<B>(
    mut response: Response<B>,
    came: UnixTime,
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
    ensure_date(fields, came);
    response
}
