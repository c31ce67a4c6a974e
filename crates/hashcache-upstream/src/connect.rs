//! From an authority to a connected socket: resolve, check, race.
//!
//! Called by `Upstream` for requests, and by `connect` in the proxy for `CONNECT`. Addresses are
//! tried in order: the next address after a quarter of a second, or as soon as the previous address
//! has failed (a reduced RFC 8305).
//!
//! Invariant: the checked address is the address handed to the kernel. A name is checked only
//! beside its address, and only for domains that a fixed name server knows (`own_domain` of
//! `hashcache-base`).
//! Cost: a lookup, usually from memory, and a TCP handshake.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hashcache_base::failure::Failure;
use hashcache_base::net::address::{Destinations, Purpose};
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::share::Network;
use hashcache_http::{Authority, Host};
use rustix::io::Errno;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::dns::{Addresses, Resolver};
use super::endpoint::Endpoint;
use super::unreachable::UnreachableCache;
use crate::offline::{Chosen, Line};

/// Opens connections on a core.
#[derive(Clone, Debug)]
pub(crate) struct Connector {
    pub(super) resolver: Resolver,
    pub(super) destinations: Destinations,
    /// The listeners of this process. They trust connections from this host, with purges and on the
    /// admin listener, so no client connection may reach them, whatever name resolves to them and
    /// whatever `allow_destination` lists. An FTP server may name them for the data connection.
    pub(super) listeners: Arc<[SocketAddr]>,
    pub(super) own: OwnAddresses,
    pub(super) unreachable: UnreachableCache,
    pub(super) line: Arc<Line>,
    pub(super) connect_time: Duration,
}

impl Connector {
    /// Returns a connected socket and its address, within `limit` or the configured time. The limit
    /// does not include the name lookup, which has a separate limit. Recently unreachable origins
    /// fail at once. `client` is the client that has chosen the origin.
    pub(crate) async fn connect(
        &self,
        to: &Endpoint,
        limit: Option<Duration>,
        client: Option<Network>,
    ) -> Result<(TcpStream, SocketAddr), Failure> {
        let limit = limit.map_or(self.connect_time, |limit| limit.min(self.connect_time));
        let try_permit = match to.purpose {
            Purpose::Peer => None,
            Purpose::Forward | Purpose::Configured => Some(self.unreachable.may_try(
                to,
                client,
                self.connect_time * 2,
            )?),
        };
        let addresses = match self.addresses(&to.authority.host, client).await {
            Ok(addresses) => addresses,
            Err(failure) => {
                let outcome = Err(failure);
                self.note((to, client), &outcome);
                return outcome;
            }
        };
        let race = self.race(&addresses, &to.authority, to.purpose);
        let outcome = timeout(limit, race).await;
        let outcome = outcome.unwrap_or(Err(Failure::ConnectTimeout(limit)));
        // A hurried attempt that took too long is weak evidence about an origin.
        let is_hurried = limit < self.connect_time;
        let counts = !is_hurried || !matches!(outcome, Err(Failure::ConnectTimeout(_)));
        if let Some(try_permit) = try_permit.filter(|_| counts) {
            try_permit.end(&outcome);
        }
        if counts {
            self.note((to, client), &outcome);
        }
        outcome
    }

    /// Reports the outcome of an attempt to `line`. Servers that the operator has chosen are no
    /// evidence about the line: they may be on this side, and be down together.
    fn note<T>(&self, (to, client): (&Endpoint, Option<Network>), outcome: &Result<T, Failure>) {
        let is_inside = || self.destinations.is_inside(&to.authority.host);
        if to.purpose == Purpose::Forward && !is_inside() {
            let origin = to.authority.clone();
            let chosen = Chosen { origin, client };
            self.line.note(&chosen, outcome, Instant::now());
        }
    }

    /// Returns true if a connection to `origin` can be made within `limit`.
    pub(super) async fn reaches(&self, origin: &Authority, limit: Duration) -> bool {
        let connecting = async {
            let addresses = self.addresses(&origin.host, None).await?;
            self.race(&addresses, origin, Purpose::Forward).await
        };
        matches!(timeout(limit, connecting).await, Ok(Ok(_)))
    }

    /// Opens a further connection to a server, at a port that the server has named.
    pub(super) async fn connect_data(
        &self,
        address: SocketAddr,
        purpose: Purpose,
    ) -> Result<TcpStream, Failure> {
        let (addresses, server) = ([address.ip()], Authority::from(address));
        let race = self.race(&addresses, &server, purpose);
        let outcome = timeout(self.connect_time, race).await;
        let outcome = outcome.unwrap_or(Err(Failure::ConnectTimeout(self.connect_time)));
        outcome.map(|(socket, _)| socket)
    }

