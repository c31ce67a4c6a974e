//! The sources of addresses: the hosts file, the resolvers of `resolv.conf`, or the system lookup
//! for `.local`.
//!
//! One per core, owned by `dns::Resolver`; hickory sends the queries. If 10 s have passed since the
//! last check, a lookup checks both files for changes, so a laptop can change networks without a
//! proxy restart.
//!
//! Invariant: names are always fully qualified. A search domain would turn an origin named `wiki`
//! into `wiki.corp.example`, and the response would be stored under the wrong name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use hashcache_base::fair_permits::FairPermits;
use hashcache_base::share::Network;
use hickory_resolver::config::{
    ConnectionConfig, LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig,
    ResolverOpts,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Resolver as Hickory, TokioResolver, system_conf};
use tokio::time::{Instant, timeout};

use super::outcome::{LookupOutcome, LookupResult};

/// The resolvers to query.
#[derive(Clone, Debug)]
pub enum NameServers {
    /// The resolvers of `/etc/resolv.conf`, with `/etc/hosts` before them.
    System,
    /// These files instead of the system files.
    Files {
        /// In the format of `/etc/resolv.conf`.
        resolv_conf: PathBuf,
        /// In the format of `/etc/hosts`.
        hosts: PathBuf,
    },
    /// These addresses, and no hosts file.
    Fixed(Arc<[SocketAddr]>),
}

#[derive(Debug)]
pub(super) struct DnsSource {
    servers: NameServers,
    dns_time: Duration,
    state: RefCell<SourceState>,
    /// Permits for lookups by the system, each of which occupies a thread; shared by all cores. A
    /// client may have half of the permits.
    system: FairPermits<Option<Network>>,
}

#[derive(Debug, Default)]
struct SourceState {
    look_again: Option<Instant>,
    resolver: Option<Rc<TokioResolver>>,
    resolv_conf_changed: Option<SystemTime>,
    hosts: HashMap<Box<str>, Vec<IpAddr>>,
    hosts_changed: Option<SystemTime>,
}

impl DnsSource {
    pub(super) fn new(
        servers: NameServers,
        dns_time: Duration,
        system: FairPermits<Option<Network>>,
    ) -> Self {
        Self {
            servers,
            dns_time,
            state: RefCell::default(),
            system,
        }
    }

    /// Looks `name` up for `client`; the caller bounds the time.
    pub(super) async fn look_up(
        &self,
        name: &str,
        ipv6: bool,
        client: Option<Network>,
    ) -> LookupResult {
        let resolver = match self.refreshed(name) {
            Ok(resolver) => resolver,
            Err(addresses) => return LookupResult::found(addresses, Some(Duration::ZERO)),
        };
        if name.ends_with(".local") && !matches!(self.servers, NameServers::Fixed(_)) {
            return self.ask_system(name, client).await;
        }
        let Some(resolver) = resolver else {
            return LookupResult {
                outcome: LookupOutcome::Broken,
                ttl: None,
            };
        };
        // The final dot prevents the use of search domains.
        match Name::from_ascii(format!("{name}.")) {
            Ok(name) => ask_resolvers(&resolver, name, ipv6).await,
            Err(_) => LookupResult {
                outcome: LookupOutcome::NoSuchName,
                ttl: None,
            },
        }
    }

    /// Returns the resolver to query, or the addresses of `name` in the hosts file.
    fn refreshed(&self, name: &str) -> Result<Option<Rc<TokioResolver>>, Vec<IpAddr>> {
        let mut state = self.state.borrow_mut();
        let now = Instant::now();
        if state.look_again.is_none_or(|at| now >= at) {
            state.look_again = Some(now + LOOK_AGAIN);
            self.look_again(&mut state);
        }
        match state.hosts.get(name) {
            Some(addresses) => Err(addresses.clone()),
            None => Ok(state.resolver.clone()),
        }
    }

    fn look_again(&self, state: &mut SourceState) {
        let (resolv_conf, hosts) = match &self.servers {
            NameServers::System => (Path::new("/etc/resolv.conf"), Path::new("/etc/hosts")),
            NameServers::Files { resolv_conf, hosts } => (resolv_conf.as_path(), hosts.as_path()),
            NameServers::Fixed(addresses) => {
                if state.resolver.is_none() {
                    let servers = addresses.iter().map(|address| {
                        let mut connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
                        connections.iter_mut().for_each(|c| c.port = address.port());
                        NameServerConfig::new(address.ip(), true, connections.into())
                    });
                    let config = ResolverConfig::from_name_servers(servers.collect());
                    state.resolver = build(config, self.dns_time);
                }
                return;
            }
        };
        let changed = modified(hosts);
        if changed != state.hosts_changed {
            state.hosts = fs::read(hosts)
                .map(|text| parse_hosts(&text))
                .unwrap_or_default();
            state.hosts_changed = changed;
        }
        let changed = modified(resolv_conf);
        if changed != state.resolv_conf_changed || state.resolver.is_none() {
            state.resolver = build(read_resolv_conf(resolv_conf), self.dns_time);
            state.resolv_conf_changed = changed;
        }
    }

