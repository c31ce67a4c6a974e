//! An origin that follows a script and records all requests.
//!
//! Invariant: a request is recorded before its script starts, so a test that has seen a response
//! can look up the request.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncRead, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::message::{Framing, Head};
use crate::reader::{read_body, read_head};
use crate::script::{Script, Step};

/// A scripted origin on a port of 127.0.0.1; dropping it stops the server and closes all
/// connections.
#[derive(Debug)]
pub struct Origin {
    address: SocketAddr,
    record: Arc<Record>,
    task: JoinHandle<()>,
}

/// A request as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawRequest {
    /// Connection number, counted from 0.
    pub connection: usize,
    /// Request number within the connection, counted from 0.
    pub number: usize,
    /// The head.
    pub head: Head,
    /// The content, without framing; at most the first 64 KiB. Still empty when the `answer`
    /// callback gets the request.
    pub body: Vec<u8>,
    /// Whole content size, bytes.
    pub body_bytes: u64,
    /// Trailer fields.
    pub trailers: Vec<(String, String)>,
    /// True if the request is complete according to its framing.
    pub whole: bool,
}

impl RawRequest {
    /// The method.
    #[must_use]
    pub fn method(&self) -> &str {
        self.head.start_line.split(' ').next().unwrap_or_default()
    }

    /// The request target.
    #[must_use]
    pub fn target(&self) -> &str {
        self.head.start_line.split(' ').nth(1).unwrap_or_default()
    }

    /// Returns the value of the first field with this name; case is ignored.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }
}

#[derive(Debug, Default)]
struct Record {
    requests: Mutex<Vec<RawRequest>>,
    complaints: Mutex<Vec<String>>,
    count: watch::Sender<usize>,
    connections: AtomicUsize,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

const BODY_KEPT: usize = 64 << 10;

impl Origin {
    /// Starts an origin on the current runtime, at a loopback port that the system chooses.
    /// `answer` is called for each request as soon as the head has been received.
    ///
    /// # Errors
    /// If the listener cannot be bound.
    pub async fn start(
        answer: impl Fn(&RawRequest) -> Script + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::start_at(([127, 0, 0, 1], 0).into(), answer).await
    }

