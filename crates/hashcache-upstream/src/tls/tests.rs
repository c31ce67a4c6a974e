//! Origins with certificates of the tests' own, good and bad, over real sockets.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use hashcache_base::limits::Limits;
use hashcache_base::net::address::Purpose;
use hashcache_base::net::interfaces::OwnAddresses;
use hashcache_base::tls::testing::{Authorities, Leaf};
use hashcache_http::{Authority, Scheme};
use http_body_util::BodyExt as _;
use rcgen::{BasicConstraints, CertificateParams};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

use super::super::dns::{DnsCache, NameServers};
use super::super::{
    Destinations, Endpoint, RequestBody, SendFailure, SendOptions, Upstream, UpstreamExchange,
    UpstreamShared,
};
use super::*;

impl Trust {
    /// Trust in these authorities alone, at the time of this machine.
    pub(crate) fn of_test(authorities: &[CertificateDer<'static>]) -> Self {
        Self::at(authorities, Arc::new(Clock::start(None)))
    }

    fn at(authorities: &[CertificateDer<'static>], clock: Arc<Clock>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities.iter().cloned());
        Self::new(roots, clock)
    }
}

pub(super) fn server_config(leaf: Leaf) -> ServerConfig {
    ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.certificate], leaf.key)
        .unwrap()
}

/// A connection of a client.
pub(super) type ServerStream = tokio_rustls::server::TlsStream<TcpStream>;

/// An origin that offers these versions and lets `serve` have each connection, and an upstream that
/// trusts it.
pub(super) async fn trusted_origin(
    versions: &[&[u8]],
    serve: impl Fn(ServerStream) + 'static,
) -> (Endpoint, Upstream) {
    let authorities = Authorities::generate();
    let mut config = server_config(authorities.leaf("127.0.0.1", |_| ()));
    config.alpn_protocols = versions.iter().map(|it| it.to_vec()).collect();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = endpoint(listener.local_addr().unwrap().port());
    spawn_local(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            // The client may offer none of these versions.
            if let Ok(stream) = acceptor.accept(socket).await {
                serve(stream);
            }
        }
    });
    let trust = Trust::of_test(std::slice::from_ref(&authorities.certificate));
    (to, upstream(trust))
}

fn endpoint(port: u16) -> Endpoint {
    let host = Host::V4([127, 0, 0, 1].into());
    Endpoint {
        authority: Authority { host, port },
        purpose: Purpose::Configured,
        scheme: Scheme::Https,
        through: None,
    }
}

/// The action of an origin at the end of its answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Close {
    /// Says that it is the end.
    Notified,
    /// Closes the socket below.
    Cut,
}

struct Origin {
    to: Endpoint,
    heard: Rc<RefCell<String>>,
    resumed: Rc<Cell<usize>>,
}

/// An origin that answers every connection's first request with `answer` and closes.
async fn origin(leaf: Leaf, answer: &'static str, close: Close) -> Origin {
    let mut config = server_config(leaf);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let to = endpoint(listener.local_addr().unwrap().port());
    let (heard, resumed) = (Rc::new(RefCell::new(String::new())), Rc::new(Cell::new(0)));
    let (all, count) = (Rc::clone(&heard), Rc::clone(&resumed));
    spawn_local(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(socket).await else {
                continue;
            };
            if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
                count.set(count.get() + 1);
            }
            while !all.borrow().ends_with("\r\n\r\n") {
                let mut page = [0; 1024];
                let read = stream.read(&mut page).await.unwrap();
                assert!(read > 0);
                let text = std::str::from_utf8(&page[..read]).unwrap();
                all.borrow_mut().push_str(text);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            match close {
                Close::Notified => stream.shutdown().await.unwrap(),
                Close::Cut => stream.get_mut().0.shutdown().await.unwrap(),
            }
            all.borrow_mut().push('|');
        }
    });
    Origin { to, heard, resumed }
}

