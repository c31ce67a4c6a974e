//! The settings themselves, typed, before the proxy and the engine take their shares.
//!
//! `keys` parses each value into a `Values` and shows it; `Values::for_proxy` makes the proxy's
//! settings of it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hashcache::{Io, Placement, PolicyKind, Rows};
use hashcache_http::{ClientReload, HeaderName, Host, Origin, Rules, Scheme, Seconds, SetCookie};
use hashcache_proxy::{
    AccessLog, AccessRules, AllowedDestination, CertificateFiles, CollapseWait, ConnectPort,
    Direct, Fail, GroupBy, HostOptions, LimitSettings, Limits, LinkForward, LinkSettings,
    ListSettings, Listen, LogFormat, Mirror, Mode, Nat64, Offline, PeerChoice, Pin, Prefix,
    SentHost, Settings, Site, Sites,
};

use super::peers::{Parent, PeersAndRoutes};

/// Default address for clients: this machine only, on the usual port of a proxy.
const LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3128);
/// Default address of the admin listener: this machine only.
const ADMIN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 3180);
/// An object may take at most this part of a cache file: one eighth.
const OBJECTS_PER_CACHE: u64 = 8;

/// Squid's Safe_ports: http, https, ftp, gopher, wais, http-mgmt, gss-http, FileMaker, multiling
/// http, and those without registration. A client cannot make the proxy speak to a mail server.
const SAFE_PORTS: [RangeInclusive<u16>; 10] = [
    80..=80,
    443..=443,
    21..=21,
    70..=70,
    210..=210,
    280..=280,
    488..=488,
    591..=591,
    777..=777,
    1024..=u16::MAX,
];

