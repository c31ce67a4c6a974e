//! `hashcache purge`: makes a running proxy remove objects or mark them as stale.
//!
//! Called by `main`. Sends a POST to the admin listener; the address and the token are read from
//! the proxy's settings.

use std::process::ExitCode;

use clap::{ArgGroup, Args};
use hashcache_settings::Environment;
use serde_json::{Map, Value, json};

use crate::admin_client::{AdminArgs, refusal};
use crate::output::say;

/// Arguments for `hashcache purge`.
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
    #[command(flatten)]
    proxy: AdminArgs,
}

/// Sends the purge and prints the answer.
pub fn run(args: &PurgeArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let proxy = args.proxy.listener(environment)?;
    let answer = match proxy.change("/-/purge", &args.body().to_string())? {
        (200, answer) => answer,
        (status, answer) => return Err(refusal(status, &answer).into()),
    };
    let text = if args.json { answer } else { told(&answer) };
    say(&text);
    Ok(ExitCode::SUCCESS)
}

impl PurgeArgs {
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

/// Formats a line for each purged item.
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
