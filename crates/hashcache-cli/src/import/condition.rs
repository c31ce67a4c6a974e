//! What a request must be for an access rule: a conjunction of conditions, one of a kind at most.
//!
//! Made by `acl`, combined by `rules`. Two conditions of one kind are combined to the requests that
//! both match; where our rules cannot say that, the combination is an error and never something
//! wider.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;

use super::address::{self, Addresses};
use super::ranges::Ranges;
use super::work::{self, Work};

/// Conditions that must all hold. A kind that is not given holds for every request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub clients: Option<Rc<Addresses>>,
    pub destinations: Option<Rc<Destinations>>,
    /// Names of lists of hosts, one of which has the host.
    pub lists: Option<BTreeSet<String>>,
    pub ports: Option<Ranges>,
    pub methods: Option<BTreeSet<String>>,
    /// Minutes of the week; 0 is Monday, 00:00.
    pub times: Option<Ranges>,
    pub users: Option<Rc<BTreeSet<String>>>,
}

/// Why two conditions cannot be combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoLists;

impl Condition {
    /// Requests for a tunnel.
    pub fn of_connect() -> Self {
        Self {
            methods: Some(["CONNECT".to_owned()].into()),
            ..Self::default()
        }
    }

    /// Requests whose URL names one of these addresses.
    pub fn of_addresses(addresses: Addresses) -> Self {
        Self {
            destinations: Some(Rc::new(Destinations {
                addresses,
                ..Destinations::default()
            })),
            ..Self::default()
        }
    }

    /// Whether it is about certain hosts.
    pub fn is_about_hosts(&self) -> bool {
        self.destinations.is_some() || self.lists.is_some()
    }

    /// The requests that both match. `None`: there are none.
    pub fn and(&self, other: &Self) -> Result<Option<Self>, TwoLists> {
        let both = Self {
            clients: both(&self.clients, &other.clients, |a, b| {
                shared(a, b, Addresses::intersection)
            }),
            destinations: both(&self.destinations, &other.destinations, |a, b| {
                shared(a, b, Destinations::intersection)
            }),
            lists: match (&self.lists, &other.lists) {
                (Some(ours), Some(theirs)) if ours != theirs => return Err(TwoLists),
                (ours, theirs) => ours.as_ref().or(theirs.as_ref()).cloned(),
            },
            ports: both(&self.ports, &other.ports, Ranges::intersection),
            methods: both(&self.methods, &other.methods, |a, b| a & b),
            times: both(&self.times, &other.times, Ranges::intersection),
            users: both(&self.users, &other.users, |a, b| shared(a, b, |a, b| a & b)),
        };
        Ok((!both.is_never()).then_some(both))
    }

    /// Whether no request matches.
    pub fn is_never(&self) -> bool {
        let is_empty = [
            self.clients.as_ref().map(|it| it.is_empty()),
            self.destinations.as_ref().map(|it| it.is_empty()),
            self.lists.as_ref().map(BTreeSet::is_empty),
            self.ports.as_ref().map(Ranges::is_empty),
            self.methods.as_ref().map(BTreeSet::is_empty),
            self.times.as_ref().map(Ranges::is_empty),
            self.users.as_ref().map(|it| it.is_empty()),
        ];
        is_empty.contains(&Some(true))
    }

    /// The work of [`Self::and`].
    pub fn work_with(&self, other: &Self) -> usize {
        let both = [
            work_of(&self.clients, &other.clients, Addresses::work),
            work_of(&self.destinations, &other.destinations, Destinations::work),
            work_of(&self.users, &other.users, BTreeSet::len),
        ];
        1 + both.iter().sum::<usize>() + self.work_of_copy() + other.work_of_copy()
    }

    /// The work of a copy: that of the sets that a copy does not share.
    pub fn work_of_copy(&self) -> usize {
        let ranges = |set: &Option<Ranges>| set.as_ref().map_or(0, Ranges::len);
        let names = |set: &Option<BTreeSet<String>>| set.as_ref().map_or(0, BTreeSet::len);
        1 + ranges(&self.ports) + ranges(&self.times) + names(&self.methods) + names(&self.lists)
    }

