//! One request to the admin listener of a running proxy, and its response.
//!
//! Called by the subcommands `healthcheck`, `link`, `offline` and `purge`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::address::reachable;
use crate::fault::Fault;
use crate::settings::Effective;

/// Longest response that is read.
const RESPONSE_BYTES: u64 = 1 << 20;

/// How long to wait for a connection at most.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// How long a change may take: it may wait for a write to disk, and a slow disk may have other
/// writes queued.
const CHANGE_TIME: Duration = Duration::from_secs(60);

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
