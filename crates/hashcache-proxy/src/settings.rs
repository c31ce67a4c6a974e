//! What an operator asked for, parsed and checked; made by `hashcache-cli`, read by every module
//! here.
//!
//! Invariant: a `Settings` that exists is consistent; nothing here is a raw string of the user's.

use std::fmt;
use std::net::{AddrParseError, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use crate::intercept::Intercept;
use crate::limits::Limits;
use crate::mirror::Mirror;
use crate::tls::identity::CertificateFiles;
use crate::upstream::address::ConnectPort;
use crate::upstream::nat64::Nat64;
use crate::upstream::prefix::Prefix;

/// What the listeners of this process do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A forward proxy: absolute-form targets and `CONNECT`.
    Forward,
    /// A reverse proxy in front of one origin.
    Accelerate {
        /// Scheme and authority of the origin.
        origin: hashcache_http::Origin,
        /// The names it goes by: whoever asks for another host gets 421. Empty: any will do, for
        /// there is one site, and the cache key names the site and not the host.
        hosts: Vec<hashcache_http::Host>,
    },
}

/// An address to accept clients on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address.
    pub address: SocketAddr,
    /// What is spoken there; `None`: TLS where there are certificates, else HTTP/1.1 in the clear.
    pub speaks: Option<Speaks>,
}

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// HTTP/1.1 in the clear.
    Http,
    /// The same, and HTTP/2 with clients that begin with its preface (RFC 9113, section 3.3).
    H2c,
    /// TLS, within it HTTP/2 or HTTP/1.1 as ALPN says.
    Tls,
}

impl Speaks {
    const WORDS: [(Self, &'static str); 3] = [
        (Self::Http, "http://"),
        (Self::H2c, "h2c://"),
        (Self::Tls, "https://"),
    ];
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

/// Where the access log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessLog {
    /// No access log.
    None,
    /// Standard output.
    Stdout,
    /// Appended to this file, which is opened anew on `SIGUSR1` and `SIGHUP`.
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

/// The form of a line of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Squid's native format.
    #[default]
    Squid,
    /// Apache's combined format.
    Combined,
    /// One JSON object a line.
    Json,
}

/// What the members of a group have in common: what is written and read together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupBy {
    /// A page of one client, by `Referer`.
    #[default]
    Page,
    /// The origin, whoever asked (Foxy, section 2.2.3).
    Origin,
}

/// What browsers do that were configured by `/proxy.pac`, when this proxy does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fail {
    /// They go without it.
    #[default]
    Open,
    /// They go nowhere.
    Closed,
}

/// How long a request waits for the response head of the same request that is under way already
/// (collapsed forwarding).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CollapseWait {
    /// As long as the fetch may take to its first byte (`limits.first_byte_time`): on a slow or
    /// distant line a second fetch costs more than any wait saves.
    #[default]
    Satellite,
    /// Twice the origin's usual time to the first byte, 200 ms to 5 s, and a second for an origin
    /// not met before: where origins are near, one that takes longer is better asked anew.
    Lan,
    /// At most this long.
    Within(Duration),
}

/// Everything the proxy can be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Forward or accelerate; one mode for all of `listen`.
    pub mode: Mode,
    /// Addresses to accept clients on.
    pub listen: Vec<Listen>,
    /// Certificates to show to clients, with their keys; the first is for whoever names no other.
    pub tls: Vec<CertificateFiles>,
    /// Where metrics and health are served, if anywhere.
    pub admin: Option<SocketAddr>,
    /// Name of this proxy in `Via`, `Cache-Status` and `Proxy-Status`.
    pub name: String,
    /// Under which URL clients reach this proxy, if that cannot be told by their requests: it
    /// stands behind a forwarded port, or by a name of its own.
    pub public_url: Option<hashcache_http::Origin>,
    /// Registries under paths of this proxy.
    pub mirrors: Vec<Mirror>,
    /// Whose TLS ends here, and by which authority; none: nobody's.
    pub intercept: Option<Intercept>,
    /// What `/proxy.pac` says of the time when this proxy is gone.
    pub fail: Fail,
    /// Clients allowed beside the default ones (loopback, private, link-local, our own networks).
    pub allow_client: Vec<Prefix>,
    /// Clients that may purge. None: this machine on forward listeners, nobody in front of a site.
    pub allow_purge: Vec<Prefix>,
    /// The file with the token that the admin listener wants for what changes anything, if it is to
    /// change anything.
    pub admin_token_file: Option<PathBuf>,
    /// Destinations allowed although they would be refused by default.
    pub allow_destination: Vec<Prefix>,
    /// Destinations refused in any case.
    pub deny_destination: Vec<Prefix>,
    /// Files with certificates of authorities to be believed beside those of the platform.
    pub upstream_ca: Vec<PathBuf>,
    /// Prefixes of a NAT64 translator, beside the well-known one.
    pub nat64_prefix: Vec<Nat64>,
    /// Ports `CONNECT` may go to.
    pub allow_connect_port: Vec<ConnectPort>,
    /// Ports at which clients may ask for resources of their own choice.
    pub allow_port: Vec<ConnectPort>,
    /// Where the access log goes.
    pub access_log: AccessLog,
    /// How its lines look.
    pub log_format: LogFormat,
    /// Whether query strings are left out of the access log.
    pub log_strip_query: bool,
    /// Whether clients' addresses are cut to their networks in the access log: /24 and /48.
    pub log_anonymize: bool,
    /// What is told to the engine to be of one group.
    pub group_by: GroupBy,
    /// Freshness rules, shipped ones included unless turned off.
    pub rules: hashcache_http::Rules,
    /// What a client's reload does to a fresh response.
    pub client_reload: hashcache_http::ClientReload,
    /// What a response that sets a cookie needs in order to be stored.
    pub set_cookie: hashcache_http::SetCookie,
    /// How long a request waits for the same one that is under way.
    pub collapse_wait: CollapseWait,
    /// Lifetime of 404 and 410 that state none.
    pub negative_lifetime: hashcache_http::Seconds,
    /// Time for which an origin that could not be reached is not tried again; doubles each time, up
    /// to five minutes. Zero: it is always tried.
    pub unreachable_lifetime: Duration,
    /// Whether a guessed lifetime doubles each time the response proves unchanged.
    pub adaptive_lifetime: bool,
    /// Largest object to be stored, bytes.
    pub max_object_size: u64,
    /// Number of runtimes (one thread each) that serve clients.
    pub workers: usize,
    /// Bounds on what one client or origin may take.
    pub limits: Limits,
}

/// Where the process keeps what it must know after a restart, beside what is in its store.
#[derive(Clone, Debug, Default)]
pub struct StateFiles {
    /// The latest time known.
    pub clock: Option<PathBuf>,
    /// Hosts whose certificates were found good.
    pub verified: Option<PathBuf>,
}

impl Settings {
    /// What is spoken on `listen`.
    pub fn speaks(&self, listen: &Listen) -> Speaks {
        let usual = match self.tls.is_empty() {
            true => Speaks::Http,
            false => Speaks::Tls,
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
        ] {
            let listen: Listen = text.parse().unwrap();
            assert_eq!(listen.to_string(), text);
        }
        assert!("ftp://127.0.0.1:1".parse::<Listen>().is_err());
        assert!("https://127.0.0.1".parse::<Listen>().is_err());
    }
}
