//! The hosts that may be intercepted: from the operator and from shipped lists, but never banks and
//! similar hosts.
//!
//! `hashcache-cli` builds [`Hosts`] from the settings; the `Interceptor` checks them at every
//! CONNECT.
//!
//! Invariant: only listed hosts are intercepted. A host on the never-list is not intercepted,
//! unless a separate setting takes it off that list. Cost: a lookup per label of the name.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::LazyLock;

use hashcache_http::Host;
use serde::Deserialize;

use super::reason::Reason;

/// The host of the self-test: always intercepted, and answered by the proxy. If a browser gets an
/// answer from this host over https, the browser trusts the authority. The domain `internal` is
/// reserved for private use, so the name does not exist without this proxy.
pub const SELF_TEST_HOST: &str = "trust-test.hashcache.internal";

/// A name, or `*.` with a domain, which matches all names below the domain but not the domain
/// itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPattern {
    domain: Box<str>,
    is_wildcard: bool,
}

/// The reason why a text is not a [`HostPattern`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostPatternError {
    /// An address.
    #[error("it is an IP address, and certificates are made for host names")]
    Address,
    /// Not a name, or a `*` that is not at the front.
    #[error("it is neither a host name nor `*.` with a domain")]
    Name,
    /// A whole top-level domain.
    #[error("it is a whole top-level domain")]
    TopLevel,
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<Self, HostPatternError> {
        let (name, is_wildcard) = match text.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (text, false),
        };
        let domain = match Host::parse(name).map_err(|_| HostPatternError::Name)? {
            // A final dot would be another spelling.
            Host::Name(name) if !name.ends_with('.') => name,
            Host::Name(_) => return Err(HostPatternError::Name),
            Host::V4(_) | Host::V6(_) => return Err(HostPatternError::Address),
        };
        if is_wildcard && !domain.contains('.') {
            return Err(HostPatternError::TopLevel);
        }
        Ok(Self {
            domain: domain.as_ref().into(),
            is_wildcard,
        })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let star = if self.is_wildcard { "*." } else { "" };
        write!(f, "{star}{}", self.domain)
    }
}

impl HostPattern {
    /// Returns true if `name` is this name, or is below this domain.
    pub fn matches(&self, name: &str) -> bool {
        if self.is_wildcard {
            parents(name).any(|parent| parent == &*self.domain)
        } else {
            name == &*self.domain
        }
    }
}

/// A shipped list of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostList {
    /// Hosts with the same content for all clients: system updates, Wikimedia, CDNs of static
    /// files.
    Cacheable,
}

impl HostList {
    /// All lists with their names in settings.
    pub const ALL: [(&'static str, Self); 1] = [("cacheable", Self::Cacheable)];

    fn text(self) -> &'static str {
        match self {
            Self::Cacheable => include_str!("../lists/cacheable.toml"),
        }
    }
}

/// The operator's settings for hosts.
#[derive(Clone, Debug, Default)]
pub struct HostOptions {
    /// Hosts to intercept.
    pub hosts: Vec<HostPattern>,
    /// Shipped lists of further hosts.
    pub lists: Vec<HostList>,
    /// Hosts never to intercept, in addition to the shipped list.
    pub never: Vec<HostPattern>,
    /// Hosts to take off the never-list.
    pub despite_never: Vec<HostPattern>,
}

/// The hosts that may be intercepted.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    allowed: NamePatterns,
    never: NamePatterns,
    despite_never: NamePatterns,
}

impl Hosts {
    /// The hosts in `options`.
    pub fn new(options: &HostOptions) -> Self {
        let mut allowed = NamePatterns::from_patterns(&options.hosts);
        for list in &options.lists {
            for group in groups(list.text()) {
                allowed.add_all(&group.hosts);
            }
        }
        Self {
            allowed,
            never: NamePatterns::from_patterns(&options.never),
            despite_never: NamePatterns::from_patterns(&options.despite_never),
        }
    }

    /// Checks that `host` may be intercepted; the error is the reason if not.
    pub(crate) fn judge(&self, host: &Host) -> Result<(), Reason> {
        let Host::Name(name) = host else {
            return Err(Reason::Address);
        };
        let name = without_dot(name);
        if !self.allowed.contain(name) {
            return Err(Reason::NotListed);
        }
        let is_never = self.never.contain(name) || NEVER.matches(name);
        if is_never && !self.despite_never.contain(name) {
            return Err(Reason::Never);
        }
        Ok(())
    }
}

/// Host patterns, by kind.
#[derive(Clone, Debug, Default)]
struct NamePatterns {
    exact: HashSet<Box<str>>,
    below: HashSet<Box<str>>,
}