/// Everything that can be set.
#[derive(Clone, Debug)]
pub struct Values {
    /// Addresses to accept clients on.
    pub listen: Vec<Listen>,
    /// Files with certificates to present to clients.
    pub tls_cert: Vec<PathBuf>,
    /// Files with the keys of these certificates, in the same order.
    pub tls_key: Vec<PathBuf>,
    /// The origin that the proxy accelerates (reverse proxy), if any.
    pub accelerate: Option<Origin>,
    /// Host names of that origin; empty means any name.
    pub accelerate_host: Vec<Host>,
    /// The sites that the proxy stands in front of, if the file has any.
    pub sites: Sites,
    /// Address of the admin listener (metrics, health, purges), if there is one.
    pub admin: Option<SocketAddr>,
    /// Name in `Via` and `Cache-Status`.
    pub name: String,
    /// Threads that serve clients.
    pub workers: usize,
    /// Cache files or devices.
    pub cache: Vec<PathBuf>,
    /// Size of each cache file or device, bytes.
    pub cache_size: u64,
    /// Memory for the index, hot objects and pending writes, bytes.
    pub memory: u64,
    /// The policy: how the engine places objects.
    pub policy: PolicyKind,
    /// Share of the entries that memory holds, in 1/100, for policies that hold only a part;
    /// `None`: the policy's default.
    pub held_share: Option<u8>,
    /// Rows of the index in which a name can be.
    pub rows: Rows,
    /// Whether the objects of a page group are written and read together.
    pub grouped: bool,
    /// What defines a page group: a page of one client, or an origin.
    pub group_by: GroupBy,
    /// What chooses the device of an object.
    pub placement: PlaceBy,
    /// Whether objects in use are saved from the log's head before it overwrites them.
    pub readmission: bool,
    /// The I/O backend for reads that must not block a thread of the proxy.
    pub io: Io,
    /// Mean size of an object, bytes: it sizes the index.
    pub object_size: u32,
    /// Size of a slot of the policies that have a Disk Table, bytes.
    pub block: u32,
    /// Largest object to store, bytes; `None` means a share of `cache_size`.
    pub max_object_size: Option<u64>,
    /// URL under which clients reach the proxy, if it cannot be derived from their requests.
    pub public_url: Option<Origin>,
    /// Registries under paths of the proxy.
    pub mirror: Vec<Mirror>,
    /// Parents that a URL describes, or the environment.
    pub parent: Vec<Parent>,
    /// The pin of the one parent that a URL describes, if it is used by a link.
    pub parent_pin: Option<Pin>,
    /// Where children connect, if this proxy has any.
    pub link_listen: Option<SocketAddr>,
    /// The pins of the keys of children.
    pub link_children: Vec<Pin>,
    /// Ports whose connections a parent makes.
    pub link_forward: Vec<LinkForward>,
    pub link_hints: bool,
    /// The directory of this box's key for links.
    pub link_dir: Option<PathBuf>,
    /// Where that is unless it is given.
    pub link_dir_default: Option<PathBuf>,
    /// Whether resources are fetched from their origins directly, where no route says otherwise.
    pub direct: Direct,
    /// Which peer is asked first, where no route says otherwise.
    pub peer_choice: PeerChoice,
    /// Where this proxy speaks ICP, if it does.
    pub icp: Option<SocketAddr>,
    /// Where this proxy speaks HTCP, if it does.
    pub htcp: Option<SocketAddr>,
    pub summary_permille: u16,
    /// All peers and routes; made of the other settings and of the tables of the file.
    pub peers: PeersAndRoutes,
    /// Directory of the certificate authority for interception.
    pub intercept_ca: Option<PathBuf>,
    /// Hosts for which TLS is intercepted.
    pub intercept: HostOptions,
    /// What `/proxy.pac` tells browsers to do when the proxy does not answer.
    pub fail: Fail,
    /// The proxies among which `/proxy.pac` chooses.
    pub pac_proxies: Vec<Origin>,
    /// Client networks allowed in addition to the default ones.
    pub allow_client: Vec<Prefix>,
    /// The access rules, from the tables of the file.
    pub access: Arc<AccessRules>,
    /// Files with users and the hashes of their passwords.
    pub htpasswd: Vec<PathBuf>,
    /// What the challenge for a login names.
    pub login_realm: String,
    /// Networks in which passwords may be sent without TLS.
    pub login_networks: Vec<Prefix>,
    /// The lists of hosts that they name.
    pub lists: Vec<ListSettings>,
    /// The limits that they name.
    pub access_limits: Vec<LimitSettings>,
    /// A person to ask, for pages that refuse.
    pub contact: Option<String>,
    /// Load balancers whose connections begin with a header of the PROXY protocol.
    pub proxy_protocol_from: Vec<Prefix>,
    /// Servers to which connections begin with such a header.
    pub proxy_protocol_to: Vec<Origin>,
    /// Clients that may send PURGE.
    pub allow_purge: Vec<Prefix>,
    /// File with the token for changes through the admin listener, if they are allowed.
    pub admin_token_file: Option<PathBuf>,
    /// Destinations that are allowed although they are refused by default.
    pub allow_destination: Vec<AllowedDestination>,
    /// Destinations that are always refused.
    pub deny_destination: Vec<Prefix>,
    /// Files with certificates of authorities that the proxy trusts in addition to the platform's.
    pub upstream_ca: Vec<PathBuf>,
    /// Prefixes of a NAT64 translator.
    pub nat64_prefix: Vec<Nat64>,
    /// Ports that `CONNECT` may name.
    pub allow_connect_port: Vec<ConnectPort>,
    /// Ports of origins that requests may name.
    pub allow_port: Vec<ConnectPort>,
    /// Schemes other than http and https that are fetched for clients.
    pub gateways: Vec<Scheme>,
    /// Destination of the access log.
    pub access_log: AccessLog,
    /// The format of its lines.
    pub log_format: LogFormat,
    /// Whether query strings are removed from its lines.
    pub log_strip_query: bool,
    /// Whether its lines have client networks instead of client addresses.
    pub log_anonymize: bool,
    /// Whether the freshness rules that ship with the program are applied.
    pub default_rules: bool,
    /// Freshness rules: the operator's own, followed by those that ship.
    pub rules: Rules,
    /// What a client's reload does to a fresh response.
    pub client_reload: ClientReload,
    /// What a response that sets a cookie needs in order to be stored.
    pub set_cookie: SetCookie,
    /// Request fields that count as harmless beside the built-in list.
    pub harmless_fields: Vec<HeaderName>,
    /// How long a follower waits for the leader's fetch (collapsed forwarding).
    pub collapse_wait: CollapseWait,
    /// Freshness lifetime of 404 and 410 responses that state none.
    pub negative_lifetime: Duration,
    /// How long the proxy does not retry an origin that could not be reached.
    pub unreachable_lifetime: Duration,
    /// Whether a heuristic freshness lifetime doubles each time a validation finds the response
    /// unchanged.
    pub adaptive_lifetime: bool,
    /// How the line to the Internet is regarded at the start.
    pub offline: Offline,
    /// Bounds on what one client or origin may take.
    pub limits: Limits,
}

