//! Requests to the admin listener of a running proxy, and the responses.
//!
//! Called by the subcommands that ask one: `explain`, `healthcheck`, `link`, `list` and `purge`.
//! The address, and the token if one is needed, are those of the settings of the proxy.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::address::reachable;
use crate::fault::Fault;
use crate::settings::{Given, Source, Values, Written, find};

/// One request.
#[derive(Clone, Copy, Debug)]
pub struct AdminRequest<'a> {
    pub method: &'a str,
    /// Path and query.
    pub target: &'a str,
    pub token: Option<&'a str>,
    /// JSON.
    pub body: Option<&'a str>,
    /// How long to wait for the next part of the answer.
    pub patience: Duration,
}

impl<'a> AdminRequest<'a> {
    /// A GET without a token.
    pub fn get(target: &'a str) -> Self {
        Self {
            method: "GET",
            target,
            token: None,
            body: None,
            patience: Duration::from_secs(20),
        }
    }

    /// Status and content of the answer of the listener at `admin`.
    pub fn send(&self, admin: SocketAddr) -> anyhow::Result<(u16, String)> {
        let admin = reachable(admin);
        let mut stream = TcpStream::connect_timeout(&admin, self.patience.min(CONNECT_TIME))?;
        stream.set_read_timeout(Some(self.patience))?;
        stream.set_write_timeout(Some(self.patience))?;
        let Self { method, target, .. } = self;
        let mut request =
            format!("{method} {target} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n");
        if let Some(token) = self.token {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if let Some(body) = self.body {
            let length = body.len();
            request.push_str("Content-Type: application/json\r\n");
            request.push_str(&format!("Content-Length: {length}\r\n"));
        }
        request.push_str("\r\n");
        request.push_str(self.body.unwrap_or_default());
        stream.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
        let answer = String::from_utf8_lossy(&answer);
        let (head, content) = answer
            .split_once("\r\n\r\n")
            .context("no whole answer came")?;
        let status = head.split(' ').nth(1);
        let status = status.and_then(|status| status.parse().ok());
        Ok((
            status.context("the answer is not HTTP")?,
            content.to_owned(),
        ))
    }
}

/// The content of the answer to a GET, which must have the status 200.
pub fn get(admin: SocketAddr, request: &AdminRequest<'_>) -> anyhow::Result<String> {
    let (status, content) = request.send(admin).with_context(|| {
        let fault = Fault::new(format!("cannot ask the proxy at {admin}"));
        fault.hint("is it running? `--admin` names the address of its admin listener")
    })?;
    if status == 200 {
        return Ok(content);
    }
    let said = content.trim();
    let fault = match status {
        // What is wrong with the question.
        400 => Fault::new(said),
        _ => Fault::new(format!("the proxy refused: {said}")),
    };
    Err(match status {
        401 => fault.hint("use the token file that the proxy uses"),
        403 => fault.hint("start the proxy with `--admin-token-file FILE` too"),
        _ => fault,
    }
    .into())
}

/// Settings that were given as flags of a subcommand.
pub fn given(flags: &[(&str, &Option<String>)]) -> Vec<Given> {
    let given = |(flag, word): &(&str, &Option<String>)| {
        Some(Given {
            found: find(flag).expect("they are settings of the proxy"),
            written: Written::One((*word).clone()?),
            source: Source::Flag(format!("--{flag}")),
        })
    };
    flags.iter().filter_map(given).collect()
}

/// The address of the admin listener in `values`.
pub fn admin_of(values: &Values) -> anyhow::Result<SocketAddr> {
    values.admin.ok_or_else(|| {
        let fault = Fault::new("the proxy has no admin listener");
        fault.hint("start the proxy with `--admin ADDRESS`").into()
    })
}

/// The token in the token file of `values`.
pub fn token_of(values: &Values) -> anyhow::Result<String> {
    let Some(file) = &values.admin_token_file else {
        let fault = Fault::new("no token file is configured");
        let hint = "give the proxy's `--admin-token-file FILE`, or set HASHCACHE_ADMIN_TOKEN_FILE";
        return Err(fault.hint(hint).into());
    };
    token(file)
}

fn token(file: &Path) -> anyhow::Result<String> {
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

/// A value in a query string: what is neither letter nor digit is percent-encoded.
pub fn encoded(value: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' | b':' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    value.bytes().map(byte).collect()
}

/// How long to wait for a connection at most.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// An answer is a report, not content.
const ANSWER_BYTES: u64 = 8 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_in_queries_are_encoded() {
        assert_eq!(
            encoded("http://a/?b=c&d é%"),
            "http://a/%3Fb%3Dc%26d%20%C3%A9%25"
        );
    }
}
