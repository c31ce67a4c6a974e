//! Peers and routes as text: `--parent URL`, `[[peer]]` and `[[route]]` tables, and the proxies in
//! the environment.
//!
//! Called by `keys`, `file` and `mod`.
//!
//! Invariant: a password is in a separate file or in the environment, never in a flag or in the
//! configuration, which others may read.

use std::net::SocketAddr;
use std::path::PathBuf;

use hashcache::PolicyKind;
use hashcache_http::{Origin, Scheme, TargetError};
use hashcache_proxy::{
    ConnectPort, Credentials, Direct, HtcpPeer, PeerChoice, PeerHttps, PeerKind, PeerMisses,
    PeerSettings, PeerSummary, Pin, RouteHost, RouteSettings,
};
use serde::Deserialize;

use super::environment::Environment;
use super::file::{ArrayTable, WrittenTable};
use super::keys::choices::{DIRECT, PEER_CHOICE};
use super::keys::types::pin;
use super::words::one_of;
use crate::fault::{Fault, Faults};

/// A parent in a flag or in the key `parent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parent {
    /// The proxy at this URL.
    Url(Origin),
    /// The proxies in the environment of the process.
    Environment,
}

impl std::fmt::Display for Parent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Url(url) => url.fmt(f),
            Self::Environment => f.write_str("env"),
        }
    }
}

/// Parses a parent: a URL, or `env`.
pub fn read_parent(word: &str) -> Result<Parent, Fault> {
    match word {
        "env" => Ok(Parent::Environment),
        _ => peer_url(word).map(Parent::Url),
    }
}

fn peer_url(word: &str) -> Result<Origin, Fault> {
    word.parse().map_err(|error: TargetError| {
        // A password must not get into a log.
        let shown = match error {
            TargetError::Userinfo => "this",
            _ => &format!("`{word}`"),
        };
        let fault = Fault::new(format!("{shown} is not the URL of a proxy: {error}"));
        match error {
            TargetError::Userinfo => fault.hint(
                "write `user:password` into a file that only you can read, and name it with \
                 `credentials_file` in a `[[peer]]`",
            ),
            _ => fault.hint("write it as http://cache.isp.example:3128, or https:// for TLS"),
        }
    })
}

const KINDS: [(&str, PeerKind); 3] = [
    ("parent", PeerKind::Parent),
    ("sibling", PeerKind::Sibling),
    ("member", PeerKind::Member),
];
const HTTPS: [(&str, PeerHttps); 2] = [("tunnel", PeerHttps::Tunnel), ("fetch", PeerHttps::Fetch)];

/// Most members: for each request, the URL is hashed once for each member.
const MEMBERS_MAX: usize = 64;
/// A peer's largest weight.
const WEIGHT_MAX: u32 = 1_000;

/// A parent that is described only by a URL; its name is the authority of the URL.
fn parent_at(url: Origin) -> PeerSettings {
    PeerSettings {
        name: url.authority.to_string(),
        kind: PeerKind::Parent,
        url,
        credentials: Credentials::None,
        https: PeerHttps::Tunnel,
        icp: None,
        htcp: None,
        summary: PeerSummary::None,
        misses: PeerMisses::Fetched,
        weight: 1,
        pin: None,
    }
}

/// A `[[peer]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTable {
    name: String,
    kind: Option<String>,
    url: String,
    credentials_file: Option<PathBuf>,
    https: Option<String>,
    #[serde(default)]
    plain_https: bool,
    weight: Option<u32>,
    icp: Option<u16>,
    htcp: Option<u16>,
    htcp_key_file: Option<PathBuf>,
    clear: Option<bool>,
    send_clear: Option<bool>,
    #[serde(default)]
    digest: bool,
    #[serde(default)]
    summary: bool,
    misses: Option<bool>,
    pin: Option<String>,
}

impl ArrayTable for PeerTable {
    const ARRAY: &'static str = "peer";
    type Meaning = PeerSettings;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<PeerSettings, Faults> {
        Ok(self.settings()?)
    }

    fn name(meaning: &PeerSettings) -> Option<&str> {
        Some(&meaning.name)
    }
}

