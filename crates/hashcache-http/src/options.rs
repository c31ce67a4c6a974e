//! The settings of the rules of storing.
//!
//! Filled by the proxy from its own settings; read by `freshness` and `storable`.

use http::HeaderName;

use crate::date::Seconds;
use crate::heuristic::Heuristic;
use crate::rules::Rules;
use crate::site_lifetime::SiteLifetimes;

/// Settings of the rules of storing.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Freshness rules by host and path.
    pub rules: Rules,
    /// The lifetimes of the sites of a reverse proxy.
    pub sites: SiteLifetimes,
    /// The lifetime of responses that state none.
    pub heuristic: Heuristic,
    /// The lifetime of 404 and 410 that state none.
    pub negative: Seconds,
    /// The lifetime of responses that match an `immutable` rule.
    pub immutable: Seconds,
    /// Whether a guessed lifetime doubles each time the response proves unchanged.
    pub adaptive: bool,
    /// Fields that speak to this kind of cache before Cache-Control does (RFC 9213).
    pub targets: Vec<HeaderName>,
    /// Request fields that count as harmless beside the built-in list: no origin chooses content or
    /// recognises a client by them.
    pub harmless: Vec<HeaderName>,
    /// The condition for storing a response that sets a cookie.
    pub set_cookie: SetCookie,
}

/// The treatment of a 200 with `Set-Cookie`. A 304 and the response to a HEAD never add that field
/// to a stored response, whatever this setting is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetCookie {
    /// Stored only if the origin (`public`, `s-maxage`) or a rule of the operator says that it is
    /// for everybody. Most origins that set a cookie with `max-age` mean the browser's cache.
    #[default]
    Protect,
    /// It is stored like any other (RFC 9111 7.3).
    Rfc,
}

impl Default for StoreOptions {
    /// The shipped rules; 10 % of the age at most a day; one minute for what is not there; a year
    /// for what does not change; no targeted fields; cookies protected.
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
