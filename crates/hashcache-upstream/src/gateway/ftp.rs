//! The dialogue with an FTP server (RFC 959, 2428, 3659): one file or one directory.
//!
//! ```text
//! USER PASS ─▶ TYPE I ─▶ SIZE MDTM ─▶ EPSV or PASV ─▶ REST RETR ─▶ the file
//!                          └─▶ CWD ─▶ TYPE A ─▶ EPSV or PASV ─▶ MLSD or LIST ─▶ a page
//! ```
//!
//! Called by `gateway::start`. A login that fails becomes 401, so that browsers ask for a password;
//! a file that does not exist becomes 404; a file that is refused, or not available now, becomes
//! 403 or 503. All are responses of the server. Every other error before the response is a failure
//! of the session.
//!
//! Invariants: no command contains a control character from the URL or the login. A file is
//! complete if it has the size from SIZE or, without SIZE, if the server confirms the end of the
//! transfer.
//! Cost: eight round trips for a file; two connections.

use hashcache_base::failure::Failure;
use hashcache_http::{ByteRange, UnixTime, http_date, parse_http_date, parse_range};
use http::StatusCode;
use http::header::{IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ftp_reply::{Reply, ReplyReader};
use super::gopher_menu::decode;
use super::listing::{self, Entry, ListingForm, NAMES_MAX};
use super::message::{GatewayRequest, ResponseHead, ResponseWriter, refused};
use super::{Collected, LIFETIME, PIECE_BYTES, Session, content_type, html, read_some, send_page};

/// Answers `request` with data from the server at the other end of `socket`.
pub(super) async fn serve(
    session: &Session,
    socket: TcpStream,
    request: &GatewayRequest,
    out: &mut ResponseWriter,
) -> Result<(), Failure> {
    let named = Named::parse(&request.target)?;
    let login = request.login()?;
    let mut dialogue = Dialogue {
        session,
        control: BufReader::with_capacity(LINE_ROOM, socket),
        is_private: login.is_some(),
    };
    match dialogue.run(&named, login, request, out).await {
        Ok(()) => Ok(()),
        Err(Stop::Failed(failure)) => Err(failure),
        Err(Stop::Answered(refusal)) => {
            dialogue.quit();
            let content = html::error(refusal.title, &refusal.said);
            let mut head =
                ResponseHead::new(refusal.status).field("Content-Type", "text/html; charset=utf-8");
            if refusal.status == StatusCode::UNAUTHORIZED {
                let realm = format!("Basic realm=\"{}\"", session.host);
                head = head.field("WWW-Authenticate", &realm);
            }
            out.whole(head, &content).await
        }
    }
}

/// The file or directory that an ftp URL names (RFC 1738, section 3.2).
#[derive(Debug, PartialEq, Eq)]
struct Named {
    /// Relative to the login directory, unless it starts with `/`; no `/` at the end.
    path: Vec<u8>,
    kind: NamedKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedKind {
    Directory,
    /// A file, or a directory if the URL lacks the final `/`.
    File,
    /// A file to be sent as text, with network line ends.
    TextFile,
}

impl Named {
    fn parse(target: &str) -> Result<Self, Failure> {
        let path_and_code = target.strip_prefix('/').unwrap_or(target);
        let (path, code) = match path_and_code.rsplit_once(';') {
            Some((path, code)) if code.len() == 6 && code.is_ascii() => {
                match code.to_ascii_lowercase().as_str() {
                    "type=a" => (path, NamedKind::TextFile),
                    "type=i" => (path, NamedKind::File),
                    "type=d" => (path, NamedKind::Directory),
                    _ => (path_and_code, NamedKind::File),
                }
            }
            _ => (path_and_code, NamedKind::File),
        };
        let mut path = decode(path);
        // 0xff starts a command of Telnet, and the control connection follows the Telnet rules.
        if path
            .iter()
            .any(|byte| byte.is_ascii_control() || *byte == 0xff)
        {
            return Err(refused("the path contains a control character"));
        }
        let is_directory = path.is_empty() || path.ends_with(b"/");
        while path.len() > 1 && path.ends_with(b"/") {
            path.pop();
        }
        let kind = if is_directory {
            NamedKind::Directory
        } else {
            code
        };
        Ok(Self { path, kind })
    }
}

/// The reason why a dialogue stops before the content.
enum Stop {
    Failed(Failure),
    /// The server has refused a command, and this refusal is the response.
    Answered(Refusal),
}

struct Refusal {
    status: StatusCode,
    title: &'static str,
    said: Vec<u8>,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// A login failed.
fn no_login(reply: Reply) -> Stop {
    Stop::Answered(Refusal {
        status: StatusCode::UNAUTHORIZED,
        title: "The FTP server wants a user name and password",
        said: reply.text,
    })
}

/// A file or directory is refused.
fn no_file(reply: Reply) -> Stop {
    let (status, title) = match reply.code {
        550 | 551 | 501 | 553 => (StatusCode::NOT_FOUND, "The FTP server has no such file"),
        530 | 532 => (StatusCode::FORBIDDEN, "The FTP server refuses this file"),
        450..=452 => (
            StatusCode::SERVICE_UNAVAILABLE,
            "The FTP server cannot send this file now",
        ),
        code => return Stop::Failed(Failure::FtpReply { code }),
    };
    Stop::Answered(Refusal {
        status,
        title,
        said: reply.text,
    })
}

/// The answers to SIZE and MDTM for a file.
#[derive(Clone, Copy, Debug, Default)]
struct FileFacts {
    size: Option<u64>,
    modified: Option<UnixTime>,
}

/// A control connection.
struct Dialogue<'a> {
    session: &'a Session,
    control: BufReader<TcpStream>,
    /// The response depends on the login.
    is_private: bool,
}

impl Dialogue<'_> {
    async fn run(
        &mut self,
        named: &Named,
        login: Option<(Vec<u8>, Vec<u8>)>,
        request: &GatewayRequest,
        out: &mut ResponseWriter,
    ) -> Result<(), Stop> {
        self.log_in(login).await?;
        if named.kind == NamedKind::Directory {
            let entered = self.enter(&named.path).await?;
            return if entered.is_done() {
                self.send_directory(named, request, out).await
            } else {
                Err(no_file(entered))
            };
        }
        self.send_file(named, request, out).await
    }

    async fn log_in(&mut self, login: Option<(Vec<u8>, Vec<u8>)>) -> Result<(), Stop> {
        let mut greeting = self.reply().await?;
        if greeting.code == 120 {
            // Ready in some minutes.
            greeting = self.reply().await?;
        }
        if !greeting.is_done() {
            let code = greeting.code;
            return Err(Failure::FtpReply { code }.into());
        }
        let anonymous = || (b"anonymous".to_vec(), b"anonymous@".to_vec());
        let (user, password) = login.unwrap_or_else(anonymous);
        let mut reply = self.command("USER", &user).await?;
        if reply.code == 331 {
            reply = self.command("PASS", &password).await?;
        }
        if reply.is_done() {
            Ok(())
        } else {
            Err(no_login(reply))
        }
    }

    /// Sends a file, or the directory with that name.
    async fn send_file(
        &mut self,
        named: &Named,
        request: &GatewayRequest,
        out: &mut ResponseWriter,
    ) -> Result<(), Stop> {
        let is_text = named.kind == NamedKind::TextFile;
        self.set_type(if is_text { b"A" } else { b"I" }).await?;
        let mut facts = FileFacts::default();
        if !is_text {
            let size = self.command("SIZE", &named.path).await?;
            facts.size = size.size();
            if size.code == 550 && self.enter(&named.path).await?.is_done() {
                return self.send_directory(named, request, out).await;
            }
        }
        if !sets_time(&named.path) {
            let modified = self.command("MDTM", &named.path).await?.modified();
            facts.modified = modified.filter(|time| *time <= self.session.now);
        }
        if is_unchanged(request, facts, self.session.now) {
            self.quit();
            let head = self.head(StatusCode::NOT_MODIFIED, named, facts);
            out.begin(head, None).await?;
            return Ok(out.end().await?);
        }
        if request.is_head && facts.size.is_some() {
            self.quit();
            let head = self.head(StatusCode::OK, named, facts);
            out.begin(head, facts.size).await?;
            return Ok(out.end().await?);
        }
        let mut range = match wanted_range(request, facts) {
            Wanted::Whole => None,
            Wanted::Part(range) => Some(range),
            Wanted::Nothing(size) => {
                self.quit();
                let head = ResponseHead::new(StatusCode::RANGE_NOT_SATISFIABLE)
                    .field("Content-Range", &format!("bytes */{size}"));
                return Ok(out.whole(head, "").await?);
            }
        };
        let mut data = self.open_data().await?;
        if let Some(part) = range.filter(|part| part.first > 0) {
            let first = part.first.to_string();
            let restarted = self.command("REST", first.as_bytes()).await?;
            if restarted.code != 350 {
                range = None;
            }
        }
        let begun = self.command("RETR", &named.path).await?;
        if !begun.is_begun() && !begun.is_done() {
            let is_missing = begun.code == 550;
            if is_missing && self.enter(&named.path).await?.is_done() {
                return self.send_directory(named, request, out).await;
            }
            return Err(no_file(begun));
        }
        let (head, length) = match range.zip(facts.size) {
            Some((part, size)) => {
                let ByteRange { first, last } = part;
                let head = self.head(StatusCode::PARTIAL_CONTENT, named, facts);
                let range = format!("bytes {first}-{last}/{size}");
                (head.field("Content-Range", &range), Some(part.length()))
            }
            // With a length of 0 the response would be complete before the transfer has started; a
            // file that is being written, and files that are generated when they are read, also
            // have size 0.
            None => {
                let length = facts.size.filter(|size| *size > 0);
                (self.head(StatusCode::OK, named, facts), length)
            }
        };
        out.begin(head, length).await?;
        if request.is_head {
            return Ok(out.end().await?);
        }
        let is_part = range
            .zip(facts.size)
            .is_some_and(|(part, size)| part.last + 1 < size);
        let is_over = begun.is_done();
        Ok(self.pump(&mut data, length, is_part, is_over, out).await?)
    }

    /// Moves file content. The last piece is held back until the end is confirmed, so that a
    /// response that looks complete is complete.
    async fn pump(
        &mut self,
        data: &mut TcpStream,
        length: Option<u64>,
        is_part: bool,
        is_over: bool,
        out: &mut ResponseWriter,
    ) -> Result<(), Failure> {
        let mut held = Vec::with_capacity(PIECE_BYTES);
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        let mut received = 0_u64;
        loop {
            let read = read_some(self.session, data, &mut piece).await? as u64;
            received += read;
            let excess = length.and_then(|length| received.checked_sub(length));
            match excess {
                Some(excess) if is_part => {
                    let excess = usize::try_from(excess).unwrap_or(usize::MAX);
                    piece.truncate(piece.len().saturating_sub(excess));
                    out.piece(&held).await?;
                    self.quit();
                    out.piece(&piece).await?;
                    return out.end().await;
                }
                // The file grew meanwhile, so SIZE and MDTM described another version.
                Some(1..) => return Err(Failure::ResponseIncomplete),
                _ => {}
            }
            if read == 0 {
                break;
            }
            out.piece(&held).await?;
            held.clear();
            std::mem::swap(&mut held, &mut piece);
        }
        match length {
            Some(length) if received < length => return Err(Failure::ResponseIncomplete),
            Some(_) => {}
            None if is_over => {}
            None => {
                if !self.reply().await?.is_done() {
                    return Err(Failure::ResponseIncomplete);
                }
            }
        }
        self.quit();
        out.piece(&held).await?;
        out.end().await
    }

    /// Sends a page for the current directory.
    async fn send_directory(
        &mut self,
        named: &Named,
        request: &GatewayRequest,
        out: &mut ResponseWriter,
    ) -> Result<(), Stop> {
        let head = ResponseHead::new(StatusCode::OK)
            .field("Content-Type", "text/html; charset=utf-8")
            .field("Cache-Control", &self.cache_control());
        if request.is_head {
            self.quit();
            out.begin(head, None).await?;
            return Ok(out.end().await?);
        }
        self.set_type(b"A").await?;
        let mut data = self.open_data().await?;
        let mut form = ListingForm::Mlsd;
        let mut begun = self.command("MLSD", b"").await?;
        if matches!(begun.code, 500..=504) {
            data = self.open_data().await?;
            form = ListingForm::List;
            begun = self.command("LIST", b"").await?;
        }
        if !begun.is_begun() && !begun.is_done() {
            return Err(no_file(begun));
        }
        let mut collected = Collected::read(self.session, &mut data).await?;
        drop(data);
        if !collected.is_cut && begun.is_begun() && !self.reply().await?.is_done() {
            return Err(Failure::ResponseIncomplete.into());
        }
        self.quit();
        collected.hold_rows(self.session, NAMES_MAX, size_of::<Entry<'_>>())?;
        let mut listing = listing::read(form, &collected.text);
        listing.is_cut |= collected.is_cut;
        out.begin(head, None).await?;
        let host = &self.session.host;
        send_page(out, html::directory(host, &named.path, &listing)).await?;
        Ok(out.end().await?)
    }

    fn head(&self, status: StatusCode, named: &Named, facts: FileFacts) -> ResponseHead {
        let head = ResponseHead::new(status);
        let mut head = match named.kind {
            NamedKind::TextFile => head.field("Content-Type", "text/plain"),
            _ => head.field("Content-Type", content_type::of_name(&named.path)),
        };
        head = head.field(
            "Accept-Ranges",
            match facts.size {
                Some(_) => "bytes",
                None => "none",
            },
        );
        match facts.modified.map(http_date) {
            Some(modified) => {
                head = head.field("Last-Modified", modified.to_str().unwrap_or_default());
                if self.is_private {
                    head.field("Cache-Control", "private")
                } else {
                    head
                }
            }
            None => head.field("Cache-Control", &self.cache_control()),
        }
    }

    fn cache_control(&self) -> String {
        if self.is_private {
            format!("private, {LIFETIME}")
        } else {
            LIFETIME.to_owned()
        }
    }

    async fn set_type(&mut self, code: &[u8]) -> Result<(), Failure> {
        let reply = self.command("TYPE", code).await?;
        if reply.is_done() {
            Ok(())
        } else {
            Err(Failure::FtpReply { code: reply.code })
        }
    }

    /// Enters a directory, if there is a directory with this name.
    async fn enter(&mut self, path: &[u8]) -> Result<Reply, Failure> {
        match path {
            [] => Ok(Reply {
                code: 250,
                text: Vec::new(),
            }),
            _ => self.command("CWD", path).await,
        }
    }

    /// Opens a data connection. Only the port is the server's choice: if the server could choose
    /// the address, it could make us connect to any other host.
    async fn open_data(&mut self) -> Result<TcpStream, Failure> {
        let reply = self.command("EPSV", b"").await?;
        let port = match reply.code {
            229 => reply.extended_port(),
            500..=599 => {
                let reply = self.command("PASV", b"").await?;
                match reply.code {
                    227 => reply.port(),
                    code => return Err(Failure::FtpReply { code }),
                }
            }
            code => return Err(Failure::FtpReply { code }),
        };
        let port = port.filter(|port| *port >= DATA_PORT_MIN);
        let port = port.ok_or(Failure::ResponseMalformed(
            "no port for the data connection",
        ))?;
        let mut address = self.session.address;
        address.set_port(port);
        (self.session.dial)(address).await
    }

    /// Sends a command and waits for the reply.
    async fn command(&mut self, name: &str, argument: &[u8]) -> Result<Reply, Failure> {
        let mut line = Vec::with_capacity(name.len() + argument.len() + 3);
        line.extend_from_slice(name.as_bytes());
        if !argument.is_empty() {
            line.push(b' ');
            line.extend_from_slice(argument);
        }
        debug_assert!(!line.iter().any(u8::is_ascii_control), "one line");
        line.extend_from_slice(b"\r\n");
        if line.len() > LINE_MAX {
            return Err(Failure::Refused {
                status: StatusCode::URI_TOO_LONG,
                reason: "the path is too long for FTP",
            });
        }
        let limit = self.session.reply_time;
        let sent = timeout(limit, self.control.get_mut().write_all(&line)).await;
        let sent = sent.map_err(|_| Failure::FirstByteTimeout(limit))?;
        sent.map_err(|_| Failure::ConnectionTerminated)?;
        self.reply().await
    }

    /// Waits for a reply. 421 means that the server closes the connection.
    async fn reply(&mut self) -> Result<Reply, Failure> {
        let limit = self.session.reply_time;
        let reply = timeout(limit, self.read_reply()).await;
        match reply.unwrap_or(Err(Failure::FirstByteTimeout(limit)))? {
            Reply { code: 421, .. } => Err(Failure::FtpReply { code: 421 }),
            reply => Ok(reply),
        }
    }

    async fn read_reply(&mut self) -> Result<Reply, Failure> {
        let mut reader = ReplyReader::default();
        let mut line = Vec::new();
        loop {
            line.clear();
            self.read_line(&mut line).await?;
            let taken = reader.take(&line);
            let reply = taken.map_err(|_| Failure::ResponseMalformed("not an FTP reply"))?;
            if let Some(reply) = reply {
                return Ok(reply);
            }
        }
    }

    /// Reads a line without the line end.
    async fn read_line(&mut self, line: &mut Vec<u8>) -> Result<(), Failure> {
        loop {
            let read = self.control.fill_buf().await;
            let read = read.map_err(|_| Failure::ConnectionTerminated)?;
            if read.is_empty() {
                return Err(Failure::ConnectionTerminated);
            }
            let end = read.iter().position(|&byte| byte == b'\n');
            line.extend_from_slice(&read[..end.unwrap_or(read.len())]);
            let taken = end.map_or(read.len(), |end| end + 1);
            self.control.consume(taken);
            if line.len() > LINE_MAX {
                return Err(Failure::ResponseMalformed(
                    "a line of the FTP server is too long",
                ));
            }
            if end.is_some() {
                if line.last() == Some(&b'\r') {
                    line.pop();
                }
                return Ok(());
            }
        }
    }

    /// Sends QUIT, without waiting for the reply.
    fn quit(&self) {
        let _ = self.control.get_ref().try_write(b"QUIT\r\n");
    }
}

/// Returns true if some servers would take an MDTM of this path as a command to change the time of
/// a file.
fn sets_time(path: &[u8]) -> bool {
    path.len() > 14 && path[..8].iter().all(u8::is_ascii_digit) && path.contains(&b' ')
}

/// Returns true if the client, or the cache, has the current file: with exactly this time, because
/// a file may be replaced by an older file.
fn is_unchanged(request: &GatewayRequest, facts: FileFacts, now: UnixTime) -> bool {
    let fields = &request.fields;
    if fields.contains_key(IF_NONE_MATCH) {
        return false;
    }
    let since = fields.get(IF_MODIFIED_SINCE);
    let since = since.and_then(|since| parse_http_date(since.as_bytes(), now));
    since
        .zip(facts.modified)
        .is_some_and(|(since, modified)| modified == since)
}

enum Wanted {
    Whole,
    Part(ByteRange),
    /// The range is outside a file with this size.
    Nothing(u64),
}

/// Returns the file part to send: one range, if the size is known and If-Range does not name
/// another version.
fn wanted_range(request: &GatewayRequest, facts: FileFacts) -> Wanted {
    let fields = &request.fields;
    let specs = parse_range(fields).unwrap_or_default();
    let (&[spec], Some(size), false) = (&specs[..], facts.size, request.is_head) else {
        return Wanted::Whole;
    };
    if let Some(version) = fields.get(IF_RANGE)
        && facts.modified.map(http_date).as_ref() != Some(version)
    {
        return Wanted::Whole;
    }
    match spec.resolve(size) {
        Some(range) => Wanted::Part(range),
        None => Wanted::Nothing(size),
    }
}

/// Maximum line length in either direction, bytes.
const LINE_MAX: usize = 4 << 10;
/// Room for the bytes that a server sends at once on the control connection.
const LINE_ROOM: usize = 2 << 10;
/// Lower ports belong to well-known services, and a server must not make us connect to these.
const DATA_PORT_MIN: u16 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn named(target: &str) -> Option<(String, NamedKind)> {
        let named = Named::parse(target).ok()?;
        Some((String::from_utf8(named.path).unwrap(), named.kind))
    }

    #[test]
    fn a_url_names_a_file_or_a_directory() {
        use NamedKind::{Directory, File, TextFile};
        for (target, path, kind) in [
            ("/", "", Directory),
            ("/;type=i", "", Directory),
            ("//", "/", Directory),
            ("/%2F", "/", Directory),
            ("/%2fetc/motd", "/etc/motd", File),
            ("//etc//", "/etc", Directory),
            ("/a%20b/c?d", "a b/c?d", File),
            ("/a;TYPE=A", "a", TextFile),
            ("/a/;type=a", "a", Directory),
            ("/a;type=d", "a", Directory),
            ("/a;type=x", "a;type=x", File),
            ("/a;b", "a;b", File),
            ("/%", "%", File),
        ] {
            assert_eq!(named(target), Some((path.to_owned(), kind)), "{target}");
        }
    }

    #[test]
    fn a_path_cannot_begin_a_command() {
        for target in ["/a%0d%0aDELE%20b", "/a%0A", "/%00", "/%ff", "/%7f", "/%09"] {
            assert_eq!(named(target), None, "{target}");
        }
    }

    #[test]
    fn a_path_that_looks_like_a_time_is_not_given_to_mdtm() {
        assert!(sets_time(b"20300101000000 notes.txt"));
        assert!(!sets_time(b"20300101000000.txt"));
        assert!(!sets_time(b"my 20300101000000 notes"));
    }
}
