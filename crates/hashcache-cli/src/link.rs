//! `hashcache link`: the key of this box for links, and the links of a running proxy.
//!
//! Called by `main`. The proxy's library makes and reads the key; the admin listener reports the
//! status. Invariant: no part of a private key is ever printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::{Args, Subcommand};
use hashcache_proxy::{LinkIdentity, LinkIdentityError};
use hashcache_settings::Environment;
use hashcache_settings::fault::Fault;
use hashcache_settings::units::about_size;
use serde_json::{Value, json};

use crate::admin_client::{AdminArgs, view};
use crate::output::{NOT_WELL, say};

/// Subcommands under `hashcache link`.
#[derive(Clone, Debug, Subcommand)]
pub enum LinkCommand {
    /// Make this box's key, and print its pin and the settings for the other box
    #[command(after_help = INIT_HELP)]
    Init(KeyArgs),
    /// Print the pin of this box's key again
    Pin(KeyArgs),
    /// Show the links of a running proxy: whether they are up, and why not
    #[command(
        after_help = "Exit status: 0 all links are up, 1 a link is down or there is none, \
    2 the command failed."
    )]
    Status(StatusArgs),
}

const INIT_HELP: &str = "\
Run it on both boxes. The key stays on its box: only you can read the file, and nothing that exists
is overwritten. The pin is public: it is the SHA-256 of the key's public half.";

/// Arguments of `hashcache link init` and `link pin`.
#[derive(Args, Clone, Debug)]
pub struct KeyArgs {
    /// Directory for the key [default: from the configuration, otherwise hashcache/link in
    /// ~/.config, or in /etc for root]
    #[arg(long, alias = "directory", value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Arguments for `hashcache link status`.
#[derive(Args, Clone, Debug)]
pub struct StatusArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proxy: AdminArgs,
}

/// Runs the subcommand.
pub fn run(command: &LinkCommand, environment: &Environment) -> anyhow::Result<ExitCode> {
    match command {
        LinkCommand::Init(args) => init(args, environment),
        LinkCommand::Pin(args) => pin(args, environment),
        LinkCommand::Status(args) => status(args, environment),
    }
}

fn init(args: &KeyArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let directory = directory(args.dir.as_deref(), environment)?;
    if args.dir.is_none()
        && let Some(parent) = directory.parent()
    {
        // Missing parents are made only if no flag names the directory.
        let fault = || Fault::new(format!("cannot create {}", parent.display()));
        fs::create_dir_all(parent).with_context(fault)?;
    }
    let made = LinkIdentity::make(&directory);
    let identity = made.map_err(|error| cannot("make a key for links", error))?;
    if args.json {
        say(&json_of(&identity, &directory));
        return Ok(ExitCode::SUCCESS);
    }
    let pin = identity.pin();
    say(&format!(
        "pin          {pin}\nkey          {}\n\n\
         If this box is the child, write on the parent:\n    link_children = [\"{pin}\"]\n\
         If this box is the parent, write on each child:\n    \
         parent = \"https://THIS-BOX:3129\"\n    parent_pin = \"{pin}\"\n    \
         direct = \"never\"    # otherwise requests go out in clear while the link is down\n",
        LinkIdentity::path(&directory).display()
    ));
    Ok(ExitCode::SUCCESS)
}

fn pin(args: &KeyArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let directory = directory(args.dir.as_deref(), environment)?;
    let loaded = LinkIdentity::load(&directory);
    let identity = loaded.map_err(|error| cannot("show the pin", error))?;
    let text = if args.json {
        json_of(&identity, &directory)
    } else {
        format!("{}\n", identity.pin())
    };
    say(&text);
    Ok(ExitCode::SUCCESS)
}

fn json_of(identity: &LinkIdentity, directory: &Path) -> String {
    let all = json!({
        "pin": identity.pin().to_string(),
        "key": LinkIdentity::path(directory),
    });
    format!("{all:#}\n")
}

/// Returns the given directory, otherwise the directory that the proxy would use.
fn directory(given: Option<&Path>, environment: &Environment) -> anyhow::Result<PathBuf> {
    if let Some(directory) = given {
        return Ok(directory.to_owned());
    }
    let effective = hashcache_settings::load(None, vec![], environment)?;
    let directory = effective
        .values
        .reloadable
        .link_dir
        .or_else(|| environment.link_directory());
    directory.ok_or_else(|| {
        let fault = Fault::new("no directory for the key: HOME is not set");
        fault.hint("give a directory with `--dir DIR`").into()
    })
}

fn cannot(what: &str, error: LinkIdentityError) -> anyhow::Error {
    let advice = error.advice();
    let fault = Fault::new(format!("cannot {what}"));
    let fault = match advice {
        Some(advice) => fault.hint(advice),
        None => fault,
    };
    anyhow::Error::from(error).context(fault)
}

fn status(args: &StatusArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let proxy = args.proxy.listener(environment)?;
    let text = view(proxy.address, "/-/links", proxy.token_to_send()?.as_deref())?;
    let links: Value = serde_json::from_str(&text).context("the answer is no JSON")?;
    #[expect(clippy::disallowed_methods, reason = "the command begins here")]
    let now = SystemTime::now();
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let text = if args.json {
        format!("{links:#}\n")
    } else {
        told(&links, now)
    };
    say(&text);
    let each = || {
        ["parents", "children"]
            .into_iter()
            .flat_map(|side| list(&links[side]))
    };
    let is_up = |link: &Value| link["up"] == true;
    Ok(if each().next().is_some() && each().all(is_up) {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_WELL)
    })
}

