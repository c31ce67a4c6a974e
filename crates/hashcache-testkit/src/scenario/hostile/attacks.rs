//! The attacking clients: each function starts an attack, which lasts until the result is dropped.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::innocent::connect;
use super::{Channel, Play, Shake, http2};

/// Address for requests over HTTP/2, and the TLS handshake there.
#[derive(Clone)]
pub struct Entrance {
    pub at: SocketAddr,
    pub shake: Option<Shake>,
}

impl Entrance {
    async fn enter(&self, from: Ipv4Addr, buffer: u32) -> io::Result<Box<dyn Channel>> {
        let socket = connect(from, self.at, Some(buffer)).await?;
        match &self.shake {
            Some(shake) => shake(socket).await,
            None => Ok(Box::new(socket)),
        }
    }
}

/// Attackers in progress; dropping the set stops them.
pub type Attackers = JoinSet<io::Result<()>>;

/// HTTP/2 connections from one address that send all requests at once, then nothing more, and read
/// nothing.
pub fn silent_streams(
    entrance: &Entrance,
    connections: u32,
    streams: u32,
    window: u32,
    targets: impl Fn(u32, u32) -> (String, String),
) -> Attackers {
    let mut attackers = JoinSet::new();
    for connection in 0..connections {
        let mut requests = http2::client_start(window);
        for stream in 0..streams {
            let (authority, path) = targets(connection, stream);
            http2::get(&mut requests, stream, &authority, &path);
        }
        let entrance = entrance.clone();
        attackers.spawn(async move {
            let mut channel = entrance.enter(ADDRESS, 4 << 10).await?;
            channel.write_all(&requests).await?;
            channel.flush().await?;
            stay(channel).await
        });
    }
    attackers
}

/// Clients that send a request each and read nothing of the response; `per_address` clients share
/// an address.
pub fn unread(
    play: &Play,
    clients: u32,
    per_address: u32,
    target: impl Fn(u32) -> String,
) -> Attackers {
    let mut attackers = JoinSet::new();
    for client in 0..clients {
        let (url, proxy, from) = (target(client), play.proxy, address(client / per_address));
        attackers.spawn(async move {
            let mut socket = connect(from, proxy, Some(4 << 10)).await?;
            socket.write_all(request(&url).as_bytes()).await?;
            stay(socket).await
        });
    }
    attackers
}

/// As [`unread`], but each client reads up to 16 KiB every 20 ms.
pub fn slow_readers(
    play: &Play,
    clients: u32,
    per_address: u32,
    target: impl Fn(u32) -> String,
) -> Attackers {
    let mut attackers = JoinSet::new();
    for client in 0..clients {
        let (url, proxy, from) = (target(client), play.proxy, address(client / per_address));
        attackers.spawn(async move {
            let mut socket = connect(from, proxy, None).await?;
            socket.write_all(request(&url).as_bytes()).await?;
            let mut page = vec![0; 16 << 10];
            while socket.read(&mut page).await? > 0 {
                sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        });
    }
    attackers
}

/// Clients that send a large part of a request head, then a byte a second; a client that is
/// disconnected connects again.
pub fn slow_heads(play: &Play, clients: u32, per_address: u32, bytes: usize) -> Attackers {
    let mut attackers = JoinSet::new();
    for client in 0..clients {
        let (proxy, from) = (play.proxy, address(client / per_address));
        attackers.spawn(async move {
            loop {
                let _ = slow_head(proxy, from, bytes).await;
                sleep(Duration::from_secs(2)).await;
            }
        });
    }
    attackers
}

async fn slow_head(proxy: SocketAddr, from: Ipv4Addr, bytes: usize) -> io::Result<()> {
    let mut head = b"GET http://127.0.0.1:9/ HTTP/1.1\r\nHost: a\r\nX-A: ".to_vec();
    head.resize(bytes, b'a');
    let mut socket = connect(from, proxy, None).await?;
    socket.write_all(&head).await?;
    loop {
        sleep(Duration::from_secs(1)).await;
        socket.write_all(b"a").await?;
    }
}

/// Connections to the admin listener that send nothing.
pub fn idle(at: SocketAddr, connections: u32) -> Attackers {
    let mut attackers = JoinSet::new();
    for _ in 0..connections {
        attackers.spawn(async move { stay(connect(ADDRESS, at, None).await?).await });
    }
    attackers
}

fn request(url: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap_or(url);
    let host = rest.split('/').next().unwrap_or_default();
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// Holds a connection until the attack is over.
async fn stay<T>(held: T) -> io::Result<()> {
    std::future::pending::<()>().await;
    drop(held);
    Ok(())
}

/// Sends a request on a new connection and returns the status of the final response.
pub async fn status(
    from: Ipv4Addr,
    proxy: SocketAddr,
    url: &str,
    fields: &[(&str, &str)],
) -> io::Result<u16> {
    let mut socket = connect(from, proxy, None).await?;
    let mut head = request(url);
    head.truncate(head.len() - 2);
    head += "Connection: close\r\n";
    for (name, value) in fields {
        head += &format!("{name}: {value}\r\n");
    }
    head += "\r\n";
    socket.write_all(head.as_bytes()).await?;
    whole_status(&mut socket).await
}

/// Reads until the connection is closed and returns the status of the final response.
async fn whole_status(socket: &mut TcpStream) -> io::Result<u16> {
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await?;
    let mut rest = answer.as_slice();
    loop {
        let status = rest.get(9..12).and_then(|it| std::str::from_utf8(it).ok());
        let status: Option<u16> = status.and_then(|it| it.parse().ok());
        let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
        if !(100..200).contains(&status) {
            return Ok(status);
        }
        // Interim responses precede the final response (RFC 9110, section 15.2).
        let end = rest.windows(4).position(|four| four == b"\r\n\r\n");
        rest = &rest[end.ok_or(io::ErrorKind::UnexpectedEof)? + 4..];
    }
}

/// Address for attackers that share an address.
pub const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);

/// Returns the address of attacker group `number`.
fn address(number: u32) -> Ipv4Addr {
    let [_, _, high, low] = (number + 257).to_be_bytes();
    Ipv4Addr::new(127, 0, high, low)
}
