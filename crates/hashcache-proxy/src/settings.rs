//! The operator's settings, parsed and checked; made by `hashcache-cli`, read by every module here.
//!
//! Invariant: a `Settings` is consistent, and no field is a raw string from the user.

use std::fmt;
use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use hashcache_access::quota::LimitSettings;
use hashcache_access::{AccessRules, ListSettings};
use hashcache_base::limits::Limits;
use hashcache_base::net::address::ConnectPort;
use hashcache_base::net::nat64::Nat64;
use hashcache_base::net::own_domain::AllowedDestination;
use hashcache_base::net::prefix::Prefix;
use hashcache_base::tls::identity::CertificateFiles;
use hashcache_intercept::Intercept;
use hashcache_link::forward::LinkForward;
use hashcache_link::pin::Pin;
use hashcache_site::mirror::Mirror;
use hashcache_site::spec::Sites;
use hashcache_store::collapse::CollapseWait;
use hashcache_store::page_groups::GroupBy;
use hashcache_upstream::offline::Offline;
use hashcache_upstream::peer::PeerSettings;

use crate::route::RouteSettings;

/// Proxy mode of all listeners in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// A forward proxy: absolute-form targets and `CONNECT`.
    #[default]
    Forward,
    /// A reverse proxy in front of sites.
    Reverse,
}

/// An address to accept clients on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// The protocol; `None`: TLS if there are certificates, otherwise plain HTTP/1.1.
    pub speaks: Option<Speaks>,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// Plain HTTP/1.1.
    Http,
    /// Plain HTTP/1.1, and HTTP/2 for clients that send the HTTP/2 preface (RFC 9113, section 3.3).
    H2c,
    /// TLS with HTTP/2 or HTTP/1.1, chosen by ALPN.
    Tls,
    /// Connections to other servers that the network has diverted here: to port 443 TLS, to other
    /// ports plain HTTP/1.1.
    Transparent(Diversion),
}

/// How connections to other servers are diverted to a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Diversion {
    /// The kernel has rewritten the destination (REDIRECT of netfilter) and knows the original
    /// destination.
    Redirect,
    /// The destination is unchanged, and the kernel gives the connections to this socket (TPROXY of
    /// netfilter).
    Tproxy,
}

impl Speaks {
    /// Prefixes of the address, by protocol.
    pub const WORDS: [(Self, &'static str); 5] = [
        (Self::Http, "http://"),
        (Self::H2c, "h2c://"),
        (Self::Tls, "https://"),
        (Self::Transparent(Diversion::Redirect), "redirect://"),
        (Self::Transparent(Diversion::Tproxy), "tproxy://"),
    ];
}

impl Listen {
    /// Returns true if the socket accepts connections to addresses of other hosts.
    pub(crate) fn is_tproxy(self) -> bool {
        self.speaks == Some(Speaks::Transparent(Diversion::Tproxy))
    }
}

impl From<SocketAddr> for Listen {
    fn from(address: SocketAddr) -> Self {
        let speaks = None;
        Self { address, speaks }
    }
}

impl FromStr for Listen {
    type Err = AddrParseError;

    fn from_str(text: &str) -> Result<Self, AddrParseError> {
        for (speaks, word) in Speaks::WORDS {
            if let Some(address) = text.strip_prefix(word) {
                return Ok(Self {
                    address: address.parse()?,
                    speaks: Some(speaks),
                });
            }
        }
        Ok(text.parse::<SocketAddr>()?.into())
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = Speaks::WORDS
            .iter()
            .find(|(speaks, _)| Some(*speaks) == self.speaks);
        let word = known.map_or("", |(_, word)| word);
        write!(f, "{word}{}", self.address)
    }
}

/// The destination of the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// No access log.
    #[default]
    None,
    /// Standard output.
    Stdout,
    /// Appended to this file, which is reopened on `SIGUSR1` and `SIGHUP`.
    File(PathBuf),
}

impl fmt::Display for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("nowhere"),
            Self::Stdout => f.write_str("standard output"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// The format of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Squid's native format.
    #[default]
    Squid,
    /// Apache's combined format.
    Combined,
    /// One JSON object per line.
    Json,
}

/// Behaviour of browsers with `/proxy.pac` while this proxy does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fail {
    /// Browsers connect directly.
    #[default]
    Open,
    /// Browsers do not connect.
    Closed,
}