pub(super) fn upstream(trust: Trust) -> Upstream {
    let own = OwnAddresses::fixed(&[], &[]);
    let destinations = Destinations::new(&[], &[], own.clone());
    let limits = Limits::default();
    let names = DnsCache::new(NameServers::Fixed(Arc::new([])), limits.dns_time);
    Upstream::new(&UpstreamShared::new(
        names,
        destinations,
        own,
        trust,
        Arc::new(limits),
        http::HeaderValue::from_static("1.1 test"),
    ))
}

pub(super) async fn send(
    upstream: &Upstream,
    to: &Endpoint,
) -> Result<UpstreamExchange, SendFailure> {
    let request = http::Request::get("/page")
        .body(RequestBody::empty())
        .unwrap();
    upstream.send(to, request, SendOptions::default()).await
}

pub(super) async fn locally<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

const WHOLE: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\n\r\nhello";

#[tokio::test]
async fn an_origin_with_a_good_certificate_is_asked_and_the_next_handshake_is_short() {
    locally(async {
        let authorities = Authorities::generate();
        let leaf = authorities.leaf("127.0.0.1", |_| ());
        let origin = origin(leaf, WHOLE, Close::Notified).await;
        let upstream = upstream(Trust::of_test(std::slice::from_ref(
            &authorities.certificate,
        )));
        for round in 0..2 {
            let exchange = send(&upstream, &origin.to).await.unwrap();
            let content = exchange.response.into_body().collect().await.unwrap();
            assert_eq!(content.to_bytes(), "hello");
            assert_eq!(origin.resumed.get(), round);
        }
        let heard = origin.heard.borrow();
        let host = format!("Host: 127.0.0.1:{}\r\n", origin.to.authority.port);
        assert!(heard.starts_with("GET /page HTTP/1.1\r\n"), "{heard}");
        assert!(heard.contains(&host), "{heard}");
    })
    .await;
}

#[tokio::test]
async fn a_certificate_that_does_not_prove_the_name_is_told_and_nothing_is_sent() {
    locally(async {
        let authorities = Authorities::generate();
        let strangers = Authorities::generate();
        let long_ago = |params: &mut CertificateParams| {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
        };
        let not_yet = |params: &mut CertificateParams| {
            params.not_before = rcgen::date_time_ymd(4000, 1, 1);
        };
        let authority = |params: &mut CertificateParams| {
            params.is_ca = rcgen::IsCa::Ca(BasicConstraints::Unconstrained);
        };
        // Not "expired": that is said to the clock, which must not believe just anybody.
        let strangers_and_old = strangers.leaf("127.0.0.1", long_ago);
        for (leaf, why) in [
            (
                authorities.leaf("127.0.0.1", authority),
                "that of a CA, not of a site",
            ),
            (authorities.leaf("127.0.0.1", long_ago), "expired"),
            (authorities.leaf("127.0.0.1", not_yet), "not valid yet"),
            (authorities.leaf("127.0.0.2", |_| ()), "for another name"),
            (
                strangers.leaf("127.0.0.1", |_| ()),
                "signed by an unknown issuer",
            ),
            (strangers_and_old, "signed by an unknown issuer"),
        ] {
            let origin = origin(leaf, WHOLE, Close::Notified).await;
            let upstream = upstream(Trust::of_test(std::slice::from_ref(
                &authorities.certificate,
            )));
            let failed = send(&upstream, &origin.to).await.unwrap_err();
            assert_eq!(failed.failure, Failure::TlsCertificate(why));
            assert!(failed.peer.is_some());
            assert_eq!(*origin.heard.borrow(), "");
        }
    })
    .await;
}

/// The circle of a machine without a battery: certificates are verified by a clock that verified
/// origins set.
#[tokio::test]
async fn a_lost_clock_asks_origins_whose_certificates_are_younger_and_a_plausible_one_does_not() {
    locally(async {
        let authorities = Authorities::generate();
        let young = |params: &mut CertificateParams| {
            params.not_before = rcgen::date_time_ymd(2030, 6, 1);
            params.not_after = rcgen::date_time_ymd(2030, 9, 1);
        };
        let over = |params: &mut CertificateParams| {
            params.not_after = rcgen::date_time_ymd(2026, 1, 1);
        };
        // 1970, and a day in 2027.
        for (wall, change, expected) in [
            (0, young as fn(&mut CertificateParams), None),
            (0, over as fn(&mut CertificateParams), Some("expired")),
            (1_800_000_000, young, Some("not valid yet")),
            (1_800_000_000, over, Some("expired")),
        ] {
            let leaf = authorities.leaf("127.0.0.1", change);
            let origin = origin(leaf, WHOLE, Close::Notified).await;
            let clock = Arc::new(Clock::of_test(wall));
            let authorities = std::slice::from_ref(&authorities.certificate);
            let upstream = upstream(Trust::at(authorities, Arc::clone(&clock)));
            let failed = send(&upstream, &origin.to).await.err();
            let expected = expected.map(Failure::TlsCertificate);
            assert_eq!(failed.map(|it| it.failure), expected, "{wall}");
        }
    })
    .await;
}

