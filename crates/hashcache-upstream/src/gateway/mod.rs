//! Gateways: resources on FTP and Gopher servers, as an HTTP origin would serve them.
//!
//! `Upstream` connects to the server and calls `start`, which returns a byte stream. At the other
//! end a task reads an HTTP/1.1 request, talks to the server in that server's protocol, and writes
//! a response. So framing, limits, storing and validation are the same as for any other origin.
//!
//! `ftp` and `gopher` are the two dialogues; `ftp_reply`, `listing` and `gopher_menu` parse the
//! servers' data; `html` makes pages from it, and `message` reads and writes HTTP.
//!
//! Invariants: a broken transfer is never a complete response. A data connection is made only to
//! the address of the control connection, and is checked like any other. The task is aborted with
//! its stream, whatever the server does.
//! Cost: a task and two buffers for each request (`GATEWAY_BYTES`); connections to the servers are
//! not kept.

mod content_type;
mod ftp;
mod ftp_reply;
mod gopher;
mod gopher_menu;
mod html;
mod listing;
mod message;

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hashcache::{Cache, Reservation};
use hashcache_base::failure::Failure;
use hashcache_base::share::{self, Share};
use hashcache_base::task::spawn_local;
use hashcache_http::{Scheme, Target, UnixTime, octets};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, DuplexStream, ReadBuf, duplex};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use self::message::{GatewayRequest, ResponseWriter};

pub use self::gopher_menu::decode;

/// Opens a connection to an address, after checking it.
pub(crate) type Dial =
    Box<dyn Fn(SocketAddr) -> Pin<Box<dyn Future<Output = Result<TcpStream, Failure>>>>>;

/// Data that a dialogue with a server needs beside the connection.
pub(crate) struct Session {
    pub(crate) scheme: Scheme,
    /// Host and port as in the URL.
    pub(crate) host: String,
    /// The server's address.
    pub(crate) address: SocketAddr,
    pub(crate) dial: Dial,
    /// Maximum request head size, bytes.
    pub(crate) head_bytes: usize,
    /// Maximum time for a server reply.
    pub(crate) reply_time: Duration,
    /// Maximum time without content bytes.
    pub(crate) between_bytes_time: Duration,
    pub(crate) now: UnixTime,
    /// The budget, and the client that pays; `None` in tests.
    pub(crate) memory: Option<(Cache, Option<Share>)>,
}

/// The near end, which `Upstream` reads and writes. Dropping it aborts the session.
#[derive(Debug)]
pub(crate) struct GatewayStream {
    stream: DuplexStream,
    task: AbortHandle,
    failed: GatewayFailure,
}

/// The reason why a session failed before the response started.
#[derive(Clone, Debug, Default)]
pub(crate) struct GatewayFailure(Arc<OnceLock<Failure>>);

impl GatewayFailure {
    pub(crate) fn get(&self) -> Option<Failure> {
        self.0.get().cloned()
    }
}

/// Refuses a resource that no session could request, before there is a connection for it: if a
/// connection closes without a line, some servers take this for a request for their root.
///
/// # Errors
/// The reason why the resource is refused.
pub fn check(target: &Target) -> Result<(), Failure> {
    match target.scheme {
        Scheme::Gopher => gopher::wanted(&ascii_path(target)).map(drop),
        _ => Ok(()),
    }
}

/// Returns the page that the gateway makes without a server: a form for the search words.
pub fn own_page(target: &Target) -> Option<Response<Bytes>> {
    if target.scheme != Scheme::Gopher {
        return None;
    }
    let wanted = gopher::wanted(&ascii_path(target)).ok()?;
    let host = target.authority.host_field(target.scheme);
    let mut page = Response::new(Bytes::from(gopher::search_form(&host, &wanted)?));
    let fields = page.headers_mut();
    for (name, value) in [(CONTENT_TYPE, gopher::HTML), (CACHE_CONTROL, LIFETIME)] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    Some(page)
}

/// Path and query in ASCII, as `Upstream` writes them to a session.
fn ascii_path(target: &Target) -> String {
    let mut path = String::new();
    for octet in octets(&target.path_and_query).iter() {
        match octet {
            0x80.. => path.push_str(&format!("%{octet:02X}")),
            _ => path.push(char::from(*octet)),
        }
    }
    path
}

/// Starts a session, in a separate task on this core.
pub(crate) fn start(session: Session, socket: TcpStream) -> GatewayStream {
    let (near, far) = duplex(PIPE_BYTES);
    let failed = GatewayFailure::default();
    let noted = failed.clone();
    let task = spawn_local(async move {
        if let Err(failure) = serve(&noted, session, socket, far).await {
            tracing::debug!(%failure, "gateway session failed");
        }
    });
    GatewayStream {
        stream: near,
        task: task.abort_handle(),
        failed,
    }
}

