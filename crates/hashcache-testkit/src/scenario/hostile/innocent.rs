//! A client that means no harm: it asks for stored and for new objects, each on a new connection,
//! from an address that no attacker has.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, timeout};

/// Where it asks, and from where.
#[derive(Clone)]
pub struct Innocent {
    pub proxy: SocketAddr,
    pub origin: SocketAddr,
    /// What tells this run's new objects from those of another.
    pub run: u32,
}

/// How it fared.
#[derive(Clone, Debug, Default)]
pub struct Fared {
    pub asked: u32,
    pub served: u32,
    /// Why others were not served, and how often.
    pub refusals: Vec<(String, u32)>,
    times: Vec<Duration>,
}

impl Fared {
    /// The median time of what was served.
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
    /// Asks for a stored and for a new object by turns until `time` is over, and at least `least`
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

    /// The status of a whole answer.
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

/// A connection from an address of this machine; `buffer` bounds what the kernel takes unread.
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

/// This client attacks nothing.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 9);
const PATIENCE: Duration = Duration::from_secs(8);
/// Between two requests: this client measures, it does not load.
const PAUSE: Duration = Duration::from_millis(10);
