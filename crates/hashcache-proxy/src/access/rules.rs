//! The rules of `[[access]]`, compiled, and what they decide about a request.
//!
//! Compiled at the start and at a reload. `client` is asked once a connection, `at` once a minute,
//! [`AccessRules::decide`] once a request; each of the first two gives a set of rules, so that a
//! request is compared only with the rules that can match it.
//!
//! Invariants: no I/O and no clock. The first rule that matches decides; without one, the clients
//! that are served by default are, and no others. Cost: a request looks its host and the domains
//! above it up once, intersects a set for each kind of condition, and asks the lists of the rules
//! that are left, each list once.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::net::IpAddr;

use hashcache_http::Host;

use super::destination::Destination;
use super::name::{PlainHost, with_parents};
use super::name_set::HostHashes;
use super::rule_set::{RULES_MAX, RuleSet};
use super::settings::{AccessAction, AccessRule, AccessSettings, RuleClients};
use super::times::{WeekMinute, WeekSpan};
use crate::upstream::address::ConnectPort;
use crate::upstream::prefix::Prefix;

/// What was decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What to do.
    pub action: AccessAction,
    /// The number of the rule that decided, from 0; `None`: no rule matched.
    pub rule: Option<usize>,
}

/// The user of a request, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestUser<'a> {
    /// The user with this name.
    Known(&'a str),
    /// It is not known, but the client can be asked.
    Unknown,
    /// It is not known, and the client cannot be asked. Rules that refuse certain users then
    /// refuse, and others for certain users do not match.
    Unknowable,
}

/// The first rule that can match needs the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserNeeded;

/// A request, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequest<'a> {
    /// Who sends it.
    pub user: RequestUser<'a>,
    /// The method; `CONNECT` for a tunnel.
    pub method: &'a str,
    /// The host of the URL.
    pub host: &'a Host,
    /// The port of the URL.
    pub port: u16,
}

/// The rules that can match a client.
#[derive(Clone, Debug)]
pub struct ClientRules {
    rules: RuleSet,
    /// It is served where no rule matches.
    by_default: bool,
}

/// The rules whose times include a minute.
#[derive(Clone, Debug)]
pub struct TimedRules(RuleSet);

/// Why rules could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessRuleError {
    /// There are too many.
    #[error("more than {RULES_MAX} rules or {LISTS_MAX} lists")]
    TooMany,
    /// A list of a rule is empty.
    #[error("`{condition}` is empty: the rule would match nothing")]
    Empty {
        /// The name of the condition.
        condition: &'static str,
    },
    /// A rule names a network that there is not.
    #[error("there is no network called `{name}`")]
    UnknownNetwork {
        /// The name.
        name: String,
    },
    /// A rule names a group that there is not.
    #[error("there is no group called `{name}`")]
    UnknownGroup {
        /// The name.
        name: String,
    },
    /// A rule names a list that there is not.
    #[error("there is no list called `{name}`")]
    UnknownList {
        /// The name.
        name: String,
    },
    /// Two rules have one name.
    #[error("two rules are called `{name}`")]
    NameTwice {
        /// The name.
        name: String,
    },
    /// An earlier rule matches all that it could match.
    #[error("the rule can never match: {earlier} before it has no conditions")]
    Unreachable {
        /// The label of the earlier rule.
        earlier: String,
    },
}

/// The fault of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRuleFault {
    /// The number of the rule, from 0.
    pub rule: usize,
    /// What is wrong with it.
    pub error: AccessRuleError,
}

/// Compiled rules.
#[derive(Debug, Default)]
pub struct AccessRules {
    rules: Box<[Rule]>,
    /// Rules for any destination.
    anywhere: RuleSet,
    /// Rules for a host or for a domain, by its name.
    hosts: HashMap<Box<str>, HostRules>,
    networks: Box<[(Prefix, usize)]>,
    ports: PortRules,
    /// Rules that a method may match, for all methods that rules name; and those for any method.
    methods: HashMap<Box<str>, RuleSet>,
    any_method: RuleSet,
    /// Lists of each rule, one bit for each; 0: any host.
    lists: Box<[u64]>,
    /// Rules that each user may match, for all users that rules name.
    users: HashMap<Box<str>, RuleSet>,
    /// Rules that are for any user, and those of them that match if the user cannot be known.
    for_any: RuleSet,
    for_unknown: RuleSet,
    has_times: bool,
    contact: Option<Box<str>>,
}