    /// As [`Origin::start`], but at this address.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start_at(
        address: SocketAddr,
        answer: impl Fn(&RawRequest) -> Script + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let record = Arc::new(Record::default());
        let (answer, kept) = (Arc::new(answer), record.clone());
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((socket, _)) = listener.accept().await {
                let connection = kept.connections.fetch_add(1, Ordering::Relaxed);
                let (answer, record) = (answer.clone(), kept.clone());
                connections.spawn(async move {
                    // An error means that the client disconnected, which is no fault of the origin.
                    let _ = serve(socket, connection, &*answer, &record).await;
                });
                while connections.try_join_next().is_some() {}
            }
        });
        Ok(Self {
            address,
            record,
            task,
        })
    }

    /// Address at which the origin listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns an http URL of this origin.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns all requests so far, in the order in which the heads were received.
    #[must_use]
    pub fn requests(&self) -> Vec<RawRequest> {
        lock(&self.record.requests).clone()
    }

    /// Requests received so far.
    #[must_use]
    pub fn request_count(&self) -> usize {
        lock(&self.record.requests).len()
    }

    /// Waits until the origin has received `count` requests.
    pub async fn wait_for_requests(&self, count: usize) {
        let mut seen = self.record.count.subscribe();
        seen.wait_for(|&seen| seen >= count)
            .await
            .expect("the record holds the sender");
    }

    /// Returns all complaints about requests; empty if the clients are correct.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        lock(&self.record.complaints).clone()
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.record.connections.load(Ordering::Relaxed)
    }

    /// Bytes received so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.record.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes sent so far.
    #[must_use]
    pub fn bytes_written(&self) -> u64 {
        self.record.bytes_written.load(Ordering::Relaxed)
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    socket: TcpStream,
    connection: usize,
    answer: &(dyn Fn(&RawRequest) -> Script + Send + Sync),
    record: &Record,
) -> io::Result<()> {
    socket.set_nodelay(true)?;
    let mut io = BufReader::new(Counted { socket, record });
    for number in 0.. {
        let mut complaints = Vec::new();
        let head = read_head(&mut io, &mut complaints).await;
        let Some(head) = complain(record, connection, &mut complaints, head)? else {
            return Ok(());
        };
        let framing = head.framing(&mut complaints);
        judge(&head, framing, &mut complaints);
        let doubtful = !complaints.is_empty();
        lock(&record.complaints).append(&mut complaints);
        let request = RawRequest {
            connection,
            number,
            head,
            whole: framing.is_none(),
            ..RawRequest::default()
        };
        let place = {
            let mut requests = lock(&record.requests);
            requests.push(request.clone());
            requests.len() - 1
        };
        record.count.send_modify(|count| *count += 1);
        if doubtful {
            return write(
                &mut io,
                record,
                b"HTTP/1.1 400 Doubtful\r\nContent-Length: 0\r\n\r\n",
            )
            .await;
        }
        let is_head = request.method() == "HEAD";
        let script = answer(&request);
        let mut unread = framing;
        if !script
            .steps
            .iter()
            .any(|step| matches!(step, Step::ReadBody))
        {
            receive(&mut io, record, place, connection, unread.take()).await?;
        }
        for step in &script.steps {
            match step {
                Step::Bytes(bytes) => write(&mut io, record, bytes).await?,
                Step::Content(_) if is_head => {}
                Step::Content(bytes) => write(&mut io, record, bytes).await?,
                Step::ReadBody => {
                    receive(&mut io, record, place, connection, unread.take()).await?;
                }
                Step::Wait(gate) => gate.opened().await,
                Step::Open(gate) => gate.open(),
                Step::Close => return io.get_mut().socket.shutdown().await,
                Step::Reset => return io.get_mut().socket.set_zero_linger(),
            }
        }
    }
    Ok(())
}

async fn receive(
    io: &mut BufReader<Counted<'_>>,
    record: &Record,
    place: usize,
    connection: usize,
    framing: Option<Framing>,
) -> io::Result<()> {
    let Some(framing) = framing else {
        return Ok(());
    };
    let (mut complaints, mut body, mut bytes) = (Vec::new(), Vec::new(), 0);
    let trailers = read_body(io, framing, &mut complaints, |part| {
        bytes += part.len() as u64;
        body.extend_from_slice(&part[..part.len().min(BODY_KEPT - body.len())]);
    })
    .await;
    {
        let request = &mut lock(&record.requests)[place];
        (request.body, request.body_bytes) = (body, bytes);
        request.whole = trailers.is_ok();
        request.trailers = trailers.as_ref().cloned().unwrap_or_default();
    }
    complain(record, connection, &mut complaints, trailers).map(drop)
}

/// Records complaints about the request line, Host, and chunked coding in HTTP/1.0.
fn judge(head: &Head, framing: Option<Framing>, complaints: &mut Vec<String>) {
    let words: Vec<_> = head.start_line.split(' ').collect();
    match words[..] {
        [_, target, "HTTP/1.1" | "HTTP/1.0"] if !target.is_empty() && !target.contains('#') => {}
        _ => complaints.push(format!("request line {:?}", head.start_line)),
    }
    let hosts: Vec<_> = head.fields_named("Host").collect();
    if hosts.len() != 1 && head.start_line.ends_with("1.1") || hosts.len() > 1 {
        complaints.push(format!("Host {hosts:?}"));
    }
    if framing == Some(Framing::Chunked) && head.start_line.ends_with("1.0") {
        complaints.push("chunked in HTTP/1.0".to_owned());
    }
}

fn complain<T>(
    record: &Record,
    connection: usize,
    complaints: &mut Vec<String>,
    result: io::Result<T>,
) -> io::Result<T> {
    // A reset or an early close may be the subject of a test; malformed data never is.
    if let Err(error) = &result
        && error.kind() == io::ErrorKind::InvalidData
    {
        complaints.push(format!("connection {connection}: {error}"));
    }
    if result.is_err() {
        lock(&record.complaints).append(complaints);
    }
    result
}

