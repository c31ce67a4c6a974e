//! What a request must be for an access rule: a conjunction of conditions, one of a kind at most.
//!
//! Made by `acl`, combined by `rules`. Two conditions of one kind are combined to the requests that
//! both match; where our rules cannot say that, the combination is an error and never something
//! wider.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::address::Addresses;
use super::ranges::Ranges;

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

    /// Whether every request that matches `other` matches this.
    pub fn covers(&self, other: &Self) -> bool {
        self.and(other)
            .is_ok_and(|both| both.as_ref() == Some(other))
    }

    /// Whether its networks can be written: there are some, and not too many.
    pub fn is_writable(&self) -> bool {
        let can_write = |addresses: &Addresses, may_be_empty: bool| {
            let networks = addresses.networks();
            networks.is_some_and(|it| may_be_empty || !it.is_empty())
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
    fn or(&self, other: &Self) -> Option<Self> {
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

    /// Whether all hosts that `name` stands for are among these.
    fn has(&self, name: &str) -> bool {
        let mut below = name.strip_prefix('.').unwrap_or(name);
        if self.names.contains(name) {
            return true;
        }
        loop {
            if self.names.contains(&format!(".{below}")) {
                return true;
            }
            match below.split_once('.') {
                Some((_, parent)) => below = parent,
                None => return false,
            }
        }
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

/// Combines two sets without a copy if they are one.
fn shared<T: PartialEq>(a: &Rc<T>, b: &Rc<T>, meet: impl Fn(&T, &T) -> T) -> Rc<T> {
    match Rc::ptr_eq(a, b) {
        true => Rc::clone(a),
        false => Rc::new(meet(a, b)),
    }
}

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
        assert!(wide.covers(&narrow) && !narrow.covers(&wide));
        assert!(Condition::default().covers(&list("a")));
        assert!(wide.is_blanket() && !list("a").is_blanket());
    }
}
