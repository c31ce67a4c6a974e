//! The facts of a stored response after a 304 has updated its fields (RFC 9111 4.3.4).
//!
//! The content stays that of the first request. A cookie, a key or an address in that request may
//! have shaped it, whoever asked for the validation. Therefore the updated response is judged for
//! the kinds of fields that the first request had, which the stored facts keep.
//!
//! Responses of builds that did not keep them are judged as if their requests had had a field of
//! every kind. A lifetime that the origin states counts as before. Without one the response is
//! forgotten at its first validation, and fetched again: it may have got its lifetime from a 304
//! that did not look at the first request, so the stored lifetime proves nothing.
//!
//! Called by the proxy for each 304, and for a HEAD or a part of the content that updates the
//! fields.
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

/// A message that confirms a stored response: a 304, or another newer head of the same content.
#[derive(Clone, Copy, Debug)]
pub struct Confirmation<'a> {
    /// The target of its request.
    pub target: &'a Target,
    /// Fields of the 304.
    pub newer: &'a HeaderMap,
    /// When its request was sent upstream.
    pub request_time: UnixTime,
    /// The time at which it arrived.
    pub response_time: UnixTime,
}

/// Updates the fields of a stored response, and returns its new facts; `None` if it may no longer
/// be stored, or if its Vary has changed: the row stays that of the first request.
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
        // The kinds stand for the fields of the first request.
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
    // The content is still that of the first response.
    let facts = facts.received_in(stored.received());
    (Vary::parse(fields) == varied).then(|| facts.with_request_of(stored))
}

/// The kinds of a request of which nothing is known. Overrides are not among them: no build has
/// stored a response to one unless `Vary` names it. Authorization is only where the stored response
/// allows sharing, because otherwise it would not have been stored: a 304 that takes this back ends
/// such a response.
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
