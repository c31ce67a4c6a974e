//! One link to a parent on loopback: its memory, its pins, and what it does when the parent leaves.

use std::convert::Infallible;

use bytes::Bytes;
use hashcache::device::MemoryDevice;
use hashcache::{Cache, Config};
use hashcache_base::clock::Clock;
use hashcache_base::share::Shares;
use hashcache_http::{FRAMES, HASHCACHE_LINK};
use hashcache_link::coding::{LinkCoding, StoredHere};
use hashcache_link::identity::LinkIdentity;
use hashcache_link::tls::of_parent;
use hashcache_wan::encode::Encoder;
use hashcache_wan::frame::{Dictionary, Head};
use http::Response;
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::super::tests::{locally, upstream, upstream_with};
use super::*;
use crate::peer::{Credentials, PeerHttps, PeerKind, PeerMisses, PeerSettings, PeerSummary};
use crate::{AbsoluteForm, ResponseBody, SendOptions, Wanted};

/// How many streams the parents allow.
const STREAMS: u32 = 300;

/// The response of a parent to one path.
enum Answers {
    Text,
    /// Content that never ends.
    Unending,
    /// Nothing.
    Silence,
    /// A head that is larger than the child's limit.
    LargeHead,
    Refused,
    /// Content in frames, with this damage.
    Frames(Damage),
}

/// The damage to frames.
#[derive(Clone, Copy)]
enum Damage {
    None,
    /// A bit of the block at this place in three.
    Block(usize),
    /// END is missing.
    NoEnd,
    /// They name a dictionary, although none is allowed.
    Dictionary,
}

/// Content of three blocks and more.
fn framed_text() -> Vec<u8> {
    (0..40_000_u32).flat_map(u32::to_le_bytes).collect()
}

fn frames(damage: Damage) -> Vec<u8> {
    let content = framed_text();
    let head = Head {
        length: Some(content.len() as u64),
        version: 0,
        dictionary: match damage {
            Damage::Dictionary => Dictionary::Offered,
            _ => Dictionary::None,
        },
    };
    let mut encoder = Encoder::new(head, 0);
    let (mut frames, mut ends) = (Vec::new(), Vec::new());
    for piece in content.chunks(60_000) {
        encoder.push(piece, &mut frames).unwrap();
        encoder.flush(&mut frames).unwrap();
        ends.push(frames.len());
    }
    encoder.finish(&mut frames).unwrap();
    match damage {
        // Eight bytes of a check are the last ones of a block.
        Damage::Block(place) => frames[ends[place] - 12] ^= 16,
        Damage::NoEnd => frames.truncate(ends[2]),
        Damage::None | Damage::Dictionary => {}
    }
    frames
}

impl Answers {
    fn to(path: &str, reads_frames: bool, refusals: &Cell<usize>) -> Self {
        match path {
            "/frames" if reads_frames => Self::Frames(Damage::None),
            "/first" if reads_frames => Self::Frames(Damage::Block(0)),
            "/last" if reads_frames => Self::Frames(Damage::Block(2)),
            "/no-end" if reads_frames => Self::Frames(Damage::NoEnd),
            "/dictionary" if reads_frames => Self::Frames(Damage::Dictionary),
            "/unasked" => Self::Frames(Damage::None),
            "/unending" => Self::Unending,
            "/silent" => Self::Silence,
            "/large" => Self::LargeHead,
            "/refused" => Self::Refused,
            _ if refusals.get() > 0 => {
                refusals.set(refusals.get() - 1);
                Self::Refused
            }
            _ => Self::Text,
        }
    }