    /// The work of looking at all of it.
    pub fn work(&self) -> usize {
        self.work_of_copy()
            + self.clients.as_ref().map_or(0, |it| it.work())
            + self.destinations.as_ref().map_or(0, |it| it.work())
            + self.users.as_ref().map_or(0, |it| it.len())
    }

    /// Whether every request that matches `other` matches this.
    ///
    /// # Errors
    /// There is no work left.
    pub fn covers(&self, other: &Self, work: &Work) -> Result<bool, String> {
        work.spend(1)?;
        let ranges = |ours: &Ranges, theirs: &Ranges| -> Result<bool, String> {
            work.spend(ours.len() + theirs.len())?;
            Ok(ours.intersection(theirs) == *theirs)
        };
        let names = |ours: &BTreeSet<String>, theirs: &BTreeSet<String>| -> Result<bool, String> {
            work.spend(theirs.len())?;
            Ok(theirs.is_subset(ours))
        };
        // What differs most often, and costs least, comes first.
        Ok(within(&self.ports, &other.ports, ranges)?
            && within(&self.times, &other.times, ranges)?
            && within(&self.methods, &other.methods, names)?
            && within(&self.lists, &other.lists, |a, b| Ok(a == b))?
            && within_shared(&self.users, &other.users, names)?
            && within_shared(&self.clients, &other.clients, |ours, theirs| {
                work.spend(ours.work() + theirs.work())?;
                Ok(ours.covers(theirs))
            })?
            && within_shared(&self.destinations, &other.destinations, |a, b| {
                a.covers(b, work)
            })?)
    }

    /// The work of [`Self::is_writable`]: a range takes several networks.
    pub fn work_of_writing(&self) -> usize {
        let addresses = self.destinations.as_ref().map(|it| &it.addresses);
        let ranges = self.clients.as_deref().into_iter().chain(addresses);
        let ranges: usize = ranges.map(Addresses::work).sum();
        1 + (ranges * NETWORKS_OF_RANGE).min(WRITING_MAX)
    }

    /// Whether its networks can be written: there are some, and not too many.
    pub fn is_writable(&self) -> bool {
        let can_write = |addresses: &Addresses, may_be_empty: bool| {
            let networks = addresses.network_count();
            networks.is_some_and(|count| may_be_empty || count > 0)
        };
        let clients = self.clients.as_ref();
        let destinations = self.destinations.as_ref();
        clients.is_none_or(|it| can_write(it, false))
            && destinations.is_none_or(|it| can_write(&it.addresses, !it.names.is_empty()))
    }

    /// Whether it holds for every request of its clients.
    pub fn is_blanket(&self) -> bool {
        let only_clients = Self {
            clients: self.clients.clone(),
            ..Self::default()
        };
        *self == only_clients
    }

    /// Its destinations, if it has no other condition.
    pub fn only_destinations(&self) -> Option<&Rc<Destinations>> {
        let only = Self {
            destinations: self.destinations.clone(),
            ..Self::default()
        };
        self.destinations.as_ref().filter(|_| *self == only)
    }

    /// The requests that match none of `alternatives`, where these are all of one kind that has an
    /// opposite: clients, ports or times.
    pub fn opposite(alternatives: &[Self]) -> Option<Self> {
        let (first, more) = alternatives.split_first()?;
        let union = more
            .iter()
            .try_fold(first.clone(), |union, it| union.or(it))?;
        let opposite = if let Some(clients) = &union.clients {
            Self {
                clients: Some(Rc::new(clients.complement())),
                ..Self::default()
            }
        } else if let Some(ports) = &union.ports {
            Self {
                ports: Some(ports.complement(PORT_MAX).intersection(&all_ports())),
                ..Self::default()
            }
        } else {
            Self {
                times: Some(union.times.as_ref()?.complement(MINUTE_MAX)),
                ..Self::default()
            }
        };
        union.is_single().then_some(opposite)
    }

