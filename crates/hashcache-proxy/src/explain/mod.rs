//! Explains for operators how a request is answered, and which setting decides it.
//!
//! `admin` calls it for `GET /-/explain`, and `hashcache explain` prints the answer. The question
//! names a URL, and optionally method, fields, client, user and time. The answer has a part for
//! each step of a request, in the order of the steps: access, interception, store, route; and
//! `outcome`, which summarises all of them in a sentence.
//!
//! Invariants: nothing changes. No request is sent, no name is resolved, no peer is queried, the
//! store is read without a trace ([`hashcache::Cache::peek`]), and no turn of a choice among
//! parents is taken. The functions that decide about requests decide here too (`reuse`, `route`,
//! `hashcache_base::net::address`, `Interceptor::judge`), so the answers match the real behaviour.
//! If a step depends on more than the question (addresses of a name, replies of peers, a
//! ClientHello), the answer states that.

mod access;
mod limits;
mod question;
mod route;
mod store;

use std::sync::Arc;
use std::time::Duration;

use hashcache::Cache;
use hashcache_http::{Authority, Scheme, Space, Target, UnixTime};
use hashcache_intercept::{InterceptKind, Reason};
use hashcache_site::forwarded::{Speaker, strip_forwarded};
use hashcache_site::live::LiveSite;
use hashcache_site::mirror::MirrorLookup;
use http::{HeaderMap, Method};
use serde_json::{Map, Value, json};

use self::access::{Arrival, Checks};
pub(crate) use self::question::Question;
use self::store::{Need, StoreView};
use crate::worker::Common;

/// Answers questions about requests.
pub(crate) struct Explainer {
    common: Arc<Common>,
    cache: Cache,
}

/// The request in question, as the proxy sees it.
struct Asked<'a> {
    question: &'a Question,
    space: Space,
    target: Target,
    /// Request fields as the store sees them.
    fields: HeaderMap,
    /// The site, in a reverse proxy.
    site: Option<Arc<LiveSite>>,
    /// True if an access rule keeps the request from the store.
    is_no_cache: bool,
}

impl Asked<'_> {
    /// Returns the request time.
    fn at(&self, common: &Common) -> UnixTime {
        self.question.at.unwrap_or_else(|| common.now())
    }
}

impl Explainer {
    pub(crate) fn new(common: Arc<Common>, cache: Cache) -> Self {
        Self { common, cache }
    }

    /// Returns the answer as JSON.
    ///
    /// # Errors
    /// Describes the mistake in the question.
    pub(crate) async fn answer(&self, question: &Question) -> Result<Value, String> {
        let mut answer = question.to_json(self.common.now());
        let parts = if self.common.is_reverse() {
            self.in_front(question).await?
        } else {
            self.forward(question).await?
        };
        answer.extend(parts);
        Ok(Value::Object(answer))
    }

    /// Explains a request to a forward proxy.
    async fn forward(&self, question: &Question) -> Result<Map<String, Value>, String> {
        let mut parts = Map::new();
        let mut asked = Asked {
            question,
            space: self.common.space(),
            fields: question.fields.clone(),
            target: question.target()?,
            site: None,
            is_no_cache: false,
        };
        let arrival = match self.own(&asked) {
            Some(outcome) => Err(outcome),
            None => self.arrival(&mut asked, &mut parts),
        };
        let arrival = match arrival {
            Ok(arrival) => arrival,
            Err(outcome) => {
                parts.insert("outcome".to_owned(), json!(outcome));
                return Ok(parts);
            }
        };
        let mut checks = access::of_forward(&self.common, &asked, arrival);
        let is_over =
            arrival == Arrival::Connect && self.ends_with_connect(&asked, &mut checks, &mut parts);
        parts.insert("access".to_owned(), checks.to_json());
        if is_over {
            return Ok(parts);
        }
        asked.is_no_cache = checks.is_no_cache();
        self.stored_and_route(&asked, &checks, &mut parts).await;
        Ok(parts)
    }