impl PeerTable {
    /// Returns the peer's settings.
    pub fn settings(&self) -> Result<PeerSettings, Fault> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if self.name.is_empty() || !self.name.chars().all(is_name) {
            let fault = Fault::new(format!("`{}` is not a name for a peer", self.name));
            return Err(fault.hint("use letters, digits, `-`, `_` and `.`"));
        }
        let url = peer_url(&self.url)?;
        let https = word(&HTTPS, self.https.as_deref())?;
        if https == PeerHttps::Fetch && url.scheme == Scheme::Http && !self.plain_https {
            let fault = Fault::new("`https = \"fetch\"` would send https URLs in clear");
            return Err(fault.hint(
                "use a URL with https://, or `plain_https = true` on a line that no one else can \
                 read",
            ));
        }
        let weight = self.weight.unwrap_or(1);
        if !(1..=WEIGHT_MAX).contains(&weight) {
            return Err(Fault::new(format!(
                "a weight is a number from 1 to {WEIGHT_MAX}"
            )));
        }
        let kind = word(&KINDS, self.kind.as_deref())?;
        if self.icp == Some(0) {
            return Err(Fault::new("`icp` of a peer is a port from 1 to 65535"));
        }
        let htcp = self.htcp_peer()?;
        let summary = self.summary(kind)?;
        let is_asked = self.icp.is_some() || htcp.is_some() || summary != PeerSummary::None;
        if kind == PeerKind::Sibling && !is_asked {
            let fault = Fault::new(format!(
                "the sibling `{}` has none of `icp`, `htcp` and `digest`",
                self.name
            ));
            return Err(fault.hint(
                "a sibling is asked by UDP whether it has a response: add its port, usually \
                 `icp = 3130` or `htcp = 4827`; or `digest = true`, if it serves a cache digest",
            ));
        }
        if kind == PeerKind::Member && (self.icp.is_some() || self.misses.is_some()) {
            let fault = Fault::new(format!(
                "`icp` and `misses` say nothing about the member `{}`",
                self.name
            ));
            return Err(fault.hint("members need no queries: each URL has one owner"));
        }
        let pin = self.pin.as_deref().map(pin).transpose()?;
        let credentials = self.credentials_file.clone();
        let settings = PeerSettings {
            name: self.name.clone(),
            kind,
            url,
            credentials: credentials.map_or(Credentials::None, Credentials::File),
            https,
            icp: self.icp,
            htcp,
            summary,
            misses: match self.misses {
                Some(false) => PeerMisses::Refused,
                Some(true) | None => PeerMisses::Fetched,
            },
            weight,
            pin,
        };
        match link_fault(&settings) {
            Some(fault) => Err(fault),
            None => Ok(settings),
        }
    }
}

/// A fault in a peer that has a pin, if any.
fn link_fault(peer: &PeerSettings) -> Option<Fault> {
    peer.pin?;
    let name = &peer.name;
    if peer.kind != PeerKind::Parent {
        let fault = Fault::new(format!("`pin` is for parents, and `{name}` is none"));
        return Some(fault);
    }
    if peer.url.scheme != Scheme::Https {
        let fault = Fault::new(format!(
            "the URL of `{name}`, which has a pin, is not https://"
        ));
        return Some(
            fault.hint("write it as https://hub.example:3129, with the port of its `link_listen`"),
        );
    }
    if peer.icp.is_some() || peer.htcp.is_some() {
        let fault = Fault::new(format!(
            "`{name}` has a pin, and `icp` and `htcp` would send URLs in clear"
        ));
        return Some(fault.hint("leave them out"));
    }
    None
}

impl PeerTable {
    fn summary(&self, kind: PeerKind) -> Result<PeerSummary, Fault> {
        let summary = match (self.digest, self.summary) {
            (_, true) => PeerSummary::Updates,
            (true, false) => PeerSummary::Digest,
            (false, false) => return Ok(PeerSummary::None),
        };
        let name = &self.name;
        if kind != PeerKind::Sibling {
            let fault = Fault::new(format!(
                "`digest` and `summary` are for siblings, and `{name}` is none"
            ));
            return Err(fault.hint("a parent is asked whatever it has stored: leave them out"));
        }
        if summary == PeerSummary::Updates && self.icp.is_none() {
            let fault = Fault::new(format!("`summary` of the peer `{name}` needs its `icp`"));
            return Err(fault.hint("updates are sent by UDP: add its ICP port, `icp = 3130`"));
        }
        Ok(summary)
    }

    fn htcp_peer(&self) -> Result<Option<HtcpPeer>, Fault> {
        let Some(port) = self.htcp else {
            let others = [
                ("htcp_key_file", self.htcp_key_file.is_some()),
                ("clear", self.clear.is_some()),
                ("send_clear", self.send_clear.is_some()),
            ];
            let alone = others.iter().find(|(_, is_set)| *is_set);
            return match alone {
                Some((name, _)) => {
                    let fault = Fault::new(format!("`{name}` of a peer needs `htcp`"));
                    Err(fault.hint("add its UDP port for HTCP, usually `htcp = 4827`"))
                }
                None => Ok(None),
            };
        };
        if port == 0 {
            return Err(Fault::new("`htcp` of a peer is a port from 1 to 65535"));
        }
        Ok(Some(HtcpPeer {
            port,
            key_file: self.htcp_key_file.clone(),
            obeys_clear: self.clear.unwrap_or(false),
            sends_clear: self.send_clear.unwrap_or(false),
        }))
    }
}

fn word<T: Copy + Default>(words: &[(&str, T)], word: Option<&str>) -> Result<T, Fault> {
    word.map_or(Ok(T::default()), |word| one_of(words, word))
}

/// A single word or a list of words.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Words {
    #[default]
    None,
    One(String),
    Many(Vec<String>),
}

impl Words {
    fn as_slice(&self) -> &[String] {
        match self {
            Self::None => &[],
            Self::One(word) => std::slice::from_ref(word),
            Self::Many(words) => words,
        }
    }
}

/// A `[[route]]` table as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTable {
    #[serde(default)]
    host: Words,
    #[serde(default)]
    port: Vec<toml::Value>,
    scheme: Option<String>,
    peers: Option<Vec<String>>,
    direct: Option<String>,
    choice: Option<String>,
}