    /// The requests that one or the other matches, if they are of one kind that has an opposite.
    pub fn or(&self, other: &Self) -> Option<Self> {
        let union = Self {
            clients: either(&self.clients, &other.clients, |a, b| {
                shared(a, b, Addresses::union)
            })?,
            ports: either(&self.ports, &other.ports, Ranges::union)?,
            times: either(&self.times, &other.times, Ranges::union)?,
            ..self.clone()
        };
        (self.is_single() && other.is_single()).then_some(union)
    }

    /// Whether it has one condition, of a kind that has an opposite.
    fn is_single(&self) -> bool {
        let kinds = [
            self.clients.is_some(),
            self.ports.is_some(),
            self.times.is_some(),
        ];
        let others = self.destinations.is_some()
            || self.lists.is_some()
            || self.methods.is_some()
            || self.users.is_some();
        !others && kinds.iter().filter(|it| **it).count() == 1
    }
}

/// Hosts of URLs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Hosts, and domains with all hosts below, which begin with a dot.
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

    /// Whether no host is in both.
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

    /// The work of looking at all of it.
    pub fn work(&self) -> usize {
        let names = self.names.iter().map(|name| work::of_name(name));
        names.sum::<usize>() + self.addresses.work()
    }

    /// Whether all hosts of `other` are among these.
    fn covers(&self, other: &Self, work: &Work) -> Result<bool, String> {
        for name in &other.names {
            work.spend(work::of_name(name))?;
            if !self.has(name) {
                return Ok(false);
            }
        }
        work.spend(self.addresses.work() + other.addresses.work())?;
        Ok(self.addresses.covers(&other.addresses))
    }

    /// Whether `text` is an address that is among these.
    pub fn has_address(&self, text: &str) -> bool {
        let is_address = text.parse::<IpAddr>().is_ok();
        let address = address::parse(text).filter(|_| is_address);
        address.is_some_and(|it| self.addresses.covers(&it))
    }

    /// Whether all hosts that `name` stands for are among these.
    pub fn has(&self, name: &str) -> bool {
        let domain = format!(".{}", name.strip_prefix('.').unwrap_or(name));
        // The domain itself, and each domain that it is in.
        let mut domains = domain.match_indices('.').map(|(at, _)| &domain[at..]);
        self.names.contains(name) || domains.any(|it| self.names.contains(it))
    }
}

pub fn all_ports() -> Ranges {
    Ranges::new([(1, PORT_MAX)])
}

fn both<T: Clone>(a: &Option<T>, b: &Option<T>, meet: impl Fn(&T, &T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(meet(a, b)),
        (a, b) => a.as_ref().or(b.as_ref()).cloned(),
    }
}

/// `None`: only one of them is given.
#[allow(
    clippy::option_option,
    reason = "whether there is a result, and whether it is given"
)]
fn either<T>(a: &Option<T>, b: &Option<T>, join: impl Fn(&T, &T) -> T) -> Option<Option<T>> {
    match (a, b) {
        (Some(a), Some(b)) => Some(Some(join(a, b))),
        (None, None) => Some(None),
        _ => None,
    }
}

/// The work of combining two sets: none if one is not given, or if they are one.
fn work_of<T>(a: &Option<Rc<T>>, b: &Option<Rc<T>>, work: impl Fn(&T) -> usize) -> usize {
    match (a, b) {
        (Some(a), Some(b)) if !Rc::ptr_eq(a, b) => work(a) + work(b),
        _ => 0,
    }
}

/// Whether a condition holds where another one does; `is_within` compares what they are about.
fn within<T>(
    ours: &Option<T>,
    theirs: &Option<T>,
    is_within: impl Fn(&T, &T) -> Result<bool, String>,
) -> Result<bool, String> {
    match (ours, theirs) {
        (None, _) => Ok(true),
        (Some(_), None) => Ok(false),
        (Some(ours), Some(theirs)) => is_within(ours, theirs),
    }
}

/// [`within`] for sets that may be one.
fn within_shared<T>(
    ours: &Option<Rc<T>>,
    theirs: &Option<Rc<T>>,
    is_within: impl Fn(&T, &T) -> Result<bool, String>,
) -> Result<bool, String> {
    within(ours, theirs, |ours, theirs| {
        match Rc::ptr_eq(ours, theirs) {
            true => Ok(true),
            false => is_within(ours, theirs),
        }
    })
}

