//! What the rules of storing look at: one request, its response, two times, and the settings.
//!
//! The proxy fills an `Exchange` when a response's head has come; `freshness` and `storable` read
//! it.
//!
//! Invariant: `request` holds the fields of the client's request as they came, before the proxy
//! takes any out: Authorization and the fields that `Vary` names decide by what the client sent.
//! Cost: borrows, no copies.

use http::{HeaderMap, HeaderName, Method, StatusCode};

use crate::date::{Seconds, UnixTime};
use crate::freshness::Heuristic;
use crate::rules::Rules;
use crate::target::Target;

/// A request and the head of its response.
#[derive(Clone, Copy, Debug)]
pub struct Exchange<'a> {
    /// What was asked for.
    pub target: &'a Target,
    /// The request's method.
    pub method: &'a Method,
    /// The client's request fields.
    pub request: &'a HeaderMap,
    /// The response's status.
    pub status: StatusCode,
    /// The response's fields.
    pub response: &'a HeaderMap,
    /// When the request was sent upstream.
    pub request_time: UnixTime,
    /// When the response's head came.
    pub response_time: UnixTime,
}

/// Settings of the rules of storing.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Freshness rules by host and path.
    pub rules: Rules,
    /// The lifetime of responses that state none.
    pub heuristic: Heuristic,
    /// The lifetime of 404 and 410 that neither state one nor let one be guessed.
    pub negative: Seconds,
    /// The lifetime of what a rule calls immutable.
    pub immutable: Seconds,
    /// Whether a guessed lifetime doubles each time the response proves unchanged.
    pub adaptive: bool,
    /// Fields that speak to this kind of cache before Cache-Control does (RFC 9213).
    pub targets: Vec<HeaderName>,
}

impl Default for StoreOptions {
    /// The shipped rules; 10 % of the age at most a day; one minute for what is not there; a year
    /// for what does not change; no targeted fields.
    fn default() -> StoreOptions {
        StoreOptions {
            rules: Rules::shipped(),
            heuristic: Heuristic::default(),
            negative: Seconds::new(60),
            immutable: Seconds::YEAR,
            adaptive: false,
            targets: Vec::new(),
        }
    }
}
