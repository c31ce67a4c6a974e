//! The input for the storage rules: a request, the response and two times.
//!
//! The proxy fills an `Exchange` when the head of a response has arrived; `freshness` and
//! `storable` read it.
//!
//! Invariant: `request` holds the fields of the client's request without the hop-by-hop fields,
//! which the origin does not see, and before the proxy adds or changes any field.
//! Cost: borrows, no copies.

use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::date::UnixTime;
use crate::request_fields::{Exempt, FieldKinds};
use crate::target::Target;
use crate::vary::Vary;

/// A request and the head of the response.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// The request target.
    pub target: &'a Target,
    /// The request method.
    pub method: &'a Method,
    /// The client's request fields without the hop-by-hop fields.
    pub request: &'a HeaderMap,
    /// Request fields that the cache key or a trusted front proxy already covers.
    pub exempt: Exempt<'a>,
    /// The response status.
    pub status: StatusCode,
    /// The response fields.
    pub response: &'a HeaderMap,
    /// Time at which the request was sent upstream.
    pub request_time: UnixTime,
    /// Time at which the response head arrived.
    pub response_time: UnixTime,
}

impl Exchange<'_> {
    /// The kinds of the request fields, without the fields that the response varies by, and without
    /// the fields that the operator has declared `harmless`.
    pub(crate) fn kinds(&self, harmless: &[HeaderName]) -> FieldKinds {
        let varied = Vary::parse(self.response).into_names();
        FieldKinds::new(self.request, self.exempt, &varied, harmless)
    }
}
