//! The conditions in an access rule, and their exceptions, as in `[[access]]`. There is at most one
//! condition of each kind, and a request must meet all.
//!
//! `acl` makes conditions and `rules` combines them. Two conditions of the same kind become their
//! intersection. If our rules cannot express it, the combination is an error, never a wider
//! condition.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;

use super::address::{self, Addresses};
use super::ranges::Ranges;
use super::work::{self, Work};

/// Conditions that must all hold, while no exception does. A missing kind holds for every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub clients: Option<Rc<Addresses>>,
    pub destinations: Option<Rc<Destinations>>,
    /// Host list names; one list must contain the host.
    pub lists: Option<Rc<BTreeSet<String>>>,
    pub ports: Option<Rc<Ranges>>,
    pub methods: Option<Rc<BTreeSet<String>>>,
    /// Minutes of the week; 0 is Monday, 00:00.
    pub times: Option<Rc<Ranges>>,
    pub users: Option<Rc<BTreeSet<String>>>,
    /// Requests that do not match although all conditions hold. An exception has no exceptions
    /// itself, and has at least one condition.
    pub except: Vec<Condition>,
}

impl Condition {
    /// Requests for a tunnel.
    pub fn of_connect() -> Self {
        Self {
            methods: Some(Rc::new(["CONNECT".to_owned()].into())),
            ..Self::default()
        }
    }

    /// Requests to these ports.
    pub fn of_ports(ports: Ranges) -> Self {
        Self {
            ports: Some(Rc::new(ports)),
            ..Self::default()
        }
    }

    /// Requests to these hosts.
    pub fn of_hosts(hosts: Destinations) -> Self {
        Self {
            destinations: Some(Rc::new(hosts)),
            ..Self::default()
        }
    }

    /// Requests from these clients.
    pub fn of_clients(clients: Addresses) -> Self {
        Self {
            clients: (clients != Addresses::all()).then(|| Rc::new(clients)),
            ..Self::default()
        }
    }

    /// True for a condition on hosts.
    pub fn is_about_hosts(&self) -> bool {
        self.destinations.is_some() || self.lists.is_some()
    }

    /// True if the rule or any exception names users.
    pub fn needs_user(&self) -> bool {
        self.users.is_some() || self.except.iter().any(|it| it.users.is_some())
    }

    /// True if users are the only condition, also in exceptions. Then Squid requires a login from
    /// every client.
    pub fn asks(&self) -> bool {
        let only = Self {
            users: self.users.clone(),
            except: self.except.clone(),
            ..Self::default()
        };
        self.needs_user() && *self == only && self.except.iter().all(Self::asks)
    }

    /// The requests that match both conditions. `None`: there are none.
    ///
    /// # Errors
    /// A rule cannot express the combination, or no work is left.
    pub fn and(&self, other: &Self, work: &Work) -> Result<Option<Self>, String> {
        let Some(mut both) = self.and_conditions(other, work)? else {
            return Ok(None);
        };
        for exception in self.except.iter().chain(&other.except) {
            work.spend(1 + both.except.len())?;
            // Two lists may have a host in common, so the exception is kept.
            let excepted = both.and_conditions(exception, work);
            if excepted == Ok(None) || both.except.contains(exception) {
                continue;
            }
            if excepted.is_ok_and(|it| it.is_some_and(|it| it.has_conditions_of(&both))) {
                return Ok(None);
            }
            both.except.push(exception.clone());
        }
        Ok(Some(both))
    }

    /// As [`Self::and`], but without exceptions.
    fn and_conditions(&self, other: &Self, work: &Work) -> Result<Option<Self>, String> {
        let sets = |a: &BTreeSet<String>, b: &BTreeSet<String>| a & b;
        let both = Self {
            clients: both(&self.clients, &other.clients, Addresses::intersection, work)?,
            destinations: both(
                &self.destinations,
                &other.destinations,
                Destinations::intersection,
                work,
            )?,
            lists: match (&self.lists, &other.lists) {
                (Some(ours), Some(theirs)) if ours != theirs => return Err(TWO_LISTS.to_owned()),
                (ours, theirs) => ours.as_ref().or(theirs.as_ref()).cloned(),
            },
            ports: both(&self.ports, &other.ports, Ranges::intersection, work)?,
            methods: both(&self.methods, &other.methods, sets, work)?,
            times: both(&self.times, &other.times, Ranges::intersection, work)?,
            users: both(&self.users, &other.users, sets, work)?,
            except: Vec::new(),
        };
        Ok((!both.is_never()).then_some(both))
    }

    /// Equality without regard to exceptions.
    fn has_conditions_of(&self, other: &Self) -> bool {
        let kinds = |it: &Self| Self {
            except: Vec::new(),
            ..it.clone()
        };
        kinds(self) == kinds(other)
    }

