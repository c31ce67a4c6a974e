//! Requests to the admin listener of a running proxy, and their responses.
//!
//! Called by the subcommands `healthcheck`, `link`, `offline`, `purge` and `top`.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::Args;

use crate::address::reachable;
use crate::fault::Fault;
use crate::settings::{self, Effective, Environment, given_flags};

/// Of a longer response no more is read.
const RESPONSE_BYTES: usize = 1 << 20;

/// How long to wait for a connection at most.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long a change may take: it may wait for a write to disk, and a slow disk may have other
/// writes queued.
const CHANGE_TIME: Duration = Duration::from_secs(60);

/// How long a page may take.
const PAGE_TIME: Duration = Duration::from_secs(10);

/// Flags that say which proxy is asked for pages.
#[derive(Args, Clone, Debug)]
pub struct AdminArgs {
    /// Configuration file of the proxy
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Admin address of the proxy [default: from the configuration]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// File with the token [default: from the configuration]
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<String>,
}

/// One proxy that is asked for pages.
#[derive(Clone, Debug)]
pub struct AdminClient {
    address: SocketAddr,
    token: Option<String>,
}

impl AdminClient {
    /// The proxy of `args`. Without a readable token file none is sent: on the same machine the
    /// proxy asks for none.
    pub fn new(args: &AdminArgs, environment: &Environment) -> anyhow::Result<Self> {
        let given = given_flags([
            ("admin", &args.admin),
            ("admin-token-file", &args.admin_token_file),
        ]);
        let effective = settings::load(args.config.as_deref(), given, environment)?;
        let address = address(&effective)?;
        let file = effective.values.admin_token_file;
        let token = match (file, &args.admin_token_file) {
            (Some(file), Some(_)) => Some(read_token(&file)?),
            (Some(file), None) => read_token(&file).ok(),
            (None, _) => None,
        };
        Ok(Self { address, token })
    }

    /// The address that is asked.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The content of the page at `path`.
    pub fn get(&self, path: &str) -> anyhow::Result<String> {
        let token = self.token.as_ref();
        let token = token.map(|it| format!("Authorization: Bearer {it}\r\n"));
        let (line, fields) = (format!("GET {path}"), token.unwrap_or_default());
        let answer = ask(self.address, &line, &fields, "", PAGE_TIME);
        let (status, content) = answer.with_context(|| {
            let fault = Fault::new(format!("cannot ask the proxy at {}", self.address));
            fault.hint("is it running? `--admin` names the address of its admin listener")
        })?;
        if status == 200 {
            return Ok(content);
        }
        let fault = Fault::new(format!("the proxy answered {status}: {}", content.trim()));
        Err(match status {
            401 => fault.hint("give the proxy's token with `--admin-token-file FILE`"),
            404 => fault.hint("the proxy may be of an older version"),
            _ => fault,
        }
        .into())
    }
}

/// The address of the admin listener.
pub fn address(effective: &Effective) -> anyhow::Result<SocketAddr> {
    effective.values.admin.ok_or_else(|| {
        let fault = Fault::new("the proxy has no admin listener");
        fault.hint("start the proxy with `--admin ADDRESS`").into()
    })
}

/// The token for changes.
pub fn token(effective: &Effective) -> anyhow::Result<String> {
    let Some(file) = &effective.values.admin_token_file else {
        let fault = Fault::new("no token file is configured");
        let hint = "give the proxy's `--admin-token-file FILE`, or set HASHCACHE_ADMIN_TOKEN_FILE";
        return Err(fault.hint(hint).into());
    };
    read_token(file)
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

/// Asks for a change, with JSON as `content`. Returns status and content of the response.
pub fn change(
    admin: SocketAddr,
    path: &str,
    token: &str,
    content: &str,
) -> anyhow::Result<(u16, String)> {
    let fields = format!(
        "Authorization: Bearer {token}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n",
        content.len()
    );
    ask(
        admin,
        &format!("POST {path}"),
        &fields,
        content,
        CHANGE_TIME,
    )
}

/// Sends `line` (method and path), `fields` (each with its line end) and `content`. Returns status
/// and content of the response, which ends within `patience`.
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

/// The bytes up to the end of the stream, [`RESPONSE_BYTES`] at most.
///
/// # Errors
/// The stream is not over at `deadline`, also if a byte comes now and then.
fn read_until(deadline: Instant, stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut response = Vec::new();
    let mut buffer = [0; 8192];
    while response.len() < RESPONSE_BYTES {
        let left = deadline.saturating_duration_since(now());
        if left.is_zero() {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "no whole answer in time",
            ));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => response.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(response)
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
            stream.write_all(response.as_bytes()).unwrap();
            while drips && stream.write_all(b".").is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            // A close with bytes unread would be a reset.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = io::copy(&mut stream, &mut io::sink());
        });
        let patience = match drips {
            true => Duration::from_millis(100),
            false => Duration::from_secs(60),
        };
        let answer = ask(admin, "GET /-/healthy", "", "", patience);
        server.join().unwrap();
        answer
    }

    #[test]
    fn an_answer_that_drips_ends_with_the_patience() {
        let head = "HTTP/1.1 200 OK\r\n\r\n";
        assert!(asked(head, true).is_err());
        assert_eq!(asked(head, false).unwrap(), (200, String::new()));
    }
}
