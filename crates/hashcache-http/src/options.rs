//! Settings for the storage rules.
//!
//! The proxy fills them from its own settings; `freshness` and `storable` read them.

use http::HeaderName;

use crate::date::Seconds;
use crate::heuristic::Heuristic;
use crate::rules::Rules;
use crate::site_lifetime::SiteLifetimes;

/// Settings for the storage rules.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Freshness rules by host and path.
    pub rules: Rules,
    /// Lifetimes for the sites of a reverse proxy.
    pub sites: SiteLifetimes,
    /// Heuristic for responses that state no lifetime.
    pub heuristic: Heuristic,
    /// Lifetime for 404 and 410 that state none, and for other errors that state none but have a
    /// Last-Modified.
    pub negative: Seconds,
    /// Lifetime for responses that match an `immutable` rule.
    pub immutable: Seconds,
    /// True if a guessed lifetime doubles after each successful validation.
    pub adaptive: bool,
    /// Targeted fields, which override Cache-Control (RFC 9213).
    pub targets: Vec<HeaderName>,
    /// Request fields that count as harmless in addition to the built-in list: no origin selects
    /// content or recognises a client by them.
    pub harmless: Vec<HeaderName>,
    /// The condition for storing a response that sets a cookie.
    pub set_cookie: SetCookie,
}

/// How to handle a 200 with `Set-Cookie`. A 304 and the response to a HEAD never add that field to
/// a stored response, with either setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetCookie {
    /// Store it only if the origin (`public`, `s-maxage`) or an operator's rule declares it to be
    /// for all clients. Most origins that set a cookie with `max-age` mean the browser's cache.
    #[default]
    Protect,
    /// Store it as any other response (RFC 9111 7.3).
    Rfc,
}

impl Default for StoreOptions {
    /// The shipped rules; 10 % of the age, at most a day; one minute for negative responses; a year
    /// for immutable content; no targeted fields; cookies protected.
    fn default() -> StoreOptions {
        StoreOptions {
            rules: Rules::shipped(),
            sites: SiteLifetimes::default(),
            heuristic: Heuristic::default(),
            negative: Seconds::new(60),
            immutable: Seconds::YEAR,
            adaptive: false,
            targets: Vec::new(),
            harmless: Vec::new(),
            set_cookie: SetCookie::Protect,
        }
    }
}