impl ArrayTable for RouteTable {
    const ARRAY: &'static str = "route";
    type Meaning = WrittenRoute;

    fn meaning(self, _: &WrittenTable<'_>) -> Result<WrittenRoute, Faults> {
        self.settings()
    }

    fn name(_: &WrittenRoute) -> Option<&str> {
        None
    }
}

impl RouteTable {
    /// Returns the route's settings; missing settings are taken from the keys later.
    pub fn settings(&self) -> Result<WrittenRoute, Faults> {
        let mut faults = Vec::new();
        let mut hosts = Vec::new();
        for word in self.host.as_slice() {
            match route_host(word) {
                Ok(host) => hosts.push(host),
                Err(fault) => faults.push(fault),
            }
        }
        let mut ports: Vec<ConnectPort> = Vec::new();
        for port in &self.port {
            let text = match port {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            match text.parse() {
                Ok(port) => ports.push(port),
                Err(error) => faults.push(Fault::new(format!("`{text}`: {error}"))),
            }
        }
        let scheme = self.scheme.as_deref().map(|word| one_of(&SCHEMES, word));
        let scheme = scheme.transpose().map_err(|fault| faults.push(fault));
        let direct = self.direct.as_deref().map(DIRECT.read);
        let direct = direct.transpose().map_err(|fault| faults.push(fault));
        let choice = self.choice.as_deref().map(PEER_CHOICE.read);
        let choice = choice.transpose().map_err(|fault| faults.push(fault));
        for (at, name) in self.peers.iter().flatten().enumerate() {
            if self.peers.iter().flatten().take(at).any(|it| it == name) {
                faults.push(Fault::new(format!("`peers` has `{name}` twice")));
            }
        }
        match (scheme, direct, choice) {
            (Ok(scheme), Ok(direct), Ok(choice)) if faults.is_empty() => Ok(WrittenRoute {
                settings: RouteSettings {
                    hosts,
                    ports,
                    scheme,
                    peers: self.peers.clone(),
                    ..RouteSettings::default()
                },
                direct,
                choice,
            }),
            _ => Err(Faults(faults)),
        }
    }
}

/// A route as the operator wrote it.
#[derive(Clone, Debug)]
pub struct WrittenRoute {
    settings: RouteSettings,
    direct: Option<Direct>,
    choice: Option<PeerChoice>,
}

impl WrittenRoute {
    /// Returns the route, with missing settings taken from the keys. A route with an empty list of
    /// peers means direct connections.
    fn with_keys(&self, direct: Direct, choice: PeerChoice) -> RouteSettings {
        let usual = match &self.settings.peers {
            Some(peers) if peers.is_empty() => Direct::Allow,
            _ => direct,
        };
        RouteSettings {
            direct: self.direct.unwrap_or(usual),
            choice: self.choice.unwrap_or(choice),
            ..self.settings.clone()
        }
    }
}

const SCHEMES: [(&str, Scheme); 4] = [
    ("http", Scheme::Http),
    ("https", Scheme::Https),
    ("ftp", Scheme::Ftp),
    ("gopher", Scheme::Gopher),
];

/// Parses a host name, `*.` with a domain, an address or a network.
fn route_host(word: &str) -> Result<RouteHost, Fault> {
    if let Ok(network) = word.parse() {
        return Ok(RouteHost::Network(network));
    }
    word.parse().map(RouteHost::Name).map_err(|_| {
        Fault::new(format!("`{word}` is neither a host name nor a network"))
            .hint("write it as intranet, *.corp.example, 10.0.0.0/8 or [2001:db8::]/32")
    })
}

/// All peers and routes of a configuration, from its four sources.
#[derive(Clone, Debug, Default)]
pub struct PeersAndRoutes {
    /// All peers: parents by URL, proxies from the environment, `[[peer]]` tables.
    pub peers: Vec<PeerSettings>,
    /// All routes; the last route matches everything.
    pub routes: Vec<RouteSettings>,
}

/// The settings for peers and routes in the keys and tables of a configuration.
#[derive(Clone, Debug)]
pub struct Said<'a> {
    /// The key `parent`.
    pub parents: &'a [Parent],
    /// The key `parent_pin`.
    pub pin: Option<Pin>,
    /// The `[[peer]]` tables.
    pub peers: &'a [PeerSettings],
    /// The `[[route]]` tables.
    pub routes: &'a [WrittenRoute],
    /// The key `direct`.
    pub direct: Direct,
    /// The key `peer_choice`.
    pub choice: PeerChoice,
    /// The key `icp`.
    pub icp: Option<SocketAddr>,
    /// The key `htcp`.
    pub htcp: Option<SocketAddr>,
    /// The key `name`.
    pub name: &'a str,
    /// The key `policy`.
    pub policy: PolicyKind,
    /// The proxy runs in front of a site: only routes that the operator wrote apply.
    pub in_front_of_a_site: bool,
}

