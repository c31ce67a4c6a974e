//! A site as the operator configured it.
//!
//! Made by `hashcache-cli` from a `[[site]]` table, or from `accelerate`; checked by
//! [`Sites::new`].
//!
//! Invariants: a site has at least one origin, and no host belongs to two sites.

use std::collections::HashMap;
use std::time::Duration;

use hashcache_base::net::prefix::Prefix;
use hashcache_http::{Authority, Host, Lifetimes, Origin, Scheme, Seconds, SiteLifetimes};
use http::{HeaderName, HeaderValue};

use super::balance::Balance;
use super::encode::Coding;
use super::header_rules::HeaderRules;
use super::key_rules::KeyRules;

/// A site and its origins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The site's host names, without ports; the first name is used in logs. Empty: the only site,
    /// which serves requests for any host.
    pub hosts: Vec<Host>,
    /// The servers that have the site's content.
    pub origins: Vec<SiteOrigin>,
    /// The Host field that origins get.
    pub sent_host: SentHost,
    /// How requests are spread over the origins.
    pub balance: Balance,
    /// How the origins are checked; `None`: only by the results of requests.
    pub health: Option<HealthCheck>,
    /// True if plain requests are redirected to https.
    pub redirect_to_https: bool,
    /// Networks from which Forwarded and X-Forwarded fields are believed.
    pub trust_forwarded: Vec<Prefix>,
    /// True if the proxies in these networks reserve a connection for a client after that client
    /// has logged in on it (NTLM, Negotiate): they send no other client's requests on it.
    pub front_keeps_logins: bool,
    /// Request fields from untrusted clients that reach the origins although they speak for the
    /// client (`X-HTTP-Method-Override`, for example).
    pub pass_fields: Vec<HeaderName>,
    /// How long stale responses may be served.
    pub grace: Grace,
    /// Freshness lifetimes by path.
    pub lifetimes: Lifetimes,
    /// Cache key rules.
    pub key: KeyRules,
    /// Changes to request fields.
    pub request_headers: HeaderRules,
    /// Changes to response fields.
    pub response_headers: HeaderRules,
    /// Content codings that are applied to text.
    pub compress: Vec<Coding>,
    /// An HTML page that replaces the proxy's own error pages.
    pub error_page: Option<Vec<u8>>,
}

/// A server with the content of a site.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SiteOrigin {
    /// The server's address.
    pub url: Origin,
    /// The origin's share of requests, relative to the other origins.
    pub weight: u16,
}

/// The Host field that origins get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SentHost {
    /// The client's host.
    #[default]
    Client,
    /// The host in the origin's URL.
    Origin,
    /// This host.
    Name(HeaderValue),
}

impl SentHost {
    /// Parses a host, with or without a port; `None` if it is not a host.
    pub fn name(text: &str) -> Option<Self> {
        Authority::parse(text, Scheme::Http).ok()?;
        text.parse().ok().map(Self::Name)
    }
}

/// How the origins of a site are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path and query of the request.
    pub path: String,
    /// The time between two checks on an origin.
    pub interval: Duration,
    /// How long an origin may take.
    pub timeout: Duration,
    /// The status of a good response.
    pub status: u16,
}

/// How long a site's stale responses may be served if the origin sets no rule for that. If the
/// origin forbids it (`must-revalidate`, `s-maxage`, `no-cache`), it stays forbidden.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grace {
    /// While the origins answer with an error.
    pub stale_if_error: Seconds,
    /// While a new response is fetched.
    pub stale_while_revalidate: Seconds,
}

/// Why sites are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    /// A host that belongs to two sites.
    #[error("`{host}` is a host of two sites")]
    HostTwice {
        /// The host.
        host: Host,
    },
    /// A site without hosts beside other sites.
    #[error("a site without `hosts` beside other sites")]
    NoHosts,
    /// A site without origins.
    #[error("a site without `origins`")]
    NoOrigins,
    /// An origin that is in a site's list twice.
    #[error("`{url}` is an origin of the site twice")]
    OriginTwice {
        /// The URL.
        url: Origin,
    },
}

impl Site {
    /// A site at one origin with default settings: any host, the client's Host field.
    pub fn at(url: Origin) -> Self {
        Self {
            hosts: Vec::new(),
            origins: vec![SiteOrigin { url, weight: 1 }],
            sent_host: SentHost::Client,
            balance: Balance::RoundRobin,
            health: None,
            redirect_to_https: false,
            trust_forwarded: Vec::new(),
            front_keeps_logins: false,
            pass_fields: Vec::new(),
            grace: Grace::default(),
            lifetimes: Lifetimes::default(),
            key: KeyRules::default(),
            request_headers: HeaderRules::default(),
            response_headers: HeaderRules::default(),
            compress: Vec::new(),
            error_page: None,
        }
    }