    /// Returns the outcome if the request is for the proxy itself and not for a mirror.
    fn own(&self, asked: &Asked<'_>) -> Option<&'static str> {
        let (common, authority) = (&self.common, &asked.target.authority);
        let live = common.live();
        let interceptor = live.intercept.as_ref();
        let is_self_test =
            || interceptor.is_some_and(|it| it.judge(authority) == Ok(InterceptKind::SelfTest));
        match () {
            () if common.is_admin(authority) => Some(OUTCOME_ADMIN),
            () if asked.question.method.as_str() == "PURGE" => Some(OUTCOME_PURGE),
            () if asked.question.method == Method::CONNECT => {
                common.is_us(authority).then_some(OUTCOME_LOOP)
            }
            () if is_self_test() => Some(OUTCOME_OWN),
            () => None,
        }
    }

    /// Returns how the request reaches the proxy. Browsers request https URLs by CONNECT. A request
    /// for a mirror becomes a request for the mirror's registry.
    ///
    /// # Errors
    /// The proxy answers the request itself; the error is the outcome.
    fn arrival(
        &self,
        asked: &mut Asked<'_>,
        parts: &mut Map<String, Value>,
    ) -> Result<Arrival, &'static str> {
        if !self.common.is_us(&asked.target.authority) {
            let by_connect =
                asked.question.method == Method::CONNECT || asked.target.scheme == Scheme::Https;
            return Ok(if by_connect {
                Arrival::Connect
            } else {
                Arrival::Absolute
            });
        }
        let live = self.common.live();
        match live.mirrors.resolve(&asked.target.path_and_query) {
            Some(MirrorLookup::To(mirror, space, route)) => {
                parts.insert("mirror".to_owned(), json!(mirror.name()));
                (asked.space, asked.target) = (space, route.target);
                Ok(Arrival::Mirrored)
            }
            Some(_) => Err(OUTCOME_NO_MIRROR),
            None => Err(OUTCOME_OWN),
        }
    }

    /// Explains a CONNECT. Returns true if the answer is complete then: the CONNECT makes a tunnel,
    /// or the question is only about the CONNECT.
    fn ends_with_connect(
        &self,
        asked: &Asked<'_>,
        checks: &mut Checks,
        parts: &mut Map<String, Value>,
    ) -> bool {
        let mut interception = if checks.is_tunnel() {
            json!({"decision": "tunnel", "reason": "rule", "why": WHY_RULE})
        } else {
            self.interception(asked)
        };
        let is_tunnel = interception["decision"] == "tunnel";
        if !is_tunnel && checks.denied().is_some() {
            interception["why"] = json!(WHY_REFUSED);
            interception["certificate"] = Value::Null;
        }
        parts.insert("interception".to_owned(), interception);
        if !is_tunnel && asked.question.method != Method::CONNECT {
            if checks.denied().is_none() {
                access::add_inside(&self.common, asked, checks);
            }
            return false;
        }
        let route = route::of_tunnel(&self.common, asked);
        let outcome = match (checks.denied(), is_tunnel) {
            (Some(denied), _) => denied,
            (None, false) => OUTCOME_INTERCEPTED.to_owned(),
            (None, true) => match checks.used_up() {
                Some(used_up) => used_up.to_owned(),
                None if route["cut_off"] == true => OUTCOME_OFFLINE.to_owned(),
                None => OUTCOME_TUNNEL.to_owned(),
            },
        };
        parts.insert("route".to_owned(), route);
        parts.insert("outcome".to_owned(), json!(outcome));
        true
    }

    /// Explains a request to a proxy in front of sites.
    async fn in_front(&self, question: &Question) -> Result<Map<String, Value>, String> {
        let mut parts = Map::new();
        let target = question.target()?;
        let live = self.common.live();
        let site = live.sites.find(&target.authority).cloned();
        let stored_as = live.sites.stored_as(&target);
        drop(live);
        let Some((site, target)) = site.zip(stored_as) else {
            parts.insert("outcome".to_owned(), json!(OUTCOME_NO_SITE));
            return Ok(parts);
        };
        parts.insert("site".to_owned(), json!(site.spec.name()));
        if site.spec.redirect_to_https && target.scheme == Scheme::Http {
            parts.insert("outcome".to_owned(), json!(OUTCOME_REDIRECT));
            return Ok(parts);
        }
        let mut fields = question.fields.clone();
        strip_forwarded(&mut fields, Speaker::Untrusted, &site.spec.pass_fields);
        site.prepare(&mut fields);
        let asked = Asked {
            question,
            space: self.common.space(),
            target,
            fields,
            site: Some(site),
            is_no_cache: false,
        };
        let checks = access::of_site(&self.common, &asked);
        parts.insert("access".to_owned(), checks.to_json());
        self.stored_and_route(&asked, &checks, &mut parts).await;
        Ok(parts)
    }

    async fn stored_and_route(
        &self,
        asked: &Asked<'_>,
        checks: &Checks,
        parts: &mut Map<String, Value>,
    ) {
        let reading = store::view(&self.common, &self.cache, asked);
        let Ok(view) = tokio::time::timeout(READ_TIME, reading).await else {
            parts.insert(
                "store".to_owned(),
                json!({"state": "unknown", "why": WHY_SLOW}),
            );
            return;
        };
        let route = route::of_fetch(&self.common, asked);
        let is_cut_off = route["cut_off"] == true;
        let StoreView {
            json,
            outcome,
            need,
        } = view;
        let outcome = match (checks.denied(), checks.used_up(), need) {
            (Some(denied), _, _) => denied,
            (None, _, Need::Nothing) => outcome,
            (None, Some(_), Need::AnswerOrStored { beyond_quota: true }) => {
                OUTCOME_QUOTA.to_owned()
            }
            (None, Some(used_up), _) => used_up.to_owned(),
            (None, None, Need::Answer) if is_cut_off => OUTCOME_OFFLINE.to_owned(),
            (None, None, Need::AnswerOrStored { .. }) if is_cut_off => {
                OUTCOME_UNVALIDATED.to_owned()
            }
            (None, None, _) => outcome,
        };
        parts.insert("store".to_owned(), json);
        parts.insert("route".to_owned(), route);
        parts.insert("outcome".to_owned(), json!(outcome));
    }

