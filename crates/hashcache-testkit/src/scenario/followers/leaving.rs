//! The only client disconnects: a fetch that has hardly started is stopped, a fetch that is nearly
//! complete is continued.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use super::Play;
use super::crowd::Crowd;
use crate::content::{self, Content};
use crate::scenario::Verdict;
use crate::{Gate, Origin, RawRequest, Script};

/// The client disconnects after the first MiB of a large object: the origin must not send all of
/// the rest.
pub async fn early(play: &Play) -> Verdict {
    let length = play.object_bytes;
    let mut verdict = Verdict::new("the client leaves early");
    if let Err(error) = leave_early(play, length, &mut verdict).await {
        verdict.fault(format!("the play itself failed: {error}"));
    }
    verdict
}

async fn leave_early(play: &Play, length: u64, verdict: &mut Verdict) -> io::Result<()> {
    let content = content::body_for(SEED, "early", 0, length);
    let origin = Origin::start(move |_| whole(&content, None)).await?;
    let url = origin.url("/early");
    let mut client = connect_small(play.proxy).await?;
    read(&mut client, &url, 1 << 20).await?;
    drop(client);
    let sent = settled(&origin).await;
    verdict.seen = format!("{} of {} kB left the origin", sent / 1000, length / 1000);
    verdict.figure("origin_share", sent as f64 / length as f64);
    // Allows for bytes that the proxy may read ahead and the kernel's buffers on both sides.
    verdict.expect(sent <= length / 10 * 7, || {
        "the fetch went on for nobody".to_owned()
    });
    let crowd = Crowd::new(play.proxy, url, 2, vec![content]);
    let stored = crowd.only_if_cached().await;
    verdict.expect(stored.status == 504 || stored.is_whole_and_right(), || {
        format!("the cache tells {stored:?}")
    });
    crowd.ask().await.expect_all_whole(verdict);
    Ok(())
}

/// The client disconnects after 95 %, or when 700 kB are missing: the rest is worth fetching.
pub async fn late(play: &Play) -> Verdict {
    let mut verdict = Verdict::new("the client leaves late");
    for (length, rest) in [
        (play.object_bytes, play.object_bytes / 20),
        (3_000_000, 700_000),
    ] {
        if let Err(error) = leave_late(play, length, rest, &mut verdict).await {
            verdict.fault(format!("the play itself failed: {error}"));
        }
    }
    verdict
}

async fn leave_late(play: &Play, length: u64, rest: u64, verdict: &mut Verdict) -> io::Result<()> {
    let target = format!("/late-{length}");
    let content = content::body_for(SEED, &target, 0, length);
    let left = Gate::new();
    let gate = left.clone();
    let origin =
        Origin::start(move |_: &RawRequest| whole(&content, Some((length - rest, &gate)))).await?;
    let url = origin.url(&target);
    let mut client = TcpStream::connect(play.proxy).await?;
    let so_far = usize::try_from(length - rest).map_err(io::Error::other)?;
    read(&mut client, &url, so_far).await?;
    drop(client);
    // Lets the proxy detect the disconnect before more content arrives.
    sleep(NOTICE).await;
    left.open();
    let crowd = Crowd::new(play.proxy, url, 1, vec![content]);
    let mut stored = crowd.only_if_cached().await;
    for _ in 0..100 {
        if stored.is_whole_and_right() {
            break;
        }
        sleep(STEP).await;
        stored = crowd.only_if_cached().await;
    }
    let whole = stored.is_whole_and_right();
    let fate = if whole { "kept" } else { "lost" };
    verdict.seen += &format!("{length} bytes without the last {rest}: {fate}; ");
    verdict.expect(whole, || format!("the fetch did not go on: {stored:?}"));
    verdict.expect(origin.request_count() == 1, || {
        format!("{} requests at the origin", origin.request_count())
    });
    Ok(())
}

/// The content in small steps, with a pause at a gate.
fn whole(content: &Content, pause: Option<(u64, &Gate)>) -> Script {
    let bytes = content.bytes();
    let length = bytes.len().to_string();
    let fields = [
        ("Cache-Control", "max-age=3600"),
        ("ETag", "\"strong\""),
        ("Content-Length", length.as_str()),
    ];
    let mut script = Script::new().head(200, &fields);
    let at = pause
        .and_then(|(at, _)| usize::try_from(at).ok())
        .unwrap_or(bytes.len());
    for part in bytes[..at].chunks(STEP_BYTES) {
        script = script.bytes(part);
    }
    if let Some((_, gate)) = pause {
        script = script.wait(gate);
    }
    for part in bytes[at..].chunks(STEP_BYTES) {
        script = script.bytes(part);
    }
    script
}

/// A connection with a small receive buffer in the kernel, so that the client receives little more
/// than it reads.
async fn connect_small(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(64 << 10)?;
    socket.connect(to).await
}

/// Requests `url` and reads `bytes` bytes of the response, head included.
async fn read(client: &mut TcpStream, url: &str, bytes: usize) -> io::Result<()> {
    let host = url.strip_prefix("http://").unwrap_or_default();
    let host = host.split('/').next().unwrap_or_default();
    let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
    client.write_all(request.as_bytes()).await?;
    let (mut left, mut buffer) = (bytes, vec![0; 64 << 10]);
    while left > 0 {
        let most = left.min(buffer.len());
        let reading = client.read(&mut buffer[..most]);
        let count = tokio::time::timeout(super::PATIENCE, reading).await??;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= count;
    }
    Ok(())
}

/// Waits until the origin stops sending and returns the bytes sent.
async fn settled(origin: &Origin) -> u64 {
    let (mut sent, mut still) = (origin.bytes_written(), 0);
    for _ in 0..200 {
        sleep(STEP).await;
        let now = origin.bytes_written();
        still = if now == sent { still + 1 } else { 0 };
        sent = now;
        if still == 10 {
            break;
        }
    }
    sent
}

const SEED: u64 = 12;
const STEP_BYTES: usize = 64 << 10;
const STEP: Duration = Duration::from_millis(100);
const NOTICE: Duration = Duration::from_millis(300);
