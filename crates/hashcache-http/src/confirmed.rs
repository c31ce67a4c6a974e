//! The facts of a stored response after a 304 has updated the stored fields (RFC 9111 4.3.4).
//!
//! The content is still the response to the first request. A cookie, a credential or an address in
//! that request may have shaped the content, whichever client caused the validation. Therefore the
//! updated response is checked against the kinds of fields in the first request, which the stored
//! facts keep.
//!
//! Responses stored by builds that did not keep these kinds are checked as if their requests had
//! had a field of every kind. A lifetime that the origin states counts as before. A response
//! without a stated lifetime is dropped at the first validation and fetched again: its lifetime may
//! be from a 304 that was handled without regard to the first request, so the stored lifetime
//! proves nothing.
//!
//! The proxy calls [`confirmed`] for each 304, and for a HEAD response or a partial response that
//! updates the fields.
//!
//! Invariant: a 304 gives no lifetime by a guess, a rule or a default that the first request
//! forbids. Cost: as `storable`.

use http::{HeaderMap, Method};

use crate::cache_control::ResponseDirectives;
use crate::date::UnixTime;
use crate::exchange::Exchange;
use crate::freshness::confirmed_lifetime_of;
use crate::options::StoreOptions;
use crate::request_fields::{Exempt, FieldKinds};
use crate::storable::{Storable, allows_sharing, storable_for};
use crate::stored_facts::StoredFacts;
use crate::target::Target;
use crate::validate::freshen;
use crate::vary::Vary;

/// A message that confirms a stored response: a 304, or another newer head for the same content.
#[derive(Clone, Copy, Debug)]
pub struct Confirmation<'a> {
    /// Target of the request that got this message.
    pub target: &'a Target,
    /// Fields of the 304.
    pub newer: &'a HeaderMap,
    /// Time at which the request was sent upstream.
    pub request_time: UnixTime,
    /// Time at which the message arrived.
    pub response_time: UnixTime,
}

/// Updates the fields of a stored response and returns the new facts. Returns `None` if the
/// response may no longer be stored, or if Vary has changed: the stored Vary row belongs to the
/// first request and would no longer fit.
pub fn confirmed(
    confirmation: &Confirmation<'_>,
    (stored, fields): (&StoredFacts, &mut HeaderMap),
    options: &StoreOptions,
) -> Option<StoredFacts> {
    let varied = Vary::parse(fields);
    let kinds = stored.asked_with;
    let kinds = kinds.unwrap_or_else(|| all_kinds(fields, options));
    freshen(fields, confirmation.newer, confirmation.response_time);
    let exchange = Exchange {
        target: confirmation.target,
        method: &Method::GET,
        // `kinds` represents the fields of the first request.
        request: &HeaderMap::new(),
        exempt: Exempt::default(),
        status: stored.status,
        response: fields,
        request_time: confirmation.request_time,
        response_time: confirmation.response_time,
    };
    let Storable::Whole { mut facts, .. } = storable_for(&exchange, kinds, options) else {
        return None;
    };
    let asked = (&exchange, kinds);
    facts.lifetime = confirmed_lifetime_of(asked, stored.lifetime, facts.lifetime, options);
    // The content is still from the first response.
    let facts = facts.received_in(stored.received());
    (Vary::parse(fields) == varied).then(|| facts.with_request_of(stored))
}

/// The field kinds to assume for an unknown request. Overrides are not included: no build has ever
/// stored a response to such a request unless `Vary` names the field. Authorization is included
/// only if the stored response allows sharing, because otherwise the response would not have been
/// stored; a 304 that withdraws this permission makes the response unstorable.
fn all_kinds(fields: &HeaderMap, options: &StoreOptions) -> FieldKinds {
    let kinds = FieldKinds::COOKIE
        .and(FieldKinds::ANY_COOKIE)
        .and(FieldKinds::ADDRESS)
        .and(FieldKinds::SPECIAL)
        .and(FieldKinds::ORIGIN)
        .and(FieldKinds::UNKNOWN);
    let directives = ResponseDirectives::for_targets(fields, &options.targets);
    if allows_sharing(&directives) {
        kinds
            .and(FieldKinds::AUTHORIZATION)
            .and(FieldKinds::ANY_AUTHORIZATION)
    } else {
        kinds
    }
}