/// All settings of the proxy. [`Default`] is empty; the program's defaults are the defaults of the
/// configuration keys.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Settings read once, at the start.
    pub startup: Startup,
    /// Settings that a reload replaces, all together.
    pub reloadable: Reloadable,
}

/// Settings as a reload reads them.
#[derive(Clone, Debug)]
pub struct ReloadedSettings {
    /// The settings; their [`Startup`] is not applied.
    pub settings: Settings,
    /// Names of settings that differ from the start and apply at the next start.
    pub restart: Vec<&'static str>,
}

/// Settings read once, at the start, to make threads, sockets and files.
#[derive(Clone, Debug, Default)]
pub struct Startup {
    /// Forward or reverse; one mode for all of `listen`.
    pub mode: Mode,
    /// Addresses to accept clients on.
    pub listen: Vec<Listen>,
    /// The address of the admin listener, if any.
    pub admin: Option<SocketAddr>,
    /// The token file of the admin listener. Without it the admin listener changes nothing.
    pub admin_token_file: Option<PathBuf>,
    /// Name of this proxy in `Via`, `Cache-Status` and `Proxy-Status`.
    pub name: String,
    /// The destination of the access log.
    pub access_log: AccessLog,
    /// The format of the access log.
    pub log_format: LogFormat,
    /// If true, query strings are left out of the access log.
    pub log_strip_query: bool,
    /// If true, clients' addresses are cut to their networks in the access log: /24 and /48.
    pub log_anonymize: bool,
    /// Selects the responses that form a group in the engine; `None`: the engine does not group.
    pub group_by: Option<GroupBy>,
    /// Number of runtimes (one thread each) that serve clients.
    pub workers: usize,
    /// Address for the links of children, if there is one.
    pub link_listen: Option<SocketAddr>,
    /// Forwarded ports, coded in chunks; a parent connects to the destinations.
    pub link_forward: Vec<LinkForward>,
    /// Limits on the resources of clients and origins.
    pub limits: Limits,
}

