//! What an operator asked for, parsed and checked; made by `hashcache-cli`, read by every module
//! here.
//!
//! Invariant: a `Settings` that exists is consistent; nothing here is a raw string of the user's.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::upstream::address::{ConnectPort, Prefix};

/// What the listeners of this process do with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A forward proxy: absolute-form targets and `CONNECT`.
    Forward,
    /// A reverse proxy in front of one origin.
    Accelerate {
        /// Scheme and authority of the origin, `http` only.
        origin: hashcache_http::Origin,
        /// The names it goes by: whoever asks for another host gets 421. Empty: any will do, for
        /// there is one site, and the cache key names the site and not the host.
        hosts: Vec<hashcache_http::Host>,
    },
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

/// Everything the proxy can be told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Forward or accelerate; one mode for all of `listen`.
    pub mode: Mode,
    /// Addresses to accept clients on.
    pub listen: Vec<SocketAddr>,
    /// Where metrics and health are served, if anywhere.
    pub admin: Option<SocketAddr>,
    /// Name of this proxy in `Via`, `Cache-Status` and `Proxy-Status`.
    pub name: String,
    /// Clients allowed beside the default ones (loopback, private, link-local, our own networks).
    pub allow_client: Vec<Prefix>,
    /// Clients that may purge beside those of this machine.
    pub allow_purge: Vec<Prefix>,
    /// The file with the token that the admin listener wants for what changes anything, if it is to
    /// change anything.
    pub admin_token_file: Option<PathBuf>,
    /// Destinations allowed although they would be refused by default.
    pub allow_destination: Vec<Prefix>,
    /// Destinations refused in any case.
    pub deny_destination: Vec<Prefix>,
    /// Ports `CONNECT` may go to.
    pub allow_connect_port: Vec<ConnectPort>,
    /// Where the access log goes.
    pub access_log: AccessLog,
    /// How its lines look.
    pub log_format: LogFormat,
    /// Whether query strings are left out of the access log.
    pub log_strip_query: bool,
    /// Whether clients' addresses are cut to their networks in the access log: /24 and /48.
    pub log_anonymize: bool,
    /// Freshness rules, shipped ones included unless turned off.
    pub rules: hashcache_http::Rules,
    /// Largest object to be stored, bytes.
    pub max_object_size: u64,
    /// Number of runtimes (one thread each) that serve clients.
    pub workers: usize,
    /// Bounds on what one client or origin may take.
    pub limits: Limits,
}

/// Bounds on time and memory; the defaults are those of `docs/OPERATING.md`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections from clients in all.
    pub clients: usize,
    /// Connections from one address.
    pub clients_per_address: usize,
    /// Request head, bytes.
    pub head_bytes: usize,
    /// Fields in a head.
    pub head_fields: usize,
    /// Request target, bytes.
    pub target_bytes: usize,
    /// Extensions of one chunk, bytes.
    pub chunk_extension_bytes: usize,
    /// Time for a request head to arrive once its first byte has.
    pub head_time: Duration,
    /// Time a connection may lie idle between requests.
    pub idle_time: Duration,
    /// Time in which some progress must be made reading a request body or writing a response.
    pub progress_time: Duration,
    /// Time to connect, over all addresses of a name.
    pub connect_time: Duration,
    /// Time from the request sent to the first byte of the response.
    pub first_byte_time: Duration,
    /// Time between bytes of a response.
    pub between_bytes_time: Duration,
    /// Busy connections to one origin.
    pub upstream_per_origin: usize,
    /// Busy connections to all origins.
    pub upstream: usize,
    /// Time an upstream connection may lie idle before it is closed.
    pub upstream_idle_time: Duration,
    /// Time for a name to be looked up.
    pub dns_time: Duration,
    /// Time a tunnel may be silent in both directions.
    pub tunnel_idle_time: Duration,
    /// Time given to open requests when told to stop.
    pub drain_time: Duration,
    /// How far a fetch runs beyond its fastest reader, bytes.
    pub read_ahead: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: 4096,
            clients_per_address: 256,
            head_bytes: 64 << 10,
            head_fields: 256,
            target_bytes: 16 << 10,
            chunk_extension_bytes: 256,
            head_time: Duration::from_secs(10),
            idle_time: Duration::from_mins(1),
            progress_time: Duration::from_mins(1),
            connect_time: Duration::from_secs(10),
            first_byte_time: Duration::from_mins(1),
            between_bytes_time: Duration::from_mins(1),
            // As many as `clients_per_address`: at 64, a hundred clients on a page of a second that
            // cannot be shared wait for two rounds of it.
            upstream_per_origin: 256,
            upstream: 1024,
            upstream_idle_time: Duration::from_secs(30),
            dns_time: Duration::from_secs(5),
            tunnel_idle_time: Duration::from_mins(10),
            drain_time: Duration::from_secs(30),
            read_ahead: 4 << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_of_one_address_may_have_a_connection_to_one_origin() {
        let limits = Limits::default();
        assert!(limits.upstream_per_origin >= limits.clients_per_address);
        assert!(limits.upstream_per_origin < limits.upstream);
    }
}
