//! A raw client that sends given bytes and reads responses strictly.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpSocket, TcpStream};

use crate::message::{Framing, Head};
use crate::reader::{read_body, read_head};

/// A connection to a server or proxy.
#[derive(Debug)]
pub struct Client {
    io: BufReader<TcpStream>,
    address: SocketAddr,
}

/// How the content of a response was terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// At the end that the framing declares, or the response has no content.
    Complete,
    /// By a FIN or RST before that end, by a RST if there is no framing, or by malformed framing.
    Truncated,
    /// By a FIN, in a response without framing: the client cannot tell whether the content is
    /// complete.
    CloseDelimited,
}

/// A response as received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The head of the final response.
    pub head: Head,
    /// The 1xx response heads before it, in order.
    pub interim: Vec<Head>,
    /// The content, without framing.
    pub body: Vec<u8>,
    /// How the content was terminated.
    pub end: BodyEnd,
    /// Trailer fields.
    pub trailers: Vec<(String, String)>,
    /// Everything doubtful in the response; empty if the server is correct.
    pub complaints: Vec<String>,
}

impl Response {
    /// Returns the value of the first field with this name; case is ignored.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }
}

impl Client {
    /// Connects to a server or proxy.
    ///
    /// # Errors
    /// If the connection attempt fails.
    pub async fn connect(address: SocketAddr) -> io::Result<Self> {
        Self::on(TcpStream::connect(address).await?, address)
    }

    /// As [`Client::connect`], but from the local address `from`.
    ///
    /// # Errors
    /// If the local address cannot be bound or the connection attempt fails.
    pub async fn connect_from(from: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = match from {
            IpAddr::V4(_) => TcpSocket::new_v4()?,
            IpAddr::V6(_) => TcpSocket::new_v6()?,
        };
        socket.bind((from, 0).into())?;
        Self::on(socket.connect(address).await?, address)
    }

    fn on(socket: TcpStream, address: SocketAddr) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        Ok(Self {
            io: BufReader::with_capacity(64 << 10, socket),
            address,
        })
    }

    /// Returns the local address.
    ///
    /// # Errors
    /// If the system cannot return the socket address.
    pub fn local_address(&self) -> io::Result<SocketAddr> {
        self.io.get_ref().local_addr()
    }

    /// Sends these bytes unchanged.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.io.get_mut().write_all(bytes).await
    }

    /// Sends a FIN: the client will send no more requests.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.io.get_mut().shutdown().await
    }

    /// Closes the connection with a RST.
    ///
    /// # Errors
    /// If the connection is broken already.
    pub fn reset(self) -> io::Result<()> {
        self.io.get_ref().set_zero_linger()
    }

    /// Sends a request without content. An http URL as target is sent in absolute-form, as to a
    /// proxy, and the URL authority is the Host. For CONNECT the Host is the target; for any other
    /// target the Host is the server address. A Host in `fields` replaces all of these.
    ///
    /// # Errors
    /// If the connection is broken.
    pub async fn request(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> io::Result<()> {
        let own = self.address.to_string();
        let host = match target.strip_prefix("http://") {
            Some(rest) => rest.split(['/', '?']).next().unwrap_or_default(),
            None if method == "CONNECT" => target,
            None => &own,
        };
        let mut head = format!("{method} {target} HTTP/1.1\r\n");
        if !fields
            .iter()
            .any(|field| field.0.eq_ignore_ascii_case("host"))
        {
            head += &format!("Host: {host}\r\n");
        }
        for (name, value) in fields {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        self.send(head.as_bytes()).await
    }

    /// Sends a GET and reads the response.
    ///
    /// # Errors
    /// As [`Client::read_response`].
    pub async fn get(&mut self, target: &str, fields: &[(&str, &str)]) -> io::Result<Response> {
        self.request("GET", target, fields).await?;
        self.read_response("GET").await
    }

    /// Reads the response to a request with this method; whether the response has content depends
    /// on the method.
    ///
    /// # Errors
    /// If the connection closes or breaks before the head is complete, or the status line has no
    /// valid status code.
    pub async fn read_response(&mut self, method: &str) -> io::Result<Response> {
        let mut body = Vec::new();
        let mut response = self
            .read_response_to(method, |part| body.extend_from_slice(part))
            .await?;
        response.body = body;
        Ok(response)
    }

    /// As [`Client::read_response`], but passes the content to `each` in order instead of storing
    /// it.
    ///
    /// # Errors
    /// If the connection closes or breaks before the head is complete, or the status line has no
    /// valid status code.
    pub async fn read_response_to(
        &mut self,
        method: &str,
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<Response> {
        let mut complaints = Vec::new();
        let mut interim = Vec::new();
        let (head, status) = loop {
            let head = read_head(&mut self.io, &mut complaints).await?;
            let head = head.ok_or(io::ErrorKind::UnexpectedEof)?;
            let status = status(&head.start_line, &mut complaints)?;
            if !(100..200).contains(&status) || status == 101 {
                break (head, status);
            }
            interim.push(head);
        };
        let framing = head.framing(&mut complaints);
        let bodiless = method == "HEAD"
            || matches!(status, 101 | 204 | 304)
            || method == "CONNECT" && (200..300).contains(&status);
        let (end, trailers) = match framing {
            _ if bodiless => (BodyEnd::Complete, Vec::new()),
            Some(Framing::Chunked) if head.start_line.starts_with("HTTP/1.0") => {
                complaints.push("chunked in HTTP/1.0".to_owned());
                (self.read_to_end(each).await, Vec::new())
            }
            Some(framing) => {
                match read_body(&mut self.io, framing, &mut complaints, &mut each).await {
                    Ok(trailers) => (BodyEnd::Complete, trailers),
                    Err(_) => (BodyEnd::Truncated, Vec::new()),
                }
            }
            None => (self.read_to_end(each).await, Vec::new()),
        };
        Ok(Response {
            status,
            head,
            interim,
            body: Vec::new(),
            end,
            trailers,
            complaints,
        })
    }

    async fn read_to_end(&mut self, mut each: impl FnMut(&[u8])) -> BodyEnd {
        loop {
            match self.io.fill_buf().await {
                Ok([]) => return BodyEnd::CloseDelimited,
                Ok(part) => {
                    let taken = part.len();
                    each(part);
                    self.io.consume(taken);
                }
                Err(_) => return BodyEnd::Truncated,
            }
        }
    }

    /// Waits until the server closes the connection; any further byte is an error.
    ///
    /// # Errors
    /// `ConnectionReset` for a RST, `InvalidData` for a further byte.
    pub async fn read_close(&mut self) -> io::Result<()> {
        match self.io.fill_buf().await? {
            [] => Ok(()),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "more bytes instead of an end",
            )),
        }
    }

    /// Returns the socket, for a protocol other than HTTP after CONNECT. No bytes behind the head
    /// may have been read.
    #[must_use]
    pub fn into_socket(self) -> TcpStream {
        assert!(
            self.io.buffer().is_empty(),
            "bytes of the other protocol were read already"
        );
        self.io.into_inner()
    }
}