impl Said<'_> {
    /// Combines the settings into a list of peers and a list of routes.
    pub fn together(&self, environment: &Environment) -> Result<PeersAndRoutes, Faults> {
        let mut faults = Vec::new();
        let mut all = PeersAndRoutes::default();
        for parent in self.parents {
            match parent {
                Parent::Url(url) => all.peers.push(parent_at(url.clone())),
                Parent::Environment => match self.proxies_of(environment) {
                    Ok(found) => {
                        all.peers.extend(found.peers);
                        all.routes.extend(found.routes);
                    }
                    Err(fault) => faults.push(fault.at("parent")),
                },
            }
        }
        faults.extend(self.pin_the_parent(&mut all.peers));
        all.peers.extend(self.peers.iter().cloned());
        let routes = self.routes.iter();
        let routes = routes.map(|route| route.with_keys(self.direct, self.choice));
        all.routes.splice(..0, routes);
        if self.in_front_of_a_site && !self.parents.is_empty() {
            let fault = Fault::new("`parent` does not work in front of a site");
            faults.push(fault.hint("write a `[[peer]]` and a `[[route]]` that names it"));
        }
        for (at, peer) in all.peers.iter().enumerate() {
            if all.peers[..at].iter().any(|it| it.name == peer.name) {
                // Two peers in the file were found there; this peer is from a flag or the
                // environment.
                let fault = Fault::new(format!("two peers are called `{}`", peer.name));
                faults.push(fault.at("parent"));
            }
        }
        for name in all
            .routes
            .iter()
            .flat_map(|route| route.peers.iter().flatten())
        {
            if !all.peers.iter().any(|peer| peer.name == *name) {
                let known: Vec<_> = all.peers.iter().map(|peer| peer.name.as_str()).collect();
                let fault = Fault::new(format!("a `[[route]]` names the peer `{name}`"));
                faults.push(fault.hint(format!("there are: {}", known.join(", "))));
            }
        }
        faults.extend(self.icp_fault(&all.peers));
        faults.extend(self.htcp_fault(&all.peers));
        faults.extend(self.member_faults(&all));
        faults.extend(self.summary_faults(&all.peers));
        let forbids = self.direct == Direct::Never;
        let has_parent = all.peers.iter().any(|peer| peer.kind == PeerKind::Parent);
        if forbids && !has_parent && !self.in_front_of_a_site {
            let fault =
                Fault::new("`direct = \"never\"` without a parent: nothing could be fetched");
            faults.push(fault.hint("add `--parent URL`"));
        }
        if !self.in_front_of_a_site {
            all.routes.push(RouteSettings {
                direct: self.direct,
                choice: self.choice,
                ..RouteSettings::default()
            });
        }
        if faults.is_empty() {
            Ok(all)
        } else {
            Err(Faults(faults))
        }
    }

    /// Sets the only parent's pin in the key `parent`.
    fn pin_the_parent(&self, peers: &mut [PeerSettings]) -> Option<Fault> {
        let pin = self.pin?;
        let [Parent::Url(_)] = self.parents else {
            let fault = Fault::new("`parent_pin` is for one `parent`, given by its URL");
            let fault = fault.hint("write a `[[peer]]` with `pin` for each of several parents");
            return Some(fault.at("parent_pin"));
        };
        let parent = peers.first_mut()?;
        parent.pin = Some(pin);
        link_fault(parent).map(|fault| fault.at("parent_pin"))
    }

    /// The faults in the members' list.
    fn member_faults(&self, all: &PeersAndRoutes) -> Vec<Fault> {
        let is_member = |peer: &&PeerSettings| peer.kind == PeerKind::Member;
        let members: Vec<_> = all.peers.iter().filter(is_member).collect();
        let mut faults = Vec::new();
        if members.is_empty() {
            return faults;
        }
        let names: Vec<_> = members.iter().map(|peer| peer.name.as_str()).collect();
        if members.len() > MEMBERS_MAX {
            faults.push(Fault::new(format!("more than {MEMBERS_MAX} members")));
        }
        if !names.contains(&self.name) {
            let fault = Fault::new(format!(
                "no `[[peer]]` with `kind = \"member\"` is called `{}`, the `name` of this box",
                self.name
            ));
            faults.push(fault.hint(format!(
                "every box has the same list, itself included: set `name` to one of {}",
                names.join(", ")
            )));
        }
        let routed = all.routes.iter().flat_map(|route| &route.peers).flatten();
        for name in routed.filter(|name| names.contains(&name.as_str())) {
            let fault = Fault::new(format!("a `[[route]]` names the member `{name}`"));
            faults.push(fault.hint("members are asked for the URLs that they own, on every route"));
        }
        faults
    }

    /// The fault in the settings for ICP, if any.
    fn icp_fault(&self, peers: &[PeerSettings]) -> Option<Fault> {
        let asked = peers.iter().find(|peer| peer.icp.is_some())?;
        if self.in_front_of_a_site {
            let fault = Fault::new("`icp` works only in a forward proxy, not with `accelerate`");
            return Some(fault.at("peer"));
        }
        if self.icp.is_none() {
            let what = format!(
                "the peer `{}` has an ICP port, but `icp` is not set",
                asked.name
            );
            let fault = Fault::new(what);
            return Some(
                fault.hint(
                    "say at which address and port this proxy speaks ICP itself: `icp = 3130`",
                ),
            );
        }
        None
    }

    /// The fault in the settings for summaries, if any.
    fn summary_faults(&self, peers: &[PeerSettings]) -> Option<Fault> {
        let mut peers = peers.iter();
        let peer = peers.find(|peer| peer.summary != PeerSummary::None)?;
        if self.in_front_of_a_site {
            let what = "`digest` and `summary` work only in a forward proxy, not with `accelerate`";
            return Some(Fault::new(what).at("peer"));
        }
        if !matches!(self.policy, PolicyKind::Log | PolicyKind::LogLru) {
            let what = format!(
                "the peer `{}` has `digest` or `summary`, which the policy `{}` cannot do",
                peer.name,
                self.policy.name()
            );
            return Some(Fault::new(what).hint(
                "a digest is made from the lists of the log: use `policy = \"log\"` or \
                 \"log-lru\", which need a new cache, or ask by ICP or HTCP",
            ));
        }
        None
    }

    /// The fault in the settings for HTCP, if any.
    fn htcp_fault(&self, peers: &[PeerSettings]) -> Option<Fault> {
        let asked = peers.iter().find(|peer| peer.htcp.is_some())?;
        if self.in_front_of_a_site {
            let fault = Fault::new("`htcp` works only in a forward proxy, not with `accelerate`");
            return Some(fault.at("peer"));
        }
        let Some(own) = self.htcp else {
            let what = format!(
                "the peer `{}` has an HTCP port, but `htcp` is not set",
                asked.name
            );
            let fault = Fault::new(what);
            return Some(fault.hint(
                "say at which address and port this proxy speaks HTCP itself: `htcp = 4827`",
            ));
        };
        let has_key = |peer: &&PeerSettings| {
            let htcp = peer.htcp.as_ref();
            htcp.is_some_and(|htcp| htcp.key_file.is_some())
        };
        let signs = peers.iter().find(has_key)?;
        if !own.ip().is_unspecified() {
            return None;
        }
        let what = format!(
            "the peer `{}` has an HTCP key, but `htcp` is a port alone",
            signs.name
        );
        Some(Fault::new(what).hint(
            "a signature covers the addresses of both ends: write `htcp` with the address that \
             the peer sees, as in `htcp = \"192.0.2.1:4827\"`",
        ))
    }

    /// The proxies in the variables that curl reads: `http_proxy` (lower case only, because a CGI
    /// program has `HTTP_PROXY` from a request), `https_proxy`, `all_proxy` and `no_proxy`.
    fn proxies_of(&self, environment: &Environment) -> Result<PeersAndRoutes, Fault> {
        let variable = |names: &[&'static str]| {
            let found = names.iter().map(|name| (*name, environment.variable(name)));
            found
                .filter_map(|(name, value)| Some((name, value?)))
                .next()
        };
        let for_all = || variable(&["all_proxy", "ALL_PROXY"]);
        let http = variable(&["http_proxy"]).or_else(for_all);
        let https = variable(&["https_proxy", "HTTPS_PROXY"]).or_else(for_all);
        let mut found = PeersAndRoutes::default();
        let no_proxy = variable(&["no_proxy", "NO_PROXY"]).map_or("", |(_, value)| value);
        let direct: Vec<RouteHost> = no_proxy.split([',', ' ']).flat_map(not_proxied).collect();
        let nowhere = |hosts| RouteSettings {
            hosts,
            peers: Some(vec![]),
            ..RouteSettings::default()
        };
        if no_proxy.split([',', ' ']).any(|word| word == "*") {
            found.routes.push(nowhere(vec![]));
            return Ok(found);
        }
        if !direct.is_empty() {
            found.routes.push(nowhere(direct));
        }
        for (scheme, proxy) in [(Scheme::Http, http), (Scheme::Https, https)] {
            // Without a variable the other peers are used, if there are any, otherwise no peer.
            let others = self.peers.iter().map(|peer| peer.name.clone());
            let mut peers: Vec<String> = others.collect();
            if let Some((name, value)) = proxy {
                let mut peer = variable_peer(name, value)?;
                match found.peers.iter().find(|it| it.url == peer.url) {
                    Some(same) if same.credentials == peer.credentials => {}
                    // One proxy with different credentials for the two schemes needs two peers.
                    Some(_) => {
                        peer.name = format!("{}-{}", peer.name, scheme.as_str());
                        found.peers.push(peer.clone());
                    }
                    None => found.peers.push(peer.clone()),
                }
                peers = vec![peer.name];
            }
            found.routes.push(RouteSettings {
                scheme: Some(scheme),
                direct: if peers.is_empty() {
                    Direct::Allow
                } else {
                    self.direct
                },
                choice: self.choice,
                peers: Some(peers),
                ..RouteSettings::default()
            });
        }
        Ok(found)
    }
}

