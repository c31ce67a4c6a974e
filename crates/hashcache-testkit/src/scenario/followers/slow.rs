//! A client that hardly reads must neither slow down other clients nor hold memory.

use std::fs;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Play;
use super::crowd::{Check, Crowd};
use crate::content::Content;
use crate::scenario::Verdict;
use crate::{ContentOptions, ContentOrigin, Sizes};

/// The slow client is the first, so that it leads the fetch; then fast clients follow, then more
/// slow clients.
pub async fn play(play: &Play) -> Verdict {
    let mut verdict = Verdict::new("slow clients");
    if let Err(error) = run(play, &mut verdict).await {
        verdict.fault(format!("the play itself failed: {error}"));
    }
    verdict
}

async fn run(play: &Play, verdict: &mut Verdict) -> io::Result<()> {
    let options = ContentOptions {
        sizes: Sizes::Fixed(play.object_bytes),
        ..ContentOptions::default()
    };
    let origin = ContentOrigin::start_thread(options)?;
    let fast = (play.clients / 5).max(2);
    let at_first = play.pid.and_then(memory_of);
    let crowd = |target: &str| {
        let content = origin.content(target);
        Crowd::new(play.proxy, origin.url(target), fast, vec![content])
    };
    let without = crowd("/fast").ask().await;
    without.expect_all_whole(verdict);

    let mut slow = SlowClient::begin(play, &origin, "/shared").await?;
    let with = crowd("/shared").ask().await;
    with.expect_all_whole(verdict);
    let (before, after) = (without.took.as_secs_f64(), with.took.as_secs_f64());
    verdict.expect(after <= 2.0 * before + 0.5, || {
        format!("{fast} others took {before:.2} s without it, {after:.2} s beside it")
    });
    slow.finish(verdict).await;

    let between = play.pid.and_then(memory_of);
    let mut several = vec![];
    for number in 0..SLOW_CLIENTS {
        several.push(SlowClient::begin(play, &origin, &format!("/slow/{number}")).await?);
    }
    // Give the proxy time to read ahead for these clients as far as it may.
    tokio::time::sleep(STALL).await;
    let held = play.pid.and_then(memory_of);
    let mut finishing = JoinSet::new();
    for mut client in several {
        finishing.spawn(async move {
            let mut own = Verdict::default();
            client.finish(&mut own).await;
            own.faults
        });
    }
    for faults in finishing.join_all().await {
        verdict.faults.extend(faults);
    }
    let bar = play.memory_bytes + OVERHEAD_BYTES;
    let show = |bytes: Option<u64>| match bytes {
        Some(bytes) => format!("{} MB", bytes / 1_000_000),
        None => "?".to_owned(),
    };
    verdict.seen = format!(
        "{fast} fast ones {before:.2} s alone, {after:.2} s beside a slow one; the proxy held \
         {} at first, {} then, {} with {SLOW_CLIENTS} slow ones; {} allowed",
        show(at_first),
        show(between),
        show(held),
        show(Some(bar)),
    );
    if let Some(held) = held {
        verdict.figure("held_bytes", held as f64);
        verdict.expect(held <= bar, || "slow clients hold memory".to_owned());
    }
    Ok(())
}

/// A client that has read the head and now reads nothing.
struct SlowClient {
    socket: TcpStream,
    content: Content,
    check: Check,
}

impl SlowClient {
    async fn begin(play: &Play, origin: &ContentOrigin, target: &str) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(64 << 10)?;
        let mut socket = socket.connect(play.proxy).await?;
        let (url, host) = (origin.url(target), origin.address());
        let request = format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        // Read the head byte by byte, because all later bytes are content.
        let mut head = vec![];
        while !head.ends_with(b"\r\n\r\n") {
            let byte = tokio::time::timeout(super::PATIENCE, socket.read_u8()).await??;
            head.push(byte);
            if head.len() > 64 << 10 {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        let content = origin.content(target);
        let length = format!("content-length: {}\r\n", content.length());
        let head = String::from_utf8_lossy(&head).to_lowercase();
        if !head.contains(&length) {
            return Err(io::Error::other(format!(
                "an answer without its length: {head}"
            )));
        }
        Ok(Self {
            socket,
            content,
            check: Check::new([content].into()),
        })
    }

    /// Reads the remaining content.
    async fn finish(&mut self, verdict: &mut Verdict) {
        let since = Instant::now();
        let mut buffer = vec![0; 256 << 10];
        while self.check.bytes < self.content.length() && since.elapsed() < super::PATIENCE {
            let reading = self.socket.read(&mut buffer);
            match tokio::time::timeout(super::PATIENCE, reading).await {
                Ok(Ok(count)) if count > 0 => self.check.take(&buffer[..count]),
                other => {
                    verdict.fault(format!("a slow client was cut off: {other:?}"));
                    return;
                }
            }
        }
        verdict.expect(self.check.is_right(), || {
            format!("a slow client got wrong bytes within {}", self.check.bytes)
        });
    }
}

/// Process memory that no file backs, including pages that the process shares only with the kernel.
fn memory_of(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let row = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.trim().parse().ok()
    };
    Some((row("RssAnon:")? + row("RssShmem:")?) * 1024)
}

const SLOW_CLIENTS: usize = 24;
/// Memory outside the `--memory` limit: thread stacks, connections, allocator overhead.
const OVERHEAD_BYTES: u64 = 64 << 20;
const STALL: Duration = Duration::from_secs(1);