    async fn response(self) -> Result<Response<BoxBody<Bytes, Infallible>>, h2::Error> {
        let text = Full::new(Bytes::from_static(b"from the parent"));
        match self {
            Self::Text => Ok(Response::new(text.boxed())),
            Self::Silence => std::future::pending().await,
            Self::Unending => Ok(Response::new(Unending(false).boxed())),
            Self::LargeHead => {
                let mut response = Response::new(text.boxed());
                let value = HeaderValue::try_from("x".repeat(1000)).unwrap();
                for _ in 0..270 {
                    response.headers_mut().append("x-large", value.clone());
                }
                Ok(response)
            }
            Self::Refused => Err(h2::Reason::REFUSED_STREAM.into()),
            Self::Frames(damage) => {
                let frames = Full::new(Bytes::from(frames(damage)));
                let mut response = Response::new(frames.boxed());
                response.headers_mut().insert(HASHCACHE_LINK, FRAMES);
                Ok(response)
            }
        }
    }
}

/// One piece of content, and then silence.
struct Unending(bool);

impl http_body::Body for Unending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if std::mem::replace(&mut self.0, true) {
            Poll::Pending
        } else {
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(b"x")))))
        }
    }
}

/// A child's link to a parent that refuses the first `refusals` requests, and ends each connection
/// by GOAWAY after `requests`.
async fn linked(requests: usize, refusals: usize) -> (Arc<Peer>, Arc<ParentLink>) {
    let (own, other) = (identity(), identity());
    let peer = peer(parent(&other, &own, requests, refusals).await, &own, &other);
    let link = peer.link.clone().unwrap();
    (peer, link)
}

async fn parent(
    identity: &LinkIdentity,
    child: &LinkIdentity,
    requests: usize,
    refusals: usize,
) -> SocketAddr {
    let clock = Arc::new(Clock::start(None));
    let config = of_parent(&identity.key, &[child.pin()], &clock);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let refusals = Rc::new(Cell::new(refusals));
    spawn_local(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let refusals = Rc::clone(&refusals);
            let acceptor = TlsAcceptor::from(Arc::clone(&config));
            spawn_local(async move {
                let Ok(stream) = acceptor.accept(socket).await else {
                    return;
                };
                let left = Rc::new(Cell::new(requests));
                let (done, counted) = (Rc::new(Notify::new()), Rc::clone(&left));
                let full = Rc::clone(&done);
                let service = service_fn(move |request: Request<Incoming>| {
                    counted.set(counted.get().saturating_sub(1));
                    if counted.get() == 0 {
                        full.notify_one();
                    }
                    let field = request.headers().get(HASHCACHE_LINK);
                    let reads_frames = field.is_some_and(|it| it.as_bytes().starts_with(b"v=1"));
                    Answers::to(request.uri().path(), reads_frames, &refusals).response()
                });
                let mut builder = http2::Builder::new(LocalTasks);
                builder.max_concurrent_streams(STREAMS);
                let mut serving = builder.serve_connection(TokioIo::new(stream), service);
                let mut serving = Pin::new(&mut serving);
                tokio::select! {
                    _ = &mut serving => return,
                    () = done.notified() => serving.as_mut().graceful_shutdown(),
                }
                let _ = serving.await;
            });
        }
    });
    address
}

fn identity() -> LinkIdentity {
    LinkIdentity::make(tempfile::tempdir().unwrap().path()).unwrap()
}

fn peer(at: SocketAddr, own: &LinkIdentity, parent: &LinkIdentity) -> Arc<Peer> {
    let settings = PeerSettings {
        name: "hub".into(),
        kind: PeerKind::Parent,
        url: format!("https://{at}").parse().unwrap(),
        credentials: Credentials::None,
        https: PeerHttps::Fetch,
        icp: None,
        htcp: None,
        summary: PeerSummary::None,
        misses: PeerMisses::Fetched,
        weight: 1,
        pin: Some(parent.pin()),
    };
    Arc::new(settings.load(Some(own)).unwrap())
}

fn cache(memory_bytes: u64) -> Cache {
    let config = Config {
        memory_bytes,
        ..Config::on_device(Arc::new(MemoryDevice::new(16 << 20)))
    };
    Cache::open(config).unwrap()
}

async fn get(upstream: &Upstream, peer: &Arc<Peer>) -> Result<String, Failure> {
    let mut body = begin(upstream, peer, "/x").await?;
    let mut content = Vec::new();
    while let Some(frame) = body.frame().await {
        content.extend_from_slice(frame?.data_ref().unwrap());
    }
    Ok(String::from_utf8(content).unwrap())
}