#[tokio::test]
async fn content_that_ends_with_the_connection_is_whole_only_with_close_notify() {
    locally(async {
        for (close, expected) in [
            (Close::Notified, Ok(())),
            (Close::Cut, Err(Failure::ResponseIncomplete)),
        ] {
            let authorities = Authorities::generate();
            let leaf = authorities.leaf("127.0.0.1", |_| ());
            let origin = origin(leaf, UNTIL_CLOSE, close).await;
            let upstream = upstream(Trust::of_test(std::slice::from_ref(
                &authorities.certificate,
            )));
            let exchange = send(&upstream, &origin.to).await.unwrap();
            let content = exchange.response.into_body().collect().await;
            assert_eq!(content.map(|_| ()), expected);
        }
    })
    .await;
}

#[tokio::test]
async fn who_speaks_no_tls_or_refuses_ours_is_told_apart_from_who_hangs_up() {
    locally(async {
        for (says, expected) in [
            (
                &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
                Failure::TlsProtocol("the server does not answer with TLS, or with an old version"),
            ),
            (
                &[0x15, 3, 3, 0, 2, 2, 0x70],
                Failure::TlsAlert("UnrecognisedName"),
            ),
            (&[], Failure::ConnectionTerminated),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let port = listener.local_addr().unwrap().port();
            spawn_local(async move {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut page = [0; 4096];
                assert!(socket.read(&mut page).await.unwrap() > 0);
                socket.write_all(says).await.unwrap();
                socket.shutdown().await.unwrap();
                while socket.read(&mut page).await.is_ok_and(|read| read > 0) {}
            });
            let to = Endpoint {
                authority: Authority {
                    host: Host::V4([127, 0, 0, 1].into()),
                    port,
                },
                purpose: Purpose::Configured,
                scheme: Scheme::Https,
                through: None,
            };
            let failed = send(&upstream(Trust::of_test(&[])), &to).await.unwrap_err();
            assert_eq!(failed.failure, expected);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_never_ends_has_the_time_of_a_connection() {
    locally(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = Endpoint {
            authority: Authority {
                host: Host::V4([127, 0, 0, 1].into()),
                port: listener.local_addr().unwrap().port(),
            },
            purpose: Purpose::Configured,
            scheme: Scheme::Https,
            through: None,
        };
        let failed = send(&upstream(Trust::of_test(&[])), &to).await.unwrap_err();
        assert_eq!(
            failed.failure,
            Failure::ConnectTimeout(Limits::default().connect_time)
        );
    })
    .await;
}

#[test]
fn files_of_authorities_that_hold_none_are_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let load = |text: &str| {
        let path = directory.path().join("authorities.pem");
        std::fs::write(&path, text).unwrap();
        Trust::load(&[path], Arc::new(Clock::start(None))).map(|_| ())
    };
    assert!(load(&Authorities::generate().pem).is_ok());
    assert!(matches!(
        load("Dear Sir or Madam"),
        Err(AuthoritiesError::Empty { .. })
    ));
    let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
    assert!(matches!(load(broken), Err(AuthoritiesError::Read { .. })));
    let nothing = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(
        load(nothing),
        Err(AuthoritiesError::Certificate { .. })
    ));
    let missing = [directory.path().join("none")];
    let missing = Trust::load(&missing, Arc::new(Clock::start(None)));
    assert!(matches!(missing, Err(AuthoritiesError::Read { .. })));
}
