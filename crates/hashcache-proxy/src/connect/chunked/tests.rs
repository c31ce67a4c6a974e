//! Two ends with a pipe between them, whose near ends are pipes too.

use std::io;
use std::sync::Arc;

use hashcache::Config;
use hashcache::device::MemoryDevice;
use hashcache_link::pieces::Pieces;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};

use super::*;

/// A pipe. A reset drops it without its end.
struct Pipe<S>(S);

impl Side for Pipe<DuplexStream> {
    fn reset(self) {}
}

impl Side for Pipe<Pieces<DuplexStream>> {
    fn reset(self) {}
}

impl<S: AsyncRead + Unpin> AsyncRead for Pipe<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Pipe<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn pair() -> ChunkPair {
    let config = Config {
        memory_bytes: 64 << 20,
        ..Config::on_device(Arc::new(MemoryDevice::new(64 << 20)))
    };
    let cache = Cache::open(config).unwrap();
    let (windows, memory) = reserve(&Allowance::unbounded(&cache), u64::MAX / 2)
        .or_else(|| reserve(&Allowance::unbounded(&cache), 0))
        .unwrap();
    ChunkPair {
        key: Key([1; 16]),
        windows,
        known: Arc::new(Known::new(1 << 20)),
        cache,
        counters: Arc::default(),
        _memory: memory,
    }
}

const IDLE: Duration = Duration::from_secs(10 * 60);

#[tokio::test(start_paused = true)]
async fn a_near_end_that_takes_the_last_bytes_late_gets_all_of_them_and_their_end() {
    for room in [1 << 10, 64 << 10, 1 << 20] {
        let (link, far_link) = duplex(room);
        let (near, mut client) = duplex(64 << 10);
        let (far_near, mut server) = duplex(1 << 10);
        let ends = async {
            tokio::join!(
                run(
                    Pipe(near),
                    Pipe(Pieces::new(link)),
                    pair(),
                    IDLE,
                    std::future::pending(),
                    |_| {}
                ),
                run(
                    Pipe(far_near),
                    Pipe(Pieces::new(far_link)),
                    pair(),
                    IDLE,
                    std::future::pending(),
                    |_| {}
                ),
            )
        };
        let content: Vec<u8> = (0..900_000_u32)
            .map(|n| n.wrapping_mul(n).to_be_bytes()[2])
            .collect();
        let sending = async {
            client.write_all(&content).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let receiving = async {
            server.write_all(b"answer").await.unwrap();
            server.shutdown().await.unwrap();
            // All of the windows has arrived, and the other end has closed where it can.
            sleep(Duration::from_secs(30)).await;
            let mut received = Vec::new();
            server.read_to_end(&mut received).await.unwrap();
            received
        };
        let (ends, answer, received) = tokio::join!(ends, sending, receiving);
        assert!(
            received == content && answer == b"answer",
            "room for {room}"
        );
        assert_eq!((ends.0.1, ends.1.1), (Ended::Finished, Ended::Finished));
        assert_eq!(ends.0.0.from_near, content.len() as u64);
        assert_eq!(ends.1.0.to_near, content.len() as u64);
    }
}

/// The bytes that a stream with `content` sends over the link; `store` has the extents that it
/// refers to.
fn sent(content: &[u8], known: &Known, store: &ChunkPair) -> Vec<u8> {
    let [mut near, mut far] = [(); 2].map(|()| Stream::new(store.key, store.windows));
    let (mut link, mut back) = (Vec::new(), Vec::new());
    near.push(content, known, &mut link).unwrap();
    near.finish(known, &mut link).unwrap();
    far.push_link(&link);
    loop {
        match far.next(&Known::new(0), &mut back).unwrap() {
            Event::Store(name, extent) => {
                let put = Put::metadata(EXTENT_METADATA);
                let object = store.key.object(name);
                store.cache.put(&object, put, extent).unwrap();
            }
            Event::Wants(_) => far.give(None),
            Event::More => break,
            _ => {}
        }
    }
    near.push_link(&back);
    while near.next(known, &mut Vec::new()).unwrap() != Event::More {}
    link
}

#[tokio::test]
async fn a_lookup_is_polled_by_the_poll_that_begins_it() {
    let mut random = fastrand::Rng::with_seed(5);
    let content: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(100_000)
        .collect();
    let (known, pair) = (Known::new(1 << 20), pair());
    sent(&content, &known, &pair);
    let again = sent(&content, &known, &pair);
    assert!(again.len() < content.len() / 10, "these are references");

    let (mut near, _client) = duplex(1 << 20);
    let (mut link, _far) = duplex(1 << 20);
    let mut carrier = Carrier::new(pair);
    carrier.stream.push_link(&again);
    // Neither side moves: only the store can continue, and nothing else would wake the task.
    let polled = poll_fn(|cx| Poll::Ready(carrier.poll(cx, &mut near, &mut link))).await;
    assert!(matches!(polled, Poll::Ready(Ok(Turn::Again | Turn::Done))));
    assert!(carrier.moved.to_near > 0);
}

#[tokio::test(start_paused = true)]
async fn a_link_that_ends_early_or_speaks_nonsense_breaks_the_stream() {
    for said in [&b""[..], b"\x12\x05\0\0\0\0\0\0\0", b"nonsense"] {
        let (link, mut far) = duplex(1 << 10);
        let (near, _client) = duplex(1 << 10);
        let running = run(
            Pipe(near),
            Pipe(link),
            pair(),
            IDLE,
            std::future::pending(),
            |_| {},
        );
        let ending = async {
            far.write_all(said).await.unwrap();
            far.shutdown().await.unwrap();
        };
        let ((_, ended), ()) = tokio::join!(running, ending);
        assert_eq!(ended, Ended::Broke, "{said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_ends_after_the_idle_time() {
    let (link, _far) = duplex(1 << 10);
    let (near, mut client) = duplex(1 << 10);
    let begun = Instant::now();
    let running = run(
        Pipe(near),
        Pipe(link),
        pair(),
        IDLE,
        std::future::pending(),
        |_| {},
    );
    assert_eq!(running.await.1, Ended::Idle);
    assert_eq!(begun.elapsed(), IDLE);
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}