/// Settings that a reload replaces.
#[derive(Clone, Debug, Default)]
pub struct Reloadable {
    /// The sites of a reverse proxy.
    pub sites: Sites,
    /// Certificates for clients, with their keys; the first is for clients that name no other host.
    pub tls: Vec<CertificateFiles>,
    /// URL under which clients reach this proxy, if their requests do not show it: the proxy is
    /// behind a forwarded port, or has its own name.
    pub public_url: Option<hashcache_http::Origin>,
    /// Registries under paths of this proxy.
    pub mirrors: Vec<Mirror>,
    /// Interception: the hosts and the certificate authority; `None`: off.
    pub intercept: Option<Intercept>,
    /// Instruction in `/proxy.pac` for browsers while this proxy does not answer.
    pub fail: Fail,
    /// Proxies among which `/proxy.pac` chooses by a hash of the host; empty: only this proxy.
    pub pac_proxies: Vec<hashcache_http::Origin>,
    /// Clients allowed in addition to the default (loopback, private, link-local, our own
    /// networks).
    pub allow_client: Vec<Prefix>,
    /// The access rules.
    pub access: Arc<AccessRules>,
    /// The limits that the access rules name, in this order.
    pub access_limits: Vec<LimitSettings>,
    /// Files with users and the hashes of their passwords.
    pub htpasswd: Vec<PathBuf>,
    /// Realm of the challenge for a login: text without quotes and control characters.
    pub login_realm: String,
    /// Networks in which passwords may be sent without TLS.
    pub login_networks: Vec<Prefix>,
    /// The lists that the access rules name, in this order.
    pub lists: Vec<ListSettings>,
    /// Load balancers that must start connections with a header of the PROXY protocol.
    pub proxy_protocol_from: Vec<Prefix>,
    /// Servers of sites and peers that get a header of the PROXY protocol on new connections.
    pub proxy_protocol_to: Vec<hashcache_http::Origin>,
    /// Clients that may purge. Empty: this machine on forward listeners, no client in front of a
    /// site.
    pub allow_purge: Vec<Prefix>,
    /// Destinations that are allowed although the default would refuse them.
    pub allow_destination: Vec<AllowedDestination>,
    /// Destinations refused in any case.
    pub deny_destination: Vec<Prefix>,
    /// Certificates of authorities to trust in addition to the platform's authorities.
    pub upstream_ca: Vec<PathBuf>,
    /// Prefixes of a NAT64 translator, in addition to the well-known prefix.
    pub nat64_prefix: Vec<Nat64>,
    /// Ports that `CONNECT` may use.
    pub allow_connect_port: Vec<ConnectPort>,
    /// Ports of resources that clients may request from origins of their own choice.
    pub allow_port: Vec<ConnectPort>,
    /// Freshness rules, including the shipped rules unless turned off.
    pub rules: hashcache_http::Rules,
    /// The effect of a client's reload on a fresh response.
    pub client_reload: hashcache_http::ClientReload,
    /// Condition for storing a response that sets a cookie.
    pub set_cookie: hashcache_http::SetCookie,
    /// Request fields that are harmless in addition to the built-in list.
    pub harmless_fields: Vec<http::HeaderName>,
    /// How long a request waits for the fetch of another request for the same key.
    pub collapse_wait: CollapseWait,
    /// Freshness lifetime of 404 and 410 responses without an explicit lifetime.
    pub negative_lifetime: hashcache_http::Seconds,
    /// How long an unreachable origin is not tried again; doubles each time, up to five minutes.
    /// Zero: the origin is always tried.
    pub unreachable_lifetime: Duration,
    /// Mode of the line to the Internet, until the admin listener changes it.
    pub offline: Offline,
    /// If true, a heuristic lifetime doubles each time a validation confirms the response.
    pub adaptive_lifetime: bool,
    /// Largest object to store, bytes.
    pub max_object_size: u64,
    /// Address of the UDP socket for ICP; it is bound only if a peer has an ICP port.
    pub icp: Option<SocketAddr>,
    /// Address of the UDP socket for HTCP; it is bound only if a peer has an HTCP port. If a peer
    /// has a key, this must be a specific address, because signatures cover it.
    pub htcp: Option<SocketAddr>,
    /// Share of new objects at which updates of the summary are sent, in thousandths of all
    /// objects.
    pub summary_permille: u16,
    /// Schemes other than http and https whose resources are fetched for clients.
    pub gateways: Vec<hashcache_http::Scheme>,
    /// Other caches through which resources are fetched.
    pub peers: Vec<PeerSettings>,
    /// Selects peers for resources: the first route that matches decides. The last route matches
    /// everything, if there are peers.
    pub routes: Vec<RouteSettings>,
    /// The directory of the key for links (see `hashcache link`); needed for any link.
    pub link_dir: Option<PathBuf>,
    /// Pins of the children's keys.
    pub link_children: Vec<Pin>,
    /// If true, objects are fetched that a parent names as parts of a page.
    pub link_hints: bool,
}

/// The state files of the process, apart from its store.
#[derive(Clone, Debug, Default)]
pub struct StateFiles {
    /// The last known time.
    pub clock: Option<PathBuf>,
    /// Recently verified hosts.
    pub verified: Option<PathBuf>,
    /// Chunks that the other boxes of links have.
    pub chunks: Option<PathBuf>,
    /// Requests and saved bytes, by hour.
    pub history: Option<PathBuf>,
    /// Used part of quotas.
    pub quotas: Option<PathBuf>,
}

impl Settings {
    /// Returns true if the local time matters: a rule has times, or a quota has days.
    pub(crate) fn needs_zone(&self) -> bool {
        let has_days = || {
            self.reloadable
                .access_limits
                .iter()
                .any(|limit| limit.quota.is_some())
        };
        self.reloadable.access.has_times() || has_days()
    }

    /// Returns the protocol on `listen`.
    pub fn speaks(&self, listen: &Listen) -> Speaks {
        // In a forward proxy a certificate does not change addresses without an explicit protocol.
        let usual = if self.startup.mode == Mode::Forward || self.reloadable.tls.is_empty() {
            Speaks::Http
        } else {
            Speaks::Tls
        };
        listen.speaks.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_written_as_it_is_read() {
        for text in [
            "127.0.0.1:1",
            "http://127.0.0.1:1",
            "h2c://[::1]:1",
            "https://0.0.0.0:443",
            "redirect://[::]:3129",
            "tproxy://0.0.0.0:3130",
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.to_string(), text);
        }
        assert!("ftp://127.0.0.1:1".parse::<Listen>().is_err());
        assert!("https://127.0.0.1".parse::<Listen>().is_err());
    }
}
