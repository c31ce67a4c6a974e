//! A request to a running proxy's admin listener, the response, and the flags that name the
//! listener.
//!
//! Called by the subcommands `explain`, `healthcheck`, `link`, `list`, `offline`, `purge` and
//! `top`.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;
use hashcache_settings::fault::Fault;
use hashcache_settings::{Effective, Environment, given_flags};

use crate::address::reachable;

/// Maximum length of a response; a longer response is an error.
const RESPONSE_BYTES: usize = 8 << 20;

/// Timeout for a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Timeout for a change: it may wait for a write to disk, and a slow disk may have other writes
/// queued.
const CHANGE_TIME: Duration = Duration::from_secs(60);

/// Timeout for a view: for a part of a list, the proxy walks through the store.
const VIEW_TIME: Duration = Duration::from_secs(60);

/// Flags that name the admin listener of a running proxy.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct AdminArgs {
    /// Configuration file of the proxy
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Admin address of the proxy [default: from the configuration]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// File with the token, if the proxy needs it [default: from the configuration]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
}

impl AdminArgs {
    /// The listener that these flags name; if a flag is missing, the proxy's setting is used.
    pub fn listener(&self, environment: &Environment) -> anyhow::Result<AdminListener> {
        let given = given_flags([
            ("admin", &self.admin),
            ("admin-token-file", &self.admin_token_file),
        ]);
        let effective = hashcache_settings::load(self.config.as_deref(), given, environment)?;
        Ok(AdminListener {
            address: address(&effective)?,
            token_file: effective.values.startup.admin_token_file,
            is_token_given: self.admin_token_file.is_some(),
        })
    }
}

/// A running proxy's admin listener.
#[derive(Clone, Debug)]
pub struct AdminListener {
    pub address: SocketAddr,
    token_file: Option<PathBuf>,
    /// True if a flag names the file.
    is_token_given: bool,
}

impl AdminListener {
    /// Returns the token for a page that needs no token on the same machine. If the file is missing
    /// or unreadable, no token is sent, unless a flag names the file.
    ///
    /// # Errors
    /// The file that a flag names cannot be read or contains no token.
    pub fn token_to_send(&self) -> anyhow::Result<Option<String>> {
        if self.is_token_given {
            self.token().map(Some)
        } else {
            Ok(self.token().ok())
        }
    }

    /// Returns the token.
    ///
    /// # Errors
    /// No file is configured, or it cannot be read or contains no token.
    pub fn token(&self) -> anyhow::Result<String> {
        self.token_if_any()?.ok_or_else(|| {
            let fault = Fault::new("no token file is configured");
            let hint =
                "give the proxy's `--admin-token-file FILE`, or set HASHCACHE_ADMIN_TOKEN_FILE";
            fault.hint(hint).into()
        })
    }

    /// As [`Self::token`], but returns `None` if no file is configured.
    pub fn token_if_any(&self) -> anyhow::Result<Option<String>> {
        self.token_file.as_deref().map(read_token).transpose()
    }

    /// Sends a change as JSON in `content`, with the token. Returns the response's status and
    /// content.
    pub fn change(&self, path: &str, content: &str) -> anyhow::Result<(u16, String)> {
        let fields = format!(
            "Authorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n",
            self.token()?,
            content.len()
        );
        let line = format!("POST {path}");
        let answer = ask(self.address, &line, &fields, content, CHANGE_TIME);
        answer.with_context(|| cannot_ask(self.address))
    }
}

/// The admin listener's address.
pub fn address(effective: &Effective) -> anyhow::Result<SocketAddr> {
    effective.values.startup.admin.ok_or_else(|| {
        let fault = Fault::new("the proxy has no admin listener");
        fault.hint("start the proxy with `--admin ADDRESS`").into()
    })
}

fn read_token(file: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read the token in {}", file.display()))?;
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        let fault = Fault::new(format!("{} contains no token", file.display()));
        let hint = "a token is one line of 16 or more letters and digits";
        return Err(fault.hint(hint).into());
    }
    Ok(token.to_owned())
}

