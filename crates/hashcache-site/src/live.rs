//! The sites in the current configuration, with the state of their origins.
//!
//! `worker` in the proxy has one [`LiveSite`] per site, shared by all cores; `request` in the proxy
//! makes a [`SiteRequest`] per request, and `fetch/ask` reports the origins' results to it.
//!
//! Two internal fields lead from `request` in the proxy through the store and back, and are never
//! sent to anyone. `KEY` carries the values of the cache key rules, as a field that `Vary` names,
//! so that a purge of the URL finds all variants. [`ORIGIN`] names the origin of a stored response,
//! because the entity tags of two servers may differ.
//!
//! Invariant: a site's retries are at most a fifth of the requests, apart from retries of requests
//! that waited for an origin that is out of service now.
//! Cost: one lock per forwarded request and per result.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hashcache_base::failure::Failure;
use hashcache_base::net::address::Purpose;
use hashcache_http::{Authority, Exempt, Origin, Scheme, Target};
use hashcache_upstream::Endpoint;
use http::header::{ACCEPT_ENCODING, COOKIE, HOST, VARY};
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tokio::time::Instant;
use tracing::{info, warn};

use super::balance::{Balancer, Load};
use super::counters::{OriginCounters, OriginFigures};
use super::forwarded::{Forwarding, Speaker};
use super::header_rules::HeaderRules;
use super::health::{Change, Health, Outcome};
use super::key_rules::KeyRules;
use super::spec::{SentHost, Site, Sites};

/// The request field with the values of the cache key rules.
pub(crate) const KEY: HeaderName = HeaderName::from_static("hashcache-key");
/// The field in a stored response with the authority of the origin.
pub const ORIGIN: HeaderName = HeaderName::from_static("hashcache-origin");

/// A site and the state of its origins.
#[derive(Debug)]
pub struct LiveSite {
    /// The configuration of the site.
    pub spec: Site,
    /// The page that replaces the proxy's own error pages.
    pub error_page: Option<Bytes>,
    /// The Host fields for requests to the origins; `None`: `http` refuses it.
    host_fields: Vec<Option<HeaderValue>>,
    /// Stored responses are served unchanged to plain requests: no rule of the site reads other
    /// fields or changes the response.
    pub is_plain: bool,
    state: Mutex<State>,
    /// Unfinished requests to each origin.
    busy: Vec<AtomicU32>,
    counters: Vec<Arc<OriginCounters>>,
}

#[derive(Debug)]
struct State {
    balancer: Balancer,
    health: Health,
    retries: RetryBudget,
}

/// A fifth of a retry for each request.
#[derive(Clone, Copy, Debug)]
struct RetryBudget {
    fifths: u32,
}

impl RetryBudget {
    fn note_request(&mut self) {
        self.fifths = (self.fifths + 1).min(5 * RETRIES_SAVED);
    }

    fn take(&mut self) -> bool {
        let left = self.fifths.checked_sub(5);
        self.fifths = left.unwrap_or(self.fifths);
        left.is_some()
    }
}

/// The sites in the current configuration.
#[derive(Debug, Default)]
pub struct LiveSites {
    sites: Vec<Arc<LiveSite>>,
    names: Sites,
}

impl LiveSites {
    /// The state for `sites`. A site that is equal in `known` keeps its state, and an origin in a
    /// site with the same name keeps its counters.
    pub fn new(sites: &Sites, known: Option<&Self>) -> Self {
        let live = sites.all().iter().map(|spec| {
            let known = known.map_or(&[][..], Self::all);
            if let Some(same) = known.iter().find(|it| it.spec == *spec) {
                return Arc::clone(same);
            }
            let before = known.iter().find(|it| it.spec.name() == spec.name());
            Arc::new(LiveSite::new(spec.clone(), before.map(AsRef::as_ref)))
        });
        Self {
            sites: live.collect(),
            names: sites.clone(),
        }
    }