async fn serve(
    failed: &GatewayFailure,
    session: Session,
    socket: TcpStream,
    mut far: DuplexStream,
) -> Result<(), Failure> {
    // The far end is dropped after the failure is noted: only then the reader sees the end.
    let request = match GatewayRequest::read(&mut far, session.head_bytes).await {
        Ok(request) => request,
        Err(failure) => {
            let _ = failed.0.set(failure.clone());
            return Err(failure);
        }
    };
    let mut out = ResponseWriter::new(far, request.is_head);
    let served = match session.scheme {
        Scheme::Gopher => gopher::serve(&session, socket, &request, &mut out).await,
        _ => ftp::serve(&session, socket, &request, &mut out).await,
    };
    if let Err(failure) = &served {
        let _ = failed.0.set(failure.clone());
    }
    served
}

impl GatewayStream {
    /// Returns the place where the session notes the failure.
    pub(crate) fn failure(&self) -> GatewayFailure {
        self.failed.clone()
    }
}

impl Drop for GatewayStream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl AsyncRead for GatewayStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for GatewayStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Text that a server sends as a whole: a listing or a menu.
#[derive(Debug, Default)]
struct Collected {
    text: Vec<u8>,
    /// There was more than [`TEXT_MAX`].
    is_cut: bool,
    held: Vec<Reservation>,
}

impl Collected {
    /// Reads `from` to the end, or to [`TEXT_MAX`] bytes.
    async fn read(session: &Session, from: &mut TcpStream) -> Result<Self, Failure> {
        let mut collected = Self::default();
        loop {
            if collected.text.len() == collected.text.capacity() {
                collected.hold(session, TEXT_GRAIN)?;
                collected.text.reserve_exact(TEXT_GRAIN);
            }
            if read_some(session, from, &mut collected.text).await? == 0 {
                return Ok(collected);
            }
            if collected.text.len() > TEXT_MAX {
                collected.is_cut = true;
                let end = collected.text.iter().rposition(|&byte| byte == b'\n');
                collected.text.truncate(end.unwrap_or(0));
                return Ok(collected);
            }
        }
    }

    /// Reserves `bytes` bytes of memory until the text is dropped.
    fn hold(&mut self, session: &Session, bytes: usize) -> Result<(), Failure> {
        if let Some((cache, client)) = &session.memory {
            let held = share::reserve_for(client.as_ref(), cache, bytes as u64);
            self.held.push(held.ok_or(Failure::UpstreamLimit)?);
        }
        Ok(())
    }

    /// Reserves memory for the rows that are parsed from the text: at most `most` rows of `row`
    /// bytes.
    fn hold_rows(&mut self, session: &Session, most: usize, row: usize) -> Result<(), Failure> {
        let lines = self.text.iter().filter(|&&byte| byte == b'\n').count() + 1;
        // A vector that grows may have twice the room.
        self.hold(session, lines.min(most) * row * 2)
    }
}

/// Reads the available bytes into the free room in `buffer`; 0 at the end.
async fn read_some(
    session: &Session,
    from: &mut TcpStream,
    buffer: &mut Vec<u8>,
) -> Result<usize, Failure> {
    let limit = session.between_bytes_time;
    let read = timeout(limit, from.read_buf(buffer)).await;
    let read = read.map_err(|_| Failure::ReadTimeout(limit))?;
    read.map_err(|_| Failure::ResponseIncomplete)
}

/// Sends the pieces of a page, joined into larger pieces.
async fn send_page(
    out: &mut ResponseWriter,
    pieces: impl Iterator<Item = String>,
) -> Result<(), Failure> {
    let mut held = String::with_capacity(PIECE_BYTES);
    for piece in pieces {
        if !held.is_empty() && held.len() + piece.len() > PIECE_BYTES {
            out.piece(held.as_bytes()).await?;
            held.clear();
        }
        held.push_str(&piece);
    }
    out.piece(held.as_bytes()).await
}

/// Memory for a session beside the sockets, bytes: the pipe, two content pieces, lines.
pub(crate) const GATEWAY_BYTES: u64 = (PIPE_BYTES + 2 * PIECE_BYTES + (16 << 10)) as u64;
/// Room between a session and the HTTP/1.1 connection.
const PIPE_BYTES: usize = 32 << 10;
/// Maximum number of content bytes that are read at once.
const PIECE_BYTES: usize = 16 << 10;
/// Maximum size for a listing or menu, bytes.
const TEXT_MAX: usize = 1 << 20;
/// Bytes by which the room for text grows.
const TEXT_GRAIN: usize = 64 << 10;
/// Freshness lifetime of listings, menus and resources without a modification time.
const LIFETIME: &str = "max-age=600";