async fn write(io: &mut BufReader<Counted<'_>>, record: &Record, bytes: &[u8]) -> io::Result<()> {
    // Counted before the write, because a test may read the counter as soon as it has the bytes.
    record
        .bytes_written
        .fetch_add(bytes.len() as u64, Ordering::Relaxed);
    io.get_mut().socket.write_all(bytes).await
}

/// A socket that counts the bytes read.
struct Counted<'a> {
    socket: TcpStream,
    record: &'a Record,
}

impl AsyncRead for Counted<'_> {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let result = std::pin::Pin::new(&mut this.socket).poll_read(cx, buf);
        let read = (buf.filled().len() - before) as u64;
        this.record.bytes_read.fetch_add(read, Ordering::Relaxed);
        result
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A test that panicked while it held the lock has failed already.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BodyEnd, Client, Gate};

    #[tokio::test]
    async fn requests_are_on_record_with_their_bodies() {
        let origin = Origin::start(|_| Script::response(200, &[], "x"))
            .await
            .unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        let put = "PUT /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
                   3;x=y\r\nabc\r\n0\r\nT: u\r\n\r\n";
        client.send(put.as_bytes()).await.unwrap();
        client.read_response("PUT").await.unwrap();
        client.get("/b", &[]).await.unwrap();
        Client::connect(origin.address())
            .await
            .unwrap()
            .get("/c", &[])
            .await
            .unwrap();
        let requests = origin.requests();
        assert_eq!((requests[0].method(), requests[0].target()), ("PUT", "/a"));
        assert_eq!(
            (&requests[0].body[..], requests[0].body_bytes),
            (&b"abc"[..], 3)
        );
        assert_eq!(requests[0].trailers, [("T".to_owned(), "u".to_owned())]);
        assert!(requests.iter().all(|request| request.whole));
        let places: Vec<_> = requests
            .iter()
            .map(|each| (each.connection, each.number))
            .collect();
        assert_eq!(places, [(0, 0), (0, 1), (1, 0)]);
        assert_eq!(origin.complaints(), [""; 0]);
        assert!(origin.bytes_read() > put.len() as u64);
    }

    #[tokio::test]
    async fn whatever_has_two_meanings_is_complained_of() {
        for request in [
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\n\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: \0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx",
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\n",
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\n",
        ] {
            let origin = Origin::start(|_| Script::response(200, &[], "x"))
                .await
                .unwrap();
            let mut client = Client::connect(origin.address()).await.unwrap();
            client.send(request.as_bytes()).await.unwrap();
            let _ = client.read_response("GET").await;
            assert!(!origin.complaints().is_empty(), "{request:?}");
        }
    }

    #[tokio::test]
    async fn scripts_wait_break_off_and_say_where_they_are() {
        let (go, reached) = (Gate::new(), Gate::new());
        let (waits, tells) = (go.clone(), reached.clone());
        let origin = Origin::start(move |request| {
            let begun = Script::new()
                .head(200, &[("Content-Length", "4")])
                .bytes("ab");
            match request.target() {
                "/wait" => begun.open(&tells).wait(&waits).bytes("cd"),
                "/close" => begun.close(),
                _ => begun.wait(&waits).reset(),
            }
        })
        .await
        .unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        let (response, ()) = tokio::join!(client.get("/wait", &[]), async {
            reached.opened().await;
            go.open();
        });
        assert_eq!(response.unwrap().body, b"abcd");
        let response = client.get("/close", &[]).await.unwrap();
        assert_eq!(
            (response.end, &response.body[..]),
            (BodyEnd::Truncated, &b"ab"[..])
        );
        let mut client = Client::connect(origin.address()).await.unwrap();
        let reset = client.get("/reset", &[]).await;
        assert!(reset.is_err() || reset.unwrap().end == BodyEnd::Truncated);
        origin.wait_for_requests(3).await;
        assert_eq!((origin.request_count(), origin.connections()), (3, 2));
    }
}