    /// The system lookup supports multicast DNS, if the host does; it occupies a thread.
    async fn ask_system(&self, name: &str, client: Option<Network>) -> LookupResult {
        let permit = self.system.acquire(client).await;
        let asked = name.to_owned();
        let answer = tokio::task::spawn_blocking(move || {
            // Held by the thread: if the caller gives up, the thread is still occupied.
            let _permit = permit;
            (asked.as_str(), 0)
                .to_socket_addrs()
                .map(|found| found.map(|a| a.ip()).collect())
        });
        match answer.await {
            Ok(Ok(addresses)) => LookupResult::found(addresses, Some(SYSTEM_TTL)),
            // Through std, getaddrinfo does not distinguish "no such name" from "no answer". The
            // milder outcome is kept for seconds only.
            Ok(Err(_)) => LookupResult {
                outcome: LookupOutcome::NoSuchName,
                ttl: None,
            },
            Err(_) => LookupResult {
                outcome: LookupOutcome::Broken,
                ttl: None,
            },
        }
    }
}

/// Queries both address families at once if IPv6 can be reached, else IPv4 first.
async fn ask_resolvers(resolver: &TokioResolver, name: Name, ipv6: bool) -> LookupResult {
    let v4 = ask(resolver, name.clone(), RecordType::A);
    if !ipv6 {
        let v4 = v4.await;
        return match v4.outcome {
            // A name with only IPv6 addresses exists, and the error should be "unreachable".
            LookupOutcome::NoSuchName => {
                merge(v4, Some(ask(resolver, name, RecordType::AAAA).await))
            }
            _ => v4,
        };
    }
    let v6 = ask(resolver, name, RecordType::AAAA);
    tokio::pin!(v4, v6);
    tokio::select! {
        v4 = &mut v4 => {
            // Some resolvers drop AAAA queries. With IPv4 addresses at hand, the wait for IPv6 is
            // short.
            let patience = match v4.outcome {
                LookupOutcome::Found(_) => RESOLUTION_DELAY,
                _ => Duration::MAX,
            };
            let v6 = timeout(patience, v6).await.ok();
            merge(v4, v6)
        }
        v6 = &mut v6 => merge(v4.await, Some(v6)),
    }
}

/// Merges two answers; IPv6 and IPv4 addresses alternate, and IPv6 is first.
fn merge(v4: LookupResult, v6: Option<LookupResult>) -> LookupResult {
    let Some(v6) = v6 else { return v4 };
    match (v4.outcome, v6.outcome) {
        (LookupOutcome::Found(v4_found), LookupOutcome::Found(v6_found)) => {
            let mut addresses = Vec::with_capacity(v4_found.len() + v6_found.len());
            for at in 0..v4_found.len().max(v6_found.len()) {
                addresses.extend(v6_found.get(at));
                addresses.extend(v4_found.get(at));
            }
            let ttl = v4.ttl.zip(v6.ttl).map(|(a, b)| a.min(b));
            LookupResult::found(addresses, ttl)
        }
        (outcome @ LookupOutcome::Found(_), _) => LookupResult {
            outcome,
            ttl: v4.ttl,
        },
        (_, outcome @ LookupOutcome::Found(_)) => LookupResult {
            outcome,
            ttl: v6.ttl,
        },
        // "No such name" holds only if both families report it: one broken answer may hide an
        // address.
        (LookupOutcome::NoSuchName, LookupOutcome::NoSuchName) => LookupResult {
            outcome: LookupOutcome::NoSuchName,
            ttl: v4.ttl.zip(v6.ttl).map(|(a, b)| a.min(b)),
        },
        (LookupOutcome::NoSuchName, outcome) | (outcome, _) => LookupResult { outcome, ttl: None },
    }
}

async fn ask(resolver: &TokioResolver, name: Name, kind: RecordType) -> LookupResult {
    let none = |outcome| LookupResult { outcome, ttl: None };
    match resolver.lookup(name, kind).await {
        Ok(answer) => {
            let mut addresses: Vec<IpAddr> = Vec::new();
            let mut ttl_s = u32::MAX;
            for record in answer.answers() {
                // Aliases count too: the answer is valid no longer than the record with the
                // shortest time to live.
                ttl_s = ttl_s.min(record.ttl);
                if let Some(address) = record.data.ip_addr()
                    && !addresses.contains(&address)
                    && addresses.len() < ADDRESSES_MAX
                {
                    addresses.push(address);
                }
            }
            LookupResult::found(addresses, Some(Duration::from_secs(u64::from(ttl_s))))
        }
        Err(NetError::Dns(DnsError::NoRecordsFound(no))) => match no.response_code {
            ResponseCode::NXDomain | ResponseCode::NoError => LookupResult {
                outcome: LookupOutcome::NoSuchName,
                ttl: no.negative_ttl.map(|s| Duration::from_secs(u64::from(s))),
            },
            _ => none(LookupOutcome::Broken),
        },
        Err(NetError::Timeout) => none(LookupOutcome::TimedOut),
        Err(_) => none(LookupOutcome::Broken),
    }
}