impl NamePatterns {
    fn from_patterns(patterns: &[HostPattern]) -> Self {
        let mut names = Self::default();
        for pattern in patterns {
            names.add(&pattern.domain, pattern.is_wildcard);
        }
        names
    }

    fn add(&mut self, domain: &str, is_wildcard: bool) {
        let names = if is_wildcard {
            &mut self.below
        } else {
            &mut self.exact
        };
        names.insert(domain.into());
    }

    /// Adds the patterns of a list; here a wildcard may cover a whole top-level domain.
    fn add_all(&mut self, texts: &[String]) {
        for text in texts {
            match text.strip_prefix("*.") {
                Some(domain) => self.add(domain, true),
                None => self.add(text, false),
            }
        }
    }

    fn contain(&self, name: &str) -> bool {
        self.exact.contains(name)
            || !self.below.is_empty() && parents(name).any(|parent| self.below.contains(parent))
    }
}

/// Returns the host name without a final dot: `h.` is the host `h`.
pub fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Iterates over the domains that contain `name`, starting with the nearest domain.
fn parents(name: &str) -> impl Iterator<Item = &str> {
    let above = name.split_once('.').map(|(_, parent)| parent);
    std::iter::successors(above, |parent| {
        parent.split_once('.').map(|(_, above)| above)
    })
}

/// The shipped never-list.
struct NeverIntercepted {
    names: NamePatterns,
    /// A name matches if a label is in this set.
    labels: HashSet<Box<str>>,
    /// A name matches if a label contains any of these parts.
    parts: Vec<Box<str>>,
    /// A name matches if its last two labels are a label of this set and a country code.
    before_country: HashSet<Box<str>>,
}

impl NeverIntercepted {
    fn read(text: &str) -> Self {
        let mut never = Self {
            names: NamePatterns::default(),
            labels: HashSet::new(),
            parts: Vec::new(),
            before_country: HashSet::new(),
        };
        for group in groups(text) {
            never.names.add_all(&group.hosts);
            let boxed = |words: Vec<String>| words.into_iter().map(String::into_boxed_str);
            never.labels.extend(boxed(group.labels));
            never.parts.extend(boxed(group.parts));
            never.before_country.extend(boxed(group.before_country));
        }
        never
    }

    fn matches(&self, name: &str) -> bool {
        let is_part = |label: &str| self.parts.iter().any(|part| label.contains(&**part));
        let mut last = name.rsplit('.');
        let (country, second) = (last.next(), last.next());
        country.is_some_and(|country| country.len() == 2)
            && second.is_some_and(|second| self.before_country.contains(second))
            || self.names.contain(name)
            || name
                .split('.')
                .rev()
                // .mx and .id are countries.
                .skip(usize::from(country.is_some_and(|it| it.len() == 2)))
                .any(|label| self.labels.contains(label) || is_part(label))
    }
}

static NEVER: LazyLock<NeverIntercepted> =
    LazyLock::new(|| NeverIntercepted::read(include_str!("../lists/never.toml")));

/// A `[[group]]` of a list.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HostGroup {
    /// For readers of the list.
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    labels: Vec<String>,
    #[serde(default)]
    parts: Vec<String>,
    #[serde(default)]
    before_country: Vec<String>,
}

