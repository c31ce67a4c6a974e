//! Clients that make a proxy hold memory: slow ones, idle ones, ones that never finish a head.
//!
//! Used by `memory_limit`, which measures the memory meanwhile. Each kind also reports how the
//! proxy served other clients: a proxy that serves nobody needs little memory.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use hashcache_testkit::{Client, ContentOptions, ContentOrigin};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::Args;
use crate::proxy_process::ProxyProcess;

/// A kind of hostile clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// Each reads a large object of its own at 1 KB a second.
    SlowMisses,
    /// Each sends one request and keeps the connection open.
    IdleConnections,
    /// Each sends 60 KB of a head without its end.
    UnfinishedHeads,
}

impl Hostile {
    /// All kinds, ordered so that each leaves the state that the next one needs.
    pub const ALL: [Self; 3] = [
        Self::SlowMisses,
        Self::IdleConnections,
        Self::UnfinishedHeads,
    ];

    /// The kind as it is printed.
    pub fn show(self, args: &Args) -> String {
        match self {
            Self::SlowMisses => format!("{} slow misses", args.slow),
            Self::IdleConnections => format!("{} idle connections", args.clients),
            Self::UnfinishedHeads => format!("{} unfinished heads", args.clients),
        }
    }

    /// Connects these clients, keeps them connected for a while and disconnects them.
    pub async fn run(self, args: &Args, proxy: &ProxyProcess) -> anyhow::Result<String> {
        match self {
            Self::SlowMisses => slow_misses(args.slow, proxy).await,
            Self::IdleConnections => idle_connections(args.clients, proxy).await,
            Self::UnfinishedHeads => unfinished_heads(args.clients, proxy).await,
        }
    }
}

/// Raises the limit of open files to its maximum, for this process and the proxies that it starts.
pub fn allow_many_files() -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit).context("the number of open files")
}

