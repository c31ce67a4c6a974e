//! The rules from `[[access]]`, compiled, and their decision about a request.
//!
//! Compiled at the start and at a reload. `client` is called once a connection, `at` once a minute,
//! [`AccessRules::decide`] once a request. Each of the first two returns a set of rules, so that a
//! request is compared only with the rules that can match it.
//!
//! Invariants: no I/O and no clock. The first rule with all conditions met and no exception met
//! decides. If no rule matches, only the clients that are served by default are served.
//! Cost: a request hashes the host and the domains above it once, intersects a set for each kind of
//! condition, and searches the lists of the remaining rules, each list once. `time_of_a_decision`
//! measures it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::ops::Range;

use hashcache_http::Host;

use super::entry::{Entry, entries};
use super::host_rules::{Embedded, HostRules, RequestHashes};
use super::name_set::HostHashes;
use super::port_rules::PortRules;
use super::request::{AccessRequest, Decision, RequestUser, UserNeeded};
use super::rule_clients::Clients;
use super::rule_faults::{
    AccessRuleError, AccessRuleFault, LIMITS_MAX, LISTS_MAX, faults_of, faults_of_conditions,
};
use super::rule_set::{RULES_MAX, RuleSet};
use super::search::{ListUnions, Search};
use super::settings::{AccessAction, AccessConditions, AccessRule, AccessSettings};
use super::times::{WeekMinute, WeekSpan};
use super::user_rules::UserRules;

/// The rules that can match a client.
#[derive(Clone, Debug)]
pub struct ClientRules {
    rules: RuleSet,
    /// The client is served if no rule matches.
    by_default: bool,
}

/// The rules with times that include a minute.
#[derive(Clone, Debug)]
pub struct TimedRules(RuleSet);

/// Compiled rules.
#[derive(Debug, Default)]
pub struct AccessRules {
    rules: Box<[Rule]>,
    /// The conditions of all rules and exceptions that are compared with a client or a minute.
    entries: Box<[Compared]>,
    hosts: HostRules,
    ports: PortRules,
    /// Rules that a method may match, for each method that rules name; and rules for any method.
    methods: HashMap<Box<str>, RuleSet>,
    any_method: RuleSet,
    users: UserRules,
    lists: ListUnions,
    /// Rules that need the user, or that are for all methods at all times; and all exceptions.
    settling: RuleSet,
    /// Rules for certain hosts.
    about_hosts: RuleSet,
    /// Rules that can deny a CONNECT.
    denying_tunnels: RuleSet,
    /// Rules with the action `tunnel`, and all exceptions.
    tunnelling: RuleSet,
    has_times: bool,
    contact: Option<Box<str>>,
}

/// A compiled rule.
#[derive(Debug)]
struct Rule {
    label: Box<str>,
    written: Option<Box<str>>,
    reason: Option<Box<str>>,
    action: AccessAction,
    needs_user: bool,
    /// The numbers of the rule's exceptions.
    exceptions: Range<usize>,
    /// One bit for each limit.
    limits: u64,
}

/// The conditions of a rule or of an exception.
#[derive(Debug)]
struct Compared {
    clients: Clients,
    times: Box<[WeekSpan]>,
    is_blanket: bool,
    needs_user: bool,
    /// The conditions include methods or times.
    varies: bool,
}