fn groups(text: &str) -> Vec<HostGroup> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct ShippedList {
        group: Vec<HostGroup>,
    }
    let list: ShippedList = toml::from_str(text).expect("the lists are read by a test");
    list.group
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(texts: &[&str]) -> Vec<HostPattern> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn a_dot_at_the_end_of_a_name_changes_nothing() {
        let hosts = Hosts::new(&HostOptions {
            hosts: patterns(&["*.c.test", "b.test", "a.example"]),
            never: patterns(&["b.test"]),
            ..HostOptions::default()
        });
        for name in ["x.c.test", "a.example", "b.test", "other.example"] {
            let dotted = host(&format!("{name}."));
            assert_eq!(hosts.judge(&dotted), hosts.judge(&host(name)), "{name}");
        }
        assert_eq!(hosts.judge(&host("a.example.")), Ok(()));
    }

    #[test]
    fn a_pattern_is_a_name_or_all_below_one() {
        for text in ["a.test", "*.a.test", "localhost", "xn--bcher-kva.example"] {
            assert_eq!(text.parse::<HostPattern>().unwrap().to_string(), text);
        }
        let upper: HostPattern = "*.A.Test".parse().unwrap();
        assert_eq!(upper.to_string(), "*.a.test");
        for (text, error) in [
            ("127.0.0.1", HostPatternError::Address),
            ("[::1]", HostPatternError::Address),
            ("0x7f.1", HostPatternError::Name),
            ("*", HostPatternError::Name),
            ("", HostPatternError::Name),
            ("a.*.test", HostPatternError::Name),
            ("*a.test", HostPatternError::Name),
            ("a.test.", HostPatternError::Name),
            ("a.test:443", HostPatternError::Name),
            ("https://a.test", HostPatternError::Name),
            ("*.test", HostPatternError::TopLevel),
        ] {
            assert_eq!(text.parse::<HostPattern>(), Err(error), "{text}");
        }
    }

    #[test]
    fn who_is_not_named_is_not_intercepted() {
        let hosts = Hosts::new(&HostOptions {
            hosts: patterns(&["a.test", "*.b.test"]),
            ..HostOptions::default()
        });
        for name in ["a.test", "a.test.", "x.b.test", "x.y.b.test"] {
            assert_eq!(hosts.judge(&host(name)), Ok(()), "{name}");
        }
        for name in ["x.a.test", "b.test", "xb.test", "test", "c.test"] {
            assert_eq!(hosts.judge(&host(name)), Err(Reason::NotListed), "{name}");
        }
        assert_eq!(hosts.judge(&host("127.0.0.1")), Err(Reason::Address));
        let none = Hosts::default();
        assert_eq!(none.judge(&host("a.test")), Err(Reason::NotListed));
    }

    #[test]
    fn never_wins_unless_a_key_of_its_own_says_otherwise() {
        let names = [
            "www.mybank.test",
            "*.example.gov",
            "mail.a.test",
            "own.test",
        ];
        let options = HostOptions {
            hosts: patterns(&names),
            never: patterns(&["own.test"]),
            ..HostOptions::default()
        };
        let asked = [
            "www.mybank.test",
            "x.example.gov",
            "mail.a.test",
            "own.test",
        ];
        let hosts = Hosts::new(&options);
        for name in asked {
            assert_eq!(hosts.judge(&host(name)), Err(Reason::Never), "{name}");
        }
        let hosts = Hosts::new(&HostOptions {
            despite_never: patterns(&names),
            ..options
        });
        for name in asked {
            assert_eq!(hosts.judge(&host(name)), Ok(()), "{name}");
        }
        let only_despite = Hosts::new(&HostOptions {
            despite_never: patterns(&names),
            ..HostOptions::default()
        });
        assert_eq!(
            only_despite.judge(&host("own.test")),
            Err(Reason::NotListed)
        );
    }

    #[test]
    fn banks_health_government_and_mail_are_known() {
        for name in [
            "irs.gov",
            "www.gov.uk",
            "www.service.gov.uk",
            "portal.gob.mx",
            "impots.gouv.fr",
            "www.army.mil",
            "www.nhs.uk",
            "mychart.hospital.test",
            "online.somebank.test",
            "ebanking.example.ch",
            "paypal.com",
            "www.paypal.com",
            "mail.example.org",
            "webmail.example.org",
            "imap.example.org",
            "outlook.office.com",
            "accounts.google.com",
            "mx.example.mx",
            "id.example.id",
        ] {
            assert!(NEVER.matches(name), "{name}");
        }
        for name in [
            "en.wikipedia.org",
            "static.example.org",
            "gov.example.org",
            "nhs.example",
            "mirror.unam.mx",
            "kambing.ui.ac.id",
        ] {
            assert!(!NEVER.matches(name), "{name}");
        }
    }

    #[test]
    fn what_ships_is_read_and_names_nobody_who_is_never_intercepted() {
        let shipped = groups(HostList::Cacheable.text());
        let all: Vec<&String> = shipped.iter().flat_map(|group| &group.hosts).collect();
        assert!(!all.is_empty());
        let hosts = Hosts::new(&HostOptions {
            lists: vec![HostList::Cacheable],
            ..HostOptions::default()
        });
        for text in all {
            let pattern: HostPattern = text.parse().unwrap();
            assert_eq!(pattern.to_string(), *text, "in its one spelling");
            let name = text.replace("*.", "x.");
            assert_eq!(hosts.judge(&host(&name)), Ok(()), "{text}");
        }
        for group in shipped {
            let more = [group.labels, group.parts, group.before_country].concat();
            assert!(more.is_empty(), "a list that allows has names alone");
        }
        assert_eq!(hosts.judge(&host("upload.wikimedia.org")), Ok(()));
        assert_eq!(
            hosts.judge(&host("wikipedia.example")),
            Err(Reason::NotListed)
        );
    }

    #[test]
    fn a_name_of_255_labels_is_judged_as_any() {
        let long = "a.".repeat(126) + "a";
        let hosts = Hosts::new(&HostOptions {
            hosts: patterns(&["*.a.a"]),
            ..HostOptions::default()
        });
        assert_eq!(hosts.judge(&host(&long)), Ok(()));
    }
}