/// The content of a response after its head has arrived.
async fn begin(upstream: &Upstream, peer: &Arc<Peer>, path: &str) -> Result<ResponseBody, Failure> {
    let options = options(peer);
    let request = Request::get(path).body(RequestBody::empty()).unwrap();
    let sent = upstream
        .send(&Endpoint::of_peer(peer), request, options)
        .await;
    sent.map(|exchange| exchange.response.into_body())
        .map_err(|failed| failed.failure)
}

fn options(peer: &Arc<Peer>) -> SendOptions {
    SendOptions {
        absolute: Some(AbsoluteForm {
            peer: Arc::clone(peer),
            origin: "http://origin.test".parse().unwrap(),
            wanted: Wanted::Fetched,
        }),
        ..SendOptions::default()
    }
}

async fn tunnel(
    upstream: &Upstream,
    peer: &Peer,
    limits: (Option<Duration>, Option<&Share>),
) -> Result<Channel, Failure> {
    let to = "origin.test:443";
    let to = Authority::parse(to, hashcache_http::Scheme::Https).unwrap();
    let via = HeaderValue::from_static("1.1 child");
    let link = peer.link.as_ref().unwrap();
    let made = upstream.connect_linked((peer, link), &to, &via, limits);
    made.await.map(|(channel, _)| channel)
}

/// Opens one connection and uses it.
async fn open(upstream: &Upstream, peer: &Peer, link: &ParentLink) -> LinkLine {
    let opened = upstream.open_link(peer, link).await.unwrap();
    let since = hashcache_http::UnixTime(0);
    link.opened(opened.connection, since);
    opened.line
}

#[tokio::test]
async fn the_windows_of_a_link_are_on_the_books_as_long_as_it_is_open() {
    locally(async {
        let (peer, link) = linked(100, 0).await;
        let cache = cache(64 << 20);
        let upstream = upstream().within(&cache);
        let used = || cache.stats().memory_used_bytes;
        let before = used();
        let opened = upstream.open_link(&peer, &link).await.unwrap();
        // The store gives back what it needed to open.
        let opening = 256 << 10;
        let grown = used() - before;
        let expected = (8 << 20) + BESIDE_BYTES;
        assert!(grown <= expected && grown > expected - opening, "{grown}");
        let OpenedLink {
            connection,
            mut line,
        } = opened;
        let number = link.opened(connection, hashcache_http::UnixTime(0));
        assert_eq!(get(&upstream, &peer).await.unwrap(), "from the parent");
        let [received, sent] = link.counters.bytes();
        assert!(received > 500 && sent > 500);
        link.retire(number);
        let end = line.ended().await;
        assert!(matches!(end, LinkEnd::Broken(_)), "{end:?}");
        freed(used, before).await;
        let small = self::cache(16 << 20);
        let before = small.stats().memory_used_bytes;
        let upstream = self::upstream().within(&small);
        let _opened = upstream.open_link(&peer, &link).await.unwrap();
        let grown = small.stats().memory_used_bytes - before;
        let expected = (2 << 20) + BESIDE_BYTES;
        assert!(grown <= expected && grown > expected - opening, "{grown}");
        let mut held = Vec::new();
        while let Some(reservation) = small.reserve(64 << 10) {
            held.push(reservation);
        }
        let full = upstream.open_link(&peer, &link).await;
        assert_eq!(full.unwrap_err(), Failure::Link(LinkFault::Memory));
    })
    .await;
}

