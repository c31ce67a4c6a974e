//! One request to the admin listener of a running proxy, and its response.
//!
//! Called by the subcommands `healthcheck`, `link` and `purge`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Context as _;

use crate::address::reachable;

/// Longest response that is read.
const RESPONSE_BYTES: u64 = 1 << 20;

/// How long to wait for a connection at most.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Sends `line` (method and path), `fields` (each with its line end) and `content`. Returns status
/// and content of the response, which may begin `patience` later.
pub fn ask(
    admin: SocketAddr,
    line: &str,
    fields: &str,
    content: &str,
    patience: Duration,
) -> anyhow::Result<(u16, String)> {
    let admin = reachable(admin);
    let mut stream = TcpStream::connect_timeout(&admin, patience.min(CONNECT_TIME))?;
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let request =
        format!("{line} HTTP/1.1\r\nHost: {admin}\r\n{fields}Connection: close\r\n\r\n{content}");
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    stream.take(RESPONSE_BYTES).read_to_end(&mut response)?;
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