    /// Looks up the addresses of `host`, which `client` has named.
    pub(super) async fn addresses(
        &self,
        host: &Host,
        client: Option<Network>,
    ) -> Result<Addresses, Failure> {
        let has_ipv6 = self.own.has_ipv6();
        match host {
            Host::Name(name) => self.resolver.resolve(name, has_ipv6, client).await,
            Host::V4(v4) => Ok([IpAddr::V4(*v4)].into()),
            Host::V6(v6) => Ok([IpAddr::V6(*v6)].into()),
        }
    }

    async fn race(
        &self,
        addresses: &[IpAddr],
        Authority { host, port }: &Authority,
        purpose: Purpose,
    ) -> Result<(TcpStream, SocketAddr), Failure> {
        let mut waiting = addresses.iter().take(ADDRESSES_TRIED).peekable();
        let mut under_way: Vec<Attempt> = Vec::new();
        let mut errors = AttemptErrors::default();
        let mut next_at = Instant::now();
        loop {
            if under_way.is_empty() || Instant::now() >= next_at {
                if let Some(&address) = waiting.next() {
                    let socket_address = SocketAddr::new(address, *port);
                    match self.check(host, socket_address, purpose) {
                        Ok(()) => {
                            under_way.push(Box::pin(attempt(socket_address)));
                            next_at = Instant::now() + STAGGER;
                        }
                        Err(denied) => errors.denied = errors.denied.or(Some(denied)),
                    }
                    continue;
                }
                if under_way.is_empty() {
                    return Err(errors.failure());
                }
            }
            tokio::select! {
                outcome = first_of(&mut under_way) => match outcome {
                    Ok(connected) => return Ok(connected),
                    Err(error) => {
                        errors.note(&error);
                        next_at = Instant::now();
                    }
                },
                () = sleep_until(next_at), if waiting.peek().is_some() => {}
            }
        }
    }

    /// Checks that `address`, which belongs to `host`, may be connected to.
    fn check(&self, host: &Host, address: SocketAddr, purpose: Purpose) -> Result<(), Failure> {
        let is_there = |listener: &SocketAddr| {
            let (own_ip, ip) = (listener.ip().to_canonical(), address.ip().to_canonical());
            // Another program may listen at another address of this host. 0.0.0.0 means loopback.
            let is_it = || {
                own_ip == ip
                    || ip.is_unspecified()
                    || own_ip.is_unspecified() && self.own.is_this_host(ip)
            };
            listener.port() == address.port() && is_it()
        };
        if purpose == Purpose::Forward && self.listeners.iter().any(is_there) {
            return Err(Failure::DestinationDenied {
                address: address.ip(),
            });
        }
        self.destinations.check_named(host, address.ip(), purpose)
    }
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<(TcpStream, SocketAddr)>>>>;

async fn attempt(address: SocketAddr) -> io::Result<(TcpStream, SocketAddr)> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // Before connecting, so that keepalive detects dead paths under tunnels and slow responses.
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / 4);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok((stream, address))
}

