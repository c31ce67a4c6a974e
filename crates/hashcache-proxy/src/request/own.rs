//! What this proxy says of itself: its front page on a forward listener, and `OPTIONS *`.

use hashcache_http::Target;
use http::header::{ALLOW, HOST};
use http::{HeaderValue, Method, Request, Response, StatusCode};

use super::body::Body;
use super::note::Note;
use super::{Answer, Connection, text};
use crate::access_log::Outcome;
use crate::failure::Failure;
use crate::page::{self, Landing, Reader};
use crate::wire::ClientBody;

/// The page at a path of this proxy itself.
pub(super) fn page(
    connection: &Connection,
    request: &Request<ClientBody>,
    target: &Target,
    note: &mut Note,
) -> Answer {
    note.outcome(Outcome::Own);
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(not_allowed());
    }
    if target.path() != "/" {
        let reason = "this proxy has no page of that name";
        return Err(Failure::Refused {
            status: StatusCode::NOT_FOUND,
            reason,
        });
    }
    let common = &connection.worker.common;
    let landing = Landing {
        name: common.name.as_str(),
        authority: request
            .headers()
            .get(HOST)
            .and_then(|host| host.to_str().ok()),
        local: connection.local,
        requests: common.exposition.requests(),
        engine: common.exposition.engine(),
        reader: Reader::of(request.headers()),
    };
    Ok(page::landing(&landing).map(Body::full))
}

/// `OPTIONS` that ends here.
pub(super) fn options(note: &mut Note) -> Response<Body> {
    note.outcome(Outcome::Own);
    let mut response = text(StatusCode::OK, bytes::Bytes::new());
    response.headers_mut().insert(
        ALLOW,
        HeaderValue::from_static("GET, HEAD, OPTIONS, CONNECT"),
    );
    response
}

fn not_allowed() -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, bytes::Bytes::new());
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    response
}
