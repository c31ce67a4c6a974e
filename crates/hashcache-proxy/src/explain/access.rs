//! Explains if the request is allowed: each check that the proxy makes, with the rule or the
//! setting that decides.
//!
//! Called by `explain`. Evaluates the compiled rules as `permission` and `client_access` do, in the
//! same order, but with the client, the user and the time of the question.

use std::sync::Arc;

use arc_swap::Guard;
use hashcache_access::quota::Sender;
use hashcache_access::{
    AccessAction, AccessRequest, ClientRules, Decision, HostHashes, RequestUser, TimedRules,
};
use hashcache_base::failure::Failure;
use hashcache_base::net::address::{ClientRule, Purpose, check_connect_port, check_port};
use hashcache_base::net::prefix::Prefix;
use hashcache_base::share::Network;
use hashcache_http::{Authority, Space};
use http::Method;
use serde_json::{Value, json};

use super::{Asked, limits};
use crate::client_access::failure;
use crate::route::literal_address;
use crate::worker::{Common, LiveSettings};

/// Checks for a request, in their order.
#[derive(Default)]
pub(super) struct Checks {
    checks: Vec<Check>,
    /// The rules' action for the request, unless they refuse it.
    action: Option<AccessAction>,
    /// User whom the rules have checked.
    user: Option<String>,
    /// Outcome if a next hop is needed but a quota is used up.
    used_up: Option<String>,
    /// The request's local time, if rules have times.
    local_time: Option<String>,
}

struct Check {
    /// Name of the check.
    what: &'static str,
    /// The deciding rule or setting, or the reason.
    by: String,
    refused: Option<&'static str>,
    /// The access rule, if a rule decides.
    rule: Option<Value>,
}

impl Checks {
    fn add(&mut self, what: &'static str, by: impl Into<String>, outcome: Result<(), Failure>) {
        self.checks.push(Check {
            what,
            by: by.into(),
            refused: outcome.err().map(|failure| failure.slug()),
            rule: None,
        });
    }

    /// Returns the outcome if a check refuses the request.
    pub(super) fn denied(&self) -> Option<String> {
        let check = self.checks.iter().find(|check| check.refused.is_some())?;
        let error = check.refused.unwrap_or_default();
        Some(format!("refused ({error}): {}", check.by))
    }

    /// Returns the outcome if a next hop is needed but a used-up quota forbids it.
    pub(super) fn used_up(&self) -> Option<&str> {
        self.used_up.as_deref()
    }

    /// Returns true if a rule makes a CONNECT a tunnel, whatever `intercept` specifies.
    pub(super) fn is_tunnel(&self) -> bool {
        self.action == Some(AccessAction::Tunnel)
    }

    /// Returns true if a rule keeps the request from the store.
    pub(super) fn is_no_cache(&self) -> bool {
        self.action == Some(AccessAction::NoCache)
    }

    pub(super) fn to_json(&self) -> Value {
        let checks = self.checks.iter().map(|check| {
            json!({
                "check": check.what,
                "allowed": check.refused.is_none(),
                "by": check.by,
                "error": check.refused,
                "rule": check.rule,
            })
        });
        json!({
            "allowed": self.denied().is_none(),
            "local_time": self.local_time,
            "checks": checks.collect::<Vec<_>>(),
        })
    }
}

/// How the request in question reaches the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// With an absolute URL.
    Absolute,
    /// By CONNECT to the host and port.
    Connect,
    /// As a request for a mirror; the client cannot be challenged for a login.
    Mirrored,
}

/// Returns the checks for a request to a forward proxy.
pub(super) fn of_forward(common: &Common, asked: &Asked<'_>, arrival: Arrival) -> Checks {
    let asking = Asking::new(common, asked);
    let mut checks = Checks::default();
    if asking.live.settings.access.has_times() {
        let minute = asking.live.week_minute(asked.at(common).0);
        checks.local_time = Some(minute.to_string());
    }
    if let Some(refusal) = asking.live.settings.access.refusal(&asking.rules) {
        asking.decided(&mut checks, Ok(refusal));
        return checks;
    }
    asking.gateway(&mut checks);
    asking.permission(&mut checks, arrival);
    let (scheme, port) = (asked.target.scheme, asked.target.authority.port);
    match (arrival, asked.space) {
        (Arrival::Connect, _) => {
            let allowed = check_connect_port(&asking.live.settings.allow_connect_port, port);
            checks.add("port", "`allow_connect_port`", allowed);
        }
        (_, Space::Own) => {
            let allowed = check_port(&asking.live.settings.allow_port, scheme, port);
            checks.add("port", "`allow_port`", allowed);
        }
        (_, Space::Site(_) | Space::Mirror(_)) => {}
    }
    if asked.space == Space::Own {
        asking.destination(&mut checks);
    }
    checks
}

