//! A Gopher server with fixed answers.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A Gopher server on a port of 127.0.0.1; dropping it stops the server.
#[derive(Debug)]
pub struct GopherServer {
    address: SocketAddr,
    lines: Arc<Mutex<Vec<String>>>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl GopherServer {
    /// Starts a server with these answers by selector. Other selectors get an item of type 3.
    ///
    /// # Errors
    /// If the listener cannot be bound.
    pub async fn start(answers: &[(&str, &str)]) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let owned = |&(line, answer): &(&str, &str)| (line.to_owned(), answer.to_owned());
        let answers: BTreeMap<_, _> = answers.iter().map(owned).collect();
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let kept = Arc::clone(&lines);
        let connections: Arc<AtomicUsize> = Arc::default();
        let accepted = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                accepted.fetch_add(1, Ordering::Relaxed);
                let mut socket = BufReader::new(socket);
                let mut line = String::new();
                // A client that closes before the end of the line has sent no selector.
                if socket.read_line(&mut line).await.is_err() || !line.ends_with('\n') {
                    continue;
                }
                let line = line.trim_end_matches(['\r', '\n']).to_owned();
                let answer = answers.get(&line).cloned().unwrap_or_else(|| {
                    format!("3'{line}' does not exist\t\terror.host\t1\r\n.\r\n")
                });
                kept.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(line);
                // An error means that the client disconnected, which is no fault of the server.
                let _ = socket.get_mut().write_all(answer.as_bytes()).await;
            }
        });
        Ok(Self {
            address,
            lines,
            connections,
            task,
        })
    }

    /// Returns a gopher URL of this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("gopher://{}{path}", self.address)
    }

    /// Connections accepted so far, including connections without a selector line.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns all selector lines that clients have sent.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for GopherServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