fn list(links: &Value) -> impl Iterator<Item = &Value> {
    links.as_array().into_iter().flatten()
}

/// Formats the links as text; `now` is the time since 1970.
fn told(links: &Value, now: Duration) -> String {
    let mut text = String::new();
    for link in list(&links["parents"]) {
        let name = link["name"].as_str().unwrap_or_default();
        let url = link["url"].as_str().unwrap_or_default();
        text.push_str(&format!("parent {name}, {url}\n"));
        text.push_str(&state(link, now));
    }
    for parent in list(&links["unlinked_parents"]) {
        let name = parent["name"].as_str().unwrap_or_default();
        let url = parent["url"].as_str().unwrap_or_default();
        text.push_str(&format!(
            "parent {name}, {url}\n    no link: it has no pin, so requests go to it in plain HTTP, \
             and nothing is coded\n"
        ));
    }
    for link in list(&links["children"]) {
        text.push_str(&format!(
            "child {}\n",
            link["pin"].as_str().unwrap_or_default()
        ));
        text.push_str(&state(link, now));
    }
    if text.is_empty() {
        text.push_str("no links are configured: see `hashcache link init --help`\n");
    }
    if let Some(warning) = links["warning"].as_str() {
        text.push_str(&format!("warning: {warning}\n"));
    }
    text
}

fn state(link: &Value, now: Duration) -> String {
    let number = |name: &str| link[name].as_u64().unwrap_or(0);
    let mut text = if link["up"] == true {
        let since = Duration::from_secs(number("since"));
        let time = now.saturating_sub(since).as_secs();
        let address = link["address"].as_str().unwrap_or_default();
        format!("    up for {}, with {address}", span(time))
    } else {
        match link["failure"].as_str() {
            Some(failure) => format!("    down: {failure}"),
            None => "    not connected".to_owned(),
        }
    };
    if let Some(round_trip) = link["round_trip_seconds"].as_f64() {
        text.push_str(&format!(", round trip {:.0} ms", round_trip * 1000.0));
    }
    text.push('\n');
    if let Some(advice) = link["advice"].as_str() {
        text.push_str(&format!("    {advice}\n"));
    }
    if link["bytes_in"].is_u64() {
        text.push_str(&format!(
            "    received {}, sent {}; {} requests and tunnels open, {} in all; connected {} \
             times\n",
            about_size(number("bytes_in")),
            about_size(number("bytes_out")),
            number("streams"),
            number("streams_in_all"),
            number("connections"),
        ));
    }
    let sites: Vec<String> = list(&link["sites"])
        .filter(|site| site["saved_bytes"].as_u64() > Some(0))
        .take(SITES_SHOWN)
        .map(|site| {
            let size = |name: &str| about_size(site[name].as_u64().unwrap_or(0));
            let host = site["host"].as_str().unwrap_or_default();
            format!(
                "{host} {} of {}",
                size("saved_bytes"),
                size("content_bytes")
            )
        })
        .collect();
    if !sites.is_empty() {
        text.push_str(&format!("    saved most: {}\n", sites.join(", ")));
    }
    let chunks = |name: &str| link["chunks"][name].as_u64().unwrap_or(0);
    let content = chunks("literal_bytes") + chunks("reference_bytes");
    if content > 0 {
        text.push_str(&format!(
            "    forwarded ports: {} of content took {} on the link\n",
            about_size(content),
            about_size(chunks("coded_bytes")),
        ));
    }
    if number("opaque_bytes") > 0 {
        let opaque = about_size(number("opaque_bytes"));
        text.push_str(&format!("    tunnels: {opaque} passed unchanged\n"));
    }
    text
}

fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Most hosts in the text; the JSON has more.
const SITES_SHOWN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_is_down_is_told_with_what_to_do() {
        let links = json!({
            "parents": [
                {"name": "hub", "url": "https://hub:1", "up": true, "since": 1000,
                 "address": "192.0.2.1:1", "round_trip_seconds": 0.6, "bytes_in": 4096,
                 "bytes_out": 1024, "streams": 2, "streams_in_all": 7, "connections": 3,
                 "sites": [{"host": "a.example", "saved_bytes": 3072, "content_bytes": 4096},
                 {"host": "b.example", "saved_bytes": 0, "content_bytes": 512}],
                 "opaque_bytes": 2048, "chunks": {"literal_bytes": 1024,
                 "reference_bytes": 1024, "coded_bytes": 1024}},
                {"name": "b", "url": "https://b:1", "up": false, "failure": "no line",
                 "advice": "wait"},
            ],
            "unlinked_parents": [{"name": "squid", "url": "http://squid:3128"}],
            "children": [{"pin": "sha256:x", "up": false}],
        });
        let text = told(&links, Duration::from_secs(1100));
        for line in [
            "parent hub, https://hub:1\n    up for 100 s, with 192.0.2.1:1, round trip 600 ms\n",
            "2 requests and tunnels open, 7 in all; connected 3 times\n",
            "    forwarded ports: 2.05KB of content took 1.02KB on the link\n",
            "    saved most: a.example 3.07KB of 4.10KB\n",
            "    tunnels: 2.05KB passed unchanged\n",
            "parent b, https://b:1\n    down: no line\n    wait\n",
            "parent squid, http://squid:3128\n    no link: it has no pin, ",
            "child sha256:x\n    not connected\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(told(&json!({}), Duration::ZERO).contains("no links"));
    }
}