/// Adds the decision of the rules on the request itself, inside the connection that CONNECT has
/// opened: there the user is the CONNECT's user, because no login is possible inside.
pub(super) fn add_inside(common: &Common, asked: &Asked<'_>, checks: &mut Checks) {
    let asking = Asking::new(common, asked);
    let user = checks.user.clone();
    let user = user
        .as_deref()
        .map_or(RequestUser::Unknowable, RequestUser::Known);
    let decided = asking.decide(user, asked.question.method.as_str());
    asking.decided(checks, decided);
}

/// Returns the checks for a request to a site: a site is for all clients, and the operator has
/// chosen the origins.
pub(super) fn of_site(common: &Common, asked: &Asked<'_>) -> Checks {
    let asking = Asking::new(common, asked);
    let mut checks = Checks::default();
    let decision = asking.live.settings.access.refusal(&asking.rules);
    let by_default = Decision {
        action: AccessAction::Allow,
        rule: None,
    };
    asking.decided(&mut checks, Ok(decision.unwrap_or(by_default)));
    checks
}

/// A question, with the rules that can match the client at the time.
struct Asking<'a> {
    common: &'a Common,
    asked: &'a Asked<'a>,
    live: Guard<Arc<LiveSettings>>,
    rules: ClientRules,
    timed: TimedRules,
}

impl<'a> Asking<'a> {
    fn new(common: &'a Common, asked: &'a Asked<'a>) -> Self {
        let live = common.live();
        let client = asked.question.client();
        let by_default = live.clients.check(client).is_ok();
        Self {
            common,
            asked,
            rules: live.settings.access.client(client, by_default),
            timed: live.rules_at(asked.at(common).0),
            live,
        }
    }

    /// Returns the decision; an error: the rule with this number needs the user.
    fn decide(&self, user: RequestUser<'_>, method: &str) -> Result<Decision, usize> {
        let authority = &self.asked.target.authority;
        let request = AccessRequest {
            user,
            method,
            host: &authority.host,
            port: authority.port,
        };
        let live = &self.live;
        let decided =
            live.settings
                .access
                .decide(&self.rules, &self.timed, &request, |list, host| {
                    live.lists.has(list, host)
                });
        decided.map_err(|needed| needed.rule)
    }

    /// Follows `permission::permit`.
    fn permission(&self, checks: &mut Checks, arrival: Arrival) {
        let method = match arrival {
            Arrival::Connect => Method::CONNECT.as_str(),
            Arrival::Absolute | Arrival::Mirrored => self.asked.question.method.as_str(),
        };
        let login = self.login(arrival);
        let without = match login {
            Login::Asked => RequestUser::Unknown,
            Login::NotAsked(_) => RequestUser::Unknowable,
        };
        let decided = self.decide(without, method);
        let needs_user = match decided {
            Ok(Decision { action, .. }) => {
                arrival == Arrival::Connect
                    && without == RequestUser::Unknown
                    && !matches!(action, AccessAction::Deny | AccessAction::Tunnel)
                    && self.needs_user_inside()
            }
            Err(_) => true,
        };
        let name = self.asked.question.user.as_deref();
        match (needs_user, name) {
            (false, Some(user)) => {
                let why = match login {
                    Login::Asked => "no rule for certain users can match",
                    Login::NotAsked(why) => why,
                };
                checks.add("user", format!("{user} is not looked at: {why}"), Ok(()));
                self.decided(checks, decided);
            }
            (false, None) => self.decided(checks, decided),
            (true, None) => self.login_needed(checks, decided.err()),
            (true, Some(user)) if self.is_user(user) => {
                checks.add("user", format!("{user} has logged in"), Ok(()));
                checks.user = Some(user.to_owned());
                self.decided(checks, self.decide(RequestUser::Known(user), method));
            }
            (true, Some(user)) => {
                let by =
                    format!("no file of `htpasswd` has {user}, who is asked for a login (407)");
                checks.add("user", by, Err(self.needs_login()));
            }
        }
    }