/// Waits until no more than `before` bytes are in use.
async fn freed(used: impl Fn() -> u64, before: u64) {
    let freed = async {
        while used() > before {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let freed = timeout(Duration::from_secs(10), freed).await;
    assert!(freed.is_ok(), "{} {before}", used());
}

#[tokio::test]
async fn a_tunnel_and_content_are_on_the_books_while_they_last() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 0).await;
        let cache = cache(64 << 20);
        let upstream = upstream().within(&cache);
        let used = || cache.stats().memory_used_bytes;
        let _line = open(&upstream, &peer, &link).await;
        let before = used();
        let tunnel = tunnel(&upstream, &peer, (None, None)).await.unwrap();
        assert_eq!(used() - before, hashcache_link::TUNNEL_BYTES);
        drop(tunnel);
        assert_eq!(used(), before);
        let content = Full::new(Bytes::from_static(b"content"));
        let request = Request::put("/unending").body(RequestBody::streamed(content));
        let to = Endpoint::of_peer(&peer);
        let sent = upstream.send(&to, request.unwrap(), options(&peer));
        let sent = sent.await.unwrap();
        assert_eq!(used() - before, UPLOAD_BYTES);
        drop(sent);
        assert_eq!(used(), before);
    })
    .await;
}

/// Content of a client that has sent one piece and sends no more.
struct Stalled {
    piece: Option<Bytes>,
    /// Closes with the content.
    _alive: oneshot::Receiver<()>,
}

impl http_body::Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.piece.take() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn an_upload_over_a_link_ends_with_its_exchange() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 0).await;
        let upstream = upstream();
        let _line = open(&upstream, &peer, &link).await;
        let (mut content, alive) = oneshot::channel();
        let stalled = Stalled {
            piece: Some(Bytes::from_static(b"content")),
            _alive: alive,
        };
        let request = Request::put("/unending").body(RequestBody::streamed(stalled));
        let to = Endpoint::of_peer(&peer);
        let sent = upstream.send(&to, request.unwrap(), options(&peer));
        let sent = sent.await.unwrap();
        assert!(!content.is_closed());
        drop(sent);
        let ended = timeout(Duration::from_secs(10), content.closed()).await;
        assert!(ended.is_ok(), "the upload goes on without its exchange");
    })
    .await;
}

#[tokio::test]
async fn the_windows_stay_on_the_books_until_the_last_stream_after_goaway_ends() {
    locally(async {
        let (peer, link) = linked(1, 0).await;
        let cache = cache(64 << 20);
        let upstream = upstream().within(&cache);
        let used = || cache.stats().memory_used_bytes;
        let before = used();
        let mut line = open(&upstream, &peer, &link).await;
        let mut late = link
            .stream(StreamUse::Request, None, Duration::from_secs(10))
            .await
            .unwrap();
        let unending = begin(&upstream, &peer, "/unending").await.unwrap();
        assert_eq!(line.ended().await, LinkEnd::GoesAway);
        // hyper's handle of the connection ends with the first request that arrives too late.
        let request = Request::get("http://origin.test/").body(LinkContent::default());
        assert!(late.sender.send_request(request.unwrap()).await.is_err());
        link.retire(1);
        while !line.driver.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(used() >= before + (8 << 20), "{} {before}", used());
        drop((unending, late));
        freed(used, before).await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_that_fails_costs_the_others_nothing() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 0).await;
        let upstream = upstream();
        let mut line = open(&upstream, &peer, &link).await;
        // Nobody makes another connection here, so all requests need this one.
        let mut unending = begin(&upstream, &peer, "/unending").await.unwrap();
        assert!(unending.frame().await.unwrap().is_ok());
        let refused = begin(&upstream, &peer, "/refused").await;
        assert_eq!(refused.unwrap_err(), Failure::UpstreamLimit);
        let large = begin(&upstream, &peer, "/large").await.unwrap_err();
        assert!(matches!(large, Failure::ResponseMalformed(_)), "{large:?}");
        let tunnel = tunnel(&upstream, &peer, (None, None)).await;
        assert!(tunnel.is_ok());
        assert!(
            link.is_up(),
            "a refused request or tunnel does not retire it"
        );
        assert_eq!(get(&upstream, &peer).await.unwrap(), "from the parent");
        let ended = timeout(Duration::ZERO, line.ended()).await;
        assert!(ended.is_err(), "{ended:?}");
    })
    .await;
}