    /// Returns true if no request matches.
    pub fn is_never(&self) -> bool {
        let is_empty = [
            self.clients.as_ref().map(|it| it.is_empty()),
            self.destinations.as_ref().map(|it| it.is_empty()),
            self.lists.as_ref().map(|it| it.is_empty()),
            self.ports.as_ref().map(|it| it.is_empty()),
            self.methods.as_ref().map(|it| it.is_empty()),
            self.times.as_ref().map(|it| it.is_empty()),
            self.users.as_ref().map(|it| it.is_empty()),
        ];
        is_empty.contains(&Some(true))
    }

    /// The requests that do not match: other conditions, or an exception.
    pub fn opposite(&self) -> Vec<Self> {
        let conditions = Self {
            except: Vec::new(),
            ..self.clone()
        };
        let outside = (conditions != Self::default()).then(|| Self {
            except: vec![conditions],
            ..Self::default()
        });
        outside
            .into_iter()
            .chain(self.except.iter().cloned())
            .collect()
    }

    /// True if this condition certainly matches every request that `other` matches. May be false
    /// although it does, because the intersection is compared in the written form.
    pub fn covers(&self, other: &Self, work: &Work) -> bool {
        self.and(other, work) == Ok(Some(other.clone()))
    }

    /// True if clients are the only condition.
    pub fn is_blanket(&self) -> bool {
        let only_clients = Self {
            clients: self.clients.clone(),
            ..Self::default()
        };
        *self == only_clients
    }

    /// The destinations, if there is no other condition.
    pub fn only_destinations(&self) -> Option<&Rc<Destinations>> {
        let only = Self {
            destinations: self.destinations.clone(),
            ..Self::default()
        };
        self.destinations.as_ref().filter(|_| *self == only)
    }

    /// Number of rules and exceptions for this condition in the result.
    pub fn rule_count(&self) -> usize {
        1 + self.except.len()
    }
}

/// Hosts in URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Hosts, and domains with all hosts below, which start with a dot.
    pub names: BTreeSet<String>,
    /// Hosts that are named by an address.
    pub addresses: Addresses,
}

impl Destinations {
    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.addresses.is_empty()
    }

    pub fn union(&self, other: &Self) -> Self {
        Self {
            names: &self.names | &other.names,
            addresses: self.addresses.union(&other.addresses),
        }
    }

    /// Returns true if no host is in both sets.
    pub fn is_apart(&self, other: &Self) -> bool {
        self.intersection(other).is_empty()
    }

    fn intersection(&self, other: &Self) -> Self {
        let ours = self.names.iter().filter(|name| other.has(name));
        let theirs = other.names.iter().filter(|name| self.has(name));
        Self {
            names: ours.chain(theirs).cloned().collect(),
            addresses: self.addresses.intersection(&other.addresses),
        }
    }

    /// Returns true if `text` is an address in this set.
    pub fn has_address(&self, text: &str) -> bool {
        let is_address = text.parse::<IpAddr>().is_ok();
        let address = address::parse(text).filter(|_| is_address);
        address.is_some_and(|it| self.addresses.covers(&it))
    }

    /// Returns true if this set contains all hosts that `name` stands for.
    pub fn has(&self, name: &str) -> bool {
        let domain = format!(".{}", name.strip_prefix('.').unwrap_or(name));
        // The domain itself, and each domain above it.
        let mut domains = domain.match_indices('.').map(|(at, _)| &domain[at..]);
        self.names.contains(name) || domains.any(|it| self.names.contains(it))
    }
}

/// A set that can be intersected. The size counts as work, because a hostile file may have many
/// sets.
pub trait Elements {
    /// Cost of a pass over the elements.
    fn work(&self) -> usize;
}

impl Elements for Addresses {
    fn work(&self) -> usize {
        self.v4.len() + self.v6.len()
    }
}

impl Elements for Ranges {
    fn work(&self) -> usize {
        self.len()
    }
}

impl Elements for BTreeSet<String> {
    fn work(&self) -> usize {
        self.len()
    }
}

impl Elements for Destinations {
    fn work(&self) -> usize {
        let names = self.names.iter().map(|name| work::of_name(name));
        names.sum::<usize>() + self.addresses.work()
    }
}

pub fn all_ports() -> Ranges {
    Ranges::new([(1, PORT_MAX)])
}

/// The intersection of the given sets. A set with itself costs no work.
fn both<T: Elements>(
    a: &Option<Rc<T>>,
    b: &Option<Rc<T>>,
    meet: impl Fn(&T, &T) -> T,
    work: &Work,
) -> Result<Option<Rc<T>>, String> {
    match (a, b) {
        (Some(a), Some(b)) if !Rc::ptr_eq(a, b) => {
            work.spend(a.work() + b.work())?;
            Ok(Some(Rc::new(meet(a, b))))
        }
        (a, b) => Ok(a.as_ref().or(b.as_ref()).cloned()),
    }
}