    fn is_user(&self, name: &str) -> bool {
        let users = self.live.users.as_ref();
        users.is_some_and(|users| users.has(name))
    }

    fn needs_login(&self) -> Failure {
        let realm = self.live.realm();
        Failure::LoginNeeded { realm }
    }

    /// Adds that the client must log in: because a rule demands it, or because requests inside an
    /// intercepted connection cannot be challenged.
    fn login_needed(&self, checks: &mut Checks, rule: Option<usize>) {
        let by = match rule {
            Some(rule) => format!(
                "{} is for certain users, and the client is asked for a login (407); ask again \
                 with a user",
                self.rule_name(rule)
            ),
            None => "requests inside the connection may need the user, so the client is asked for \
                     a login (407); ask again with a user"
                .to_owned(),
        };
        checks.add("rule", by, Err(self.needs_login()));
        if let (Some(check), Some(rule)) = (checks.checks.last_mut(), rule) {
            check.rule = Some(self.rule_json(rule));
        }
    }

    /// Follows `Connection::may_ask_for_login`. The client's listener is not known; a listener with
    /// TLS may challenge all clients.
    fn login(&self, arrival: Arrival) -> Login {
        let live = &self.live;
        let client = self.asked.question.client();
        let is_in = |network: &Prefix| network.contains(client);
        match () {
            () if arrival == Arrival::Mirrored => {
                Login::NotAsked("clients of mirrors cannot be asked for a login")
            }
            () if live.users.is_none() => Login::NotAsked("there is no `htpasswd`"),
            () if live.identity.is_some() || live.settings.login_networks.iter().any(is_in) => {
                Login::Asked
            }
            () => Login::NotAsked(
                "its network is not in `login_networks`, and no listener has TLS, so the client \
                 is not asked for a password",
            ),
        }
    }

    /// Follows `permission::needs_user_inside`.
    fn needs_user_inside(&self) -> bool {
        let (live, authority) = (&self.live, &self.asked.target.authority);
        let in_list = |list, host: &HostHashes| live.lists.has(list, host);
        let there = (&authority.host, authority.port);
        let interceptor = live.intercept.as_ref();
        interceptor.is_some_and(|it| it.judge(authority).is_ok())
            && live
                .settings
                .access
                .may_need_user(&self.rules, there, in_list)
    }

    /// Adds a decision: by a rule, or if no rule matches, by the client's network.
    fn decided(&self, checks: &mut Checks, decided: Result<Decision, usize>) {
        let decision = match decided {
            Ok(decision) => decision,
            Err(rule) => return self.login_needed(checks, Some(rule)),
        };
        let outcome = match decision.action {
            AccessAction::Deny => Err(failure(&self.live, self.asked.question.client(), decision)),
            action => {
                checks.action = Some(action);
                Ok(())
            }
        };
        let (what, by, rule) = match decision.rule {
            Some(rule) => ("rule", self.ruled(rule), Some(self.rule_json(rule))),
            None => ("client", self.by_network(), None),
        };
        checks.add(what, by, outcome);
        if let Some(check) = checks.checks.last_mut() {
            check.rule = rule;
        }
        self.add_limits(checks, decision);
    }

    /// Adds what the rule's limits still allow. Stored responses are served also if a quota is used
    /// up, so a used-up quota by itself refuses nothing yet.
    fn add_limits(&self, checks: &mut Checks, Decision { action, rule }: Decision) {
        // Inside an intercepted connection, only the rule for the request counts.
        checks.used_up = None;
        let numbers = rule.map_or(0, |rule| self.live.settings.access.limits(rule));
        if action == AccessAction::Deny || numbers == 0 {
            return;
        }
        if self.asked.question.at.is_some() {
            return checks.add(
                "limits",
                "what will be left at that time is not known",
                Ok(()),
            );
        }
        let sender = Sender {
            client: Network::containing(self.asked.question.client()),
            user: checks.user.as_deref(),
        };
        let limiter = &self.common.limiter;
        for standing in limiter.standings(&self.live.limits, numbers, sender) {
            if limits::is_refusing(&standing) && checks.used_up.is_none() {
                checks.used_up = Some(limits::refused(&standing));
            }
            checks.add("limit", limits::left(&standing), Ok(()));
        }
    }