    /// The site that has this host.
    pub fn find(&self, authority: &Authority) -> Option<&Arc<LiveSite>> {
        self.names.find(authority).and_then(|n| self.sites.get(n))
    }

    /// The target under which responses for a client's URL are stored; `None`: no site has the
    /// host. For a site that serves any host, the target has the origin's authority.
    pub fn stored_as(&self, target: &Target) -> Option<Target> {
        let site = self.find(&target.authority)?;
        let authority = site.spec.any_host_authority();
        Some(Target {
            scheme: target.scheme,
            authority: authority.unwrap_or(&target.authority).clone(),
            path_and_query: site.spec.key.path_and_query(&target.path_and_query).into(),
        })
    }

    /// All sites, in configuration order.
    pub fn all(&self) -> &[Arc<LiveSite>] {
        &self.sites
    }
}

impl LiveSite {
    /// A site; `before` is the site's earlier configuration.
    fn new(spec: Site, before: Option<&Self>) -> Self {
        let origins = spec.origins.len();
        let counters = spec.origins.iter().map(|origin| {
            let known = before.map(|it| it.spec.origins.iter().zip(&it.counters));
            let mut known = known.into_iter().flatten();
            let same = known.find(|(it, _)| it.url == origin.url);
            same.map(|(_, counters)| Arc::clone(counters))
                .unwrap_or_default()
        });
        let urls = spec.origins.iter().map(|origin| &origin.url);
        let hosts = urls.map(|url| host_field(&url.authority, url.scheme));
        Self {
            counters: counters.collect(),
            host_fields: hosts.collect(),
            error_page: spec.error_page.clone().map(Bytes::from),
            is_plain: spec.key == KeyRules::default()
                && spec.request_headers == HeaderRules::default()
                && spec.response_headers == HeaderRules::default()
                && spec.compress.is_empty()
                && !spec.redirect_to_https,
            state: Mutex::new(State {
                balancer: Balancer::new(spec.balance, origins),
                health: Health::new(origins),
                retries: RetryBudget {
                    fifths: 5 * RETRIES_SAVED,
                },
            }),
            busy: (0..origins).map(|_| AtomicU32::new(0)).collect(),
            spec,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The origins for `url`, in the order in which to try them; `first`, if it is in service, at
    /// the front.
    pub fn endpoints(&self, url: &str, first: Option<&HeaderValue>) -> Vec<Endpoint> {
        let now = Instant::now();
        let mut state = self.state();
        state.retries.note_request();
        if let [origin] = &self.spec.origins[..] {
            let is_in_service = origin.weight > 0 && state.health.tenths(0, now) > 0;
            return Vec::from_iter(is_in_service.then(|| self.endpoint(0)));
        }
        let loads: Vec<Load> = self
            .spec
            .origins
            .iter()
            .zip(&self.busy)
            .enumerate()
            .map(|(n, (origin, busy))| Load {
                weight: u32::from(origin.weight) * state.health.tenths(n, now),
                busy: busy.load(Relaxed),
            })
            .collect();
        let mut order = state.balancer.order(&loads, url.as_bytes());
        drop(state);
        let is_first =
            |n: usize| first.is_some_and(|first| *first == *self.spec.origins[n].url.to_string());
        if let Some(at) = order.iter().position(|&n| is_first(n)) {
            order[..=at].rotate_right(1);
        }
        order.truncate(HOPS_MAX);
        order.into_iter().map(|n| self.endpoint(n)).collect()
    }

    /// The server of origin `n`.
    pub fn endpoint(&self, n: usize) -> Endpoint {
        let Origin { scheme, authority } = self.spec.origins[n].url.clone();
        Endpoint {
            authority,
            purpose: Purpose::Configured,
            scheme,
            through: None,
        }
    }

    fn number(&self, to: &Endpoint) -> Option<usize> {
        let is = |url: &Origin| url.authority == to.authority && url.scheme == to.scheme;
        self.spec.origins.iter().position(|origin| is(&origin.url))
    }

    /// Returns true if a request that failed at this origin may be sent to another origin. Retries
    /// are limited, so that they do not double the load when all origins are overloaded. A request
    /// that waited for an origin that is out of service now is moved, and is no such load.
    pub fn may_retry(&self, failed: &Endpoint) -> bool {
        !self.is_in_service(failed) || self.state().retries.take()
    }

    /// Returns true if requests are sent to this origin.
    pub fn is_in_service(&self, to: &Endpoint) -> bool {
        let number = self.number(to);
        number.is_none_or(|n| self.state().health.tenths(n, Instant::now()) > 0)
    }

    /// Notes the result of a request.
    pub fn note(&self, to: &Endpoint, outcome: Outcome) {
        if let Some(n) = self.number(to) {
            if matches!(outcome, Outcome::Unable | Outcome::Failed) {
                self.counters[n].failure();
            }
            let change = self.state().health.note(n, outcome, Instant::now());
            self.log(n, change);
        }
    }

    /// Changes the fields of a request for the store: removes fields that the site's rules hide,
    /// adds the values of the cache key rules, and, if the site encodes, removes the codings that
    /// the client accepts.
    pub fn prepare(&self, fields: &mut HeaderMap) {
        self.mark_key(fields);
        if !self.spec.compress.is_empty() {
            fields.remove(ACCEPT_ENCODING);
        }
    }

    /// Removes fields that the site's rules hide, and adds the field with the values of the cache
    /// key rules.
    pub fn mark_key(&self, fields: &mut HeaderMap) {
        self.spec.request_headers.hide(fields);
        fields.remove(KEY);
        if self.spec.key.has_parts() {
            let hex = |byte: &u8| format!("{byte:02x}");
            let value: String = self.spec.key.suffix(fields).iter().map(hex).collect();
            fields.extend(HeaderValue::try_from(value).ok().map(|value| (KEY, value)));
        }
    }

    /// Each origin with its counters.
    pub fn figures(&self) -> impl Iterator<Item = (&Origin, OriginFigures)> {
        let (now, state) = (Instant::now(), self.state());
        let origins = self.spec.origins.iter().zip(&self.counters);
        origins.enumerate().map(move |(n, (origin, counters))| {
            let is_out = state.health.tenths(n, now) == 0;
            let is_failing = state.health.is_failing(n);
            (&origin.url, counters.figures((is_out, is_failing)))
        })
    }

    /// Notes the result of a check on origin `n`.
    pub fn note_check(&self, n: usize, is_good: bool) {
        let change = self.state().health.note_check(n, is_good, Instant::now());
        self.log(n, change);
    }

    fn log(&self, n: usize, change: Option<Change>) {
        if matches!(change, Some(Change::Out(_) | Change::Down)) {
            self.counters[n].out();
        }
        let Some(change) = change else { return };
        let (site, origin) = (self.spec.name(), &self.spec.origins[n].url);
        match change {
            Change::Out(time) => {
                warn!(site, %origin, seconds = time.as_secs(), "origin fails, left out for a time");
            }
            Change::Down => warn!(site, %origin, "origin left out, its checks fail"),
            Change::Up => info!(site, %origin, "origin in service, its checks are good"),
        }
    }

    /// The Host field for an origin, if it differs from the field that the client sent.
    pub(crate) fn host_for(&self, to: &Endpoint) -> Option<HeaderValue> {
        match &self.spec.sent_host {
            SentHost::Client => None,
            SentHost::Origin => match self.number(to) {
                Some(number) => self.host_fields[number].clone(),
                None => host_field(&to.authority, to.scheme),
            },
            SentHost::Name(name) => Some(name.clone()),
        }
    }

    /// The Host field for a check.
    pub fn check_host(&self, to: &Endpoint) -> Option<HeaderValue> {
        let named = self.host_for(to);
        let first = || HeaderValue::try_from(self.spec.hosts.first()?.to_string()).ok();
        named.or_else(first)
    }

    /// The outcome of a failure for the origin's health; `None`: it has no effect on the health.
    pub fn outcome_of(failure: &Failure) -> Option<Outcome> {
        match failure {
            Failure::NameNotFound
            | Failure::NameError
            | Failure::NameTimeout(_)
            | Failure::Unreachable
            | Failure::ConnectionRefused
            | Failure::ConnectTimeout(_)
            | Failure::TlsCertificate(_)
            | Failure::TlsAlert(_)
            | Failure::TlsProtocol(_) => Some(Outcome::Failed),
            Failure::ConnectionTerminated
            | Failure::FirstByteTimeout(_)
            | Failure::ResponseMalformed(_) => Some(Outcome::Unable),
            _ => None,
        }
    }
}

/// The Host field for a request to this server.
fn host_field(authority: &Authority, scheme: Scheme) -> Option<HeaderValue> {
    HeaderValue::try_from(authority.host_field(scheme)).ok()
}

/// A request to a site.
#[derive(Debug)]
pub struct SiteRequest {
    /// The site.
    pub site: Arc<LiveSite>,
    /// The client's data that the origins get.
    pub forwarding: Forwarding,
    /// The host that the client named, if the origins may know it.
    pub host: Option<Authority>,
    /// The kind of sender.
    pub sender: Sender,
    /// True if the connection may carry requests from several clients.
    pub is_shared: bool,
}

/// The sender of a request to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A client, or a proxy on the client's side.
    Client,
    /// A member, which applies the rules for responses itself.
    Member,
}

/// An unfinished request to an origin.
#[derive(Debug)]
pub struct Busy {
    site: Arc<LiveSite>,
    number: usize,
    since: Instant,
}

impl Busy {
    /// Notes that the response head has arrived.
    pub fn note_response(&self) {
        self.site.counters[self.number].response(self.since.elapsed());
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.site.busy[self.number].fetch_sub(1, Relaxed);
    }
}

impl SiteRequest {
    /// The request fields that the key or a trusted front proxy has taken care of.
    pub fn exempt(&self) -> Exempt<'_> {
        let (_, keyed) = self.site.spec.key.parts();
        Exempt {
            keyed,
            by_front: self.forwarding.speaker == Speaker::Trusted,
            front_named_scheme: self.forwarding.names_scheme,
        }
    }

