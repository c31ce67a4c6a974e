//! `hashcache purge`: asks a running proxy to remove objects or to mark them as stale.
//!
//! Called by `main`. Sends a POST to the admin listener; its address and token are read from the
//! settings of the proxy.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::{ArgGroup, Args};
use serde_json::{Map, Value, json};

use crate::admin_client::token;
use crate::fault::Fault;
use crate::output::say;
use crate::settings::{self, Environment, Given, Source, Written, find};

/// Arguments of `hashcache purge`.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "A purge takes effect at once. The command returns when the purge would also \
    survive a power cut.\nExit status: 0 done, 2 failed."
)]
#[command(group = ArgGroup::new("what").required(true).multiple(true))]
#[group(skip)]
pub struct PurgeArgs {
    /// URL of an object; removes all its variants
    #[arg(group = "what", value_name = "URL")]
    url: Vec<String>,
    /// Remove all URLs that begin with this one
    #[arg(long, group = "what", value_name = "URL")]
    prefix: Vec<String>,
    /// Remove objects that the origin gave this label (Surrogate-Key or xkey)
    #[arg(long, group = "what", value_name = "LABEL")]
    label: Vec<String>,
    /// Remove the objects of this cache group (RFC 9875) of --origin
    #[arg(long, group = "what", value_name = "GROUP", requires = "origin")]
    group: Vec<String>,
    /// Origin of the cache group
    #[arg(long, value_name = "URL", requires = "group")]
    origin: Option<String>,
    /// Remove all objects
    #[arg(long, group = "what")]
    everything: bool,
    /// Mark the objects as stale instead of removing them: the next request validates them
    #[arg(long)]
    soft: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
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

/// A removal waits for a write to disk, and a slow disk may have other writes queued.
const PATIENCE: Duration = Duration::from_secs(60);
/// An answer has no more bytes than a list of the purged names.
const ANSWER_BYTES: u64 = 1 << 20;

/// Purges.
pub fn run(args: &PurgeArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let effective = settings::load(args.config.as_deref(), args.given(), environment)?;
    let Some(admin) = effective.values.admin else {
        let fault = Fault::new("the proxy has no admin listener");
        return Err(fault.hint("start the proxy with `--admin ADDRESS`").into());
    };
    let Some(file) = &effective.values.admin_token_file else {
        let fault = Fault::new("no token file is configured");
        let hint = "give the proxy's `--admin-token-file FILE`, or set HASHCACHE_ADMIN_TOKEN_FILE";
        return Err(fault.hint(hint).into());
    };
    let token = token(file)?;
    let (status, answer) = post(admin, &token, &args.body().to_string())
        .with_context(|| format!("cannot ask the proxy at {admin}"))?;
    if status != 200 {
        let fault = Fault::new(format!("the proxy refused: {}", answer.trim()));
        return Err(match status {
            401 => fault.hint("use the token file that the proxy uses"),
            403 => fault.hint("start the proxy with `--admin-token-file FILE` too"),
            429 => fault.hint("purge by URL, or use `--everything`: neither needs a ban"),
            _ => fault,
        }
        .into());
    }
    say(&if args.json { answer } else { told(&answer) });
    Ok(ExitCode::SUCCESS)
}

impl PurgeArgs {
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

    fn body(&self) -> Value {
        let mut body = Map::new();
        let lists = [
            ("url", &self.url),
            ("prefix", &self.prefix),
            ("label", &self.label),
            ("group", &self.group),
        ];
        for (name, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
            body.insert(name.to_owned(), json!(list));
        }
        if let Some(origin) = &self.origin {
            body.insert("origin".to_owned(), json!(origin));
        }
        for (name, is_set) in [("everything", self.everything), ("soft", self.soft)] {
            if is_set {
                body.insert(name.to_owned(), json!(true));
            }
        }
        Value::Object(body)
    }
}

/// Status and content of the answer to a POST.
fn post(admin: SocketAddr, token: &str, body: &str) -> anyhow::Result<(u16, String)> {
    // An unspecified address (0.0.0.0 or ::) cannot be connected to.
    let admin = match admin {
        SocketAddr::V4(it) if it.ip().is_unspecified() => ([127, 0, 0, 1], it.port()).into(),
        SocketAddr::V6(it) if it.ip().is_unspecified() => {
            (std::net::Ipv6Addr::LOCALHOST, it.port()).into()
        }
        other => other,
    };
    let mut stream = TcpStream::connect_timeout(&admin, Duration::from_secs(5))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let request = format!(
        "POST /-/purge HTTP/1.1\r\nHost: {admin}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, content) = answer
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

/// A line for each thing that was purged.
fn told(answer: &str) -> String {
    let report: Value = serde_json::from_str(answer).unwrap_or_default();
    let how = match report["soft"].as_bool() {
        Some(true) => "stale",
        _ => "purged",
    };
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |one: &Value| {
        let what = match one.as_object().and_then(|one| one.iter().next()) {
            Some((kind, _)) if kind == "everything" => "everything".to_owned(),
            Some((kind, _)) if kind == "group" || kind == "origin" => {
                format!("group {} of {}", word(&one["group"]), word(&one["origin"]))
            }
            Some((kind, value)) => format!("{kind} {}", word(value)),
            None => String::new(),
        };
        format!("{how}: {what}\n")
    };
    let purged = report["purged"].as_array();
    purged.into_iter().flatten().map(line).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use crate::args::{Cli, Command};

    use super::*;

    fn args(line: &[&str]) -> Result<PurgeArgs, clap::Error> {
        let line = ["hashcache", "purge"].iter().chain(line);
        match Cli::try_parse_from(line)?.command {
            Command::Purge(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_asked_for_is_what_is_sent() {
        let sent = |line: &[&str]| args(line).unwrap().body();
        assert_eq!(
            sent(&["http://h/a", "--soft"]),
            json!({"url": ["http://h/a"], "soft": true})
        );
        assert_eq!(
            sent(&["--group=g", "--origin=http://h", "--prefix=http://h/b/"]),
            json!({"group": ["g"], "origin": "http://h", "prefix": ["http://h/b/"]})
        );
        assert_eq!(sent(&["--everything"]), json!({"everything": true}));
        for wrong in [
            &[][..],
            &["--soft"],
            &["--group=g"],
            &["http://h/", "--origin=http://h"],
        ] {
            assert!(args(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_was_purged_is_told_line_by_line() {
        let answer =
            r#"{"purged":[{"url":"http://h/"},{"group":"g","origin":"http://h"}],"soft":false}"#;
        assert_eq!(
            told(answer),
            "purged: url http://h/\npurged: group g of http://h\n"
        );
    }
}
