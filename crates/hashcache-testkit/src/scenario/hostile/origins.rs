//! Origins that send more than the proxy has requested, or nothing at all.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

use super::{Channel, Shake, http2};

/// An origin's behaviour after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Never answers.
    Silent,
    /// Answers with a response head of this size, bytes.
    LargeHead(usize),
    /// Sends endless content.
    Endless,
    /// HTTP/2: endless interim responses, each with a field of 1,000 bytes.
    Interim,
    /// HTTP/2: endless frames of an unknown type.
    UnknownFrames,
}

/// An origin on a port of 127.0.0.1; dropping it stops the server.
pub struct HostileOrigin {
    pub address: SocketAddr,
    sent: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl HostileOrigin {
    /// Starts an origin; with a `shake` it terminates TLS.
    pub async fn start(manner: Manner, shake: Option<Shake>) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let sent = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&sent);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let (shake, sent) = (shake.clone(), Arc::clone(&counted));
                connections.spawn(async move {
                    // An error is the expected result: the proxy has closed the connection.
                    let _ = serve(socket, manner, shake, &sent).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            sent,
            task,
        })
    }

    /// Bytes of endless content or frames sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }
}

impl Drop for HostileOrigin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    socket: TcpStream,
    manner: Manner,
    shake: Option<Shake>,
    sent: &AtomicU64,
) -> io::Result<()> {
    let mut channel: Box<dyn Channel> = match shake {
        Some(shake) => shake(socket).await?,
        None => Box::new(socket),
    };
    let mut input = vec![0; 16 << 10];
    match manner {
        Manner::Silent => loop {
            if channel.read(&mut input).await? == 0 {
                return Ok(());
            }
        },
        Manner::LargeHead(bytes) => {
            let field = "a".repeat(bytes);
            let answer = format!(
                "HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\nX-Large: {field}\r\n\
                 Content-Length: 2\r\n\r\nok"
            );
            loop {
                read_request(&mut channel, &mut input).await?;
                channel.write_all(answer.as_bytes()).await?;
            }
        }
        Manner::Endless => {
            read_request(&mut channel, &mut input).await?;
            let head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=3600\r\n\
                Transfer-Encoding: chunked\r\n\r\n";
            channel.write_all(head).await?;
            let chunk = [b"4000\r\n".to_vec(), vec![b'x'; 0x4000], b"\r\n".to_vec()].concat();
            loop {
                channel.write_all(&chunk).await?;
                sent.fetch_add(chunk.len() as u64, Relaxed);
            }
        }
        Manner::Interim | Manner::UnknownFrames => {
            channel.write_all(&http2::server_start()).await?;
            // The request is on stream 1, and has arrived when there are bytes after the preface; a
            // frame for it sent earlier would be an error of this origin.
            let mut came = 0;
            while came < 24 + 9 + 9 + 20 {
                came += channel.read(&mut input).await?.max(1);
            }
            let mut flood = Vec::new();
            while flood.len() < 16 << 10 {
                match manner {
                    Manner::Interim => http2::early_hints(&mut flood, 1, 1000),
                    _ => http2::unknown(&mut flood, 0),
                }
            }
            let (mut reader, mut writer) = tokio::io::split(channel);
            let reading = tokio::spawn(async move {
                // Read the bytes from the proxy, so that flow control does not stop the proxy.
                while reader.read(&mut input).await.is_ok_and(|read| read > 0) {}
            });
            loop {
                let written = writer.write_all(&flood).await;
                if written.is_err() || reading.is_finished() {
                    reading.abort();
                    return written;
                }
                sent.fetch_add(flood.len() as u64, Relaxed);
            }
        }
    }
}

/// Reads up to the end of a request head; fails if the connection is closed before.
async fn read_request(channel: &mut Box<dyn Channel>, input: &mut [u8]) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        let read = channel.read(input).await?;
        if read == 0 || head.len() > 64 << 10 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&input[..read]);
    }
    Ok(())
}