    /// Changes the request fields for the site's origins.
    pub fn prepare(&self, fields: &mut HeaderMap) {
        fields.remove(KEY);
        self.site.spec.request_headers.apply(fields);
        self.write_forwarding(fields);
    }

    /// Changes the request fields for the member that has the response. The request is sent on
    /// behalf of the client, and the member applies the site's rules itself.
    pub fn prepare_for_member(&self, fields: &mut HeaderMap) {
        fields.remove(KEY);
        self.write_forwarding(fields);
    }

    fn write_forwarding(&self, fields: &mut HeaderMap) {
        match &self.host {
            Some(host) => {
                let host = host.host_field(self.forwarding.scheme);
                self.forwarding.write(&host, fields);
            }
            None => self.forwarding.write_without_host(fields),
        }
    }

    /// Sets the Host field for an origin.
    pub fn set_host(&self, to: &Endpoint, fields: &mut HeaderMap) {
        if let Some(host) = self.site.host_for(to) {
            fields.insert(HOST, host);
        }
    }

    /// Counts a request that is about to be sent.
    pub fn begin(&self, to: &Endpoint) -> Option<Busy> {
        let number = self.site.number(to)?;
        self.site.busy[number].fetch_add(1, Relaxed);
        self.site.counters[number].request();
        Some(Busy {
            site: Arc::clone(&self.site),
            number,
            since: Instant::now(),
        })
    }

