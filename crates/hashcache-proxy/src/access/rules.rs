//! The rules of `[[access]]`, compiled, and what they decide about a request.
//!
//! Compiled at the start and at a reload. `client` is asked once a connection, `at` once a minute,
//! [`AccessRules::decide`] once a request; each of the first two gives a set of rules, so that a
//! request is compared only with the rules that can match it.
//!
//! Invariants: no I/O and no clock. The first rule that matches decides; without one, the clients
//! that are served by default are, and no others. Cost: a request looks its host and the domains
//! above it up once, and then tests ports and methods of the rules that are left.

use std::collections::HashMap;
use std::net::IpAddr;

use hashcache_http::Host;

use super::destination::Destination;
use super::name::{PlainHost, with_parents};
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

/// A request, as far as rules look at it.
#[derive(Clone, Copy, Debug)]
pub struct AccessRequest<'a> {
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
    #[error("more than {RULES_MAX} rules")]
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
    has_times: bool,
    contact: Option<Box<str>>,
}

/// Rules for a host, and for the hosts below a domain.
#[derive(Debug, Default)]
struct HostRules {
    exact: Vec<usize>,
    below: Vec<usize>,
}

/// One rule, with the conditions that are tested one by one.
#[derive(Debug)]
struct Rule {
    label: Box<str>,
    reason: Option<Box<str>>,
    action: AccessAction,
    is_blanket: bool,
    clients: Clients,
    ports: Box<[ConnectPort]>,
    methods: Box<[Box<str>]>,
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
        if settings.rules.len() > RULES_MAX {
            let (rule, error) = (RULES_MAX, AccessRuleError::TooMany);
            return Err(vec![AccessRuleFault { rule, error }]);
        }
        let mut compiled = Self {
            contact: settings.contact.as_deref().map(Box::from),
            ..Self::default()
        };
        let mut rules = Vec::new();
        for (number, rule) in settings.rules.iter().enumerate() {
            let mut fault = |error| {
                faults.push(AccessRuleFault {
                    rule: number,
                    error,
                });
            };
            empty_conditions(rule).for_each(&mut fault);
            unreachable(&settings.rules[..number], rule)
                .into_iter()
                .for_each(&mut fault);
            name_twice(&settings.rules[..number], rule)
                .into_iter()
                .for_each(&mut fault);
            match Clients::new(rule, settings) {
                Ok(clients) => rules.push(Rule::new(number, rule, clients)),
                Err(error) => fault(error),
            }
            compiled.add_destinations(number, rule.destinations.as_deref());
            compiled.has_times |= rule.times.is_some();
        }
        compiled.rules = rules.into();
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

    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The rules that can match a client; `by_default`: it is served where no rule matches.
    pub fn client(&self, address: IpAddr, by_default: bool) -> ClientRules {
        let matched = self.rules.iter().enumerate();
        let matched = matched.filter(|(_, rule)| rule.clients.contain(address, by_default));
        ClientRules {
            rules: matched.map(|(number, _)| number).collect(),
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
        let rules = self.rules.iter().enumerate();
        TimedRules(
            rules
                .filter(|(_, rule)| includes(rule))
                .map(|(number, _)| number)
                .collect(),
        )
    }

    /// Whether a rule has times: without, every minute has the same rules.
    pub fn has_times(&self) -> bool {
        self.has_times
    }

    /// Decides about a request.
    pub fn decide(
        &self,
        client: &ClientRules,
        TimedRules(timed): &TimedRules,
        request: &AccessRequest<'_>,
    ) -> Decision {
        let there = self.at_host(request.host);
        let mut left = RuleSet::in_all([&client.rules, timed, &there], self.rules.len());
        match left.find(|&number| self.rules[number].has(request)) {
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
        }
    }

    /// The rules whose destinations include `host`.
    fn at_host(&self, host: &Host) -> RuleSet {
        let mut rules = self.anywhere.clone();
        match PlainHost::of(host) {
            PlainHost::Name(_) if self.hosts.is_empty() => {}
            PlainHost::Name(name) => {
                if let Some(found) = self.hosts.get(name) {
                    rules.extend(found.exact.iter().copied());
                }
                for found in with_parents(name).filter_map(|name| self.hosts.get(name)) {
                    rules.extend(found.below.iter().copied());
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
        let methods = rule.methods.iter().flatten();
        Self {
            label: label(number, rule).into(),
            reason: rule.reason.as_deref().map(Box::from),
            action: rule.action,
            is_blanket: rule.is_blanket(),
            clients,
            ports: rule.ports.clone().unwrap_or_default().into(),
            methods: methods.map(|method| method.as_str().into()).collect(),
            times: rule.times.clone().unwrap_or_default().into(),
        }
    }

    /// Whether the conditions hold that no set of rules stands for.
    fn has(&self, request: &AccessRequest<'_>) -> bool {
        let is_method = |method: &Box<str>| **method == *request.method;
        let is_port = |ports: &ConnectPort| ports.contains(request.port);
        (self.ports.is_empty() || self.ports.iter().any(is_port))
            && (self.methods.is_empty() || self.methods.iter().any(is_method))
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
        ("destinations", rule.destinations.as_ref().map(Vec::len)),
        ("ports", rule.ports.as_ref().map(Vec::len)),
        ("methods", rule.methods.as_ref().map(Vec::len)),
        ("times", rule.times.as_ref().map(Vec::len)),
    ];
    let empty = conditions
        .into_iter()
        .filter(|(_, length)| *length == Some(0));
    empty.map(|(condition, _)| AccessRuleError::Empty { condition })
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

#[cfg(test)]
mod tests;