#[tokio::test]
async fn a_refused_request_or_tunnel_is_sent_again_on_the_same_connection() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 2).await;
        let upstream = upstream();
        let _line = open(&upstream, &peer, &link).await;
        assert_eq!(get(&upstream, &peer).await.unwrap(), "from the parent");
        assert_eq!(link.to_json()["streams_in_all"], 3);
        assert_eq!(link.to_json()["connections"], 1);
    })
    .await;
}

#[tokio::test]
async fn the_tunnels_of_one_client_leave_places_to_others_and_to_requests() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 0).await;
        let upstream = upstream();
        let _line = open(&upstream, &peer, &link).await;
        let shares = Shares::new(1 << 30, 100);
        let client = |last| shares.of([192, 0, 2, last].into());
        let (greedy, second) = (client(1), client(2));
        let soon = Some(Duration::from_millis(100));
        let mut tunnels = Vec::new();
        let most_of_all = hashcache_link::tunnels_of(STREAMS as usize);
        let half = STREAMS as usize / 2;
        for (client, most) in [(&greedy, half), (&second, most_of_all)] {
            let full = loop {
                match tunnel(&upstream, &peer, (soon, Some(client))).await {
                    Ok(made) => tunnels.push(made),
                    Err(failure) => break failure,
                }
            };
            assert_eq!((full, tunnels.len()), (Failure::UpstreamLimit, most));
        }
        assert_eq!(get(&upstream, &peer).await.unwrap(), "from the parent");
        drop(tunnels.remove(0));
        assert!(
            tunnel(&upstream, &peer, (soon, Some(&greedy)))
                .await
                .is_ok()
        );
    })
    .await;
}

#[tokio::test]
async fn a_stream_waits_for_a_place_and_not_for_the_parent() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 0).await;
        let upstream = upstream();
        let _line = open(&upstream, &peer, &link).await;
        let soon = Duration::from_millis(100);
        let shares = Shares::new(1 << 30, 100);
        let mut streams = Vec::new();
        // One client gets half of them.
        for (last, most) in [(1, STREAMS / 2), (2, STREAMS)] {
            let client = shares.of([192, 0, 2, last].into());
            let full = loop {
                match link.stream(StreamUse::Request, Some(&client), soon).await {
                    Ok(stream) => streams.push(stream),
                    Err(failure) => break failure,
                }
            };
            assert_eq!(
                (full, streams.len()),
                (Failure::UpstreamLimit, most as usize)
            );
        }
        // The next connection has places of its own.
        link.retire(1);
        let waiting = link.stream(StreamUse::Request, None, Duration::from_secs(10));
        let (waited, _line) = tokio::join!(waiting, open(&upstream, &peer, &link));
        assert_eq!(waited.unwrap().number, 2);
    })
    .await;
}

#[tokio::test]
async fn a_response_may_wait_for_its_turn_on_the_line() {
    locally(async {
        let (peer, link) = linked(usize::MAX, 0).await;
        let short = Duration::from_millis(20);
        let upstream = upstream_with(Limits {
            first_byte_time: short,
            between_bytes_time: short,
            ..Limits::default()
        });
        let _line = open(&upstream, &peer, &link).await;
        let later = 10 * short;
        let silent = timeout(later, begin(&upstream, &peer, "/silent")).await;
        assert!(silent.is_err(), "{silent:?}");
        let mut unending = begin(&upstream, &peer, "/unending").await.unwrap();
        assert!(unending.frame().await.unwrap().is_ok());
        let silent = timeout(later, unending.frame()).await;
        assert!(silent.is_err(), "{silent:?}");
    })
    .await;
}