/// Rules for a host, and for the hosts below a domain.
#[derive(Debug, Default)]
struct HostRules {
    exact: Vec<usize>,
    below: Vec<usize>,
}

/// The rules that a port may match: a set for each range of ports between two bounds of rules.
#[derive(Debug, Default)]
struct PortRules {
    /// The first port of each range, in order; the first one is 0.
    starts: Box<[u16]>,
    sets: Box<[RuleSet]>,
}

/// One rule.
#[derive(Debug)]
struct Rule {
    label: Box<str>,
    reason: Option<Box<str>>,
    action: AccessAction,
    is_blanket: bool,
    /// It is for all methods at all times.
    is_lasting: bool,
    needs_user: bool,
    clients: Clients,
    times: Box<[WeekSpan]>,
}

/// The clients of a compiled rule.
#[derive(Debug, PartialEq, Eq)]
enum Clients {
    All,
    Some {
        local: bool,
        networks: Box<[Prefix]>,
    },
}

impl AccessRules {
    /// Compiles `settings`.
    ///
    /// # Errors
    /// All faults of all rules.
    pub fn new(settings: &AccessSettings) -> Result<Self, Vec<AccessRuleFault>> {
        let mut faults = Vec::new();
        if settings.rules.len() > RULES_MAX || settings.lists.len() > LISTS_MAX {
            let (rule, error) = (RULES_MAX, AccessRuleError::TooMany);
            return Err(vec![AccessRuleFault { rule, error }]);
        }
        let mut compiled = Self {
            contact: settings.contact.as_deref().map(Box::from),
            ..Self::default()
        };
        let (mut rules, mut masks) = (Vec::new(), Vec::new());
        for (number, rule) in settings.rules.iter().enumerate() {
            let mut fault = |error| {
                faults.push(AccessRuleFault {
                    rule: number,
                    error,
                });
            };
            empty_conditions(rule).for_each(&mut fault);
            unknown_groups(rule, settings).for_each(&mut fault);
            unreachable(&settings.rules[..number], rule)
                .into_iter()
                .for_each(&mut fault);
            name_twice(&settings.rules[..number], rule)
                .into_iter()
                .for_each(&mut fault);
            match (Clients::new(rule, settings), list_mask(rule, settings)) {
                (Ok(clients), Ok(mask)) => {
                    rules.push(Rule::new(number, rule, clients));
                    masks.push(mask);
                }
                (clients, lists) => {
                    clients
                        .err()
                        .into_iter()
                        .chain(lists.err())
                        .for_each(&mut fault);
                }
            }
            compiled.add_destinations(number, rule.destinations.as_deref());
            if !rule.needs_user() {
                compiled.for_any.insert(number);
            }
            if !rule.needs_user() || rule.action == AccessAction::Deny {
                compiled.for_unknown.insert(number);
            }
            compiled.has_times |= rule.times.is_some();
        }
        compiled.rules = rules.into();
        compiled.lists = masks.into();
        compiled.ports = PortRules::new(&settings.rules);
        compiled.add_methods(&settings.rules);
        compiled.add_users(settings);
        match faults.is_empty() {
            true => Ok(compiled),
            false => Err(faults),
        }
    }

    fn add_destinations(&mut self, number: usize, destinations: Option<&[Destination]>) {
        let Some(destinations) = destinations else {
            return self.anywhere.insert(number);
        };
        let mut networks = std::mem::take(&mut self.networks).into_vec();
        for destination in destinations {
            match destination {
                Destination::Host(name) => {
                    self.hosts
                        .entry(name.clone())
                        .or_default()
                        .exact
                        .push(number);
                }
                Destination::Below(name) => {
                    self.hosts
                        .entry(name.clone())
                        .or_default()
                        .below
                        .push(number);
                }
                Destination::Network(network) => networks.push((*network, number)),
            }
        }
        self.networks = networks.into();
    }

