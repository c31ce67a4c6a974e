//! The rules of `[[access]]`, compiled, and what they decide about a request.
//!
//! Compiled at the start and at a reload. `client` is asked once a connection, `at` once a minute,
//! [`AccessRules::decide`] once a request; each of the first two gives a set of rules, so that a
//! request is compared only with the rules that can match it.
//!
//! Invariants: no I/O and no clock. The first rule that matches decides; without one, the clients
//! that are served by default are, and no others. Cost: a request hashes its host and the domains
//! above it once, intersects a set for each kind of condition, and asks the lists of the rules that
//! are left, each list once. `time_of_a_decision` measures it.

use std::collections::HashMap;
use std::net::IpAddr;

use hashcache_http::Host;

use super::host_rules::{Embedded, HostRules, RequestHashes};
use super::name_set::HostHashes;
use super::request::{AccessRequest, Decision, RequestUser, UserNeeded};
use super::rule_clients::Clients;
use super::rule_faults::{AccessRuleError, AccessRuleFault, LIMITS_MAX, LISTS_MAX, faults_of};
use super::rule_set::{RULES_MAX, RuleSet};
use super::settings::{AccessAction, AccessRule, AccessSettings};
use super::times::{WeekMinute, WeekSpan};
use super::user_rules::UserRules;
use crate::upstream::address::ConnectPort;

/// The rules that can match a client.
#[derive(Clone, Debug)]
pub(crate) struct ClientRules {
    rules: RuleSet,
    /// It is served where no rule matches.
    by_default: bool,
}

/// The rules whose times include a minute.
#[derive(Clone, Debug)]
pub(crate) struct TimedRules(RuleSet);

/// Compiled rules.
#[derive(Debug, Default)]
pub struct AccessRules {
    rules: Box<[Rule]>,
    hosts: HostRules,
    ports: PortRules,
    /// Rules that a method may match, for all methods that rules name; and those for any method.
    methods: HashMap<Box<str>, RuleSet>,
    any_method: RuleSet,
    users: UserRules,
    /// The rules by their lists.
    unions: Box<[ListUnion]>,
    /// Rules that need the user, or that are for all methods at all times.
    settling: RuleSet,
    /// Rules for certain hosts.
    about_hosts: RuleSet,
    /// Rules that can deny a CONNECT.
    denying_tunnels: RuleSet,
    /// Rules with the action `tunnel`.
    tunnelling: RuleSet,
    has_times: bool,
    contact: Option<Box<str>>,
}

/// The rules that may match a port: a set for each range of ports between two bounds of rules.
#[derive(Debug, Default)]
struct PortRules {
    /// The first port of each range, in order; the first one is 0.
    starts: Box<[u16]>,
    sets: Box<[RuleSet]>,
}

/// The rules for hosts that are in one of several lists.
#[derive(Debug)]
struct ListUnion {
    /// One bit for each list; 0: any host.
    lists: u64,
    takes: Embedded,
    rules: RuleSet,
}

/// One rule.
#[derive(Debug)]
struct Rule {
    label: Box<str>,
    written: Option<Box<str>>,
    reason: Option<Box<str>>,
    action: AccessAction,
    is_blanket: bool,
    needs_user: bool,
    /// The number of its [`ListUnion`].
    union: usize,
    clients: Clients,
    times: Box<[WeekSpan]>,
    /// One bit for each limit.
    limits: u64,
}

