//! Responses on the admin listener.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::page::{self, PageReader};

pub(super) fn plain(status: StatusCode, text: String) -> Response<Bytes> {
    page::page(status, PageReader::Program, text)
}

pub(super) fn typed(status: StatusCode, kind: &'static str, body: String) -> Response<Bytes> {
    let mut response = plain(status, body);
    let fields: &mut HeaderMap = response.headers_mut();
    fields.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    fields.remove(header::CONTENT_LANGUAGE);
    response
}

/// Returns a refusal with this sentence.
pub(super) fn error(status: StatusCode, what: &str) -> Response<Bytes> {
    plain(status, format!("{what}\n"))
}