/// Parses an address for ICP or HTCP: an address with a port, only a port, or `none`.
pub fn read_udp(word: &str) -> Result<Option<SocketAddr>, Fault> {
    if word == "none" {
        return Ok(None);
    }
    let port = word
        .parse()
        .map(|port| SocketAddr::from(([0, 0, 0, 0], port)));
    let address = port.or_else(|_| word.parse());
    match address {
        Ok(address) if address.port() != 0 => Ok(Some(address)),
        _ => Err(Fault::new(format!(
            "`{word}` is not a port, nor an IP address with a port"
        ))
        .hint("write it as 3130, 192.0.2.1:3130 or [2001:db8::1]:3130")),
    }
}

/// Parses a percentage from 0.1 to 10 with at most one decimal, as thousandths.
pub fn read_threshold(word: &str) -> Result<u16, Fault> {
    let number = word.strip_suffix('%').unwrap_or(word).trim_end();
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let digit = |text: &str| Some(text).filter(|it| it.len() == 1)?.parse::<u16>().ok();
    let whole = whole.parse::<u16>().ok().filter(|whole| *whole <= 10);
    let permille = whole.zip(digit(tenths));
    let permille = permille.map(|(whole, tenths)| whole * 10 + tenths);
    permille
        .filter(|permille| (1..=100).contains(permille))
        .ok_or_else(|| {
            Fault::new(format!("`{word}` is not a percentage from 0.1 to 10"))
                .hint("write it as \"1%\" or \"0.5%\"")
        })
}