async fn slow_misses(clients: u64, proxy: &ProxyProcess) -> anyhow::Result<String> {
    let start = || ContentOrigin::start_thread(ContentOptions::default());
    let origins = (0..ORIGINS)
        .map(|_| start())
        .collect::<Result<Vec<_>, _>>()?;
    let hot = format!("http://{}/small/hot?size=5", origins[0].address());
    probe(proxy, &hot).await?;
    let mut tasks = JoinSet::new();
    for (number, origin) in (0..clients).zip(origins.iter().cycle()) {
        let (address, at) = (proxy.address(), origin.address());
        tasks.spawn(async move {
            let socket = connect(address, number / SLOW_PER_ADDRESS, Some(4 << 10)).await?;
            let target = format!("/slow/{number}?size={SLOW_BYTES}");
            let head = format!("GET http://{at}{target} HTTP/1.1\r\nHost: {at}\r\n\r\n");
            read_slowly(socket, &head).await
        });
    }
    let (mut slowest, until) = (Duration::ZERO, Instant::now() + STAY);
    while Instant::now() < until {
        slowest = slowest.max(probe(proxy, &hot).await?);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut answered = 0;
    while let Some(done) = tasks.join_next().await {
        answered += u64::from(done??);
    }
    ensure!(
        answered == clients,
        "{answered} of {clients} were still served"
    );
    ensure!(
        slowest <= PROBE_TIME,
        "a hit took {slowest:?} meanwhile, bar {PROBE_TIME:?}"
    );
    Ok(format!("all served; a hit took {slowest:?} at most"))
}

/// Reads 1 KB a second; returns whether content arrived until the end.
async fn read_slowly(mut socket: TcpStream, head: &str) -> anyhow::Result<bool> {
    socket.write_all(head.as_bytes()).await?;
    let mut part = vec![0; 1 << 10];
    let until = Instant::now() + STAY;
    let mut first = true;
    while Instant::now() < until {
        let Ok(read) = timeout(STAY, socket.read(&mut part)).await else {
            return Ok(false);
        };
        let read = read?;
        if read == 0 || (first && !part.starts_with(b"HTTP/1.1 200 ")) {
            return Ok(false);
        }
        first = false;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(true)
}

async fn idle_connections(clients: u64, proxy: &ProxyProcess) -> anyhow::Result<String> {
    let origin = ContentOrigin::start_thread(ContentOptions::default())?;
    let hot = format!("http://{}/small/hot?size=5", origin.address());
    probe(proxy, &hot).await?;
    let head = format!("GET {hot} HTTP/1.1\r\nHost: {}\r\n\r\n", origin.address());
    let (mut sockets, mut served) = (Vec::new(), 0_u64);
    for number in 0..clients {
        let mut socket = connect(proxy.address(), number / PER_ADDRESS, None).await?;
        let mut part = [0; 1 << 10];
        // The proxy may also refuse a connection with a reset.
        let answer = async {
            socket.write_all(head.as_bytes()).await?;
            socket.read(&mut part).await
        };
        let read = timeout(STAY, answer).await?.unwrap_or(0);
        served += u64::from(part[..read].starts_with(b"HTTP/1.1 200 "));
        sockets.push(socket);
    }
    tokio::time::sleep(STAY / 2).await;
    ensure!(
        served >= clients / 2,
        "{served} of {clients} were served, bar half"
    );
    Ok(format!("{served} served, the others refused"))
}

async fn unfinished_heads(clients: u64, proxy: &ProxyProcess) -> anyhow::Result<String> {
    let mut head = b"GET http://127.0.0.1:9/ HTTP/1.1\r\nHost: a\r\nX-A: ".to_vec();
    head.resize(HEAD_BYTES, b'a');
    let (mut sockets, mut sent) = (Vec::new(), 0_u64);
    for number in 0..clients {
        let mut socket = connect(proxy.address(), number / PER_ADDRESS, None).await?;
        // A refused connection may be reset before the head is sent.
        let all = timeout(STAY, socket.write_all(&head)).await;
        sent += u64::from(matches!(all, Ok(Ok(()))));
        sockets.push(socket);
    }
    tokio::time::sleep(STAY / 5).await;
    drop(sockets);
    Ok(format!("{sent} could send all of it"))
}

/// A connection from the client address of this number.
async fn connect(to: SocketAddr, client: u64, buffer: Option<u32>) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    let host = u8::try_from(client + 2).context("fewer clients")?;
    let from = IpAddr::V4(Ipv4Addr::new(127, 0, 1, host));
    socket.bind(SocketAddr::new(from, 0))?;
    Ok(timeout(STAY, socket.connect(to)).await??)
}

/// How long a hit takes.
async fn probe(proxy: &ProxyProcess, url: &str) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let ask = async {
        let mut client = Client::connect(proxy.address()).await?;
        client.get(url, &[]).await
    };
    let response = timeout(STAY, ask).await.context("no answer to a hit")??;
    ensure!(response.status == 200, "status {}", response.status);
    Ok(begun.elapsed())
}

const ORIGINS: usize = 4;
const SLOW_BYTES: u64 = 100_000_000;
/// 60 KB, below the bound on heads.
const HEAD_BYTES: usize = 60_000;
/// How long the clients stay connected.
const STAY: Duration = Duration::from_secs(10);
/// Longest time of a hit meanwhile, on a machine that has other load as well.
const PROBE_TIME: Duration = Duration::from_secs(1);
/// Connections of one client address that need little memory each.
const PER_ADDRESS: u64 = 200;
/// Slow misses of one client address. All memory of an address is at most its share, a quarter of
/// what the index leaves of `--memory`; beyond that the proxy refuses requests to origins with 503.
/// At 64 MiB and a cache of 12.5 GB, a share was enough for 171. So 200 of four addresses need
/// more than one share but not more than all four, and this fails if one of them is refused.
const SLOW_PER_ADDRESS: u64 = 50;