    /// `rule 3 ("no games")`.
    fn rule_name(&self, rule: usize) -> String {
        let (number, label) = (rule + 1, self.live.settings.access.label(rule));
        if label == format!("rule {number}") {
            label.to_owned()
        } else {
            format!("rule {number} (\"{label}\")")
        }
    }

    /// Describes a rule and the action's meaning.
    fn ruled(&self, rule: usize) -> String {
        let name = self.rule_name(rule);
        let action = self.live.settings.access.action(rule);
        let meaning = match action {
            AccessAction::Allow => "allows it",
            AccessAction::Deny => "denies it",
            AccessAction::Tunnel => "allows it; a CONNECT is never intercepted",
            AccessAction::NoCache => "allows it; nothing is looked up or stored",
            AccessAction::Limit => "allows it",
        };
        let limits = self.limits(rule);
        if limits.is_empty() {
            format!("{name} {meaning}")
        } else {
            format!("{name} {meaning}, limited by {}", limits.join(", "))
        }
    }

    /// Returns the names of a rule's limits.
    fn limits(&self, rule: usize) -> Vec<&str> {
        let numbers = self.live.settings.access.limits(rule);
        let limits = self.live.limits.numbered(numbers);
        limits.map(|(_, limit)| &*limit.name).collect()
    }

    fn rule_json(&self, rule: usize) -> Value {
        let access = &self.live.settings.access;
        let action = access.action(rule);
        let mut words = AccessAction::ALL.iter();
        let word = words.find(|(_, it)| *it == action).map(|(word, _)| *word);
        json!({
            "number": rule + 1,
            "name": access.label(rule),
            "action": word,
            "limits": self.limits(rule),
            "written": access.written(rule),
            "reason": access.reason(rule),
            "contact": access.contact(),
        })
    }

    /// Explains why the client is served or refused where no rule matches.
    fn by_network(&self) -> String {
        let why = match self.live.clients.rule(self.asked.question.client()) {
            Some(ClientRule::Near) => "the client is in a private network, or this machine",
            Some(ClientRule::Listed) => "`allow_client` has its network",
            Some(ClientRule::Neighbour) => "the client is in the network of an interface",
            None => "the client's network is neither private nor in `allow_client`",
        };
        if self.live.settings.access.is_empty() {
            why.to_owned()
        } else {
            format!("no access rule matches, and {why}")
        }
    }

    fn gateway(&self, checks: &mut Checks) {
        let scheme = self.asked.target.scheme;
        if !scheme.needs_gateway() {
            return;
        }
        let is_allowed = self.live.settings.gateways.contains(&scheme);
        let outcome = is_allowed
            .then_some(())
            .ok_or(Failure::NotImplemented("gateway"));
        checks.add("scheme", "`gateways`", outcome);
        let is_read = [Method::GET, Method::HEAD].contains(&self.asked.question.method);
        let outcome = is_read
            .then_some(())
            .ok_or(Failure::NotImplemented("method"));
        checks.add("method", "gateways know GET and HEAD alone", outcome);
    }

    fn destination(&self, checks: &mut Checks) {
        let Authority { host, .. } = &self.asked.target.authority;
        let destinations = &self.live.upstream.destinations;
        let Some(address) = literal_address(host) else {
            let by = "decided when the name is resolved, which a question does not do: private \
                      and local addresses are refused unless `allow_destination` has them";
            return checks.add("destination", by, Ok(()));
        };
        let outcome = destinations.check(address, Purpose::Forward);
        let by = match &outcome {
            Ok(()) => "`allow_destination` has its network, or it is public",
            Err(_) => {
                "it is private, local or in `deny_destination`, and not in `allow_destination`"
            }
        };
        checks.add("destination", by, outcome);
    }
}

/// The challenge for a login when a rule needs the user.
#[derive(Clone, Copy, Debug)]
enum Login {
    Asked,
    /// Reason why not.
    NotAsked(&'static str),
}