impl AccessRules {
    /// Compiles `settings`.
    ///
    /// # Errors
    /// All faults of all rules.
    pub fn new(settings: &AccessSettings) -> Result<Self, Vec<AccessRuleFault>> {
        let written = &settings.rules;
        let has_too_many = written.len() > RULES_MAX
            || settings.lists.len() > LISTS_MAX
            || settings.limits.len() > LIMITS_MAX;
        if has_too_many {
            let (rule, error) = (RULES_MAX, AccessRuleError::TooMany);
            return Err(vec![AccessRuleFault { rule, error }]);
        }
        let mut faults = Vec::new();
        let (mut rules, mut unions) = (Vec::<Rule>::new(), Vec::new());
        for (number, rule) in written.iter().enumerate() {
            let (earlier, fault_count) = (&written[..number], faults.len());
            let mut fault = |error| {
                let rule = number;
                faults.push(AccessRuleFault { rule, error });
            };
            faults_of(rule, earlier, settings).for_each(&mut fault);
            let clients = Clients::new(rule, settings).map_err(&mut fault);
            let lists = list_mask(rule, settings).map_err(&mut fault);
            let limits = limit_mask(rule, settings).map_err(&mut fault);
            let (Ok(clients), Ok(lists), Ok(limits)) = (clients, lists, limits) else {
                continue;
            };
            if faults.len() == fault_count
                && let Some(error) = unreachable(&rules, &clients)
            {
                let rule = number;
                faults.push(AccessRuleFault { rule, error });
            }
            let union = union_of(lists, Embedded::of(rule.action), &mut unions);
            unions[union].rules.insert(number);
            rules.push(Rule::new((number, rule), clients, (union, limits)));
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let mut compiled = Self {
            rules: rules.into(),
            hosts: HostRules::new(written, &settings.nat64),
            ports: PortRules::new(written),
            users: UserRules::new(settings),
            unions: unions.into(),
            settling: RuleSet::of(written, |rule| {
                rule.needs_user() || (rule.methods.is_none() && rule.times.is_none())
            }),
            about_hosts: RuleSet::of(written, |rule| {
                rule.destinations.is_some() || rule.lists.is_some()
            }),
            denying_tunnels: RuleSet::of(written, |rule| {
                let methods = rule.methods.as_ref();
                rule.action == AccessAction::Deny
                    && methods.is_none_or(|it| it.iter().any(|method| method == "CONNECT"))
            }),
            tunnelling: RuleSet::of(written, |rule| rule.action == AccessAction::Tunnel),
            has_times: written.iter().any(|rule| rule.times.is_some()),
            contact: settings.contact.as_deref().map(Box::from),
            ..Self::default()
        };
        compiled.add_methods(written);
        Ok(compiled)
    }

    /// Notes for each method that rules name which rules it may match.
    fn add_methods(&mut self, rules: &[AccessRule]) {
        let may_match = |method: Option<&String>| -> RuleSet {
            let is_for = |rule: &AccessRule| match (&rule.methods, method) {
                (None, _) => true,
                (Some(methods), Some(method)) => methods.contains(method),
                (Some(_), None) => false,
            };
            RuleSet::of(rules, is_for)
        };
        self.any_method = may_match(None);
        for method in rules.iter().flat_map(|rule| rule.methods.iter().flatten()) {
            if !self.methods.contains_key(method.as_str()) {
                let set = may_match(Some(method));
                self.methods.insert(method.as_str().into(), set);
            }
        }
    }

    /// Whether a rule is for certain users.
    pub fn needs_users(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs_user)
    }