    /// Notes for each method that rules name which rules it may match.
    fn add_methods(&mut self, rules: &[AccessRule]) {
        let may_match = |method: Option<&String>| -> RuleSet {
            let is_for = |rule: &AccessRule| match (&rule.methods, method) {
                (None, _) => true,
                (Some(methods), Some(method)) => methods.contains(method),
                (Some(_), None) => false,
            };
            numbers(rules, is_for)
        };
        self.any_method = may_match(None);
        for method in rules.iter().flat_map(|rule| rule.methods.iter().flatten()) {
            let set = may_match(Some(method));
            self.methods.insert(method.as_str().into(), set);
        }
    }

    /// Notes for each user that rules name which rules it may match.
    fn add_users(&mut self, settings: &AccessSettings) {
        let named = settings
            .rules
            .iter()
            .flat_map(|rule| rule.users.iter().flatten());
        for user in named.chain(settings.groups.values().flatten()) {
            let is_in = |group: &String| {
                let users = settings.groups.get(group);
                users.is_some_and(|users| users.contains(user))
            };
            let may_match = |rule: &AccessRule| {
                rule.users.as_ref().is_none_or(|users| users.contains(user))
                    && rule
                        .groups
                        .as_ref()
                        .is_none_or(|groups| groups.iter().any(is_in))
            };
            let set = numbers(&settings.rules, may_match);
            self.users.insert(user.as_str().into(), set);
        }
    }

    /// Whether a rule is for certain users.
    pub fn needs_users(&self) -> bool {
        self.rules.iter().any(|rule| rule.needs_user)
    }

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that can match a client; `by_default`: it is served where no rule matches.
    pub fn client(&self, address: IpAddr, by_default: bool) -> ClientRules {
        ClientRules {
            rules: numbers(&self.rules, |rule| {
                rule.clients.contain(address, by_default)
            }),
            by_default,
        }
    }

