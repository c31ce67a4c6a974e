//! A client that does not attack: it requests stored and new objects, each on a new connection,
//! from an address that no attacker uses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// Proxy and origin for the requests.
#[derive(Clone)]
pub struct Innocent {
    pub proxy: SocketAddr,
    pub origin: SocketAddr,
    /// Number that distinguishes the new objects of this run from the objects of another run.
    pub run: u32,
}

/// Results for the innocent client.
#[derive(Clone, Debug, Default)]
pub struct Fared {
    pub asked: u32,
    pub served: u32,
    /// Reasons why requests were not served, with their counts.
    pub refusals: Vec<(String, u32)>,
    times: Vec<Duration>,
}

impl Fared {
    /// Median time for served requests.
    pub fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }

    fn note(&mut self, taken: Duration, outcome: Result<(), String>) {
        self.asked += 1;
        match outcome {
            Ok(()) => {
                self.served += 1;
                self.times.push(taken);
            }
            Err(why) => match self.refusals.iter_mut().find(|(known, _)| *known == why) {
                Some((_, times)) => *times += 1,
                None => self.refusals.push((why, 1)),
            },
        }
    }
}

impl Innocent {
    /// Requests a stored and a new object alternately until `time` is over, and at least `least`
    /// times.
    pub async fn ask(&self, label: &str, time: Duration, least: u32) -> Fared {
        let mut fared = Fared::default();
        let end = Instant::now() + time;
        while Instant::now() < end || fared.asked < least {
            let number = fared.asked;
            let target = match number % 2 {
                0 => "/stored?size=5000".to_owned(),
                _ => format!("/new/{}/{label}/{number}?size=5000", self.run),
            };
            let begun = Instant::now();
            let outcome = match timeout(PATIENCE, self.get(&target)).await {
                Ok(Ok(200)) => Ok(()),
                Ok(Ok(status)) => Err(format!("status {status}")),
                Ok(Err(error)) => Err(error.kind().to_string()),
                Err(_) => Err(format!("nothing in {PATIENCE:?}")),
            };
            fared.note(begun.elapsed(), outcome);
            sleep(PAUSE).await;
        }
        fared
    }

    /// Returns the status of a complete response.
    async fn get(&self, target: &str) -> io::Result<u16> {
        let mut socket = connect(ADDRESS, self.proxy, None).await?;
        let at = self.origin;
        let request =
            format!("GET http://{at}{target} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).await?;
        let status = answer
            .get(9..12)
            .and_then(|it| std::str::from_utf8(it).ok());
        let status = status.and_then(|it| it.parse().ok());
        let status = status.ok_or(io::ErrorKind::UnexpectedEof)?;
        let head = answer.windows(4).position(|it| it == b"\r\n\r\n");
        let body = head.map_or(0, |head| answer.len() - head - 4);
        if status == 200 && body != 5000 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(status)
    }
}

/// Opens a connection from an address of this machine; `buffer` limits the kernel's receive buffer.
pub async fn connect(from: Ipv4Addr, to: SocketAddr, buffer: Option<u32>) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if let Some(bytes) = buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.bind(SocketAddr::new(IpAddr::V4(from), 0))?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// An address that no attacker uses.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 9);
const PATIENCE: Duration = Duration::from_secs(8);
/// Pause between two requests: this client measures, it must not add load.
const PAUSE: Duration = Duration::from_millis(10);