/// What chooses the disk of an object, of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PlaceBy {
    /// Its whole name
    Name,
    /// The host of its URL
    Host,
}

impl PlaceBy {
    /// For the engine; `host_of` finds the host in a name. The store remembers the number: another
    /// rule needs another one.
    pub fn rule(self, host_of: fn(&[u8]) -> &[u8]) -> Placement {
        match self {
            Self::Name => Placement::NAME,
            Self::Host => Placement::new(NonZeroU32::MIN, host_of),
        }
    }
}

impl Values {
    /// The defaults on a machine with this many processors.
    pub fn defaults(processors: usize, cache_file: Option<PathBuf>) -> Self {
        Self {
            listen: vec![LISTEN.into()],
            tls_cert: vec![],
            tls_key: vec![],
            accelerate: None,
            accelerate_host: vec![],
            sites: Sites::default(),
            admin: Some(ADMIN),
            name: "hashcache".to_owned(),
            workers: processors,
            cache: cache_file.into_iter().collect(),
            cache_size: 1 << 30,
            memory: 64 << 20,
            policy: PolicyKind::Log,
            held_share: None,
            rows: Rows::Two,
            grouped: false,
            group_by: GroupBy::default(),
            placement: PlaceBy::Name,
            readmission: false,
            io: Io::Auto,
            object_size: 8 << 10,
            block: 8 << 10,
            max_object_size: None,
            public_url: None,
            mirror: vec![],
            parent: vec![],
            parent_pin: None,
            link_listen: None,
            link_children: vec![],
            link_forward: vec![],
            link_hints: true,
            link_dir: None,
            link_dir_default: None,
            direct: Direct::Allow,
            peer_choice: PeerChoice::First,
            icp: None,
            htcp: None,
            summary_permille: 10,
            peers: PeersAndRoutes::default(),
            intercept_ca: None,
            intercept: HostOptions::default(),
            fail: Fail::Open,
            pac_proxies: vec![],
            allow_client: vec![],
            access: Arc::default(),
            htpasswd: vec![],
            login_realm: "HashCache proxy".to_owned(),
            login_networks: vec![
                Prefix::new(Ipv4Addr::LOCALHOST.into(), 8),
                Prefix::new(Ipv6Addr::LOCALHOST.into(), 128),
            ],
            lists: vec![],
            access_limits: vec![],
            contact: None,
            proxy_protocol_from: vec![],
            proxy_protocol_to: vec![],
            allow_purge: vec![],
            admin_token_file: None,
            allow_destination: vec![],
            deny_destination: vec![],
            upstream_ca: vec![],
            nat64_prefix: vec![],
            allow_connect_port: vec![ConnectPort::new(443..=443)],
            allow_port: SAFE_PORTS.map(ConnectPort::new).into(),
            gateways: vec![],
            access_log: AccessLog::None,
            log_format: LogFormat::Squid,
            log_strip_query: false,
            log_anonymize: false,
            default_rules: true,
            rules: Rules::none(),
            client_reload: ClientReload::Validate,
            set_cookie: SetCookie::Protect,
            harmless_fields: vec![],
            collapse_wait: CollapseWait::Satellite,
            negative_lifetime: Duration::from_secs(60),
            unreachable_lifetime: Duration::from_secs(10),
            adaptive_lifetime: false,
            offline: Offline::Off,
            limits: Limits::default(),
        }
    }

    /// Largest object to store, bytes.
    pub fn max_object_size(&self) -> u64 {
        self.max_object_size
            .unwrap_or(self.cache_size / OBJECTS_PER_CACHE)
    }

    /// Whether the policy stores everything in the log, which can group and readmit.
    pub fn has_log(&self) -> bool {
        matches!(self.policy, PolicyKind::Log | PolicyKind::LogLru)
    }

