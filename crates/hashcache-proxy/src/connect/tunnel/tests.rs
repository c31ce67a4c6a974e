//! Tunnels between in-memory pipes and, where the kernel's behaviour matters, loopback sockets.

use std::cell::RefCell;
use std::future::pending;
use std::rc::Rc;

use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, LocalSet, spawn_local};

use super::*;

impl Side for DuplexStream {
    fn reset(self) {}
}

impl Side for TcpStream {
    fn reset(self) {
        Socket::from(self).reset();
    }
}

/// Broken from its first write on, and silent.
struct BrokenSide;

impl AsyncRead for BrokenSide {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for BrokenSide {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Side for BrokenSide {
    fn reset(self) {}
}

#[tokio::test(start_paused = true)]
async fn a_side_that_breaks_in_silence_ends_the_tunnel_long_before_the_idle_time() {
    let begun = Instant::now();
    let (_upstream, inner_upstream) = duplex(64);
    let (_, ended) = run(BrokenSide, inner_upstream, IDLE, pending(), |_| {}).await;
    assert_eq!(ended, Ended::ClientBroke);
    assert!(begun.elapsed() <= 2 * CHECK_EVERY);
    let (_client, inner_client) = duplex(64);
    let (_, ended) = run(inner_client, BrokenSide, IDLE, pending(), |_| {}).await;
    assert_eq!(ended, Ended::UpstreamBroke);
}

const IDLE: Duration = Duration::from_secs(10 * 60);

/// The far ends of a running tunnel, whose inner pipes hold 64 bytes.
fn tunnel() -> (DuplexStream, DuplexStream, JoinHandle<(Carried, Ended)>) {
    let (client, inner_client) = duplex(64);
    let (upstream, inner_upstream) = duplex(64);
    let running = spawn_local(run(inner_client, inner_upstream, IDLE, pending(), |_| {}));
    (client, upstream, running)
}

async fn locally<T>(test: impl Future<Output = T>) -> T {
    LocalSet::new().run_until(test).await
}

#[tokio::test(start_paused = true)]
async fn every_byte_arrives_once_and_in_order_past_a_slow_reader() {
    locally(async {
        let (client, upstream, running) = tunnel();
        let sent: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let (mut client_reads, mut client_writes) = tokio::io::split(client);
        let (mut upstream_reads, mut upstream_writes) = tokio::io::split(upstream);
        let (up, down) = (sent.clone(), sent[..100_000].to_vec());
        spawn_local(async move {
            client_writes.write_all(&up).await.unwrap();
            client_writes.shutdown().await.unwrap();
        });
        spawn_local(async move {
            upstream_writes.write_all(&down).await.unwrap();
            upstream_writes.shutdown().await.unwrap();
        });
        let (mut at_upstream, mut at_client) = (Vec::new(), Vec::new());
        let (up, down) = tokio::join!(
            upstream_reads.read_to_end(&mut at_upstream),
            client_reads.read_to_end(&mut at_client),
        );
        up.unwrap();
        down.unwrap();
        assert!(at_upstream == sent && at_client == sent[..100_000]);
        let carried = Carried {
            to_upstream: 800_000,
            to_client: 100_000,
        };
        assert_eq!(running.await.unwrap(), (carried, Ended::Finished));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_one_direction_leaves_the_other_open() {
    locally(async {
        let (mut client, mut upstream, running) = tunnel();
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut question = Vec::new();
        upstream.read_to_end(&mut question).await.unwrap();
        assert_eq!(question, b"question");
        assert!(!running.is_finished());
        upstream.write_all(b"answer").await.unwrap();
        drop(upstream);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        let carried = Carried {
            to_upstream: 8,
            to_client: 6,
        };
        assert_eq!(running.await.unwrap(), (carried, Ended::Finished));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn silence_ends_both_ways_and_a_byte_in_either_direction_puts_it_off() {
    locally(async {
        let (mut client, mut upstream, running) = tunnel();
        let begun = Instant::now();
        for _ in 0..3 {
            tokio::time::advance(IDLE - Duration::from_secs(1)).await;
            upstream.write_all(b"x").await.unwrap();
            client.read_exact(&mut [0]).await.unwrap();
        }
        assert!(!running.is_finished());
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(upstream.read(&mut [0]).await.unwrap(), 0);
        assert_eq!(running.await.unwrap().1, Ended::Idle);
        assert!(begun.elapsed() >= 4 * IDLE - Duration::from_secs(4));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_open_tunnel_is_reported_every_five_minutes() {
    locally(async {
        let (mut client, inner_client) = duplex(64);
        let (_upstream, inner_upstream) = duplex(64);
        let reports = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&reports);
        let report = move |carried: Carried| into.borrow_mut().push(carried.to_upstream);
        let begun = Instant::now();
        let running = spawn_local(run(inner_client, inner_upstream, IDLE, pending(), report));
        client.write_all(b"abc").await.unwrap();
        assert_eq!(running.await.unwrap().1, Ended::Idle);
        assert!(begun.elapsed() >= IDLE);
        // At ten minutes both are due; the report is first.
        assert_eq!(*reports.borrow(), [3, 3]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_drained_tunnel_ends_at_the_deadline() {
    locally(async {
        let (mut client, inner_client) = duplex(64);
        let (_upstream, inner_upstream) = duplex(64);
        let drained = tokio::time::sleep(Duration::from_secs(30));
        let begun = Instant::now();
        let (_, ended) = run(inner_client, inner_upstream, IDLE, drained, |_| {}).await;
        assert_eq!(ended, Ended::Drained);
        assert!(begun.elapsed() < Duration::from_secs(31));
        assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_never_reads_holds_little_memory_and_ends_idle() {
    locally(async {
        let (mut client, _upstream, running) = tunnel();
        let flood = spawn_local(async move {
            let mut written = 0;
            while let Ok(bytes) = client.write(&[0; 1024]).await {
                written += bytes;
                if written > 10 << 20 {
                    break;
                }
            }
            written
        });
        let (carried, ended) = running.await.unwrap();
        assert_eq!(ended, Ended::Idle);
        assert_eq!(carried.to_upstream, 64);
        assert!(flood.await.unwrap() <= BUFFER_BYTES + 3 * 64);
    })
    .await;
}

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap());
    let near = near.await.unwrap();
    (near, listener.accept().await.unwrap().0)
}

#[tokio::test]
async fn the_end_of_the_process_or_of_the_link_is_no_end_of_the_content() {
    let (mut client, inner_client) = pair().await;
    let (mut upstream, inner_upstream) = pair().await;
    client.write_all(b"half").await.unwrap();
    let drained = async move {
        let mut half = [0; 4];
        upstream.read_exact(&mut half).await.unwrap();
        upstream
    };
    let (stop, stopped) = tokio::sync::oneshot::channel();
    let running = run(
        inner_client,
        inner_upstream,
        IDLE,
        async { drop(stopped.await) },
        |_| {},
    );
    let (mut upstream, (_, ended)) = tokio::join!(
        async {
            let upstream = drained.await;
            stop.send(()).unwrap();
            upstream
        },
        running
    );
    assert_eq!(ended, Ended::Drained);
    for side in [&mut client, &mut upstream] {
        let error = side.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}

#[tokio::test]
async fn a_reset_is_told_from_an_end_and_passed_on() {
    for (client_resets, expected) in [(true, Ended::ClientBroke), (false, Ended::UpstreamBroke)] {
        let (client, inner_client) = pair().await;
        let (upstream, inner_upstream) = pair().await;
        let (broken, mut whole) = if client_resets {
            (client, upstream)
        } else {
            (upstream, client)
        };
        socket2::SockRef::from(&broken)
            .set_linger(Some(Duration::ZERO))
            .unwrap();
        drop(broken);
        let (_, ended) = run(inner_client, inner_upstream, IDLE, pending(), |_| {}).await;
        assert_eq!(ended, expected);
        let error = whole.read(&mut [0]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