#[tokio::test]
async fn a_request_after_goaway_waits_for_the_next_connection() {
    locally(async {
        let (peer, link) = linked(1, 0).await;
        let upstream = upstream();
        let keeping = async {
            loop {
                let opened = upstream.open_link(&peer, &link).await.unwrap();
                let OpenedLink {
                    connection,
                    mut line,
                } = opened;
                let since = hashcache_http::UnixTime(0);
                let number = link.opened(connection, since);
                assert_eq!(line.ended().await, LinkEnd::GoesAway);
                link.retire(number);
                tokio::task::yield_now().await;
            }
        };
        let asking = async {
            for _ in 0..5 {
                assert_eq!(get(&upstream, &peer).await.unwrap(), "from the parent");
            }
        };
        tokio::select! {
            () = keeping => {}
            () = asking => {}
        }
        // A request that is under way when the parent says so may still be answered.
        let connections = link.to_json()["connections"].as_u64().unwrap();
        assert!((3..=5).contains(&connections), "{connections}");
    })
    .await;
}

#[tokio::test]
async fn each_side_refuses_a_key_that_is_not_pinned() {
    locally(async {
        let (own, other, third) = (identity(), identity(), identity());
        let at = parent(&other, &own, 100, 0).await;
        let upstream = upstream();
        for (own, pinned, fault) in [
            (&own, &third, LinkFault::OtherKey),
            (&third, &other, LinkFault::NotAccepted),
        ] {
            let peer = peer(at, own, pinned);
            let link = peer.link.clone().unwrap();
            let refused = upstream.open_link(&peer, &link).await.unwrap_err();
            assert_eq!(refused, Failure::Link(fault));
        }
    })
    .await;
}

/// Response content that may arrive in frames, and how it ends.
async fn framed(
    upstream: &Upstream,
    peer: &Arc<Peer>,
    path: &str,
    link: LinkCoding,
) -> Result<(Vec<u8>, Option<Failure>), Failure> {
    let options = SendOptions {
        link,
        ..options(peer)
    };
    let request = Request::get(path).body(RequestBody::empty()).unwrap();
    let to = Endpoint::of_peer(peer);
    let sent = upstream.send(&to, request, options).await;
    let response = sent.map_err(|failed| failed.failure)?.response;
    let length = response
        .headers()
        .get(http::header::CONTENT_LENGTH)
        .cloned();
    let mut body = response.into_body();
    let mut content = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => content.extend_from_slice(frame.data_ref().unwrap()),
            Err(failure) => {
                assert!(!body.is_complete());
                return Ok((content, Some(failure)));
            }
        }
    }
    assert!(body.is_complete());
    assert_eq!(length, Some(HeaderValue::from(content.len())));
    Ok((content, None))
}

#[tokio::test]
async fn damaged_frames_are_never_given_and_cost_one_more_request_at_the_most() {
    locally(async {
        let (peer, link) = linked(100, 0).await;
        let cache = cache(64 << 20);
        let upstream = upstream().within(&cache);
        let _line = open(&upstream, &peer, &link).await;
        let before = cache.stats().memory_used_bytes;
        let frames = || LinkCoding::new(&http::HeaderMap::new(), StoredHere::No);
        let get = |path, link| framed(&upstream, &peer, path, link);
        let text = b"from the parent".to_vec();
        assert_eq!(get("/frames", frames()).await, Ok((framed_text(), None)));
        assert_eq!(get("/x", frames()).await, Ok((text.clone(), None)));
        // Damage before anything was given: the content arrives in plain.
        assert_eq!(get("/first", frames()).await, Ok((text.clone(), None)));
        assert_eq!(get("/dictionary", frames()).await, Ok((text.clone(), None)));
        // Damage later: what was right was given, and no more.
        let (content, failure) = get("/last", frames()).await.unwrap();
        assert_eq!(failure, Some(Failure::Link(LinkFault::Frames)));
        assert!(content == framed_text()[..120_000]);
        let (content, failure) = get("/no-end", frames()).await.unwrap();
        assert_eq!(failure, Some(Failure::ResponseIncomplete));
        assert!(content == framed_text());
        // Frames that were not asked for.
        for link in [LinkCoding::Unchanged, frames().in_plain()] {
            let failed = get("/unasked", link).await;
            assert!(matches!(failed, Err(Failure::ResponseMalformed(_))));
        }
        assert_eq!(link.counters.to_json()["streams_in_all"], 10);
        freed(|| cache.stats().memory_used_bytes, before).await;
    })
    .await;
}