    /// Whether the proxy is a reverse proxy.
    pub fn is_reverse(&self) -> bool {
        self.accelerate.is_some() || !self.sites.all().is_empty()
    }

    /// What a reverse proxy stands in front of, for messages.
    pub fn front_of(&self) -> String {
        match (&self.accelerate, self.sites.all()) {
            (Some(origin), _) => origin.to_string(),
            (None, [site]) => site.name(),
            (None, sites) => format!("{} sites", sites.len()),
        }
    }

    /// The sites of the file, or the one of `accelerate`.
    fn sites(&self) -> Sites {
        let Some(origin) = &self.accelerate else {
            return self.sites.clone();
        };
        let mut site = Site::at(origin.clone());
        site.hosts.clone_from(&self.accelerate_host);
        if site.hosts.is_empty() {
            // Without names of the site the client's Host may be anything.
            site.sent_host = SentHost::Origin;
        }
        // Names that are given twice are one name.
        site.hosts.sort_by_key(ToString::to_string);
        site.hosts.dedup();
        Sites::new(vec![site]).unwrap_or_default()
    }

    fn tls(&self) -> Vec<CertificateFiles> {
        let pairs = self
            .tls_cert
            .iter()
            .cloned()
            .zip(self.tls_key.iter().cloned());
        pairs
            .map(|(certificate, key)| CertificateFiles { certificate, key })
            .collect()
    }

    /// The proxy's share of the settings, except for interception, which has to be read from files
    /// first.
    pub fn for_proxy(&self) -> Settings {
        Settings {
            mode: match self.is_reverse() {
                true => Mode::Reverse,
                false => Mode::Forward,
            },
            sites: self.sites(),
            listen: self.listen.clone(),
            tls: self.tls(),
            admin: self.admin,
            name: self.name.clone(),
            public_url: self.public_url.clone(),
            mirrors: self.mirror.clone(),
            icp: self.icp,
            htcp: self.htcp,
            summary_permille: self.summary_permille,
            peers: self.peers.peers.clone(),
            routes: self.peers.routes.clone(),
            intercept: None,
            fail: self.fail,
            pac_proxies: self.pac_proxies.clone(),
            allow_client: self.allow_client.clone(),
            access: Arc::clone(&self.access),
            htpasswd: self.htpasswd.clone(),
            login_realm: self.login_realm.clone(),
            login_networks: self.login_networks.clone(),
            lists: self.lists.clone(),
            access_limits: self.access_limits.clone(),
            proxy_protocol_from: self.proxy_protocol_from.clone(),
            proxy_protocol_to: self.proxy_protocol_to.clone(),
            allow_purge: self.allow_purge.clone(),
            admin_token_file: self.admin_token_file.clone(),
            allow_destination: self.allow_destination.clone(),
            deny_destination: self.deny_destination.clone(),
            upstream_ca: self.upstream_ca.clone(),
            nat64_prefix: self.nat64_prefix.clone(),
            allow_connect_port: self.allow_connect_port.clone(),
            allow_port: self.allow_port.clone(),
            gateways: self.gateways.clone(),
            access_log: self.access_log.clone(),
            log_format: self.log_format,
            log_strip_query: self.log_strip_query,
            log_anonymize: self.log_anonymize,
            group_by: (self.grouped && self.has_log()).then_some(self.group_by),
            rules: self.rules.clone(),
            client_reload: self.client_reload,
            set_cookie: self.set_cookie,
            harmless_fields: self.harmless_fields.clone(),
            collapse_wait: self.collapse_wait,
            negative_lifetime: Seconds::new(self.negative_lifetime.as_secs()),
            unreachable_lifetime: self.unreachable_lifetime,
            adaptive_lifetime: self.adaptive_lifetime,
            offline: self.offline,
            max_object_size: self.max_object_size(),
            workers: self.workers,
            link: LinkSettings {
                directory: self
                    .link_dir
                    .clone()
                    .or_else(|| self.link_dir_default.clone()),
                listen: self.link_listen,
                children: self.link_children.clone(),
                forward: self.link_forward.clone(),
                follows_hints: self.link_hints,
            },
            limits: self.limits.clone(),
        }
    }
}
