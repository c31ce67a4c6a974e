//! `hashcache list`: lists a running proxy's objects, part by part.
//!
//! Called by `main`. The proxy walks through its store slowly; this command prints each part and
//! then requests the next. If the command stops, also by a signal or a closed pipe, the walk stops
//! too. Only one part is in memory at a time.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use hashcache_http::printable_url;
use hashcache_settings::Environment;
use hashcache_settings::units::brief_size;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use crate::admin_client::{AdminArgs, encoded, view};

/// Arguments for `hashcache list`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
The proxy reads its whole store for this, at most a quarter of the time, so a large cache takes
long. Ctrl-C ends the reading at the proxy too. What is printed was stored at some moment of the
walk; a response may be printed twice. It names URLs that people have used, so it needs the token of
--admin-token-file, as a purge does.
Exit status: 0 all of the store was looked at, or --limit was reached, 2 it was not.")]
pub struct ListArgs {
    /// Only URLs that begin with this one
    #[arg(long, value_name = "URL")]
    prefix: Option<String>,
    /// End after so many
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proxy: AdminArgs,
}

/// Prints the list.
pub fn run(args: &ListArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let proxy = args.proxy.listener(environment)?;
    let token = proxy.token()?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    let (mut from, mut examined) = (String::new(), 0);
    let bar = progress_bar();
    while left > 0 {
        let target = target(args.prefix.as_deref(), &from);
        let text = view(proxy.address, &target, Some(&token))?;
        let part: Value = serde_json::from_str(&text).context("the answer is no JSON")?;
        let objects = part["objects"].as_array().map_or(&[][..], Vec::as_slice);
        let objects = &objects[..objects
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX))];
        left -= objects.len() as u64;
        let lines = objects.iter().map(|object| {
            if args.json {
                format!("{object}\n")
            } else {
                told(object)
            }
        });
        let lines: String = lines.collect();
        bar.suspend(|| print(&lines))?;
        examined += part["examined"].as_u64().unwrap_or_default();
        bar.set_position(part["done_permille"].as_u64().unwrap_or_default());
        bar.set_message(format!("{examined} looked at"));
        match part["next"].as_str() {
            Some(next) => next.clone_into(&mut from),
            None => break,
        }
    }
    bar.finish_and_clear();
    Ok(ExitCode::SUCCESS)
}

/// Shows a progress bar if standard error is a terminal.
fn progress_bar() -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1000).with_style(style)
}

/// Writes and flushes lines; a closed pipe stops the list.
fn print(lines: &str) -> anyhow::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(lines.as_bytes())?;
    output.flush()?;
    Ok(())
}

/// Returns the path and query for a request to the admin listener.
fn target(prefix: Option<&str>, from: &str) -> String {
    let mut target = format!("/-/list?from={}", encoded(from));
    if from.is_empty() {
        "/-/list?".clone_into(&mut target);
    }
    if let Some(prefix) = prefix {
        target.push_str(&format!("&prefix={}", encoded(prefix)));
    }
    target
}

/// Formats a stored response as a line: freshness, status, size, URL.
fn told(object: &Value) -> String {
    let number = |name: &str| object[name].as_i64().unwrap_or_default();
    let fresh = if object["fresh"] == true {
        format!("fresh {} s", number("ttl"))
    } else {
        "stale".to_owned()
    };
    let size = object["content_bytes"].as_u64();
    let size = size.map_or("-".to_owned(), brief_size);
    let part = if object["complete"] == true {
        ""
    } else {
        " (part)"
    };
    let variant = if object["varies"] == true {
        " (variant)"
    } else {
        ""
    };
    let url = printable_url(object["url"].as_str().unwrap_or_default());
    format!(
        "{fresh:<15} {:>3} {size:>10}  {url}{part}{variant}\n",
        number("status")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_stored_response_is_a_line() {
        let object = json!({"url": "http://a/", "fresh": true, "ttl": 90, "status": 200,
            "content_bytes": 2048, "complete": true, "varies": false});
        let line = "fresh 90 s      200       2KiB  http://a/\n";
        assert_eq!(told(&object), line);
        let object = json!({"url": "http://a/", "fresh": false, "status": 200,
            "complete": false, "varies": true});
        let line = "stale           200          -  http://a/ (part) (variant)\n";
        assert_eq!(told(&object), line);
    }

    #[test]
    fn each_question_goes_on_where_the_last_answer_has_stopped() {
        assert_eq!(target(None, ""), "/-/list?");
        let target = target(Some("http://a/?b"), "0.log.1.2.3.4");
        assert_eq!(target, "/-/list?from=0.log.1.2.3.4&prefix=http://a/%3Fb");
    }
}
