//! Requests to the admin listener of a running proxy.
//!
//! Called by `link`, `offline` and `purge`. The answers are short, and no more than that is read.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::address::reachable;
use crate::fault::Fault;
use crate::settings::Effective;

/// The answer to a request.
#[derive(Debug)]
pub struct AdminAnswer {
    /// Its status.
    pub status: u16,
    /// Its content.
    pub content: String,
}

/// The address of the admin listener.
pub fn address(effective: &Effective) -> anyhow::Result<SocketAddr> {
    effective.values.admin.map(reachable).ok_or_else(|| {
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

/// Asks for a page.
pub fn get(admin: SocketAddr, path: &str) -> anyhow::Result<AdminAnswer> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    exchange(admin, &head)
}

/// Asks for a change.
pub fn post(admin: SocketAddr, path: &str, token: &str, body: &str) -> anyhow::Result<AdminAnswer> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    exchange(admin, &request)
}

fn exchange(admin: SocketAddr, request: &str) -> anyhow::Result<AdminAnswer> {
    let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, content) = answer
        .split_once("\r\n\r\n")
        .context("no whole answer came")?;
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    Ok(AdminAnswer {
        status: status.context("the answer is not HTTP")?,
        content: content.to_owned(),
    })
}

/// A removal waits for a write to disk, and a slow disk may have other writes queued.
const PATIENCE: Duration = Duration::from_secs(60);
/// An answer has no more bytes than a list of the purged names, or of links.
const ANSWER_BYTES: u64 = 1 << 20;