/// Combines two sets without a copy if they are one.
fn shared<T: PartialEq>(a: &Rc<T>, b: &Rc<T>, meet: impl Fn(&T, &T) -> T) -> Rc<T> {
    match Rc::ptr_eq(a, b) {
        true => Rc::clone(a),
        false => Rc::new(meet(a, b)),
    }
}

/// The work of a range that is written as networks.
const NETWORKS_OF_RANGE: usize = 8;
/// The networks of a condition are counted up to a limit.
const WRITING_MAX: usize = 512;
const PORT_MAX: u128 = u16::MAX as u128;
/// The last minute of a week.
pub const MINUTE_MAX: u128 = 7 * 24 * 60 - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(networks: &[&str]) -> Condition {
        Condition {
            clients: Some(Rc::new(Addresses::of_networks(networks))),
            ..Condition::default()
        }
    }

    fn hosts(names: &[&str]) -> Condition {
        let names = names.iter().map(|it| (*it).to_owned()).collect();
        Condition {
            destinations: Some(Rc::new(Destinations {
                names,
                ..Destinations::default()
            })),
            ..Condition::default()
        }
    }

    fn list(name: &str) -> Condition {
        Condition {
            lists: Some([name.to_owned()].into()),
            ..Condition::default()
        }
    }

    #[test]
    fn both_conditions_must_hold() {
        let both = clients(&["10.0.0.0/8"]).and(&clients(&["10.1.0.0/16", "172.16.0.0/12"]));
        assert_eq!(both, Ok(Some(clients(&["10.1.0.0/16"]))));
        assert_eq!(clients(&["10.0.0.0/8"]).and(&clients(&["::1"])), Ok(None));
        let both = hosts(&[".example.org", "b.test"]).and(&hosts(&["a.example.org", ".b.test"]));
        assert_eq!(both, Ok(Some(hosts(&["a.example.org", "b.test"]))));
        assert_eq!(
            hosts(&["example.org"]).and(&hosts(&["a.example.org"])),
            Ok(None)
        );
        let both = hosts(&[".example.org"]).and(&hosts(&["example.org"]));
        assert_eq!(both, Ok(Some(hosts(&["example.org"]))));
        assert_eq!(list("a").and(&list("b")), Err(TwoLists));
        assert!(
            list("a")
                .and(&clients(&["::1"]))
                .unwrap()
                .unwrap()
                .lists
                .is_some()
        );
    }

    #[test]
    fn the_opposite_of_one_kind_is_a_condition() {
        let opposite = Condition::opposite(&[clients(&["0.0.0.0/1"]), clients(&["::/0"])]);
        assert_eq!(opposite, Some(clients(&["128.0.0.0/1"])));
        assert_eq!(Condition::opposite(&[hosts(&["a"])]), None);
        assert_eq!(
            Condition::opposite(&[clients(&["::1"]), hosts(&["a"])]),
            None
        );
        assert_eq!(Condition::opposite(&[Condition::default()]), None);
        assert_eq!(Condition::opposite(&[]), None);
        let ports = |from, until| Condition {
            ports: Some(Ranges::new([(from, until)])),
            ..Condition::default()
        };
        assert_eq!(
            Condition::opposite(&[ports(1, 1024)]),
            Some(ports(1025, 65535))
        );
    }

    #[test]
    fn a_condition_covers_what_it_matches() {
        let (wide, narrow) = (clients(&["10.0.0.0/8"]), clients(&["10.1.0.0/16"]));
        let covers = |a: &Condition, b: &Condition| a.covers(b, &Work::new()).unwrap();
        assert!(covers(&wide, &narrow) && !covers(&narrow, &wide));
        assert!(covers(&Condition::default(), &list("a")) && !covers(&list("a"), &list("b")));
        let (domain, host) = (hosts(&[".b.test"]), hosts(&["a.b.test"]));
        assert!(covers(&domain, &host) && !covers(&host, &domain));
        assert!(!covers(&wide, &domain) && !covers(&domain, &Condition::default()));
        assert!(wide.is_blanket() && !list("a").is_blanket());
    }
}
