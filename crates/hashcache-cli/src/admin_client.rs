//! Requests to the admin listener of a running proxy, and their responses.
//!
//! Called by the subcommands `healthcheck`, `link`, `purge` and `top`. Address and token are those
//! of the proxy's settings, unless flags give others.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;

use crate::address::reachable;
use crate::fault::Fault;
use crate::settings::{self, Environment, Given, Source, Written, find};

/// Flags that say which proxy is asked.
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

impl AdminArgs {
    /// The settings of the proxy with these flags.
    pub fn settings(&self, environment: &Environment) -> anyhow::Result<settings::Effective> {
        settings::load(self.config.as_deref(), self.given(), environment)
    }

    fn given(&self) -> Vec<Given> {
        let flags = [
            ("admin", &self.admin),
            ("admin-token-file", &self.admin_token_file),
        ];
        let given = |(flag, word): (&str, &Option<String>)| {
            Some(Given {
                found: find(flag).expect("both are settings of the proxy"),
                written: Written::One(word.clone()?),
                source: Source::Flag(format!("--{flag}")),
            })
        };
        flags.into_iter().filter_map(given).collect()
    }
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
        let effective = args.settings(environment)?;
        let address = admin_address(&effective)?;
        let file = effective.values.admin_token_file;
        let token = match (file, &args.admin_token_file) {
            (Some(file), Some(_)) => Some(token(&file)?),
            (Some(file), None) => token(&file).ok(),
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
        let answer = ask(self.address, &line, &fields, "", PATIENCE);
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

/// The address of the admin listener in the settings.
pub fn admin_address(effective: &settings::Effective) -> anyhow::Result<SocketAddr> {
    let admin = effective.values.admin.map(reachable);
    admin.ok_or_else(|| {
        let fault = Fault::new("the proxy has no admin listener");
        fault.hint("start the proxy with `--admin ADDRESS`").into()
    })
}

/// The token in `file`.
pub fn token(file: &Path) -> anyhow::Result<String> {
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

/// Longest response that is read.
const RESPONSE_BYTES: u64 = 1 << 20;
/// How long to wait for a connection at most.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// How long a page may take.
const PATIENCE: Duration = Duration::from_secs(10);