    /// The decision about all requests of this client, if it is refused as a whole: by a rule
    /// without other conditions, before any rule that could serve it, or because no rule could.
    pub fn refusal(&self, client: &ClientRules) -> Option<Decision> {
        let action = AccessAction::Deny;
        for number in RuleSet::in_all([&client.rules], self.rules.len()) {
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

    /// The rules whose times include `minute`.
    pub fn at(&self, minute: WeekMinute) -> TimedRules {
        let includes = |rule: &Rule| {
            rule.times.is_empty() || rule.times.iter().any(|span| span.contains(minute))
        };
        TimedRules(numbers(&self.rules, includes))
    }

    /// Whether a rule has times: without, every minute has the same rules.
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// Decides about a request. `has` says whether the list with a number has the host.
    ///
    /// # Errors
    /// The first rule that can match needs the user, and the client can be asked.
    pub fn decide(
        &self,
        client: &ClientRules,
        TimedRules(timed): &TimedRules,
        request: &AccessRequest<'_>,
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> Result<Decision, UserNeeded> {
        let answers = ListAnswers::new(request.host, has);
        let there = self.at_host(request.host);
        let user = match request.user {
            RequestUser::Known(name) => self.users.get(name).unwrap_or(&self.for_any),
            RequestUser::Unknown => &RuleSet::ALL,
            RequestUser::Unknowable => &self.for_unknown,
        };
        // Methods are compared in capitals: many servers take `get` for GET.
        let method = match request.method.bytes().any(|it| it.is_ascii_lowercase()) {
            true => self.methods.get(&*request.method.to_ascii_uppercase()),
            false => self.methods.get(request.method),
        };
        let method = method.unwrap_or(&self.any_method);
        let port = self.ports.at(request.port);
        let sets = [&client.rules, timed, &there, user, method, port];
        let mut left = RuleSet::in_all(sets, self.rules.len());
        let decision = match left.find(|&number| answers.allow(self.lists[number])) {
            Some(number)
                if self.rules[number].needs_user && request.user == RequestUser::Unknown =>
            {
                return Err(UserNeeded);
            }
            Some(number) => Decision {
                action: self.rules[number].action,
                rule: Some(number),
            },
            None => Decision {
                action: match client.by_default {
                    true => AccessAction::Allow,
                    false => AccessAction::Deny,
                },
                rule: None,
            },
        };
        Ok(decision)
    }

    /// Whether a rule about some method at some time may need the user of requests to `host`. `has`
    /// is as for [`AccessRules::decide`].
    pub fn may_need_user(
        &self,
        client: &ClientRules,
        (host, port): (&Host, u16),
        has: impl Fn(usize, &HostHashes) -> bool,
    ) -> bool {
        let answers = ListAnswers::new(host, has);
        let there = self.at_host(host);
        let sets = [&client.rules, &there, self.ports.at(port)];
        let rules = RuleSet::in_all(sets, self.rules.len());
        let mut rules = rules.filter(|&number| answers.allow(self.lists[number]));
        // Behind a rule without a user that matches every request, no rule decides.
        let first = rules.find(|&number| {
            let rule = &self.rules[number];
            rule.needs_user || rule.is_lasting
        });
        first.is_some_and(|number| self.rules[number].needs_user)
    }

    /// The rules whose destinations include `host`.
    fn at_host(&self, host: &Host) -> RuleSet {
        let mut rules = self.anywhere.clone();
        match PlainHost::of(host) {
            PlainHost::Name(_) if self.hosts.is_empty() => {}
            PlainHost::Name(name) => {
                for domain in with_parents(name) {
                    let Some(found) = self.hosts.get(domain) else {
                        continue;
                    };
                    rules.extend(found.below.iter().copied());
                    if domain.len() == name.len() {
                        rules.extend(found.exact.iter().copied());
                    }
                }
            }
            PlainHost::Address(address) => {
                let networks = self.networks.iter();
                let matched = networks.filter(|(network, _)| network.contains(address));
                rules.extend(matched.map(|&(_, number)| number));
            }
        }
        rules
    }

    /// The name of a rule, or its number as people count.
    pub fn label(&self, rule: usize) -> &str {
        &self.rules[rule].label
    }

    /// The reason that a person reads whom a rule refuses.
    pub fn reason(&self, rule: usize) -> Option<&str> {
        self.rules[rule].reason.as_deref()
    }

    /// Whom a refused person may ask.
    pub fn contact(&self) -> Option<&str> {
        self.contact.as_deref()
    }
}

impl Rule {
    fn new(number: usize, rule: &AccessRule, clients: Clients) -> Self {
        Self {
            label: label(number, rule).into(),
            reason: rule.reason.as_deref().map(Box::from),
            action: rule.action,
            is_blanket: rule.is_blanket(),
            is_lasting: rule.methods.is_none() && rule.times.is_none(),
            needs_user: rule.needs_user(),
            clients,
            times: rule.times.clone().unwrap_or_default().into(),
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
            numbers(rules, |rule: &AccessRule| {
                rule.ports.as_ref().is_none_or(is_for)
            })
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

/// The numbers of the rules that `is_for` takes.
fn numbers<T>(rules: &[T], is_for: impl Fn(&T) -> bool) -> RuleSet {
    let rules = rules.iter().enumerate();
    rules
        .filter(|(_, rule)| is_for(rule))
        .map(|(number, _)| number)
        .collect()
}

/// What the lists say about one host. Each is asked once, however many rules name it.
struct ListAnswers<'a, F> {
    host: &'a Host,
    hashes: OnceCell<HostHashes>,
    asked: Cell<u64>,
    found: Cell<u64>,
    has: F,
}

impl<'a, F: Fn(usize, &HostHashes) -> bool> ListAnswers<'a, F> {
    fn new(host: &'a Host, has: F) -> Self {
        Self {
            host,
            hashes: OnceCell::new(),
            asked: Cell::new(0),
            found: Cell::new(0),
            has,
        }
    }

    /// Whether a rule with these lists may match: it has none, or one of them has the host.
    fn allow(&self, lists: u64) -> bool {
        if lists == 0 || self.found.get() & lists != 0 {
            return true;
        }
        let mut unasked = lists & !self.asked.get();
        while unasked != 0 {
            let bit = unasked & unasked.wrapping_neg();
            let hashes = self.hashes.get_or_init(|| HostHashes::of(self.host));
            self.asked.set(self.asked.get() | bit);
            if (self.has)(bit.trailing_zeros() as usize, hashes) {
                self.found.set(self.found.get() | bit);
                return true;
            }
            unasked &= !bit;
        }
        false
    }
}

impl Clients {
    /// Without `clients`, a rule that refuses is for all clients. Any other rule is then only for
    /// those that are served anyway, so that nobody opens a proxy to the Internet by a rule about
    /// something else.
    fn new(rule: &AccessRule, settings: &AccessSettings) -> Result<Self, AccessRuleError> {
        let (mut local, mut networks) = (false, Vec::new());
        let Some(clients) = &rule.clients else {
            let networks = Box::default();
            return Ok(match rule.action {
                AccessAction::Deny => Self::All,
                _ => Self::Some {
                    local: true,
                    networks,
                },
            });
        };
        for client in clients {
            match client {
                RuleClients::All => return Ok(Self::All),
                RuleClients::Local => local = true,
                RuleClients::Network(network) => networks.push(*network),
                RuleClients::Named(name) => match settings.networks.get(name) {
                    Some(named) => networks.extend(named),
                    None => return Err(AccessRuleError::UnknownNetwork { name: name.clone() }),
                },
            }
        }
        let networks = networks.into();
        Ok(Self::Some { local, networks })
    }

    fn contain(&self, address: IpAddr, by_default: bool) -> bool {
        match self {
            Self::All => true,
            Self::Some { local, networks } => {
                (*local && by_default) || networks.iter().any(|it| it.contains(address))
            }
        }
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

/// The name of a rule, or its number as people count.
fn label(number: usize, rule: &AccessRule) -> String {
    match &rule.name {
        Some(name) => name.clone(),
        None => format!("rule {}", number + 1),
    }
}

fn empty_conditions(rule: &AccessRule) -> impl Iterator<Item = AccessRuleError> {
    let conditions = [
        ("clients", rule.clients.as_ref().map(Vec::len)),
        ("users", rule.users.as_ref().map(Vec::len)),
        ("groups", rule.groups.as_ref().map(Vec::len)),
        ("destinations", rule.destinations.as_ref().map(Vec::len)),
        ("lists", rule.lists.as_ref().map(Vec::len)),
        ("ports", rule.ports.as_ref().map(Vec::len)),
        ("methods", rule.methods.as_ref().map(Vec::len)),
        ("times", rule.times.as_ref().map(Vec::len)),
    ];
    let empty = conditions
        .into_iter()
        .filter(|(_, length)| *length == Some(0));
    empty.map(|(condition, _)| AccessRuleError::Empty { condition })
}

fn unknown_groups(
    rule: &AccessRule,
    settings: &AccessSettings,
) -> impl Iterator<Item = AccessRuleError> {
    let groups = rule.groups.iter().flatten();
    let unknown = groups.filter(|name| !settings.groups.contains_key(*name));
    unknown.map(|name| AccessRuleError::UnknownGroup { name: name.clone() })
}

fn name_twice(earlier: &[AccessRule], rule: &AccessRule) -> Option<AccessRuleError> {
    let name = rule.name.as_ref()?;
    let is_twice = earlier.iter().any(|it| it.name.as_ref() == Some(name));
    is_twice.then(|| AccessRuleError::NameTwice { name: name.clone() })
}

/// The error of a rule behind one that matches all that it could match.
fn unreachable(earlier: &[AccessRule], rule: &AccessRule) -> Option<AccessRuleError> {
    let is_for_all = |it: &AccessRule| match &it.clients {
        Some(clients) => clients.contains(&RuleClients::All),
        None => it.action == AccessAction::Deny,
    };
    let is_for_local = |it: &AccessRule| match &it.clients {
        Some(clients) => *clients == [RuleClients::Local],
        None => it.action != AccessAction::Deny,
    };
    let hides = |it: &AccessRule| {
        let covers = is_for_all(it) || (is_for_local(it) && is_for_local(rule));
        it.is_blanket() && (covers || (it.clients.is_some() && it.clients == rule.clients))
    };
    let number = earlier.iter().position(hides)?;
    Some(AccessRuleError::Unreachable {
        earlier: match &earlier[number].name {
            Some(name) => format!("the rule `{name}`"),
            None => format!("rule {}", number + 1),
        },
    })
}

/// Most lists: one bit each.
const LISTS_MAX: usize = 64;

#[cfg(test)]
mod tests;
