//! Access rules for one client, kept between requests.
//!
//! Made by `server` for each connection, and by `peers` for each query of a peer; `request` and
//! `connect` evaluate it for each request.
//!
//! Invariant: a reload applies to every request that starts after it, also on a connection that
//! stays open. Cost: without rules one comparison per request; after a reload the networks of all
//! rules are compared with the address once.

use std::cell::{Ref, RefCell};
use std::net::IpAddr;

use hashcache_access::{
    AccessAction, AccessRequest, ClientRules, Decision, HostHashes, RequestUser, TimedRules,
    UserNeeded,
};
use hashcache_base::failure::{Failure, RuleDenial};
use hashcache_http::Authority;

use crate::worker::{Common, LiveSettings, Worker};

/// Rules that can match one client.
pub(crate) struct ClientAccess {
    address: IpAddr,
    known: RefCell<Known>,
}

/// Rules for the client in one generation of the settings.
struct Known {
    generation: u64,
    rules: ClientRules,
    refused: Option<Failure>,
}

impl ClientAccess {
    pub(crate) fn new(address: IpAddr, live: &LiveSettings) -> Self {
        let known = RefCell::new(Known::new(address, live));
        Self { address, known }
    }

    /// Returns the failure if all requests of the client are refused.
    pub(crate) fn refused(&self, live: &LiveSettings) -> Option<Failure> {
        self.known(live).refused.clone()
    }

    /// Returns the decision on a request, or that the decision needs the user.
    ///
    /// # Errors
    /// The client may not make the request.
    pub(crate) fn permit(
        &self,
        worker: &Worker,
        live: &LiveSettings,
        (user, method, authority): (RequestUser<'_>, &str, &Authority),
    ) -> Result<Result<Decision, UserNeeded>, Failure> {
        let decision = match self.decide(worker, live, (user, method, authority)) {
            Ok(decision) => decision,
            Err(needed) => return Ok(Err(needed)),
        };
        match decision.action {
            AccessAction::Deny => Err(self.failure(live, decision)),
            _ => Ok(Ok(decision)),
        }
    }

    /// Returns true if a GET may be answered from memory at once, which requires that no limits
    /// apply. `user` is evaluated only if there are rules.
    pub(crate) fn permits_stored<'a>(
        &self,
        worker: &Worker,
        live: &LiveSettings,
        user: impl FnOnce() -> RequestUser<'a>,
        authority: &Authority,
    ) -> bool {
        if live.settings.access.is_empty() {
            return self.known(live).refused.is_none();
        }
        let decision = self.decide(worker, live, (user(), "GET", authority));
        decision.is_ok_and(|Decision { action, rule }| {
            matches!(action, AccessAction::Allow | AccessAction::Tunnel)
                && rule.is_none_or(|rule| live.settings.access.limits(rule) == 0)
        })
    }

    /// Returns the limits that rules may set for requests of this user, one bit each.
    pub(crate) fn limits_of(&self, live: &LiveSettings, user: RequestUser<'_>) -> u64 {
        live.settings
            .access
            .limits_of(&self.known(live).rules, user)
    }

    /// Returns true if a rule for hosts can refuse the client a tunnel.
    pub(crate) fn judges_hosts(&self, live: &LiveSettings) -> bool {
        live.settings.access.judge_hosts(&self.known(live).rules)
    }

    /// Returns true if a request of some method, now or later, may need the user.
    pub(crate) fn may_need_user(&self, live: &LiveSettings, authority: &Authority) -> bool {
        let in_list = |list, host: &HostHashes| live.lists.has(list, host);
        let there = (&authority.host, authority.port);
        let known = self.known(live);
        live.settings
            .access
            .may_need_user(&known.rules, there, in_list)
    }

    /// Returns true if a rule, for some user at some time, keeps TLS to this host from being
    /// intercepted.
    pub(crate) fn may_be_tunnel(&self, live: &LiveSettings, authority: &Authority) -> bool {
        let in_list = |list, host: &HostHashes| live.lists.has(list, host);
        let there = (&authority.host, authority.port);
        let known = self.known(live);
        live.settings
            .access
            .may_be_tunnel(&known.rules, there, in_list)
    }

    /// Returns the action for a GET that a peer announces by a query. The rules of this minute are
    /// selected for each query, because no core handles it and queries are few.
    pub(crate) fn of_query(&self, common: &Common, authority: &Authority) -> AccessAction {
        let live = common.live();
        let timed = live.rules_at(common.clock.now().seconds());
        let request = (RequestUser::Unknowable, "GET", authority);
        let decision = self.decide_at(&timed, &live, request);
        decision.map_or(AccessAction::Deny, |decision| decision.action)
    }

    fn decide(
        &self,
        worker: &Worker,
        live: &LiveSettings,
        request: (RequestUser<'_>, &str, &Authority),
    ) -> Result<Decision, UserNeeded> {
        self.decide_at(&worker.timed_rules(live), live, request)
    }

    fn decide_at(
        &self,
        timed: &TimedRules,
        live: &LiveSettings,
        (user, method, authority): (RequestUser<'_>, &str, &Authority),
    ) -> Result<Decision, UserNeeded> {
        let request = AccessRequest {
            user,
            method,
            host: &authority.host,
            port: authority.port,
        };
        let in_list = |list, host: &HostHashes| live.lists.has(list, host);
        let known = self.known(live);
        live.settings
            .access
            .decide(&known.rules, timed, &request, in_list)
    }

    fn failure(&self, live: &LiveSettings, decision: Decision) -> Failure {
        failure(live, self.address, decision)
    }

    fn known(&self, live: &LiveSettings) -> Ref<'_, Known> {
        if self.known.borrow().generation != live.generation {
            self.known.replace(Known::new(self.address, live));
        }
        self.known.borrow()
    }
}

impl Known {
    fn new(address: IpAddr, live: &LiveSettings) -> Self {
        let by_default = live.clients.check(address).is_ok();
        let rules = live.settings.access.client(address, by_default);
        let refusal = live.settings.access.refusal(&rules);
        Self {
            generation: live.generation,
            rules,
            refused: refusal.map(|decision| failure(live, address, decision)),
        }
    }
}

/// Returns the failure of a refused request.
pub(crate) fn failure(live: &LiveSettings, client: IpAddr, decision: Decision) -> Failure {
    let Some(rule) = decision.rule else {
        return Failure::ClientDenied { client };
    };
    let access = &live.settings.access;
    Failure::RuleDenied(Box::new(RuleDenial {
        rule: access.label(rule).into(),
        reason: access.reason(rule).map(Box::from),
        contact: access.contact().map(Box::from),
    }))
}
