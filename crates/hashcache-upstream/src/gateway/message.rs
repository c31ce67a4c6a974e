//! A gateway's HTTP side: the request that `Upstream` has written, and the response that it reads.
//!
//! Called by `ftp` and `gopher`. For the proxy the other end is an origin that uses HTTP/1.1 and
//! closes the connection after each response.
//!
//! Invariant: a response is complete for the reader only if [`ResponseWriter::end`] was called. If
//! the writer is dropped before, the length is not reached, or the last chunk is missing.
//! Cost: a buffer for the head of the request.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hashcache_base::failure::Failure;
use http::header::{AUTHORIZATION, HeaderMap};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

/// A request to a gateway.
#[derive(Debug)]
pub(super) struct GatewayRequest {
    pub(super) is_head: bool,
    /// Path and query from the URL.
    pub(super) target: String,
    pub(super) fields: HeaderMap,
}

/// A user name and a password.
pub(super) type Login = (Vec<u8>, Vec<u8>);

impl GatewayRequest {
    /// Reads the head of a request without content.
    pub(super) async fn read(stream: &mut DuplexStream, head_max: usize) -> Result<Self, Failure> {
        let mut read = Vec::with_capacity(HEAD_USUAL);
        loop {
            if let Some(request) = parse(&read)? {
                return Ok(request);
            }
            if read.len() > head_max {
                return Err(Failure::Internal("the head of a request is too large"));
            }
            let bytes = stream.read_buf(&mut read).await;
            if bytes.unwrap_or(0) == 0 {
                return Err(Failure::ConnectionTerminated);
            }
        }
    }

    /// Returns user name and password from Basic authentication (RFC 7617); `Ok(None)`: none are
    /// given.
    ///
    /// # Errors
    /// The field is not Basic, or contains a control character (also Telnet's 255), which would
    /// terminate a command.
    pub(super) fn login(&self) -> Result<Option<Login>, Failure> {
        let Some(value) = self.fields.get(AUTHORIZATION) else {
            return Ok(None);
        };
        let decoded = value.as_bytes().split_at_checked(6);
        let decoded = decoded.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"basic "));
        let decoded = decoded.and_then(|(_, text)| BASE64.decode(text.trim_ascii()).ok());
        let decoded = decoded.filter(|text| !text.iter().any(is_control));
        let Some(decoded) = decoded else {
            return Err(refused("the user name or password cannot be used"));
        };
        let colon = decoded.iter().position(|&byte| byte == b':');
        let user_end = colon.unwrap_or(decoded.len());
        let password = decoded.get(user_end + 1..).unwrap_or_default();
        Ok(Some((decoded[..user_end].to_vec(), password.to_vec())))
    }
}

fn is_control(byte: &u8) -> bool {
    byte.is_ascii_control() || *byte == 0xff
}

fn parse(read: &[u8]) -> Result<Option<GatewayRequest>, Failure> {
    const OURS: Failure = Failure::Internal("a request to a gateway cannot be read");
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(read) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(OURS),
    }
    let mut map = HeaderMap::new();
    for field in &*request.headers {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_bytes(field.value);
        map.append(name.map_err(|_| OURS)?, value.map_err(|_| OURS)?);
    }
    let (Some(method), Some(target)) = (request.method, request.path) else {
        return Err(OURS);
    };
    let is_head = method == Method::HEAD;
    if !is_head && method != Method::GET {
        return Err(Failure::NotImplemented("methods other than GET and HEAD"));
    }
    Ok(Some(GatewayRequest {
        is_head,
        target: target.to_owned(),
        fields: map,
    }))
}

/// Makes the failure for a request that is refused with 400.
pub(super) const fn refused(reason: &'static str) -> Failure {
    Failure::Refused {
        status: StatusCode::BAD_REQUEST,
        reason,
    }
}

/// A response head.
#[derive(Debug)]
pub(super) struct ResponseHead {
    status: StatusCode,
    text: String,
}

impl ResponseHead {
    pub(super) fn new(status: StatusCode) -> Self {
        let text = format!("HTTP/1.1 {} -\r\nConnection: close\r\n", status.as_u16());
        Self { status, text }
    }

    /// Adds a field; `value` must be valid in a field.
    pub(super) fn field(mut self, name: &str, value: &str) -> Self {
        debug_assert!(!value.contains(['\r', '\n']), "a value of one line");
        self.text.extend([name, ": ", value, "\r\n"]);
        self
    }
}

/// Writes the response to a request.
#[derive(Debug)]
pub(super) struct ResponseWriter {
    stream: DuplexStream,
    is_head: bool,
    is_chunked: bool,
}

impl ResponseWriter {
    pub(super) fn new(stream: DuplexStream, is_head: bool) -> Self {
        Self {
            stream,
            is_head,
            is_chunked: false,
        }
    }

    /// Writes the head. Without a length the content is sent in chunks.
    pub(super) async fn begin(
        &mut self,
        head: ResponseHead,
        length: Option<u64>,
    ) -> Result<(), Failure> {
        let has_content = head.status != StatusCode::NOT_MODIFIED;
        let mut text = head.text;
        match length {
            Some(length) => text.extend(["Content-Length: ", &length.to_string(), "\r\n"]),
            None if has_content => text.push_str("Transfer-Encoding: chunked\r\n"),
            None => {}
        }
        self.is_chunked = length.is_none() && has_content;
        self.is_head |= !has_content;
        text.push_str("\r\n");
        self.write(text.as_bytes()).await
    }

    /// Writes a content piece.
    pub(super) async fn piece(&mut self, piece: &[u8]) -> Result<(), Failure> {
        if self.is_head || piece.is_empty() {
            return Ok(());
        }
        if !self.is_chunked {
            return self.write(piece).await;
        }
        let size = format!("{:x}\r\n", piece.len());
        self.write(size.as_bytes()).await?;
        self.write(piece).await?;
        self.write(b"\r\n").await
    }

    /// Finishes the content, which is complete.
    pub(super) async fn end(&mut self) -> Result<(), Failure> {
        if self.is_chunked && !self.is_head {
            self.write(b"0\r\n\r\n").await?;
        }
        let ended = self.stream.shutdown().await;
        ended.map_err(|_| Failure::ConnectionTerminated)
    }

    /// Writes a whole response.
    pub(super) async fn whole(&mut self, head: ResponseHead, content: &str) -> Result<(), Failure> {
        self.begin(head, Some(content.len() as u64)).await?;
        self.piece(content.as_bytes()).await?;
        self.end().await
    }

    async fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let written = self.stream.write_all(bytes).await;
        written.map_err(|_| Failure::ConnectionTerminated)
    }
}

/// Room for a usual request head, bytes.
const HEAD_USUAL: usize = 2 << 10;
/// Maximum number of fields in a request; the proxy's own limit is smaller by default.
const FIELDS_MAX: usize = 512;