    /// Explains if the proxy terminates TLS inside a CONNECT to the target.
    fn interception(&self, asked: &Asked<'_>) -> Value {
        let (common, authority) = (&self.common, &asked.target.authority);
        let live = common.live();
        let Some(interceptor) = &live.intercept else {
            return json!({"decision": "tunnel", "reason": "off", "why": WHY_OFF});
        };
        match interceptor.judge(authority) {
            Err(reason) => {
                json!({"decision": "tunnel", "reason": reason.as_str(), "why": why_not(reason)})
            }
            Ok(InterceptKind::SelfTest) => json!({"decision": "intercept", "why": WHY_SELF_TEST}),
            Ok(InterceptKind::Origin) => {
                let verified = common.intercept.verified.not_after(authority, common.now());
                let refusing = self.refuses(asked, authority);
                json!({
                    "decision": "intercept",
                    "why": "the host is in `intercept.hosts` or a list of `intercept.lists`",
                    "certificate": match verified {
                        Some(_) => "the origin's certificate was found valid within a week",
                        None => "the origin's certificate is checked at the first connection",
                    },
                    "refused_by_programs_of_the_client": refusing,
                })
            }
        }
    }

    /// Returns true if a client program refuses the proxy's certificates for this host and
    /// therefore gets tunnels.
    fn refuses(&self, asked: &Asked<'_>, authority: &Authority) -> bool {
        let now = tokio::time::Instant::now();
        let (_, refusers) = self.common.intercept.refusals.refusers(REFUSERS_MAX, now);
        let host = authority.host.to_string();
        refusers.iter().any(|refuser| {
            *refuser.host == *host && asked.question.client.is_none_or(|it| it == refuser.client)
        })
    }
}

/// Explains in words why a host is not intercepted.
fn why_not(reason: Reason) -> &'static str {
    match reason {
        Reason::NotListed => {
            "the host is neither in `intercept.hosts` nor in a list of `intercept.lists`"
        }
        Reason::Never => "the host is on the never-list",
        Reason::Address => "the host is an address, and certificates are made for names",
        Reason::NotPermitted => "the CA is limited to other domains",
        _ => "see docs/operate/https.md, Interception",
    }
}

const OUTCOME_ADMIN: &str = "refused: the admin pages cannot be reached through the proxy";
const OUTCOME_OWN: &str = "answered by the proxy itself: the URL is one of its own";
const OUTCOME_PURGE: &str = "a purge, for clients of `allow_purge`; see `hashcache purge`";
const OUTCOME_LOOP: &str = "refused (loop): a tunnel to the proxy itself";
const OUTCOME_NO_MIRROR: &str = "refused: no mirror has this path";
const OUTCOME_NO_SITE: &str = "refused with 421: no site has this host";
const OUTCOME_REDIRECT: &str = "redirected to https, by `redirect_to_https` of the site";
const OUTCOME_TUNNEL: &str = "passed on in a tunnel: nothing is looked up or stored";
const OUTCOME_INTERCEPTED: &str =
    "intercepted: requests inside are answered like others; ask about their URL with GET";
const OUTCOME_OFFLINE: &str =
    "answered with 504 (offline): all next hops lie behind a line that counts as down";
const OUTCOME_UNVALIDATED: &str =
    "answered from the store, not validated: all next hops lie behind a line that counts as down";
const OUTCOME_QUOTA: &str = "answered from the store, not validated: a quota is used up";
const WHY_OFF: &str = "no `intercept.ca` is set";
const WHY_RULE: &str = "the access rule has the action `tunnel`";
const WHY_REFUSED: &str = "the host is listed, but the client may not have it: nothing is sent \
                           there. If an access rule refuses it, and no other one has the action \
                           `tunnel` for it, a browser gets the page about that inside TLS";
const WHY_SELF_TEST: &str = "it is the host of the page that tests whether a device trusts the CA";
const WHY_SLOW: &str = "the disk did not answer in time";

/// Maximum refusing programs that are searched.
const REFUSERS_MAX: usize = 1000;
/// How long the disk may take.
const READ_TIME: Duration = Duration::from_secs(10);