    /// Adds our internal fields to a response that is about to be judged and stored. If the site
    /// has only one origin, the origin field is not needed.
    pub fn mark<B>(
        &self,
        to: &Endpoint,
        (path, response): (&str, &mut Response<B>),
        targets: &[HeaderName],
    ) {
        self.mark_cookies((path, response), targets);
        // The fields of a 304 replace the stored fields; without `Vary`, the stored `Vary` stays.
        let keeps_vary =
            response.status() == StatusCode::NOT_MODIFIED && !response.headers().contains_key(VARY);
        let response = response.headers_mut();
        if self.site.spec.origins.len() > 1 {
            let Endpoint {
                scheme, authority, ..
            } = to.clone();
            let origin = Origin { scheme, authority }.to_string();
            if let Ok(origin) = HeaderValue::try_from(origin) {
                response.insert(ORIGIN, origin);
            }
        }
        if self.site.spec.key.has_parts() && !keeps_vary {
            response.append(VARY, HeaderValue::from_static("hashcache-key"));
        }
    }

    /// If the lifetime will be the site's default, the response may have been made for one user.
    /// Then `Vary` limits it to requests without cookies. This is also done for a response from a
    /// member, because that member may have an older configuration.
    pub fn mark_cookies<B>(
        &self,
        (path, response): (&str, &mut Response<B>),
        targets: &[HeaderName],
    ) {
        let (status, response) = (response.status(), response.headers_mut());
        let lifetimes = &self.site.spec.lifetimes;
        if lifetimes.limits_cookies(path, (status, response), targets) {
            response.append(VARY, HeaderValue::from_static("cookie"));
        }
    }

