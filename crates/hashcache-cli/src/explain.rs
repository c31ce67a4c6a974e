//! `hashcache explain`: asks a running proxy how it would handle a request, and why.
//!
//! Called by `main`. The proxy computes the answer: it fetches nothing, and reads the store without
//! changing any state.

use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use clap::Args;
use hashcache_http::{SpanText, UnixTime};
use hashcache_http::{printable, printable_url};
use hashcache_settings::Environment;
use hashcache_settings::fault::Fault;
use hashcache_settings::units::{about_size, parse_time};
use serde_json::Value;

use crate::admin_client::{AdminArgs, encoded, view};
use crate::output::say;

/// Arguments for `hashcache explain`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
For example: hashcache explain http://example.org/ --client 192.0.2.7 --header 'Accept: text/html'
Nothing is fetched and nothing changes. Where the proxy has a token (--admin-token-file), this needs
it too.
Exit status: 0 the proxy has answered, 2 it has not.")]
pub struct ExplainArgs {
    /// URL of the request; for CONNECT also HOST:PORT
    url: String,
    /// Address of the client [default: this machine]
    #[arg(long, value_name = "IP")]
    client: Option<String>,
    /// User who logs in at the proxy, if a rule needs one
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Time of the request, which decides about rules and freshness: 2026-11-27T08:30:00Z (UTC),
    /// seconds since 1970, or +2h from now
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Method of the request
    #[arg(long, value_name = "METHOD", default_value = "GET")]
    method: String,
    /// Field of the request, such as 'Accept-Encoding: gzip'; may be repeated
    #[arg(long, value_name = "FIELD")]
    header: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    proxy: AdminArgs,
}

/// Sends the request to the proxy and prints the answer.
pub fn run(args: &ExplainArgs, environment: &Environment) -> anyhow::Result<ExitCode> {
    let proxy = args.proxy.listener(environment)?;
    #[expect(clippy::disallowed_methods, reason = "the command begins here")]
    let now = SystemTime::now();
    let now = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let target = target(args, now)?;
    let token = proxy.token_if_any()?;
    let text = view(proxy.address, &target, token.as_deref())?;
    let answer: Value = serde_json::from_str(&text).context("the answer is no JSON")?;
    let text = if args.json {
        format!("{answer:#}\n")
    } else {
        told(&answer)
    };
    say(&text);
    Ok(ExitCode::SUCCESS)
}

/// Returns the request's path and query.
fn target(args: &ExplainArgs, now: Duration) -> anyhow::Result<String> {
    let mut target = format!(
        "/-/explain?url={}&method={}",
        encoded(&args.url),
        encoded(&args.method)
    );
    let mut add = |name: &str, value: &str| {
        target.push_str(&format!("&{name}={}", encoded(value)));
    };
    if let Some(client) = &args.client {
        add("client", client);
    }
    if let Some(user) = &args.user {
        add("user", user);
    }
    if let Some(at) = &args.at {
        add("at", &seconds(at, now)?.to_string());
    }
    for field in &args.header {
        add("header", field);
    }
    Ok(target)
}

/// Parses a time as seconds since 1970: `+` and a duration from now, seconds, or a date in UTC.
fn seconds(text: &str, now: Duration) -> Result<u64, Fault> {
    if let Some(later) = text.strip_prefix('+') {
        return Ok(now.as_secs().saturating_add(parse_time(later)?.as_secs()));
    }
    if let Ok(seconds) = text.parse() {
        return Ok(seconds);
    }
    date(text).ok_or_else(|| {
        let fault = Fault::new(format!("`{text}` is no time"));
        fault.hint("such as 2026-11-27T08:30:00Z (UTC), seconds since 1970, or +2h from now")
    })
}

/// Parses `2026-11-27T08:30:00Z` as seconds since 1970.
fn date(text: &str) -> Option<u64> {
    let (day, time) = text.strip_suffix('Z')?.split_once('T')?;
    let three = |text: &str, by: char| -> Option<[u64; 3]> {
        let parts: Option<Vec<u64>> = text.split(by).map(|part| part.parse().ok()).collect();
        parts?.try_into().ok()
    };
    let ([year, month, day], [hour, minute, second]) = (three(day, '-')?, three(time, ':')?);
    UnixTime::of_utc([year, month, day], [hour, minute, second]).map(|UnixTime(seconds)| seconds)
}