impl AccessRules {
    /// Compiles `settings`.
    ///
    /// # Errors
    /// All faults in all rules.
    pub fn new(settings: &AccessSettings) -> Result<Self, Vec<AccessRuleFault>> {
        let written = &settings.rules;
        let exception_count: usize = written.iter().map(|rule| rule.except.len()).sum();
        let has_too_many = written.len() + exception_count > RULES_MAX
            || settings.lists.len() > LISTS_MAX
            || settings.limits.len() > LIMITS_MAX;
        if has_too_many {
            return Err(vec![AccessRuleFault {
                rule: RULES_MAX,
                exception: None,
                error: AccessRuleError::TooMany,
            }]);
        }
        let mut compiler = Compiler::new(settings);
        for (number, rule) in written.iter().enumerate() {
            compiler.add(number, rule);
        }
        if !compiler.faults.is_empty() {
            return Err(compiler.faults);
        }
        let Compiler {
            rules,
            compared,
            exceptions,
            ..
        } = compiler;
        let entries = entries(written);
        let mut lists = ListUnions::default();
        for entry in &entries {
            let mask = list_mask(entry.conditions, settings).unwrap_or_default();
            lists.push(mask, Embedded::from_in_doubt(entry.in_doubt));
        }
        // Exceptions are checked only for rules that match, so all sets of rules include them.
        let with_exceptions = |is_for: &dyn Fn(&AccessRule) -> bool| -> RuleSet {
            let mut set = RuleSet::from_entries(written, is_for);
            set.extend(written.len()..entries.len());
            set
        };
        let mut compiled = Self {
            hosts: HostRules::new(&entries, &settings.nat64),
            ports: PortRules::new(&entries),
            users: UserRules::new(&entries, settings),
            settling: with_exceptions(&|rule| rule.needs_user() || !rule.conditions.vary()),
            about_hosts: RuleSet::from_entries(written, |rule| {
                let mut all = rule.all_conditions();
                all.any(AccessConditions::are_about_hosts)
            }),
            denying_tunnels: RuleSet::from_entries(written, |rule| {
                let methods = rule.conditions.methods.as_ref();
                rule.action == AccessAction::Deny
                    && methods.is_none_or(|it| it.iter().any(|method| method == "CONNECT"))
            }),
            tunnelling: with_exceptions(&|rule| rule.action == AccessAction::Tunnel),
            has_times: entries.iter().any(|it| it.conditions.times.is_some()),
            contact: settings.contact.as_deref().map(Box::from),
            rules: rules.into(),
            entries: compared.into_iter().chain(exceptions).collect(),
            lists,
            ..Self::default()
        };
        compiled.add_methods(&entries);
        Ok(compiled)
    }

    /// Collects, for each method that rules name, the rules that the method may match.
    fn add_methods(&mut self, entries: &[Entry<'_>]) {
        let may_match = |method: Option<&String>| -> RuleSet {
            let is_for = |entry: &Entry<'_>| match (&entry.conditions.methods, method) {
                (None, _) => true,
                (Some(methods), Some(method)) => methods.contains(method),
                (Some(_), None) => false,
            };
            RuleSet::from_entries(entries, is_for)
        };
        self.any_method = may_match(None);
        let named = entries.iter().flat_map(|it| &it.conditions.methods);
        for method in named.flatten() {
            if !self.methods.contains_key(method.as_str()) {
                let set = may_match(Some(method));
                self.methods.insert(method.as_str().into(), set);
            }
        }
    }