/// Formats a number of thousandths as a percentage for [`read_threshold`].
pub fn threshold_text(permille: u16) -> String {
    match permille % 10 {
        0 => format!("{}%", permille / 10),
        tenths => format!("{}.{tenths}%", permille / 10),
    }
}

/// The hosts that a word of `no_proxy` means: a domain means itself and all names below it.
fn not_proxied(word: &str) -> Vec<RouteHost> {
    let word = word.strip_prefix('.').unwrap_or(word);
    if let Ok(network) = word.parse() {
        return vec![RouteHost::Network(network)];
    }
    // Words that are not hosts do no harm in other programs either.
    let patterns = [word.to_owned(), format!("*.{word}")];
    let parsed = patterns.iter().filter_map(|pattern| pattern.parse().ok());
    parsed.map(RouteHost::Name).collect()
}

/// The peer in a variable, as `[scheme://][user:password@]host[:port]`.
fn variable_peer(name: &str, value: &str) -> Result<PeerSettings, Fault> {
    let wrong = |why: &str| Fault::new(format!("the variable {name} is no URL of a proxy: {why}"));
    let (scheme, rest) = value.split_once("://").unwrap_or(("http", value));
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (credentials, authority) = match rest.rsplit_once('@') {
        Some((credentials, authority)) => (Some(credentials), authority),
        None => (None, rest),
    };
    let url: Origin = format!("{scheme}://{authority}")
        .parse()
        .map_err(|error: TargetError| wrong(&error.to_string()))?;
    let credentials = match credentials {
        None => Credentials::None,
        Some(text) => {
            let text = percent_decoded(text).ok_or_else(|| wrong("a wrong % sequence"))?;
            if !text.contains(':') || text.chars().any(char::is_control) {
                return Err(wrong("the part before @ is not user:password"));
            }
            Credentials::Given(text)
        }
    };
    Ok(PeerSettings {
        credentials,
        ..parent_at(url)
    })
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let value = digit(rest.next())? * 16 + digit(rest.next())?;
        bytes.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::super::environment::tests::environment;
    use super::*;

    fn of_environment(variables: &[(&str, &str)]) -> Result<PeersAndRoutes, Faults> {
        let said = Said {
            parents: &[Parent::Environment],
            pin: None,
            peers: &[],
            routes: &[],
            direct: Direct::Allow,
            choice: PeerChoice::First,
            icp: None,
            htcp: None,
            name: "us",
            policy: PolicyKind::Log,
            in_front_of_a_site: false,
        };
        said.together(&environment(variables))
    }

    #[test]
    fn the_environment_names_a_proxy_for_each_scheme() {
        let found = of_environment(&[
            ("http_proxy", "proxy.test:8080/"),
            ("HTTPS_PROXY", "http://me:p%40ss@secure.test:81"),
            ("HTTP_PROXY", "http://evil.test"),
            ("no_proxy", "localhost,.corp.test 10.0.0.0/8"),
        ]);
        let PeersAndRoutes { peers, routes } = found.unwrap();
        let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
        assert_eq!(names, ["proxy.test:8080", "secure.test:81"]);
        assert_eq!(peers[1].credentials, Credentials::Given("me:p@ss".into()));
        assert_eq!(routes.len(), 4);
        assert_eq!(routes[0].peers.as_deref(), Some(&[][..]));
        // `localhost`, the domain, all names below the domain, and the network; no name is below
        // `localhost`.
        assert_eq!(routes[0].hosts.len(), 4);
        assert_eq!(routes[1].scheme, Some(Scheme::Http));
        assert_eq!(routes[2].peers.as_ref().unwrap()[0], "secure.test:81");
    }

    #[test]
    fn one_proxy_for_all_is_one_peer_and_a_star_is_none() {
        let all = of_environment(&[("ALL_PROXY", "https://p.test")]).unwrap();
        assert_eq!(all.peers.len(), 1);
        let none = of_environment(&[("ALL_PROXY", "p.test"), ("NO_PROXY", "*")]).unwrap();
        assert!(none.peers.is_empty());
        for wrong in ["socks5://p.test", "http://u@p.test", "http://%zz:x@p.test"] {
            assert!(of_environment(&[("all_proxy", wrong)]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_password_in_a_url_is_refused_with_the_way_to_give_it() {
        let fault = read_parent("http://u:p@proxy.test").unwrap_err();
        assert!(fault.hint.unwrap().contains("credentials_file"));
        assert_eq!(read_parent("env").unwrap(), Parent::Environment);
        let url = read_parent("https://p.test:3129").unwrap();
        assert_eq!(url.to_string(), "https://p.test:3129");
    }

    fn peer(text: &str) -> Result<PeerSettings, Fault> {
        toml::from_str::<PeerTable>(text).unwrap().settings()
    }

    #[test]
    fn https_urls_are_sent_in_clear_only_on_request() {
        let table = "name = \"a\"\nurl = \"http://p.test\"\nhttps = \"fetch\"\n";
        assert!(peer(table).unwrap_err().what.contains("in clear"));
        assert!(peer(&format!("{table}plain_https = true")).is_ok());
        assert!(peer(&table.replace("http:", "https:")).is_ok());
        assert!(peer("name = \"a b\"\nurl = \"http://p.test\"").is_err());
        assert!(peer("name = \"a\"\nurl = \"http://p.test\"\nweight = 0").is_err());
    }

    #[test]
    fn every_fault_of_a_route_is_reported() {
        let route = |text: &str| toml::from_str::<RouteTable>(text).unwrap().settings();
        let faults = route(
            "host = [\"a b\", \"ok.test\", \"10.0.0.0/8\"]\nport = [0, \"8000-8999\"]\n\
             direct = \"nevr\"\nchoice = \"first\"",
        );
        assert_eq!(faults.unwrap_err().0.len(), 3);
        let good = route("host = \"*.corp.test\"\nport = [80]\npeers = []").unwrap();
        let nowhere = good.with_keys(Direct::Never, PeerChoice::Carp);
        assert_eq!((nowhere.hosts.len(), nowhere.ports.len()), (1, 1));
        assert_eq!(nowhere.peers, Some(vec![]));
        assert_eq!(nowhere.direct, Direct::Allow);
        assert!(route("peers = [\"a\", \"a\"]").is_err());
        let some = route("peers = [\"a\"]").unwrap();
        let inherited = some.with_keys(Direct::Never, PeerChoice::Carp);
        assert_eq!(inherited.direct, Direct::Never);
        assert_eq!(inherited.choice, PeerChoice::Carp);
    }

    #[test]
    fn the_key_direct_holds_for_the_proxies_of_the_environment_too() {
        let said = Said {
            parents: &[Parent::Environment],
            pin: None,
            peers: &[],
            routes: &[],
            direct: Direct::Never,
            choice: PeerChoice::First,
            icp: None,
            htcp: None,
            name: "us",
            policy: PolicyKind::Log,
            in_front_of_a_site: false,
        };
        let variables = [("http_proxy", "p.test:1"), ("https_proxy", "u:p@p.test:1")];
        let found = said.together(&environment(&variables)).unwrap();
        assert!(
            found
                .routes
                .iter()
                .all(|route| route.direct == Direct::Never)
        );
        assert_eq!(found.peers.len(), 2);
        let site = Said {
            icp: None,
            htcp: None,
            policy: PolicyKind::Log,
            in_front_of_a_site: true,
            ..said
        };
        assert!(site.together(&environment(&variables)).is_err());
    }

    #[test]
    fn routes_name_peers_that_exist_and_names_are_unique() {
        let a = peer("name = \"a\"\nurl = \"http://a.test\"").unwrap();
        let route = "peers = [\"b\"]";
        let route = toml::from_str::<RouteTable>(route)
            .unwrap()
            .settings()
            .unwrap();
        let said = Said {
            parents: &[],
            pin: None,
            peers: &[a.clone(), a],
            routes: &[route],
            direct: Direct::Never,
            choice: PeerChoice::First,
            icp: None,
            htcp: None,
            name: "us",
            policy: PolicyKind::Log,
            in_front_of_a_site: false,
        };
        let faults = said.together(&environment(&[])).unwrap_err().0;
        assert_eq!(faults.len(), 2);
        let nobody = Said {
            pin: None,
            peers: &[],
            routes: &[],
            ..said
        };
        assert!(nobody.together(&environment(&[])).is_err());
    }

    #[test]
    fn a_sibling_needs_a_port_and_a_socket_of_ours() {
        let sibling = "name = \"a\"\nkind = \"sibling\"\nurl = \"http://a.test\"\n";
        assert!(peer(sibling).unwrap_err().what.contains("none of `icp`"));
        assert!(peer(&format!("{sibling}icp = 0")).is_err());
        let too_large = format!("{sibling}icp = 65536");
        assert!(toml::from_str::<PeerTable>(&too_large).is_err());
        let known = peer(&format!("{sibling}icp = 3130\nmisses = false")).unwrap();
        assert_eq!(known.kind, PeerKind::Sibling);
        assert_eq!((known.icp, known.misses), (Some(3130), PeerMisses::Refused));
        let said = Said {
            parents: &[],
            pin: None,
            peers: &[known],
            routes: &[],
            direct: Direct::Allow,
            choice: PeerChoice::First,
            icp: read_udp("3130").unwrap(),
            htcp: None,
            name: "us",
            policy: PolicyKind::Log,
            in_front_of_a_site: false,
        };
        assert!(said.together(&environment(&[])).is_ok());
        let faulty = [
            Said {
                icp: None,
                policy: PolicyKind::Log,
                ..said.clone()
            },
            Said {
                in_front_of_a_site: true,
                ..said.clone()
            },
            // A sibling fetches nothing.
            Said {
                direct: Direct::Never,
                ..said
            },
        ];
        for said in faulty {
            let faults = said.together(&environment(&[])).unwrap_err().0;
            assert_eq!(faults.len(), 1, "{said:?}");
        }
    }

    #[test]
    fn htcp_needs_a_socket_of_ours_and_a_key_needs_its_address() {
        let table = "name = \"a\"\nkind = \"sibling\"\nurl = \"http://a.test\"\n";
        for alone in [
            "htcp_key_file = \"/k\"",
            "clear = true",
            "send_clear = true",
        ] {
            let fault = peer(&format!("{table}icp = 3130\n{alone}")).unwrap_err();
            assert!(fault.what.contains("needs `htcp`"), "{}", fault.what);
        }
        assert!(peer(&format!("{table}htcp = 0")).is_err());
        let plain = peer(&format!("{table}htcp = 4827")).unwrap();
        let htcp = plain.htcp.clone().unwrap();
        assert!(!htcp.obeys_clear && !htcp.sends_clear && htcp.key_file.is_none());
        let signed = format!("{table}htcp = 4827\nhtcp_key_file = \"/k\"\nclear = true");
        let signed = peer(&signed).unwrap();
        assert!(signed.htcp.as_ref().unwrap().obeys_clear);
        let is_good = |peer: &PeerSettings, htcp: &str, in_front_of_a_site| {
            let said = Said {
                parents: &[],
                pin: None,
                peers: std::slice::from_ref(peer),
                routes: &[],
                direct: Direct::Allow,
                choice: PeerChoice::First,
                icp: None,
                htcp: read_udp(htcp).unwrap(),
                name: "us",
                policy: PolicyKind::Log,
                in_front_of_a_site,
            };
            said.together(&environment(&[])).is_ok()
        };
        assert!(is_good(&plain, "4827", false));
        assert!(!is_good(&plain, "none", false));
        assert!(!is_good(&plain, "4827", true));
        assert!(!is_good(&signed, "4827", false));
        assert!(!is_good(&signed, "[::]:4827", false));
        assert!(is_good(&signed, "192.0.2.1:4827", false));
    }

    #[test]
    fn icp_is_spoken_at_a_port_or_at_an_address_with_a_port() {
        let address = |word| read_udp(word).unwrap().unwrap().to_string();
        assert_eq!(address("3130"), "0.0.0.0:3130");
        assert_eq!(address("[::1]:3130"), "[::1]:3130");
        assert_eq!(read_udp("none").unwrap(), None);
        for word in ["0", "127.0.0.1", "127.0.0.1:0", "65536", "host:3130", ""] {
            assert!(read_udp(word).is_err(), "{word}");
        }
    }

    #[test]
    fn every_member_is_in_the_list_of_each_member() {
        let member = |name: &str, more: &str| {
            let url = format!("url = \"http://{name}.test\"");
            peer(&format!(
                "name = \"{name}\"\nkind = \"member\"\n{url}\n{more}"
            ))
        };
        assert!(member("a", "icp = 3130").is_err() && member("a", "misses = false").is_err());
        let list = ["a", "b"].map(|name| member(name, "weight = 2").unwrap());
        let said = Said {
            parents: &[],
            pin: None,
            peers: &list,
            routes: &[],
            direct: Direct::Allow,
            choice: PeerChoice::First,
            icp: None,
            htcp: None,
            policy: PolicyKind::Log,
            name: "b",
            in_front_of_a_site: true,
        };
        assert!(said.together(&environment(&[])).is_ok());
        let stranger = Said {
            name: "c",
            ..said.clone()
        };
        let fault = stranger.together(&environment(&[])).unwrap_err().0;
        assert!(format!("{fault:?}").contains("called `c`"), "{fault:?}");
        let route = toml::from_str::<RouteTable>("peers = [\"a\"]").unwrap();
        let route = route.settings().unwrap();
        let routed = Said {
            routes: &[route],
            ..said.clone()
        };
        assert_eq!(routed.together(&environment(&[])).unwrap_err().0.len(), 1);
        // Members fetch what they own, so one of them is no way out.
        let closed = Said {
            direct: Direct::Never,
            in_front_of_a_site: false,
            ..said
        };
        assert_eq!(closed.together(&environment(&[])).unwrap_err().0.len(), 1);
    }
}