    /// Removes our internal fields from a response. Other caches must know which fields the key
    /// rules read.
    pub fn unmark(&self, response: &mut HeaderMap) {
        response.remove(ORIGIN);
        if !self.site.spec.key.has_parts() || !response.contains_key(VARY) {
            return;
        }
        let lines = response.get_all(VARY).iter().map(HeaderValue::as_bytes);
        let mut members: Vec<Vec<u8>> = lines
            .flat_map(|line| line.split(|&byte| byte == b','))
            .map(|member| member.trim_ascii().to_ascii_lowercase())
            .filter(|member| !member.is_empty() && member != KEY.as_str().as_bytes())
            .collect();
        let (cookies, fields) = self.site.spec.key.parts();
        let ours = cookies.then_some(COOKIE).into_iter();
        members.extend(
            ours.chain(fields.iter().cloned())
                .map(|it| it.as_str().into()),
        );
        members.sort();
        members.dedup();
        if let Ok(vary) = HeaderValue::from_bytes(&members.join(&b", "[..])) {
            response.insert(VARY, vary);
        }
    }
}

/// Origins that are tried for a request: two retries.
const HOPS_MAX: usize = 3;
/// Retries that a site saves while none are needed.
const RETRIES_SAVED: u32 = 20;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::spec::SiteOrigin;

    fn site(origins: usize) -> LiveSite {
        let mut spec = Site::at("http://127.0.0.1:8000".parse().unwrap());
        for n in 1..origins {
            spec.origins.push(SiteOrigin {
                url: format!("http://127.0.0.1:{}", 8000 + n).parse().unwrap(),
                weight: 1,
            });
        }
        LiveSite::new(spec, None)
    }

    fn request_to(site: &Arc<LiveSite>) -> SiteRequest {
        SiteRequest {
            site: Arc::clone(site),
            forwarding: Forwarding::read(
                [127, 0, 0, 1].into(),
                Scheme::Http,
                &HeaderMap::new(),
                |_| false,
            ),
            host: None,
            sender: Sender::Client,
            is_shared: false,
        }
    }

    fn ports(endpoints: &[Endpoint]) -> Vec<u16> {
        endpoints.iter().map(|it| it.authority.port).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_that_fails_gets_no_requests_for_a_time() {
        let site = site(2);
        let dead = site.endpoint(0);
        for _ in 0..3 {
            site.note(&dead, Outcome::Failed);
        }
        for _ in 0..4 {
            assert_eq!(ports(&site.endpoints("/", None)), [8001]);
        }
        tokio::time::advance(Duration::from_secs(30)).await;
        assert_eq!(site.endpoints("/", None).len(), 2);
    }

    #[test]
    fn the_origin_of_a_stored_response_is_asked_first() {
        let site = site(4);
        let first = HeaderValue::from_static("http://127.0.0.1:8002");
        for _ in 0..4 {
            let order = ports(&site.endpoints("/", Some(&first)));
            assert_eq!((order[0], order.len()), (8002, 3));
        }
    }

    #[test]
    fn retries_are_a_fifth_of_the_requests() {
        let site = site(2);
        let failed = site.endpoint(0);
        while site.may_retry(&failed) {}
        let retries = (0..1000).filter(|_| {
            site.endpoints("/", None);
            site.may_retry(&failed)
        });
        assert_eq!(retries.count(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn all_requests_leave_an_origin_that_is_out_of_service() {
        let site = site(2);
        let failed = site.endpoint(0);
        while site.may_retry(&failed) {}
        for _ in 0..3 {
            site.note(&failed, Outcome::Failed);
        }
        assert!((0..1000).all(|_| site.may_retry(&failed)));
        assert!(!site.may_retry(&site.endpoint(1)));
    }

    #[test]
    fn unfinished_requests_are_counted_until_they_end() {
        let site = Arc::new(site(2));
        let request = request_to(&site);
        let busy = request.begin(&site.endpoint(1));
        assert_eq!(site.busy[1].load(Relaxed), 1);
        drop(busy);
        assert_eq!(site.busy[1].load(Relaxed), 0);
    }

    #[test]
    fn a_reload_keeps_the_state_of_sites_that_did_not_change() {
        let spec = site(2).spec;
        let sites = Sites::new(vec![spec.clone()]).unwrap();
        let before = LiveSites::new(&sites, None);
        let same = LiveSites::new(&sites, Some(&before));
        assert!(Arc::ptr_eq(&before.all()[0], &same.all()[0]));
        let changed = Site {
            redirect_to_https: true,
            ..spec
        };
        let sites = Sites::new(vec![changed]).unwrap();
        let other = LiveSites::new(&sites, Some(&before));
        assert!(!Arc::ptr_eq(&before.all()[0], &other.all()[0]));
    }

    #[tokio::test(start_paused = true)]
    async fn an_origin_keeps_its_numbers_when_its_site_changes() {
        let mut spec = site(2).spec;
        spec.hosts = vec![hashcache_http::Host::parse("a.test").unwrap()];
        let before = LiveSites::new(&Sites::new(vec![spec.clone()]).unwrap(), None);
        let live = Arc::clone(&before.all()[0]);
        let request = request_to(&live);
        let busy = request.begin(&live.endpoint(1)).unwrap();
        tokio::time::advance(Duration::from_secs(2)).await;
        busy.note_response();
        for _ in 0..3 {
            live.note(&live.endpoint(1), Outcome::Failed);
        }
        let mut other = spec;
        other.origins.remove(0);
        let after = LiveSites::new(&Sites::new(vec![other]).unwrap(), Some(&before));
        let of = |site: &LiveSite| site.figures().map(|(_, it)| it).collect::<Vec<_>>();
        let expected = OriginFigures {
            requests: 1,
            failures: 3,
            outs: 1,
            is_out: true,
            is_failing: true,
            responses: 1,
            response_time: Duration::from_secs(2),
        };
        assert_eq!(of(&live), [OriginFigures::default(), expected]);
        // The changed site tries the origin anew.
        let unhindered = OriginFigures {
            is_out: false,
            is_failing: false,
            ..expected
        };
        assert_eq!(of(&after.all()[0]), [unhindered]);
    }
}
