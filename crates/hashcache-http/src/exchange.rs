//! The input of the storage rules: one request, its response and two times.
//!
//! The proxy fills an `Exchange` when the head of a response has arrived; `freshness` and
//! `storable` read it.
//!
//! Invariant: `request` holds the fields of the client's request without its hop-by-hop fields,
//! which the origin does not see, and before the proxy adds or changes any.
//! Cost: borrows, no copies.

use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::date::UnixTime;
use crate::request_fields::{Exempt, FieldKinds};
use crate::target::Target;
use crate::vary::Vary;

/// A request and the head of its response.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// The target of the request.
    pub target: &'a Target,
    /// The request's method.
    pub method: &'a Method,
    /// The client's request fields without the hop-by-hop fields.
    pub request: &'a HeaderMap,
    /// Request fields that the key or a trusted front proxy has taken care of.
    pub exempt: Exempt<'a>,
    /// The response's status.
    pub status: StatusCode,
    /// The response's fields.
    pub response: &'a HeaderMap,
    /// When the request was sent upstream.
    pub request_time: UnixTime,
    /// The time at which the response's head arrived.
    pub response_time: UnixTime,
}

impl Exchange<'_> {
    /// The kinds of the request's fields, without those that the response varies by, and those that
    /// the operator calls `harmless`.
    pub(crate) fn kinds(&self, harmless: &[HeaderName]) -> FieldKinds {
        let varied = Vary::parse(self.response).into_names();
        FieldKinds::of(self.request, self.exempt, &varied, harmless)
    }
}