fn read_resolv_conf(path: &Path) -> ResolverConfig {
    let parsed = fs::read(path)
        .ok()
        .and_then(|text| system_conf::parse_resolv_conf(text).ok());
    match parsed {
        Some((config, _)) if !config.name_servers().is_empty() => {
            ResolverConfig::from_name_servers(config.name_servers().to_vec())
        }
        // As the C library does without the file: query this host.
        _ => ResolverConfig::from_name_servers(vec![NameServerConfig::udp_and_tcp(
            Ipv4Addr::LOCALHOST.into(),
        )]),
    }
}

fn build(config: ResolverConfig, dns_time: Duration) -> Option<Rc<TokioResolver>> {
    let mut options = ResolverOpts::default();
    options.ndots = 0;
    options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
    // Three tries fit into the lookup time, so that a lost datagram does not fail the lookup.
    options.timeout = dns_time / 3;
    options.attempts = 2;
    options.cache_size = 0; // `table` keeps the answers, for all cores
    options.use_hosts_file = ResolveHosts::Never; // read above, and watched
    options.preserve_intermediates = true; // for the lifetimes of aliases
    options.case_randomization = true;
    let builder = Hickory::builder_with_config(config, TokioRuntimeProvider::default());
    match builder.with_options(options).build() {
        Ok(resolver) => Some(Rc::new(resolver)),
        Err(error) => {
            tracing::warn!(%error, "system resolver configuration cannot be used");
            None
        }
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path)
        .and_then(|metadata| metadata.modified())
        .ok()
}

/// Format: `address name…` per line, `#` starts a comment; other lines are skipped.
fn parse_hosts(text: &[u8]) -> HashMap<Box<str>, Vec<IpAddr>> {
    let mut hosts: HashMap<Box<str>, Vec<IpAddr>> = HashMap::new();
    for line in String::from_utf8_lossy(text).lines() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_ascii_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse::<IpAddr>().ok()) else {
            continue;
        };
        for name in words {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            let addresses = hosts.entry(name.into()).or_default();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
    }
    hosts
}

/// Interval between checks of both files.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// Maximum number of concurrent lookups by the system.
pub(super) const SYSTEM_LOOKUPS: usize = 4;
/// getaddrinfo returns no time to live; hosts on a local link change often.
const SYSTEM_TTL: Duration = Duration::from_secs(30);
/// Time for which IPv4 waits for IPv6 (RFC 8305, section 3).
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of addresses kept from an answer.
const ADDRESSES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_is_read_as_the_c_library_reads_it() {
        let hosts = parse_hosts(
            b"# comment\n127.0.0.1 localhost\n\n10.0.0.5\tWiki wiki.lan. # here\nnonsense x\n\
              fd00::5 wiki\n10.0.0.5 wiki\n\xff\xfe bad\n",
        );
        let wiki: [IpAddr; 2] = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!(hosts.get("wiki").unwrap(), &wiki);
        assert_eq!(hosts.get("wiki.lan").unwrap(), &wiki[..1]);
        assert!(!hosts.contains_key("x") && !hosts.contains_key("bad"));
    }

    #[test]
    fn families_alternate_and_the_shorter_lifetime_holds() {
        let answer = |texts: &[&str], ttl_s| {
            let addresses = texts.iter().map(|text| text.parse().unwrap()).collect();
            LookupResult::found(addresses, Some(Duration::from_secs(ttl_s)))
        };
        let v4 = answer(&["192.0.2.1", "192.0.2.2", "192.0.2.3"], 60);
        let both = merge(v4, Some(answer(&["2001:db8::1"], 30)));
        let order = ["2001:db8::1", "192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let expected: Vec<IpAddr> = order.iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(both.outcome, LookupOutcome::Found(expected.into()));
        assert_eq!(both.ttl, Some(Duration::from_secs(30)));
    }

    #[test]
    fn a_name_is_denied_only_if_both_families_deny_it() {
        let ended = |outcome| LookupResult { outcome, ttl: None };
        let merged = |a, b| merge(ended(a), Some(ended(b))).outcome;
        assert_eq!(
            merged(LookupOutcome::NoSuchName, LookupOutcome::NoSuchName),
            LookupOutcome::NoSuchName
        );
        assert_eq!(
            merged(LookupOutcome::NoSuchName, LookupOutcome::TimedOut),
            LookupOutcome::TimedOut
        );
        assert_eq!(
            merged(LookupOutcome::Broken, LookupOutcome::NoSuchName),
            LookupOutcome::Broken
        );
    }
}