/// Formats the answer as text: a line for each part, with details below it.
fn told(answer: &Value) -> String {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let url = printable_url(&word(&answer["url"]));
    let mut text = format!("{} {url}\n", word(&answer["method"]));
    let mut line = |name: &str, what: &str| {
        let what = printable(what);
        text.push_str(format!("  {name:<13} {what}").trim_end());
        text.push('\n');
    };
    line("outcome", &word(&answer["outcome"]));
    for name in ["site", "mirror"] {
        if let Some(of) = answer[name].as_str() {
            line(name, of);
        }
    }
    if answer["access"].is_object() {
        access(&answer["access"], &mut line);
    }
    let interception = &answer["interception"];
    if interception.is_object() {
        let (decision, why) = (word(&interception["decision"]), word(&interception["why"]));
        line("interception", &format!("{decision}: {why}"));
        if let Some(certificate) = interception["certificate"].as_str() {
            line("", certificate);
        }
        if interception["refused_by_programs_of_the_client"] == true {
            line(
                "",
                "a program of the client refuses the CA and gets a tunnel",
            );
        }
    }
    if answer["store"].is_object() {
        stored(&answer["store"], &mut line);
    }
    if answer["route"].is_object() {
        route(&answer["route"], &mut line);
    }
    text
}

/// Adds lines for the checks, with the rule that decided each check.
fn access(access: &Value, line: &mut dyn FnMut(&str, &str)) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let allowed = access["allowed"] == true;
    line("access", if allowed { "allowed" } else { "refused" });
    if let Some(time) = access["local_time"].as_str() {
        line("", &format!("local time: {time}"));
    }
    for check in list(&access["checks"]) {
        let allowed = check["allowed"] == true;
        let mark = if allowed { "yes" } else { "NO" };
        let (what, by) = (word(&check["check"]), word(&check["by"]));
        line("", &format!("{what}: {mark}, {by}"));
        let rule = &check["rule"];
        if let Some(written) = rule["written"].as_str() {
            line("", &format!("  {written}"));
        }
        if let Some(reason) = rule["reason"].as_str().filter(|_| !allowed) {
            line("", &format!("  reason: {reason}"));
        }
        if let Some(contact) = rule["contact"].as_str().filter(|_| !allowed) {
            line("", &format!("  to ask: {contact}"));
        }
    }
}

/// Adds lines for the object's state in the store.
fn stored(store: &Value, line: &mut dyn FnMut(&str, &str)) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let state = word(&store["state"]);
    match store["why"].as_str() {
        Some(why) => line("store", &format!("{state}: {why}")),
        None => line("store", &state),
    }
    if let Some(last) = store["last_response_not_stored"].as_object() {
        let reason = last.get("reason").map(word).unwrap_or_default();
        let at = last.get("at").and_then(Value::as_u64).unwrap_or_default();
        let at = UnixTime(at);
        let last = format!("the last response was not stored: {reason} (at {at})");
        line("", &last);
    }
    if store["status"].is_null() {
        return;
    }
    let bytes = store["content_bytes"].as_u64();
    let size = bytes.map_or("unknown length".to_owned(), about_size);
    let number = |name: &str| store[name].as_i64().unwrap_or_default();
    let place = word(&store["place"]);
    line("", &format!("status {}, {size}, {place}", number("status")));
    if number("devices") > 1 {
        let device = format!("device {} of {}", number("device") + 1, number("devices"));
        line("", &device);
    }
    let span = |name: &str| SpanText(number(name).unsigned_abs());
    let age = format!("{} old, ", span("age"));
    let lifetime = match number("lifetime") {
        0 => "needs a validation each time: ".to_owned(),
        _ => format!("may be used for {}: ", span("lifetime")),
    };
    line(
        "",
        &format!("{age}{lifetime}{}", word(&store["lifetime_from"])),
    );
    if store["made_stale_by_purge"] == true {
        line("", "a soft purge has made it stale");
    }
    if let Some(missing) = store["missing_bytes"].as_u64().filter(|it| *it > 0) {
        line("", &format!("{} of it are not stored", about_size(missing)));
    }
    if let Some(variant) = store["variant"].as_object() {
        for (name, value) in variant {
            let value = value.as_str().unwrap_or("(none)");
            line("", &format!("variant for {name}: {value}"));
        }
    }
    if let Some(on_error) = store["on_error"].as_str() {
        line("", on_error);
    }
    for (name, value) in store["fields"].as_object().into_iter().flatten() {
        line("", &format!("{name}: {}", word(value)));
    }
}