    /// The users that rules and groups name.
    pub(crate) fn user_names(&self) -> impl Iterator<Item = &str> {
        self.users.names()
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that can match a client; `by_default`: it is served where no rule matches.
    pub(crate) fn client(&self, address: IpAddr, by_default: bool) -> ClientRules {
        let is_for = |rule: &Rule| rule.clients.contain(address, by_default);
        ClientRules {
            rules: RuleSet::of(&self.rules, is_for),
            by_default,
        }
    }

    /// The decision about all requests of this client, if it is refused as a whole: by a rule
    /// without other conditions, before any rule that could serve it, or because no rule could.
    pub(crate) fn refusal(&self, client: &ClientRules) -> Option<Decision> {
        let action = AccessAction::Deny;
        for number in client.rules.iter() {
            let rule = &self.rules[number];
            match rule.action {
                AccessAction::Deny if rule.is_blanket => {
                    let rule = Some(number);
                    return Some(Decision { action, rule });
                }
                AccessAction::Deny => {}
                _ => return None,
            }
        }
        (!client.by_default).then_some(Decision { action, rule: None })
    }

    /// Whether a rule with destinations or lists decides if the client may open tunnels: one that
    /// denies them, or where tunnels are denied by default, any.
    pub(crate) fn judge_hosts(&self, client: &ClientRules) -> bool {
        let has_any = |rules: &RuleSet| {
            let mut of_client = rules.clone();
            of_client.keep_only(&client.rules);
            of_client.first().is_some()
        };
        has_any(&self.about_hosts) && (!client.by_default || has_any(&self.denying_tunnels))
    }

    /// The rules whose times include `minute`.
    pub(crate) fn at(&self, minute: WeekMinute) -> TimedRules {
        let includes = |rule: &Rule| {
            rule.times.is_empty() || rule.times.iter().any(|span| span.contains(minute))
        };
        TimedRules(RuleSet::of(&self.rules, includes))
    }

    /// Whether a rule has times: without, every minute has the same rules.
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// Decides about a request. `has` says whether the list with a number has the host.
    ///
    /// # Errors
    /// The first rule that can match needs the user, and the client can be asked.
    pub(crate) fn decide(
        &self,
        client: &ClientRules,
        TimedRules(timed): &TimedRules,
        request: &AccessRequest<'_>,
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> Result<Decision, UserNeeded> {
        let by_default = Decision {
            action: match client.by_default {
                true => AccessAction::Allow,
                false => AccessAction::Deny,
            },
            rule: None,
        };
        if self.rules.is_empty() {
            return Ok(by_default);
        }
        let hashes = self.hosts.hashes(request.host);
        let mut left = self.hosts.at(request.host, &hashes);
        left.keep_only(&client.rules);
        left.keep_only(timed);
        left.keep_only(self.users.of(request.user));
        left.keep_only(self.of_method(request.method));
        left.keep_only(self.ports.at(request.port));
        let Some(number) = self.first_listed(left, &hashes, has) else {
            return Ok(by_default);
        };
        let rule = &self.rules[number];
        if rule.needs_user && request.user == RequestUser::Unknown {
            return Err(UserNeeded { rule: number });
        }
        Ok(Decision {
            action: rule.action,
            rule: Some(number),
        })
    }

    /// Whether a rule about some method at some time may need the user of requests to `host`. `has`
    /// is as for [`AccessRules::decide`].
    pub(crate) fn may_need_user(
        &self,
        client: &ClientRules,
        there: (&Host, u16),
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> bool {
        // Behind a rule without a user that matches every request, no rule decides.
        let first = self.first_among(&self.settling, client, there, has);
        first.is_some_and(|number| self.rules[number].needs_user)
    }

    /// Whether a rule for some user at some time promises the client that TLS to `host` never ends
    /// here, also if an earlier rule refuses the host. `has` is as for [`AccessRules::decide`].
    pub(crate) fn may_be_tunnel(
        &self,
        client: &ClientRules,
        there: (&Host, u16),
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> bool {
        let first = self.first_among(&self.tunnelling, client, there, has);
        first.is_some()
    }

    /// The first of `rules` that is about this client, host and port.
    fn first_among(
        &self,
        rules: &RuleSet,
        client: &ClientRules,
        (host, port): (&Host, u16),
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> Option<usize> {
        let hashes = self.hosts.hashes(host);
        let mut left = self.hosts.at(host, &hashes);
        left.keep_only(&client.rules);
        left.keep_only(self.ports.at(port));
        left.keep_only(rules);
        self.first_listed(left, &hashes, has)
    }

    /// The rules that may match a method. Methods are compared in capitals: many servers take `get`
    /// for GET.
    fn of_method(&self, method: &str) -> &RuleSet {
        if self.methods.is_empty() {
            return &self.any_method;
        }
        let found = match method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            true => self.methods.get(&*method.to_ascii_uppercase()),
            false => self.methods.get(method),
        };
        found.unwrap_or(&self.any_method)
    }

    /// The first of `left` that has no lists, or one that has the host: `has` says which. Each list
    /// is asked once for the same hashes, however many rules name it.
    fn first_listed(
        &self,
        mut left: RuleSet,
        hashes: &RequestHashes,
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> Option<usize> {
        let (mut without_all, mut without_certain) = (0, 0);
        while let Some(number) = left.first() {
            let union = &self.unions[self.rules[number].union];
            let (hashes, without) = match (union.takes, &hashes.certain) {
                (Embedded::Certain, Some(certain)) => (certain, &mut without_certain),
                _ => (&hashes.all, &mut without_all),
            };
            let mut unasked = union.lists & !*without;
            while unasked != 0 {
                if has(unasked.trailing_zeros() as usize, hashes) {
                    return Some(number);
                }
                unasked &= unasked - 1;
            }
            if union.lists == 0 {
                return Some(number);
            }
            *without |= union.lists;
            left.remove_all(&union.rules);
        }
        None
    }

    /// The name of a rule, or its number as people count.
    pub(crate) fn label(&self, rule: usize) -> &str {
        &self.rules[rule].label
    }

    /// What a rule does.
    pub(crate) fn action(&self, rule: usize) -> AccessAction {
        self.rules[rule].action
    }

    /// What the operator wrote, and where.
    pub(crate) fn written(&self, rule: usize) -> Option<&str> {
        self.rules[rule].written.as_deref()
    }

    /// The reason of a rule, for the page that refuses.
    pub(crate) fn reason(&self, rule: usize) -> Option<&str> {
        self.rules[rule].reason.as_deref()
    }

    /// The limits of a rule, one bit each.
    pub(crate) fn limits(&self, rule: usize) -> u64 {
        self.rules[rule].limits
    }

    /// The limits that any rule may set for requests of a client and this user.
    pub(crate) fn limits_of(&self, client: &ClientRules, user: RequestUser<'_>) -> u64 {
        let mut rules = client.rules.clone();
        rules.keep_only(self.users.of(user));
        let limits = rules.iter().map(|rule| self.rules[rule].limits);
        limits.fold(0, |all, limits| all | limits)
    }

    /// The limits that rules name, one bit each.
    pub(crate) fn named_limits(&self) -> u64 {
        self.rules.iter().fold(0, |all, rule| all | rule.limits)
    }

    /// Whether a rule asks for the user.
    pub(crate) fn need_users(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs_user)
    }

    /// The person to ask, for the page that refuses.
    pub(crate) fn contact(&self) -> Option<&str> {
        self.contact.as_deref()
    }
}

impl Rule {
    fn new(
        (number, rule): (usize, &AccessRule),
        clients: Clients,
        (union, limits): (usize, u64),
    ) -> Self {
        let label = match &rule.name {
            Some(name) => name.clone(),
            None => format!("rule {}", number + 1),
        };
        Self {
            label: label.into(),
            written: rule.written.as_deref().map(Box::from),
            reason: rule.reason.as_deref().map(Box::from),
            action: rule.action,
            is_blanket: rule.is_blanket(),
            needs_user: rule.needs_user(),
            union,
            clients,
            times: rule.times.clone().unwrap_or_default().into(),
            limits,
        }
    }
}

impl PortRules {
    fn new(rules: &[AccessRule]) -> Self {
        let all = rules.iter().flat_map(|rule| rule.ports.iter().flatten());
        let bounds = all.flat_map(|ports| [Some(ports.first()), ports.last().checked_add(1)]);
        let mut starts: Vec<u16> = bounds.flatten().chain([0]).collect();
        starts.sort_unstable();
        starts.dedup();
        let set = |&port: &u16| {
            let is_for = |ports: &Vec<ConnectPort>| ports.iter().any(|it| it.contains(port));
            RuleSet::of(rules, |rule| rule.ports.as_ref().is_none_or(is_for))
        };
        let sets = starts.iter().map(set).collect();
        let starts = starts.into();
        Self { starts, sets }
    }

    fn at(&self, port: u16) -> &RuleSet {
        let after = self.starts.partition_point(|start| *start <= port);
        // Without rules there are no sets, and any set will do.
        after
            .checked_sub(1)
            .map_or(&RuleSet::ALL, |at| &self.sets[at])
    }
}

/// The lists of a rule, one bit for each.
fn list_mask(rule: &AccessRule, settings: &AccessSettings) -> Result<u64, AccessRuleError> {
    rule.lists.iter().flatten().try_fold(0, |mask, name| {
        let number = settings.lists.iter().position(|list| list.name == *name);
        let number = number.ok_or_else(|| AccessRuleError::UnknownList { name: name.clone() })?;
        Ok(mask | 1 << number)
    })
}

/// The limits of a rule, one bit for each.
fn limit_mask(rule: &AccessRule, settings: &AccessSettings) -> Result<u64, AccessRuleError> {
    rule.limits.iter().flatten().try_fold(0, |mask, name| {
        let number = settings.limits.iter().position(|limit| limit == name);
        let number = number.ok_or_else(|| AccessRuleError::UnknownLimit { name: name.clone() })?;
        Ok(mask | 1 << number)
    })
}

/// The number of the union of `lists`, which is added if it is new.
fn union_of(lists: u64, takes: Embedded, unions: &mut Vec<ListUnion>) -> usize {
    let is_it = |union: &ListUnion| (union.lists, union.takes) == (lists, takes);
    let known = unions.iter().position(is_it);
    known.unwrap_or_else(|| {
        let rules = RuleSet::default();
        unions.push(ListUnion {
            lists,
            takes,
            rules,
        });
        unions.len() - 1
    })
}

/// The error of a rule for `clients` behind one that matches all their requests.
fn unreachable(earlier: &[Rule], clients: &Clients) -> Option<AccessRuleError> {
    let hides = |it: &&Rule| it.is_blanket && it.clients.cover(clients);
    let hiding = earlier.iter().find(hides)?;
    let earlier = hiding.label.to_string();
    Some(AccessRuleError::Unreachable { earlier })
}

#[cfg(test)]
mod tests;
