//! Freshness lifetimes that an operator sets for the responses of a site: a default if the origin
//! states none, and an upper limit.
//!
//! `freshness` looks up a lifetime once per response that may be stored. The proxy calls
//! [`Lifetimes::limits_cookies`] when a response has arrived.
//!
//! Invariants: the default applies only if RFC 9111 allows a heuristic (section 4.2.2), and the
//! limit only shortens, so no setting here contradicts the origin. Unless the operator sets
//! `ignore_cookies`, a response with the default lifetime is stored only for requests without
//! cookies, because it may otherwise be made for a single user.
//! Cost: a comparison with the ends of the site's path patterns; without lifetimes, no work.

use std::collections::HashMap;
use std::sync::Arc;

use http::header::{COOKIE, EXPIRES, HeaderMap, HeaderName, SET_COOKIE};
use http::{Method, StatusCode};
use serde::Deserialize;

use crate::authority::Host;
use crate::cache_control::ResponseDirectives;
use crate::date::Seconds;
use crate::exchange::Exchange;
use crate::glob::{Crosses, Globs};
use crate::request_fields::FieldKinds;
use crate::rules::{DurationText, Patterns, RuleError, add};
use crate::target::Target;
use crate::vary::Vary;

/// A lifetime as written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LifetimeSpec {
    path: Option<Patterns>,
    default: Option<DurationText>,
    max: Option<DurationText>,
    #[serde(default)]
    ignore_cookies: bool,
}

/// Compiled lifetimes for a site; the first with a matching path decides.
#[derive(Clone, Debug, Default)]
pub struct Lifetimes {
    specs: Vec<LifetimeSpec>,
    paths: Globs,
    /// The lifetime index for each path pattern; ascending.
    spec_of_path: Vec<usize>,
}

impl PartialEq for Lifetimes {
    fn eq(&self, other: &Self) -> bool {
        self.specs == other.specs
    }
}

impl Eq for Lifetimes {}

impl Lifetimes {
    /// Compiles these lifetimes; the first has priority.
    ///
    /// # Errors
    ///
    /// A malformed pattern, or a lifetime with neither `default` nor `max`.
    pub fn new(specs: Vec<LifetimeSpec>) -> Result<Self, RuleError> {
        let mut paths = Globs::new();
        let mut spec_of_path = Vec::new();
        for (at, spec) in specs.iter().enumerate() {
            let every = ["/**".to_owned()];
            let patterns = spec.path.as_ref().map_or(&every[..], |path| &path.0);
            if spec.default.is_none() && spec.max.is_none() {
                return Err(RuleError::Lifetime {
                    path: patterns.join(", "),
                });
            }
            for pattern in patterns {
                if !pattern.starts_with('/') {
                    return Err(RuleError::Path {
                        pattern: pattern.clone(),
                    });
                }
                add(&mut paths, pattern, Crosses::DoubleStar)?;
                spec_of_path.push(at);
            }
        }
        Ok(Self {
            specs,
            paths,
            spec_of_path,
        })
    }

    /// Returns true if the site has no lifetimes.
    pub fn is_empty(&self) -> bool {
        self.specs.is_empty()
    }

    /// Returns true if the proxy must store this response only for requests without cookies, by
    /// adding `Cookie` to `Vary` before it calls `storable`: the response gets the default
    /// lifetime, and the operator has not set `ignore_cookies`. `targets`: as in
    /// [`StoreOptions`](crate::StoreOptions).
    ///
    /// A 304 needs it only if it has a Vary, because that Vary would replace the stored field.
    pub fn limits_cookies(
        &self,
        path: &str,
        (status, response): (StatusCode, &HeaderMap),
        targets: &[HeaderName],
    ) -> bool {
        let has_cookies = |spec: &LifetimeSpec| spec.default.is_some() && !spec.ignore_cookies;
        if !self.find(path).is_some_and(has_cookies) || names_cookie(response) {
            return false;
        }
        match status {
            StatusCode::NOT_MODIFIED => matches!(Vary::parse(response), Vary::Fields(_)),
            status => {
                let directives = ResponseDirectives::for_targets(response, targets);
                has_default(status) && !states_lifetime(response, &directives)
            }
        }
    }

    /// The lifetime for a path without the query.
    fn find(&self, path: &str) -> Option<&LifetimeSpec> {
        if self.specs.is_empty() {
            return None;
        }
        let first = self.paths.matches(path).next()?;
        self.specs.get(*self.spec_of_path.get(first)?)
    }
}

/// The lifetimes of all sites, by host.
#[derive(Clone, Debug, Default)]
pub struct SiteLifetimes(HashMap<Host, Arc<Lifetimes>>);

impl SiteLifetimes {
    /// Adds the lifetimes for a site with these hosts.
    pub fn insert<'a>(&mut self, hosts: impl IntoIterator<Item = &'a Host>, lifetimes: &Lifetimes) {
        if lifetimes.is_empty() {
            return;
        }
        let shared = Arc::new(lifetimes.clone());
        let hosts = hosts.into_iter().cloned();
        self.0.extend(hosts.map(|host| (host, Arc::clone(&shared))));
    }

    fn find(&self, target: &Target) -> Option<&LifetimeSpec> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&target.authority.host)?.find(target.path())
    }

    /// The default lifetime for a response without a stated lifetime. `kinds` are from the request
    /// that the content answers.
    pub(crate) fn default_for(
        &self,
        exchange: &Exchange<'_>,
        kinds: FieldKinds,
    ) -> Option<Seconds> {
        let spec = self.find(exchange.target)?;
        let DurationText(seconds) = spec.default?;
        let is_for_all = *exchange.method == Method::GET
            && has_default(exchange.status)
            && !exchange.response.contains_key(SET_COOKIE)
            && !kinds.has(FieldKinds::ANY_AUTHORIZATION);
        let without_cookies =
            || !kinds.has(FieldKinds::ANY_COOKIE) && names_cookie(exchange.response);
        (is_for_all && (spec.ignore_cookies || without_cookies())).then_some(seconds)
    }

    /// The upper limit for a response's lifetime.
    pub(crate) fn max_for(&self, target: &Target) -> Option<Seconds> {
        let DurationText(seconds) = self.find(target)?.max?;
        Some(seconds)
    }
}

/// Returns true if the default applies to this status: content and permanent redirects. Errors get
/// the `negative` lifetime; a temporary redirect, often to a login page, is fetched each time.
fn has_default(status: StatusCode) -> bool {
    matches!(status.as_u16(), 200 | 203 | 204 | 206 | 300 | 301 | 308)
}

fn names_cookie(response: &HeaderMap) -> bool {
    match Vary::parse(response) {
        Vary::Fields(names) => names.contains(&COOKIE),
        Vary::Nothing | Vary::Anything | Vary::TooWide => false,
    }
}

/// Returns true if the origin states a lifetime, valid or not.
fn states_lifetime(response: &HeaderMap, directives: &ResponseDirectives) -> bool {
    directives.s_maxage.is_some()
        || directives.max_age.is_some()
        || !directives.targeted && response.contains_key(EXPIRES)
}