/// Adds lines for the next hops.
fn route(route: &Value, line: &mut dyn FnMut(&str, &str)) {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    match route["error"].as_str() {
        Some(error) => line("route", &format!("none ({error}): {}", word(&route["by"]))),
        None => line("route", &word(&route["by"])),
    }
    if let Some(owner) = route["owner"].as_str() {
        line("", &format!("owned by: {owner}"));
    }
    for peer in list(&route["asks_first"]) {
        line("", &format!("asked first: {}", word(peer)));
    }
    for (n, hop) in list(&route["hops"]).enumerate() {
        let is = |name: &str| hop[name] == true;
        let state = match (is("up"), is("cut_off")) {
            (_, true) => ", not asked: the line counts as down",
            (false, false) => ", down",
            (true, false) if is("failing") => ", failing: its last answer was an error",
            (true, false) => "",
        };
        let kind = match hop["peer"].as_str() {
            Some(peer) => format!("{} {peer}", word(&hop["kind"])),
            None => word(&hop["kind"]),
        };
        line(
            "",
            &format!("{}. {} ({kind}{state})", n + 1, word(&hop["to"])),
        );
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use crate::args::{Cli, Command};

    use super::*;

    #[test]
    fn a_question_has_what_the_flags_say() {
        let line = [
            "hashcache",
            "explain",
            "http://a/?b=c&d",
            "--client=192.0.2.1",
            "--at=+2h",
            "--header=A: b",
            "--header=C: d",
        ];
        let Command::Explain(args) = Cli::try_parse_from(line).unwrap().command else {
            panic!("another command")
        };
        assert_eq!(
            target(&args, Duration::from_secs(100)).unwrap(),
            "/-/explain?url=http://a/%3Fb%3Dc%26d&method=GET&client=192.0.2.1&at=7300\
             &header=A:%20b&header=C:%20d"
        );
    }

    #[test]
    fn times_are_dates_seconds_or_from_now_on() {
        let at = |text| seconds(text, Duration::from_secs(1000)).ok();
        assert_eq!(at("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(at("2000-02-29T12:00:01Z"), Some(951_825_601));
        assert_eq!(at("2026-11-27T08:30:00Z"), Some(1_795_768_200));
        assert_eq!(at("77"), Some(77));
        assert_eq!(at("+5m"), Some(1300));
        for wrong in [
            "",
            "tomorrow",
            "2026-13-01T00:00:00Z",
            "2026-02-30T00:00:00Z",
            "2026-11-27T08:30Z",
            "+x",
        ] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn an_answer_is_told_part_by_part() {
        let answer = json!({
            "method": "GET", "url": "http://a/",
            "outcome": "answered from the store; fresh for another 5 s",
            "access": {"allowed": true, "checks": [
                {"check": "client", "allowed": true, "by": "it is near"}]},
            "store": {"state": "fresh", "status": 200, "content_bytes": 2048, "place": "on disk",
                "last_response_not_stored": {"reason": "private", "at": 1_795_768_200},
                "device": 1, "devices": 2, "age": 55, "lifetime": 5400,
                "lifetime_from": "max-age of the response", "variant": {"accept": null},
                "missing_bytes": 0, "fields": {"etag": "\"x\""}},
            "route": {"by": "no peer", "hops": [
                {"to": "http://a:80", "kind": "origin", "peer": null, "up": false},
                {"to": "http://b:80", "kind": "origin", "peer": null, "up": true,
                    "failing": true}]},
        });
        let text = told(&answer);
        for line in [
            "GET http://a/\n  outcome       answered from the store; fresh for another 5 s\n",
            "  access        allowed\n                client: yes, it is near\n",
            "  store         fresh\n",
            "was not stored: private (at 2026-11-27 08:30:00 UTC)\n",
            "                status 200, 2.05KB, on disk\n",
            "                device 2 of 2\n",
            "                55 s old, may be used for 1 h 30 min: max-age of the response\n",
            "                variant for accept: (none)\n",
            "                etag: \"x\"\n",
            "  route         no peer\n                1. http://a:80 (origin, down)\n",
            "2. http://b:80 (origin, failing: its last answer was an error)\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