/// Returns the page at `target`. `token` is sent if the page needs it.
///
/// # Errors
/// The status is not 200; the error has a hint for the operator.
pub fn view(admin: SocketAddr, target: &str, token: Option<&str>) -> anyhow::Result<String> {
    let fields = token.map(|token| format!("Authorization: Bearer {token}\r\n"));
    let fields = fields.unwrap_or_default();
    let answer = ask(admin, &format!("GET {target}"), &fields, "", VIEW_TIME);
    match answer.with_context(|| cannot_ask(admin))? {
        (200, content) => Ok(content),
        (status, content) => Err(refusal(status, &content).into()),
    }
}

fn cannot_ask(admin: SocketAddr) -> Fault {
    let fault = Fault::new(format!("cannot ask the proxy at {admin}"));
    fault.hint("is it running? `--admin` names the address of its admin listener")
}

/// The fault for a response with a status other than 200, with a hint for the operator.
pub fn refusal(status: u16, content: &str) -> Fault {
    let said = content.trim();
    let fault = match status {
        // The response names the mistake in the request.
        400 => Fault::new(said),
        _ => Fault::new(format!("the proxy refused: {said}")),
    };
    match status {
        401 => fault.hint("use the token file that the proxy uses"),
        403 => fault.hint("start the proxy with `--admin-token-file FILE` too"),
        404 => fault.hint("the proxy may be of an older version"),
        429 => fault.hint("purge by URL, or use `--everything`: neither needs a ban"),
        _ => fault,
    }
}

/// Encodes a value for a query string: a byte is percent-encoded unless it is a letter, a digit or
/// one of `-._~/:`.
pub fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}

/// Sends `line` (method and path), `fields` (each with a line end) and `content`. Returns the
/// response's status and content, which must be complete within `patience`.
pub fn ask(
    admin: SocketAddr,
    line: &str,
    fields: &str,
    content: &str,
    patience: Duration,
) -> anyhow::Result<(u16, String)> {
    let deadline = now() + patience;
    let admin = reachable(admin);
    let mut stream = TcpStream::connect_timeout(&admin, patience.min(CONNECT_TIME))?;
    stream.set_write_timeout(Some(patience))?;
    let request =
        format!("{line} HTTP/1.1\r\nHost: {admin}\r\n{fields}Connection: close\r\n\r\n{content}");
    stream.write_all(request.as_bytes())?;
    let response = read_until(deadline, &mut stream)?;
    let response = String::from_utf8_lossy(&response);
    let (head, content) = response
        .split_once("\r\n\r\n")
        .context("no whole answer came")?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    Ok((
        status.context("the answer is not HTTP")?,
        content.to_owned(),
    ))
}

/// Reads all bytes until the stream is closed.
///
/// # Errors
/// The stream is still open at `deadline`, even if bytes keep arriving, or it has more than
/// [`RESPONSE_BYTES`].
fn read_until(deadline: Instant, stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut response = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no whole answer in time",
            ));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(response),
            Ok(count) if response.len() + count > RESPONSE_BYTES => {
                return Err(io::Error::other("the answer is too long"));
            }
            Ok(count) => response.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a command waits in real time")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// The result of asking a server that answers with `response`, and then with a byte now and
    /// then until the client leaves.
    fn asked(response: &'static str, drips: bool) -> anyhow::Result<(u16, String)> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let admin = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // The client leaves when the response is too long.
            let _ = stream.write_all(response.as_bytes());
            while drips && stream.write_all(b".").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            // A close with bytes unread would be a reset.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let patience = if drips {
            Duration::from_millis(100)
        } else {
            Duration::from_secs(60)
        };
        let answer = ask(admin, "GET /-/healthy", "", "", patience);
        server.join().unwrap();
        answer
    }

    #[test]
    fn values_in_queries_are_encoded() {
        assert_eq!(
            encoded("http://a/?b=c&d é%"),
            "http://a/%3Fb%3Dc%26d%20%C3%A9%25"
        );
    }

    #[test]
    fn an_answer_that_is_too_long_is_an_error_and_not_cut() {
        let long = format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(RESPONSE_BYTES));
        assert!(asked(long.leak(), false).is_err());
    }

    #[test]
    fn an_answer_that_drips_ends_with_the_patience() {
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        assert!(asked(head, true).is_err());
        assert_eq!(asked(head, false).unwrap(), (200, String::new()));
    }
}
