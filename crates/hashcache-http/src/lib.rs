//! HTTP caching rules for a shared cache: the input is bytes and a time, the output is a decision.
//!
//! Is this response stored, is it fresh, does it answer that request? RFC 9110, 9111, 5861, 8246,
//! 9209, 9211, 9213, 9530 and 9875 as pure functions: no clock, no I/O, no runtime.
//!
//! ```
//! use hashcache_http::*;
//! use http::{HeaderMap, Method, StatusCode};
//!
//! let target = Target::parse_url("http://example.com/logo.png").unwrap();
//! let mut response = HeaderMap::new();
//! response.insert("cache-control", "max-age=60".parse().unwrap());
//!
//! // A response has come, at second 1000. May it be stored?
//! let exchange = Exchange {
//!     target: &target,
//!     method: &Method::GET,
//!     request: &HeaderMap::new(),
//!     exempt: Exempt::default(),
//!     status: StatusCode::OK,
//!     response: &response,
//!     request_time: UnixTime(1000),
//!     response_time: UnixTime(1000),
//! };
//! let Storable::Whole { facts, .. } = storable(&exchange, &StoreOptions::default()) else {
//!     panic!("a lifetime of a minute is reason enough");
//! };
//!
//! // Half a minute later the next client asks.
//! let request = RequestFacts::new(&Method::GET, &HeaderMap::new());
//! let decision = reuse(&request, &facts, UnixTime(1030), &ReuseOptions::default());
//! assert_eq!(decision, Reuse::Fresh { age: Seconds::new(30), ttl: 30 });
//! ```
//!
//! The functions, in the order of a request. Target: [`parse_target`], [`cache_key`]. Fields of the
//! connection: [`strip_request`]. Reuse of a stored response: [`VariantTable`], [`VaryRow`],
//! [`reuse`], then [`evaluate_conditions`] and [`answer_range`]. Validation upstream:
//! [`set_validators`], and for a 304 [`not_modified_confirms`] and [`freshen`]. Storing the
//! response: [`storable`] (which uses [`Rules`] and [`lifetime`]) and [`fields_to_store`]; after an
//! unsafe method [`invalidated`] and [`invalidated_groups`]. Fields for other parties:
//! [`Pseudonym`], [`CacheStatus`], [`ProxyStatus`]; on a slow line between two caches:
//! [`LinkRequest`].
//!
//! If a field can be read in two ways, the reading that stores less, keeps shorter and validates
//! sooner is taken; the head of each module describes the choice.

// Building blocks of fields.
mod date;
mod entity_tag;
mod fields;
mod printable;
mod structured;

// Requests.
mod authority;
mod cache_key;
mod coding;
mod connection_login;
mod hop;
mod request_fields;
mod target;
mod target_octets;
mod via;

// Reuse of stored responses.
mod range;
mod reuse;
mod stored_facts;
mod validate;
mod variants;
mod vary;

// Storing responses.
mod age;
mod cache_control;
mod confirmed;
mod digest;
mod exchange;
mod freshness;
mod glob;
mod groups;
mod guess;
mod heuristic;
mod invalidate;
mod options;
mod request_error;
mod rules;
mod site_lifetime;
mod storable;
mod targeted;
mod unkeyed;

// Fields for other parties.
mod cache_status;
mod link_field;
mod proxy_status;
mod related;

/// A field name, as in settings.
pub use http::HeaderName;

pub use date::{Seconds, SpanText, UnixTime, http_date, parse_http_date};
pub use entity_tag::EntityTag;

pub use authority::{Authority, Host, Origin, Scheme, TargetError};
pub use cache_key::{KEY_BYTES_MAX, Space, cache_key, host_part, origin_key, target_of_key};
pub use coding::line_accepts_coding;
pub use connection_login::{
    PROXY_SUPPORT, SESSION_BASED, binds_connection, continues_login, is_forwarded, keeps_login,
    logs_in_connection, say_keeps_login,
};
pub use request_fields::{
    Exempt, FieldKinds, compared_fields, has_override, overrides, speaks_for_client, unknown_field,
};

pub use hop::{
    ForbiddenOption, Upgrading, asks_for_upgrade, connection_options, connection_spares_storing,
    fields_to_store, grants_other_protocol, has_connection_option, keeps_connection, strip_interim,
    strip_request, strip_response,
};
pub use target::{RequestTarget, Target, parse_target};
pub use via::{NoToken, Pseudonym, via_members, via_names};

pub use range::{
    ByteRange, ContentRange, RANGES_MAX, RangeAnswer, RangeSpec, accept_stored_coding,
    answer_range, continues_stored, covers_whole, if_range_holds, if_range_value,
    parse_content_range, parse_range,
};
pub use reuse::{
    ClientReload, MethodKind, OnError, RequestFacts, Reuse, ReuseOptions, StaleAllowance,
    answers_overrides, coding_fits, reuse,
};
pub use stored_facts::{FACTS_BYTES, FactFlags, StoredFacts};
pub use validate::{
    ConditionOutcome, ensure_date, evaluate_conditions, for_its_client, freshen,
    has_strict_condition, not_modified_confirms, not_modified_fields, origin_conditions_hold,
    set_validators, settle_modified_since,
};
pub use variants::{VARIANTS_MAX, Variant, VariantPlace, VariantTable, client_tag};
pub use vary::{VARY_FIELDS_MAX, VARY_ROW_BYTES_MAX, Vary, VaryRow, is_rewritten};

pub use age::{Arrival, age_field, current_age};
pub use cache_control::{RequestDirectives, ResponseDirectives, Scope};
pub use confirmed::{Confirmation, confirmed};
pub use digest::{ContentDigest, remove_content_digests};
pub use exchange::Exchange;
pub use freshness::{
    ADAPTIVE_FIRST, Lifetime, LifetimeSource, confirmed_lifetime, is_heuristically_cacheable,
    lifetime,
};
pub use glob::{Crosses, GlobError, Globs};
pub use groups::{
    CACHE_GROUP_INVALIDATION, CACHE_GROUPS, LABEL_FIELDS, cache_groups, invalidated_groups, labels,
    words,
};
pub use heuristic::Heuristic;
pub use invalidate::{invalidated, is_unsafe, resolve};
pub use options::{SetCookie, StoreOptions};
pub use printable::{printable, printable_url};
pub use rules::{Matched, RuleAction, RuleAuthor, RuleError, RuleSpec, Rules};
pub use site_lifetime::{LifetimeSpec, Lifetimes, SiteLifetimes};
pub use storable::{NotStored, Storable, is_multipart, storable};
pub use target_octets::{octet_text, octets, plain_text};
pub use targeted::CDN_CACHE_CONTROL;
pub use unkeyed::is_keyed;

pub use cache_status::{CacheStatus, Forward, Handling, remove_broken_cache_status};
pub use link_field::{
    FRAMES, HASHCACHE_LINK, HASHCACHE_TARGET, HintUse, LinkRequest, LinkTurn, OfferedContent,
    TARGET_EXPECTATION, permits_identity, take_frames,
};
pub use proxy_status::{PROXY_STATUS, ProxyError, ProxyStatus};
pub use related::{HASHCACHE_RELATED, RELATED_BYTES_MAX, RELATED_MAX, Related, related_value};