/// Parses `HTTP/1.x SP 3DIGIT SP reason`.
fn status(line: &str, complaints: &mut Vec<String>) -> io::Result<u16> {
    let mut words = line.splitn(3, ' ');
    let version = words.next().unwrap_or_default();
    let status = words.next().unwrap_or_default();
    if !matches!(version, "HTTP/1.1" | "HTTP/1.0") || words.next().is_none() {
        complaints.push(format!("status line {line:?}"));
    }
    match status.parse() {
        Ok(code @ 100..=599) if status.len() == 3 => Ok(code),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("status line {line:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Origin, Script};

    async fn response_to(script: Script, method: &str) -> Response {
        let origin = Origin::start(move |_| script.clone()).await.unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        client.request(method, "/", &[]).await.unwrap();
        client.read_response(method).await.unwrap()
    }

    #[tokio::test]
    async fn the_end_of_content_is_told() {
        let chunked = [("Transfer-Encoding", "chunked")];
        let begun = Script::new().head(200, &chunked).chunk("ab");
        let cases = [
            (begun.clone().chunk("c").chunk(""), "abc", BodyEnd::Complete),
            (
                begun.clone().bytes("0\r\nT: u\r\n\r\n"),
                "ab",
                BodyEnd::Complete,
            ),
            (begun.clone().close(), "ab", BodyEnd::Truncated),
            (begun.bytes("5\r\nabc").close(), "ababc", BodyEnd::Truncated),
            (Script::response(200, &[], "abc"), "abc", BodyEnd::Complete),
            (
                Script::new()
                    .head(200, &[("Content-Length", "4")])
                    .bytes("abc")
                    .close(),
                "abc",
                BodyEnd::Truncated,
            ),
            (
                Script::new().head(200, &[]).bytes("abc").close(),
                "abc",
                BodyEnd::CloseDelimited,
            ),
            (
                Script::new().head(304, &[("Content-Length", "4")]),
                "",
                BodyEnd::Complete,
            ),
        ];
        for (script, body, end) in cases {
            let response = response_to(script.clone(), "GET").await;
            assert_eq!(
                (&response.body[..], response.end),
                (body.as_bytes(), end),
                "{script:?}"
            );
            assert_eq!(response.complaints, [""; 0]);
        }
        let head = Script::new().head(200, &[("Content-Length", "4")]);
        assert_eq!(response_to(head, "HEAD").await.end, BodyEnd::Complete);
    }

    #[tokio::test]
    async fn interim_responses_and_doubts_are_kept() {
        let script = Script::new()
            .head(103, &[("Link", "a")])
            .bytes("HTTP/1.1 100 \r\n\r\n");
        let response = response_to(
            script
                .head(
                    200,
                    &[("Content-Length", "0"), ("Transfer-Encoding", "chunked")],
                )
                .chunk(""),
            "GET",
        )
        .await;
        assert_eq!(response.interim.len(), 2);
        assert_eq!(response.interim[0].field("link"), Some("a"));
        assert_eq!(response.complaints.len(), 1, "{:?}", response.complaints);
    }

    #[tokio::test]
    async fn a_url_goes_out_in_absolute_form() {
        let origin = Origin::start(|_| Script::response(200, &[], ""))
            .await
            .unwrap();
        let mut client = Client::connect(origin.address()).await.unwrap();
        client.get("http://example.org:81?a", &[]).await.unwrap();
        let request = &origin.requests()[0];
        assert_eq!(request.target(), "http://example.org:81?a");
        assert_eq!(request.field("HOST"), Some("example.org:81"));
    }
}
