//! Section `chunks`: releases in a plain TCP stream over a forwarded port.
//!
//! A server behind the parent sends all changed files of a release in one stream, then those of the
//! next release in another one; a client at the child's forwarded port compares every byte. Between
//! them both boxes are stopped and started again, so that what they refer to is on disk alone. They
//! run with `--grouped`, which reads a run of extents at once.
//!
//! Limits: 1.15 times what the best chunk deduplication of the prototypes took; random bytes at
//! most 101 %; at most one read of the device per 16 chunks that are referred to.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::boxes::{Pair, Settings, Side, Used};
use super::made;
use super::packages::{File, Releases, SAME_PATH};
use super::percent::percent;
use super::{Args, Progress};
use crate::campaign::Campaign;
use crate::report::show_bytes;

/// A server that sends the same content on each connection; it ends when dropped.
pub struct Server {
    pub address: SocketAddr,
    content: Arc<Mutex<Arc<Vec<u8>>>>,
    task: JoinHandle<()>,
}

impl Server {
    pub async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let content: Arc<Mutex<Arc<Vec<u8>>>> = Arc::default();
        let shared = Arc::clone(&content);
        let task = tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let content = shared
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                tokio::spawn(async move {
                    // A client that leaves ends its own connection.
                    let _ = socket.write_all(&content).await;
                    let _ = socket.shutdown().await;
                    let _ = socket.read(&mut [0; 1]).await;
                });
            }
        });
        Ok(Self {
            address,
            content,
            task,
        })
    }

    /// Sends this on connections from now on.
    pub fn set(&self, content: Arc<Vec<u8>>) {
        *self.content.lock().unwrap_or_else(PoisonError::into_inner) = content;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a stream from the forwarded port to its end; an error names the first wrong byte.
pub async fn receive(from: SocketAddr, content: &[u8]) -> anyhow::Result<()> {
    let mut socket = TcpStream::connect(from).await?;
    let mut received = Vec::with_capacity(content.len());
    timeout(STREAM_TIME, socket.read_to_end(&mut received))
        .await
        .context("the stream does not end")??;
    let wrong = received.iter().zip(content).position(|(a, b)| a != b);
    ensure!(wrong.is_none(), "wrong byte at {wrong:?}");
    ensure!(
        received.len() == content.len(),
        "{} of {} bytes",
        received.len(),
        content.len()
    );
    Ok(())
}

/// What the second release has taken.
#[derive(Clone, Debug)]
pub struct Measured {
    pub plain: u64,
    pub used: Used,
    /// What the child's and the parent's engines have read for it, and what was referred to.
    reads: [u64; 2],
    referred: u64,
}

/// Sends both releases through a pair of their own.
pub async fn measure(
    campaign: &Campaign,
    name: &str,
    releases: &Releases,
) -> anyhow::Result<Measured> {
    let server = Server::start().await?;
    let mut settings = Settings::new(&format!("chunks-{name}"));
    settings.forward = Some(server.address);
    settings.group_by = Some("page");
    let mut pair = Pair::start(campaign, &settings).await?;
    let [old, new] = [joined(&releases.old), joined(&releases.new)];
    server.set(Arc::clone(&old));
    if !old.is_empty() {
        receive(pair.forward()?, &old)
            .await
            .context("the first release")?;
        pair.restart().await?;
    }
    let before = pair.used().await?;
    let (reads_before, referred_before) = (device_reads(&pair)?, referred(&pair)?);
    server.set(Arc::clone(&new));
    receive(pair.forward()?, &new)
        .await
        .context("the second release")?;
    let used = pair.used().await?.since(before);
    let after = device_reads(&pair)?;
    pair.check()?;
    Ok(Measured {
        plain: new.len() as u64,
        used,
        reads: [after[0] - reads_before[0], after[1] - reads_before[1]],
        referred: referred(&pair)? - referred_before,
    })
}

fn joined(files: &[File]) -> Arc<Vec<u8>> {
    let all: Vec<&[u8]> = files.iter().map(|file| &file.content[..]).collect();
    Arc::new(all.concat())
}

/// Reads of the device so far, at the child and at the parent.
pub fn device_reads(pair: &Pair) -> anyhow::Result<[u64; 2]> {
    let of = |side| pair.metric(side, "hashcache_device_reads_total", "");
    Ok([of(Side::Child)?, of(Side::Parent)?])
}

fn referred(pair: &Pair) -> anyhow::Result<u64> {
    let status = pair.status(Side::Child)?;
    let bytes = status["chunks"]["reference_bytes"].as_u64();
    bytes.with_context(|| format!("no count of references in {status}"))
}

/// Plays the section.
pub async fn run(args: &Args, campaign: &mut Campaign, progress: &Progress) -> anyhow::Result<()> {
    progress.expect(if args.short {
        2
    } else {
        SAME_PATH.len() as u64 + 1
    });
    if args.short {
        // Long runs: each run of references may cost a read, and how many there are is not seen.
        let mut releases = made::releases(1, 2_400_000);
        let old = &releases.old[0].content;
        releases.new[0].content = Arc::new(made::edited_every(400_000, 5, old));
        let measured = measure(campaign, "made", &releases).await;
        row(campaign, "made text", 15.0, measured);
        progress.step();
        return random(campaign, 2_000_000).await;
    }
    let directory = args.packages()?;
    for set in SAME_PATH.iter().filter(|set| args.plays_set(set.name)) {
        let name = set.name.replace([' ', '.'], "-");
        let measured = match set.changed(&directory) {
            Ok(releases) => measure(campaign, &name, &releases).await,
            Err(error) => Err(error),
        };
        row(campaign, set.name, set.chunks * CHUNKS_TIMES, measured);
        progress.step();
    }
    random(campaign, 20_000_000).await
}

async fn random(campaign: &mut Campaign, bytes: usize) -> anyhow::Result<()> {
    let releases = Releases {
        old: vec![],
        new: vec![File {
            path: "/random".to_owned(),
            content: Arc::new(made::noise(8, bytes)),
        }],
    };
    let measured = measure(campaign, "random", &releases).await;
    row(campaign, "random bytes", RANDOM_MAX, measured);
    Ok(())
}

fn row(campaign: &mut Campaign, name: &str, bar: f64, outcome: anyhow::Result<Measured>) {
    let what = format!("TCP stream, {name}");
    let measured = match outcome {
        Ok(measured) => measured,
        Err(error) => return campaign.report.outcome(what, Err(error)),
    };
    let Measured {
        plain,
        used,
        reads,
        referred,
    } = measured;
    let came = percent(used.down, plain);
    let chunks = referred / CHUNK_BYTES;
    let reads_max = chunks.div_ceil(16);
    let is_well = came <= bar && reads.iter().all(|&reads| reads <= reads_max);
    campaign.report.figures(
        what,
        is_well.into(),
        format!(
            "{came:.2} %, bar {bar:.2} %, of {}; other way {:.2} %; {} references, {} and {} reads \
             of the devices, bar {reads_max}",
            show_bytes(plain),
            percent(used.up, plain),
            show_bytes(referred),
            reads[0],
            reads[1],
        ),
        json!({
            "percent": came,
            "bar_percent": bar,
            "plain_bytes": plain,
            "down_bytes": used.down,
            "up_bytes": used.up,
            "reference_bytes": referred,
            "child_reads": reads[0],
            "parent_reads": reads[1],
        }),
    );
}

const CHUNKS_TIMES: f64 = 1.15;
const RANDOM_MAX: f64 = 101.0;
/// The mean length of a chunk.
const CHUNK_BYTES: u64 = 2 << 10;
const STREAM_TIME: Duration = Duration::from_secs(300);