/// Reason why two conditions cannot be combined.
const TWO_LISTS: &str = "a rule cannot say that a host must be in two lists";
const PORT_MAX: u128 = u16::MAX as u128;
/// The last minute of a week.
pub const MINUTE_MAX: u128 = 7 * 24 * 60 - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(networks: &[&str]) -> Condition {
        Condition::of_clients(Addresses::of_networks(networks))
    }

    fn hosts(names: &[&str]) -> Condition {
        Condition::of_hosts(Destinations {
            names: names.iter().map(|it| (*it).to_owned()).collect(),
            ..Destinations::default()
        })
    }

    fn list(name: &str) -> Condition {
        Condition {
            lists: Some(Rc::new([name.to_owned()].into())),
            ..Condition::default()
        }
    }

    fn but(condition: Condition, except: &[Condition]) -> Condition {
        Condition {
            except: except.to_vec(),
            ..condition
        }
    }

    fn and(a: &Condition, b: &Condition) -> Option<Condition> {
        a.and(b, &Work::new()).unwrap()
    }

    #[test]
    fn both_conditions_must_hold() {
        let both = and(
            &clients(&["10.0.0.0/8"]),
            &clients(&["10.1.0.0/16", "172.16.0.0/12"]),
        );
        assert_eq!(both, Some(clients(&["10.1.0.0/16"])));
        assert_eq!(and(&clients(&["10.0.0.0/8"]), &clients(&["::1"])), None);
        let both = and(
            &hosts(&[".example.org", "b.test"]),
            &hosts(&["a.example.org", ".b.test"]),
        );
        assert_eq!(both, Some(hosts(&["a.example.org", "b.test"])));
        assert_eq!(
            and(&hosts(&["example.org"]), &hosts(&["a.example.org"])),
            None
        );
        let both = and(&hosts(&[".example.org"]), &hosts(&["example.org"]));
        assert_eq!(both, Some(hosts(&["example.org"])));
        assert!(list("a").and(&list("b"), &Work::new()).is_err());
        assert!(and(&list("a"), &clients(&["::1"])).unwrap().lists.is_some());
    }

    #[test]
    fn the_exceptions_of_both_hold() {
        let (net, one) = (clients(&["10.0.0.0/8"]), clients(&["10.0.0.1"]));
        let (a, b) = (hosts(&[".a.test"]), hosts(&[".b.test"]));
        let both = and(
            &but(net.clone(), std::slice::from_ref(&a)),
            &but(Condition::default(), &[a.clone(), one.clone()]),
        );
        assert_eq!(both, Some(but(net.clone(), &[a.clone(), one.clone()])));
        // An exception that no request meets is left out; one that all meet leaves none.
        assert_eq!(and(&but(a.clone(), std::slice::from_ref(&b)), &a), Some(a));
        assert_eq!(and(&one, &but(Condition::default(), &[net])), None);
        let lists = but(list("a"), &[list("b")]);
        assert_eq!(and(&lists, &Condition::default()), Some(lists));
    }

    #[test]
    fn the_opposite_is_everything_but_the_conditions_and_each_exception() {
        let (net, a) = (clients(&["10.0.0.0/8"]), hosts(&[".a.test"]));
        let outside = but(Condition::default(), std::slice::from_ref(&net));
        assert_eq!(net.opposite(), std::slice::from_ref(&outside));
        let with_exception = but(net, std::slice::from_ref(&a));
        assert_eq!(with_exception.opposite(), [outside, a.clone()]);
        assert_eq!(
            but(Condition::default(), std::slice::from_ref(&a)).opposite(),
            [a]
        );
        assert_eq!(Condition::default().opposite(), []);
    }

    #[test]
    fn a_condition_covers_what_it_matches() {
        let (wide, narrow) = (clients(&["10.0.0.0/8"]), clients(&["10.1.0.0/16"]));
        let covers = |a: &Condition, b: &Condition| a.covers(b, &Work::new());
        assert!(covers(&wide, &narrow) && !covers(&narrow, &wide));
        assert!(covers(&Condition::default(), &list("a")) && !covers(&list("a"), &list("b")));
        let (domain, host) = (hosts(&[".b.test"]), hosts(&["a.b.test"]));
        assert!(covers(&domain, &host) && !covers(&host, &domain));
        assert!(!covers(&wide, &domain) && !covers(&domain, &Condition::default()));
        let but_host = but(domain.clone(), std::slice::from_ref(&host));
        assert!(covers(&domain, &but_host) && !covers(&but_host, &domain));
        assert!(wide.is_blanket() && !list("a").is_blanket() && !but_host.is_blanket());
    }
}