/// Waits for the first attempt that finishes, and removes it from the list.
async fn first_of(attempts: &mut Vec<Attempt>) -> io::Result<(TcpStream, SocketAddr)> {
    poll_fn(|cx| {
        for at in 0..attempts.len() {
            if let Poll::Ready(outcome) = attempts[at].as_mut().poll(cx) {
                drop(attempts.swap_remove(at));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// Why the addresses tried so far failed.
#[derive(Default)]
struct AttemptErrors {
    denied: Option<Failure>,
    refused: bool,
    /// This host had no free socket or memory.
    short: bool,
    tried: bool,
}

impl AttemptErrors {
    fn note(&mut self, error: &io::Error) {
        self.tried = true;
        self.refused |= error.kind() == io::ErrorKind::ConnectionRefused;
        self.short |= Errno::from_io_error(error).is_some_and(|errno| SHORTAGES.contains(&errno));
    }

    /// A refused connection is the most exact failure, because a host answered there. A denied
    /// address is reported only if no address was allowed, because otherwise it would hide the real
    /// failure.
    fn failure(self) -> Failure {
        match self.denied {
            _ if self.refused => Failure::ConnectionRefused,
            _ if self.short => Failure::UpstreamLimit,
            Some(denied) if !self.tried => denied,
            _ => Failure::Unreachable,
        }
    }
}

/// The head start of an address before the next address is tried (RFC 8305, section 5).
const STAGGER: Duration = Duration::from_millis(250);
/// Maximum number of addresses tried for a connection; names with more addresses are balanced by
/// the order of the addresses.
const ADDRESSES_TRIED: usize = 8;
/// Errors of this host, which give no information about the other end. EADDRNOTAVAIL is not in the
/// list: a host without IPv6 gets it for every IPv6 address.
const SHORTAGES: [Errno; 4] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
/// Silence after which the kernel probes the peer.
const KEEPALIVE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use hashcache_http::Scheme;
    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::super::dns::{DnsCache, NameServers};
    use super::*;

    fn connector(allow: &[&str]) -> Connector {
        let own = OwnAddresses::fixed(&[], &[]);
        let allow: Vec<_> = allow.iter().map(|text| text.parse().unwrap()).collect();
        let servers = NameServers::Fixed(Arc::new([SocketAddr::from(([127, 0, 0, 1], 9))]));
        Connector {
            resolver: Resolver::new(DnsCache::new(servers, Duration::from_secs(5))),
            destinations: Destinations::new(&allow, &[], own.clone()),
            own,
            listeners: Arc::default(),
            unreachable: UnreachableCache::new(Duration::from_secs(10)),
            line: Arc::default(),
            connect_time: Duration::from_secs(10),
        }
    }

    fn endpoint(host: Host, port: u16) -> Endpoint {
        Endpoint {
            authority: Authority { host, port },
            purpose: Purpose::Forward,
            scheme: Scheme::Http,
            through: None,
        }
    }

    fn loopback() -> Host {
        Host::V4([127, 0, 0, 1].into())
    }

    /// A loopback port that refuses connections: bound, so that it stays ours, but not listening.
    fn refusing() -> (TcpSocket, u16) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let port = socket.local_addr().unwrap().port();
        (socket, port)
    }

    #[tokio::test(start_paused = true)]
    async fn clients_never_reach_a_listener_of_this_process() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let with_listener = |address: [u8; 4], port| Connector {
            listeners: [
                SocketAddr::from((address, port)),
                "[::1]:9".parse().unwrap(),
            ]
            .into(),
            ..connector(&["127.0.0.0/8", "0.0.0.0"])
        };
        let (one, all) = ([127, 0, 0, 1], [0; 4]);
        let other = Host::V4([127, 9, 9, 9].into());
        for (host, listening, is_denied) in [
            (loopback(), one, true),
            (Host::V4(all.into()), one, true),
            (Host::Name("a.localhost".into()), one, true),
            // A listener of another program.
            (other.clone(), one, false),
            (other, all, true),
            (Host::Name("a.localhost".into()), all, true),
        ] {
            let to = endpoint(host.clone(), port);
            let connector = with_listener(listening, port);
            let connected = connector.connect(&to, None, None).await;
            let denied = matches!(connected, Err(Failure::DestinationDenied { .. }));
            assert_eq!(denied, is_denied, "{host:?} {listening:?}");
            assert_eq!(connected.is_ok(), !is_denied, "{host:?} {listening:?}");
            if let Host::V4(address) = host {
                // The data of an FTP server.
                let data = connector.connect_data((address, port).into(), Purpose::Forward);
                assert_eq!(data.await.is_ok(), !is_denied, "{host:?} {listening:?}");
            }
            let at_other_port = with_listener(listening, 1).connect(&to, None, None).await;
            assert!(at_other_port.is_ok(), "{host:?}");
            let by_operator = Endpoint {
                purpose: Purpose::Configured,
                ..to
            };
            let connected = connector.connect(&by_operator, None, None).await;
            assert!(connected.is_ok(), "{host:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_judged_before_it_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let to = endpoint(loopback(), port);
        let denied = connector(&[]).connect(&to, None, None).await.unwrap_err();
        assert_eq!(
            denied,
            Failure::DestinationDenied {
                address: [127, 0, 0, 1].into()
            }
        );
        let (_, peer) = connector(&["127.0.0.1"])
            .connect(&to, None, None)
            .await
            .unwrap();
        assert_eq!(peer, SocketAddr::from(([127, 0, 0, 1], port)));
        let configured = Endpoint {
            purpose: Purpose::Configured,
            ..to
        };
        connector(&[])
            .connect(&configured, None, None)
            .await
            .unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_of_loopback_is_refused_as_its_address_would_be() {
        let to = endpoint(Host::Name("localhost".into()), 80);
        let denied = LocalSet::new()
            .run_until(async { connector(&[]).connect(&to, None, None).await })
            .await;
        assert!(matches!(denied, Err(Failure::DestinationDenied { .. })));
    }

    #[tokio::test(start_paused = true)]
    async fn a_port_nobody_listens_on_is_refused() {
        let (_held, port) = refusing();
        let failure = connector(&["127.0.0.1"])
            .connect(&endpoint(loopback(), port), None, None)
            .await;
        assert_eq!(failure.unwrap_err(), Failure::ConnectionRefused);
    }

    #[tokio::test(start_paused = true)]
    async fn what_could_not_be_reached_is_not_tried_for_a_while() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connector, to) = (connector(&["127.0.0.1"]), endpoint(loopback(), port));
        let silence = Failure::ConnectTimeout(Duration::from_secs(10));
        let try_permit = connector
            .unreachable
            .may_try(&to, None, Duration::from_secs(20))
            .unwrap();
        tokio::time::advance(Duration::from_secs(10)).await;
        try_permit.end(&Err::<(), _>(silence.clone()));
        assert_eq!(
            connector.connect(&to, None, None).await.unwrap_err(),
            silence
        );
        tokio::time::advance(Duration::from_secs(10)).await;
        connector.connect(&to, None, None).await.unwrap();
        connector.connect(&to, None, None).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_next_address_is_tried_at_once_when_one_fails_or_is_denied() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let connector = connector(&["127.0.0.0/8"]);
        let to = endpoint(loopback(), port);
        // 127.0.0.2 has no listener, and 10.0.0.1 is not allowed.
        let addresses = [
            [127, 0, 0, 2].into(),
            [10, 0, 0, 1].into(),
            [127, 0, 0, 1].into(),
        ];
        let begun = Instant::now();
        let (_, peer) = connector
            .race(&addresses, &to.authority, Purpose::Forward)
            .await
            .unwrap();
        assert_eq!(peer.ip(), IpAddr::from([127, 0, 0, 1]));
        assert!(begun.elapsed() < STAGGER);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_that_moves_to_a_forbidden_address_is_refused() {
        let files = tempfile::tempdir().unwrap();
        let hosts = files.path().join("hosts");
        let resolv_conf = files.path().join("resolv.conf");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let servers = NameServers::Files {
            resolv_conf,
            hosts: hosts.clone(),
        };
        let mut connector = connector(&["127.0.0.1"]);
        connector.resolver = Resolver::new(DnsCache::new(servers, Duration::from_secs(5)));
        let to = endpoint(Host::Name("rebind.test".into()), port);
        let rebinding = async {
            std::fs::write(&hosts, "127.0.0.1 rebind.test\n").unwrap();
            connector.connect(&to, None, None).await.unwrap();
            std::fs::write(&hosts, "127.0.0.2 rebind.test\n").unwrap();
            let file = std::fs::File::options().write(true).open(&hosts).unwrap();
            file.set_modified(std::time::SystemTime::UNIX_EPOCH)
                .unwrap();
            tokio::time::advance(Duration::from_secs(11)).await;
            connector.connect(&to, None, None).await.unwrap_err()
        };
        let denied = LocalSet::new().run_until(rebinding).await;
        assert_eq!(
            denied,
            Failure::DestinationDenied {
                address: [127, 0, 0, 2].into()
            }
        );
    }

    #[test]
    fn the_failure_told_is_the_one_that_says_most() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let unreachable = io::Error::from(io::ErrorKind::HostUnreachable);
        let denied = Failure::DestinationDenied {
            address: [10, 0, 0, 1].into(),
        };
        let told = |denied: Option<&Failure>, met: &[&io::Error]| {
            let mut errors = AttemptErrors {
                denied: denied.cloned(),
                ..AttemptErrors::default()
            };
            met.iter().for_each(|error| errors.note(error));
            errors.failure()
        };
        assert_eq!(told(Some(&denied), &[]), denied);
        assert_eq!(told(Some(&denied), &[&unreachable]), Failure::Unreachable);
        assert_eq!(
            told(Some(&denied), &[&unreachable, &refused]),
            Failure::ConnectionRefused
        );
        assert_eq!(told(None, &[]), Failure::Unreachable);
        // Our own shortage must not mark an origin as unreachable.
        let short = io::Error::from(Errno::MFILE);
        assert_eq!(told(None, &[&unreachable, &short]), Failure::UpstreamLimit);
        let no_family = io::Error::from(Errno::ADDRNOTAVAIL);
        assert_eq!(told(None, &[&no_family]), Failure::Unreachable);
    }
}