    /// The authority in the cache keys of a site that serves any host: a client must not be able to
    /// choose it. `None`: the site has names.
    pub fn any_host_authority(&self) -> Option<&Authority> {
        let origin = self.origins.first().filter(|_| self.hosts.is_empty());
        origin.map(|origin| &origin.url.authority)
    }

    /// The name of the site in logs.
    pub fn name(&self) -> String {
        match (self.hosts.first(), self.origins.first()) {
            (Some(host), _) => host.to_string(),
            (None, Some(origin)) => origin.url.authority.host_field(origin.url.scheme),
            (None, None) => String::new(),
        }
    }
}

impl HealthCheck {
    /// The defaults, with this path.
    pub fn at(path: String) -> Self {
        Self {
            path,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(2),
            status: 200,
        }
    }
}

/// Sites that do not contradict each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    all: Vec<Site>,
    /// The number of the site that has a host: a request costs the same with any number of sites.
    by_host: HashMap<Host, usize>,
}

impl Sites {
    /// Checks the sites.
    ///
    /// # Errors
    /// See [`SiteError`].
    pub fn new(sites: Vec<Site>) -> Result<Self, SiteError> {
        let mut by_host = HashMap::new();
        for (number, site) in sites.iter().enumerate() {
            if site.hosts.is_empty() && sites.len() > 1 {
                return Err(SiteError::NoHosts);
            }
            for (n, origin) in site.origins.iter().enumerate() {
                if site.origins[..n].iter().any(|it| it.url == origin.url) {
                    let url = origin.url.clone();
                    return Err(SiteError::OriginTwice { url });
                }
            }
            if site.origins.is_empty() {
                return Err(SiteError::NoOrigins);
            }
            for host in &site.hosts {
                if by_host.insert(host.clone(), number).is_some() {
                    return Err(SiteError::HostTwice { host: host.clone() });
                }
            }
        }
        Ok(Self {
            all: sites,
            by_host,
        })
    }

    /// All sites.
    pub fn all(&self) -> &[Site] {
        &self.all
    }

    /// The lifetimes of all sites.
    pub fn lifetimes(&self) -> SiteLifetimes {
        let mut lifetimes = SiteLifetimes::default();
        for site in &self.all {
            let any = site.any_host_authority().map(|authority| &authority.host);
            lifetimes.insert(site.hosts.iter().chain(any), &site.lifetimes);
        }
        lifetimes
    }

    /// The number of the site that has this host.
    pub(crate) fn find(&self, authority: &Authority) -> Option<usize> {
        let any = || (self.all.first()?.hosts.is_empty()).then_some(0);
        self.by_host.get(&authority.host).copied().or_else(any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(hosts: &[&str]) -> Site {
        let mut site = Site::at("http://127.0.0.1:8000".parse().unwrap());
        site.hosts = hosts.iter().map(|it| Host::parse(it).unwrap()).collect();
        site
    }

    fn refused(sites: Vec<Site>) -> String {
        Sites::new(sites).unwrap_err().to_string()
    }

    #[test]
    fn sites_that_contradict_each_other_are_refused() {
        assert_eq!(
            refused(vec![site(&["a.test", "b.test"]), site(&["B.TEST"])]),
            "`b.test` is a host of two sites"
        );
        assert_eq!(
            refused(vec![site(&["a.test", "a.test"])]),
            "`a.test` is a host of two sites"
        );
        assert_eq!(
            refused(vec![site(&["a.test"]), site(&[])]),
            "a site without `hosts` beside other sites"
        );
        let mut twice = site(&["a.test"]);
        twice.origins.push(twice.origins[0].clone());
        assert_eq!(
            refused(vec![twice]),
            "`http://127.0.0.1:8000` is an origin of the site twice"
        );
        let mut none = site(&["a.test"]);
        none.origins.clear();
        assert_eq!(refused(vec![none]), "a site without `origins`");
    }

    #[test]
    fn a_host_selects_its_site_whatever_its_port() {
        let sites = Sites::new(vec![site(&["a.test"]), site(&["b.test", "c.test"])]).unwrap();
        let find = |text: &str| {
            let authority = Authority::parse(text, Scheme::Http).unwrap();
            sites.find(&authority)
        };
        assert_eq!(find("A.test"), Some(0));
        assert_eq!(find("c.test:8080"), Some(1));
        assert_eq!(find("d.test"), None);
        assert_eq!(find("x.a.test"), None);
        let any = Sites::new(vec![site(&[])]).unwrap();
        let authority = Authority::parse("any.test", Scheme::Http).unwrap();
        assert_eq!(any.find(&authority), Some(0));
    }
}