    /// Returns true if a rule is for certain users.
    pub fn needs_users(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs_user)
    }

    /// The users that rules and groups name.
    pub fn user_names(&self) -> impl Iterator<Item = &str> {
        self.users.names()
    }

    /// Returns true if there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that can match a client; `by_default`: the client is served if no rule matches.
    pub fn client(&self, address: IpAddr, by_default: bool) -> ClientRules {
        let is_for = |it: &Compared| it.clients.contain(address, by_default);
        let mut rules = RuleSet::from_entries(&self.entries, is_for);
        for (number, rule) in self.rules.iter().enumerate() {
            let mut exceptions = rule.exceptions.clone();
            if exceptions.any(|it| rules.contains(it) && self.entries[it].is_blanket) {
                rules.remove(number);
            }
        }
        ClientRules { rules, by_default }
    }

    /// The rules in a set, in order, without exceptions.
    fn rules_in(&self, set: &RuleSet) -> impl Iterator<Item = (usize, &Rule)> {
        let rules = set.iter().take_while(|number| *number < self.rules.len());
        rules.map(|number| (number, &self.rules[number]))
    }

    /// The decision about all requests from this client, if all are refused: by a rule without
    /// other conditions, before any rule that could serve the client, or because no rule could.
    pub fn refusal(&self, client: &ClientRules) -> Option<Decision> {
        let action = AccessAction::Deny;
        for (number, rule) in self.rules_in(&client.rules) {
            let mut exceptions = rule.exceptions.clone();
            let is_whole =
                self.entries[number].is_blanket && !exceptions.any(|it| client.rules.contains(it));
            match rule.action {
                AccessAction::Deny if is_whole => {
                    let rule = Some(number);
                    return Some(Decision { action, rule });
                }
                AccessAction::Deny => {}
                _ => return None,
            }
        }
        (!client.by_default).then_some(Decision { action, rule: None })
    }

    /// Returns true if a rule with destinations or lists decides whether the client may open
    /// tunnels: a rule that can deny tunnels, or any rule if tunnels are denied by default.
    pub fn judge_hosts(&self, client: &ClientRules) -> bool {
        let has_any = |rules: &RuleSet| {
            let mut of_client = rules.clone();
            of_client.keep_only(&client.rules);
            of_client.first().is_some()
        };
        has_any(&self.about_hosts) && (!client.by_default || has_any(&self.denying_tunnels))
    }

    /// The rules with times that include `minute`.
    pub fn at(&self, minute: WeekMinute) -> TimedRules {
        let includes = |it: &Compared| {
            it.times.is_empty() || it.times.iter().any(|span| span.contains(minute))
        };
        TimedRules(RuleSet::from_entries(&self.entries, includes))
    }

    /// Returns true if a rule has times. Otherwise every minute has the same rules.
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// Decides about a request. `has` returns true if the list with a number contains the host.
    ///
    /// # Errors
    /// The first rule that can match needs the user, and a login can be requested.
    pub fn decide(
        &self,
        client: &ClientRules,
        TimedRules(timed): &TimedRules,
        request: &AccessRequest<'_>,
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> Result<Decision, UserNeeded> {
        let by_default = Decision {
            action: if client.by_default {
                AccessAction::Allow
            } else {
                AccessAction::Deny
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
        let mut search = Search::new(&self.lists, left, &hashes, has);
        // The first rule with limits and an exception for some users, if the user cannot be known
        // and may be among them.
        let mut limited_in_doubt = None;
        while let Some(number) = search.next_rule(self.rules.len()) {
            let is_unknown = |number: usize| {
                request.user == RequestUser::Unknown && self.entries[number].needs_user
            };
            let is_in_doubt = |number: usize| {
                request.user == RequestUser::Unknowable && self.entries[number].needs_user
            };
            let (mut is_excepted, mut in_doubt) = (false, false);
            let mut needs_user = is_unknown(number);
            for exception in self.rules[number].exceptions.clone() {
                if search.meets(exception) {
                    needs_user |= is_unknown(exception);
                    in_doubt |= is_in_doubt(exception);
                    is_excepted |= !is_unknown(exception) && !is_in_doubt(exception);
                }
            }
            let action = self.rules[number].action;
            if is_excepted {
                continue;
            }
            if in_doubt {
                if action == AccessAction::Limit {
                    limited_in_doubt = limited_in_doubt.or(Some(number));
                }
                continue;
            }
            if needs_user {
                return Err(UserNeeded { rule: number });
            }
            let rule = Some(number);
            return Ok(Decision { action, rule }.limited_by(limited_in_doubt));
        }
        Ok(by_default.limited_by(limited_in_doubt))
    }

    /// Returns true if a rule, for some method at some time, may need the user in requests to
    /// `host`. `has` is as for [`AccessRules::decide`].
    pub fn may_need_user(
        &self,
        client: &ClientRules,
        there: (&Host, u16),
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> bool {
        let hashes = self.hosts.hashes(there.0);
        let left = self.about(&self.settling, client, there, &hashes);
        let mut search = Search::new(&self.lists, left, &hashes, has);
        while let Some(number) = search.next_rule(self.rules.len()) {
            let exceptions = self.exceptions_met(number, &mut search);
            if exceptions.iter().any(|it| self.is_certain(it)) {
                continue;
            }
            let needs_user = |number: usize| self.entries[number].needs_user;
            if needs_user(number) || exceptions.iter().any(needs_user) {
                return true;
            }
            // Behind a rule without a user that matches every request, no rule decides.
            if !self.entries[number].varies && exceptions.first().is_none() {
                return false;
            }
        }
        false
    }

    /// Returns true if a rule, for some user at some time, promises the client that TLS to `host`
    /// is never intercepted here, also if an earlier rule refuses the host. `has` is as for
    /// [`AccessRules::decide`].
    pub fn may_be_tunnel(
        &self,
        client: &ClientRules,
        there: (&Host, u16),
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> bool {
        let hashes = self.hosts.hashes(there.0);
        let left = self.about(&self.tunnelling, client, there, &hashes);
        let mut search = Search::new(&self.lists, left, &hashes, has);
        while let Some(number) = search.next_rule(self.rules.len()) {
            let exceptions = self.exceptions_met(number, &mut search);
            if !exceptions.iter().any(|it| self.is_certain(it)) {
                return true;
            }
        }
        false
    }

    /// The rules in a set that apply to this client, host and port.
    fn about(
        &self,
        rules: &RuleSet,
        client: &ClientRules,
        (host, port): (&Host, u16),
        hashes: &RequestHashes,
    ) -> RuleSet {
        let mut left = self.hosts.at(host, hashes);
        left.keep_only(&client.rules);
        left.keep_only(self.ports.at(port));
        left.keep_only(rules);
        left
    }

    /// The exceptions to a rule that the request in a search meets.
    fn exceptions_met<F>(&self, rule: usize, search: &mut Search<'_, F>) -> RuleSet
    where
        F: Fn(usize, &HostHashes) -> bool,
    {
        let exceptions = self.rules[rule].exceptions.clone();
        exceptions.filter(|it| search.meets(*it)).collect()
    }

    /// Returns true if all users meet an exception, with any method and at any time.
    fn is_certain(&self, exception: usize) -> bool {
        let Compared {
            needs_user, varies, ..
        } = self.entries[exception];
        !needs_user && !varies
    }

    /// The rules that may match a method. Methods are compared in capitals: many servers accept
    /// `get` as GET.
    fn of_method(&self, method: &str) -> &RuleSet {
        if self.methods.is_empty() {
            return &self.any_method;
        }
        let found = if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            self.methods.get(&*method.to_ascii_uppercase())
        } else {
            self.methods.get(method)
        };
        found.unwrap_or(&self.any_method)
    }

    /// The name of a rule, or a number that counts from 1.
    pub fn label(&self, rule: usize) -> &str {
        &self.rules[rule].label
    }

    /// The action of a rule.
    pub fn action(&self, rule: usize) -> AccessAction {
        self.rules[rule].action
    }

    /// The rule as the operator wrote it, and the place in the settings.
    pub fn written(&self, rule: usize) -> Option<&str> {
        self.rules[rule].written.as_deref()
    }

    /// The reason for a rule, for the page that refuses.
    pub fn reason(&self, rule: usize) -> Option<&str> {
        self.rules[rule].reason.as_deref()
    }

    /// The limits of a rule, one bit each.
    pub fn limits(&self, rule: usize) -> u64 {
        self.rules[rule].limits
    }

    /// The limits that any rule may set for requests from a client and this user.
    pub fn limits_of(&self, client: &ClientRules, user: RequestUser<'_>) -> u64 {
        let mut rules = client.rules.clone();
        rules.keep_only(self.users.of(user));
        self.rules_in(&rules)
            .fold(0, |all, (_, rule)| all | rule.limits)
    }

    /// The limits that rules name, one bit each.
    pub fn named_limits(&self) -> u64 {
        self.rules.iter().fold(0, |all, rule| all | rule.limits)
    }

    /// Returns true if a rule needs the user.
    pub fn need_users(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs_user)
    }

    /// The contact for questions, for the page that refuses.
    pub fn contact(&self) -> Option<&str> {
        self.contact.as_deref()
    }
}

impl Rule {
    fn new(number: usize, rule: &AccessRule, exceptions: Range<usize>, limits: u64) -> Self {
        let label = match &rule.name {
            Some(name) => name.clone(),
            None => format!("rule {}", number + 1),
        };
        Self {
            label: label.into(),
            written: rule.written.as_deref().map(Box::from),
            reason: rule.reason.as_deref().map(Box::from),
            action: rule.action,
            needs_user: rule.needs_user(),
            exceptions,
            limits,
        }
    }
}

impl Compared {
    fn new(conditions: &AccessConditions, clients: Clients) -> Self {
        Self {
            clients,
            times: conditions.times.clone().unwrap_or_default().into(),
            is_blanket: conditions.are_blanket(),
            needs_user: conditions.need_user(),
            varies: conditions.vary(),
        }
    }
}

/// Rules that are being compiled.
struct Compiler<'a> {
    settings: &'a AccessSettings,
    rules: Vec<Rule>,
    /// The conditions of the rules, then the conditions of the exceptions.
    compared: Vec<Compared>,
    exceptions: Vec<Compared>,
    faults: Vec<AccessRuleFault>,
}

impl<'a> Compiler<'a> {
    fn new(settings: &'a AccessSettings) -> Self {
        Self {
            settings,
            rules: Vec::new(),
            compared: Vec::new(),
            exceptions: Vec::new(),
            faults: Vec::new(),
        }
    }

    /// Adds a rule, or the faults in it.
    fn add(&mut self, number: usize, rule: &AccessRule) {
        let settings = self.settings;
        let fault_count = self.faults.len();
        let clients = Clients::by_default(rule.action);
        let own = self.compare((number, None), &rule.conditions, clients);
        let first = settings.rules.len() + self.exceptions.len();
        for (at, conditions) in rule.except.iter().enumerate() {
            let exception = self.compare((number, Some(at)), conditions, Clients::All);
            let (Some(own), Some(exception)) = (&own, exception) else {
                continue;
            };
            if exception.is_blanket && exception.clients.cover(&own.clients) {
                self.fault((number, Some(at)), AccessRuleError::ExceptsAll);
            }
            self.exceptions.push(exception);
        }
        for error in faults_of(rule, &settings.rules[..number]) {
            self.fault((number, None), error);
        }
        let limits = limit_mask(rule, settings).unwrap_or_else(|error| {
            self.fault((number, None), error);
            0
        });
        let Some(own) = own else { return };
        if self.faults.len() == fault_count
            && let Some(error) = self.unreachable(&own.clients)
        {
            self.fault((number, None), error);
        }
        let exceptions = first..settings.rules.len() + self.exceptions.len();
        self.rules.push(Rule::new(number, rule, exceptions, limits));
        self.compared.push(own);
    }

    /// Compiles the conditions of a rule or of an exception; `None`: they have a fault.
    fn compare(
        &mut self,
        place: (usize, Option<usize>),
        conditions: &AccessConditions,
        by_default: Clients,
    ) -> Option<Compared> {
        for error in faults_of_conditions(conditions, self.settings) {
            self.fault(place, error);
        }
        let lists = list_mask(conditions, self.settings).map(drop);
        let clients = Clients::new(conditions, by_default, self.settings);
        let clients = clients.map_err(|error| self.fault(place, error)).ok();
        let lists = lists.map_err(|error| self.fault(place, error)).ok();
        Some(Compared::new(
            conditions,
            clients.filter(|_| lists.is_some())?,
        ))
    }

    fn fault(&mut self, (rule, exception): (usize, Option<usize>), error: AccessRuleError) {
        self.faults.push(AccessRuleFault {
            rule,
            exception,
            error,
        });
    }

    /// The error for a rule with `clients` behind a rule that matches all their requests.
    fn unreachable(&self, clients: &Clients) -> Option<AccessRuleError> {
        let earlier = self.rules.iter().zip(&self.compared);
        let mut hiding = earlier.filter(|(rule, conditions)| {
            conditions.is_blanket && rule.exceptions.is_empty() && conditions.clients.cover(clients)
        });
        let (hiding, _) = hiding.next()?;
        let earlier = hiding.label.to_string();
        Some(AccessRuleError::Unreachable { earlier })
    }
}

/// The lists in conditions, one bit for each.
fn list_mask(
    conditions: &AccessConditions,
    settings: &AccessSettings,
) -> Result<u64, AccessRuleError> {
    conditions.lists.iter().flatten().try_fold(0, |mask, name| {
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

#[cfg(test)]
mod exception_tests;
#[cfg(test)]
mod tests;
