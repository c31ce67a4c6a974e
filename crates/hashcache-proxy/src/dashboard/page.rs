//! The page as HTML: a document that is complete without a script, and parts of it for `events`.
//!
//! Invariant: all text from outside this program is written with [`Escaped`]. There are no `style`
//! attributes, because the page's policy forbids them.

use std::fmt::{self, Write as _};

use hashcache_base::frame::Escaped;
use hashcache_upstream::offline::Offline;
use serde_json::Value;

use super::Buttons;
use super::amounts::{count, decimal, percent, rate, size, time};
use super::rates::{DeviceRates, Moment, Rates};
use super::view::{SHOWN, View, failing, mean_wait_us, memory, slowest};
use crate::history::Overview;
use crate::history::counts::{By, Counts, Kind, Table, Totals};
use crate::history::name::Name;
use crate::metrics::StoreState;

/// Returns the document with all parts.
pub(super) fn document(moment: &Moment) -> String {
    let mut html = String::with_capacity(16 << 10);
    html.push_str(BEGIN);
    for (id, part) in parts(moment) {
        // Writing to a `String` cannot fail, here and below.
        let _ = write!(html, "<section id={id}>{part}</section>");
    }
    html.push_str(END);
    html
}

/// Returns the parts of the page by their ids, in order.
pub(super) fn parts(moment: &Moment) -> Vec<(&'static str, String)> {
    let Moment {
        view,
        rates,
        course,
    } = moment;
    let overview = &view.overview;
    vec![
        ("head", head(view)),
        ("figures", figures(view, rates, course)),
        ("sources", sources(&overview.day)),
        ("memory", memory_part(view)),
        ("sites", names("Sites", "site", overview.of(By::Site))),
        ("clients", clients(overview)),
        ("users", users(overview)),
        ("failing", failing_part(overview.of(By::Site))),
        ("slowest", slowest_part(overview.of(By::Site))),
        ("disk", disk(view, rates)),
        ("peers", peers(view)),
        ("intercept", intercept(view)),
        ("line", line(view)),
    ]
}

fn head(view: &View) -> String {
    let live = &view.live;
    let (class, store) = match live.engine.store {
        StoreState::Ready => ("good", "ready"),
        StoreState::Opening => ("", "opening: all requests are forwarded"),
        StoreState::Degraded => ("bad", "degraded: a device failed"),
        StoreState::Absent => ("bad", "absent: all requests are forwarded"),
    };
    let mut html = format!(
        "cache <b class=\"{class}\">{store}</b> · up <b>{}</b> · version <b>{}</b>",
        time(live.uptime_seconds),
        Escaped(live.version)
    );
    if live.is_offline {
        html.push_str(" · <b class=bad>offline: what is stored is served, and nothing else</b>");
    }
    if live.clock_suspect {
        html.push_str(" · <b class=bad>the clock may be wrong</b>");
    }
    let damaged = view.overview.damaged;
    if damaged > 0 {
        let _ = write!(
            html,
            " · {damaged} hours of the week are damaged and left out"
        );
    }
    html
}

/// The Internet line's state, with a button for each mode.
fn line(view: &View) -> String {
    let state = if view.live.is_offline {
        "<b class=bad>down</b>: what is stored is served, other requests are refused at once"
    } else {
        "<b class=good>up</b>"
    };
    let mut html = format!("<h2>Line to the Internet</h2><p>{state}");
    if view.buttons == Buttons::Hidden {
        html.push_str("<p>It can be changed here if <code>admin_token_file</code> is set.");
        return html;
    }
    html.push_str("<form method=post action=/-/offline>");
    for (word, mode) in Offline::WORDS {
        let text = match mode {
            Offline::Off => "Treat as up",
            Offline::On => "Treat as down",
            Offline::Auto => "Detect",
        };
        let pressed = if mode == view.live.offline_mode {
            " disabled"
        } else {
            ""
        };
        let _ = write!(
            html,
            "<button name=mode value={word}{pressed}>{text}</button> "
        );
    }
    html.push_str("</form><p>The browser asks for the admin token as a password, once.");
    html
}

fn figures(view: &View, rates: &Rates, course: &[f64]) -> String {
    let overview = &view.overview;
    let mut html = "<dl class=cards>".to_owned();
    let card = |html: &mut String, name: &str, value: &str, more: &str| {
        let _ = write!(
            html,
            "<div><dt>{name}<dd>{value}<small>{more}</small></div>"
        );
    };
    let (recent, _) = &overview.recent;
    let spans = [
        ("now", recent),
        ("24 hours", &overview.day),
        ("7 days", &overview.week),
    ];
    for (span, totals) in spans {
        let hits = percent(totals.hits(), totals.requests());
        let of = format!("of {} requests", count(totals.requests()));
        card(&mut html, &format!("hits, {span}"), &hits, &of);
    }
    for (span, totals) in spans {
        let saved = totals.saved_bytes();
        let part = percent(saved, totals.served_bytes());
        let of = format!("{part} of {}", size(totals.served_bytes()));
        card(&mut html, &format!("saved, {span}"), &size(saved), &of);
    }
    let connections = format!(
        "open: clients {}, origins {}, tunnels {}",
        count(view.live.connections),
        count(view.live.upstream.busy),
        count(view.live.tunnels)
    );
    card(
        &mut html,
        "requests/s",
        &decimal(rates.requests),
        &connections,
    );
    let from = format!("{}/s from origins", rate(rates.origin_bytes));
    let to = format!("{}/s", rate(rates.client_bytes));
    card(&mut html, "to clients", &to, &from);
    html.push_str("</dl>");
    html.push_str(&course_of(course));
    html
}

/// Requests per second over time, as a line above an area.
fn course_of(course: &[f64]) -> String {
    if course.len() < 2 {
        return String::new();
    }
    let most = course.iter().copied().fold(1.0, f64::max);
    let step = 100.0 / (course.len() - 1) as f64;
    let points: String = course
        .iter()
        .enumerate()
        .map(|(at, value)| format!("{:.1},{:.1} ", at as f64 * step, 29.0 - value / most * 28.0))
        .collect();
    format!(
        "<svg class=course viewBox=\"0 0 100 30\" preserveAspectRatio=none role=img \
         aria-label=\"requests per second\"><polygon points=\"0,30 {points}100,30\" />\
         <polyline points=\"{}\" /></svg><p class=scale>requests/s, at most {}</p>",
        points.trim_end(),
        decimal(most)
    )
}

fn sources(day: &Totals) -> String {
    let shares: Vec<(&str, u64)> = Kind::ALL
        .iter()
        .map(|(kind, name)| (words(*kind).unwrap_or(*name), day.of(*kind).bytes))
        .collect();
    let mut html = "<h2>Where bytes come from <small>24 hours</small></h2>".to_owned();
    html.push_str(&bar(&shares));
    html.push_str("<table><tr><th>source<th>requests<th>bytes");
    for (at, (kind, _)) in Kind::ALL.iter().enumerate() {
        let counts = day.of(*kind);
        if counts.requests == 0 {
            continue;
        }
        let _ = write!(
            html,
            "<tr><td><span class=\"key k{at}\"></span>{}<td>{}<td>{}",
            shares[at].0,
            count(counts.requests),
            size(counts.bytes)
        );
    }
    html.push_str("</table>");
    html
}

/// A kind's name on the page, if it differs from the name in JSON.
fn words(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Negative => "stored errors",
        Kind::Stale => "stale responses",
        Kind::Revalidated => "stored, confirmed by the origin",
        Kind::Collapsed => "fetch of another request",
        Kind::Peer => "other caches",
        Kind::Origin => "origins",
        Kind::Failed => "failed or refused",
        Kind::Own => "the proxy itself",
        Kind::Tunnel => "tunnels",
        Kind::Memory | Kind::Disk => return None,
    })
}

fn memory_part(view: &View) -> String {
    let shares = memory(view);
    let limit = view.live.engine.memory_limit_bytes;
    let mut html = format!("<h2>Memory <small>limit {}</small></h2>", size(limit));
    html.push_str(&bar(&shares));
    html.push_str("<table><tr><th>purpose<th>bytes");
    for (at, (name, bytes)) in shares.iter().enumerate() {
        let key = key(at, name);
        let bytes = size(*bytes);
        let _ = write!(
            html,
            "<tr><td><span class=\"key {key}\"></span>{name}<td>{bytes}"
        );
    }
    if let Some(resident) = view.live.resident_bytes {
        let _ = write!(html, "<tr><td>process, by the kernel<td>{}", size(resident));
    }
    html.push_str("</table>");
    html
}

fn disk(view: &View, rates: &Rates) -> String {
    let engine = &view.live.engine;
    let out = match engine.devices_out {
        0 => String::new(),
        out => format!(" <b class=bad>{out} failed</b>"),
    };
    let now = |of: fn(DeviceRates) -> (f64, f64)| match rates.device.map(of) {
        Some((operations, bytes)) => format!("{}/s, {}/s", decimal(operations), rate(bytes)),
        None => "-".to_owned(),
    };
    let about = if engine.objects_exact { "" } else { "about " };
    let rows = [
        ("devices", format!("{}{out}", engine.devices)),
        ("capacity", size(engine.capacity_bytes)),
        ("objects", format!("{about}{}", count(engine.objects))),
        ("reads now", now(|it| (it.reads, it.read_bytes))),
        ("writes now", now(|it| (it.writes, it.written_bytes))),
        (
            "read since the start",
            format!(
                "{} in {}",
                size(engine.device.read_bytes),
                count(engine.device.reads)
            ),
        ),
        (
            "written since the start",
            format!(
                "{} in {}",
                size(engine.device.written_bytes),
                count(engine.device.writes)
            ),
        ),
    ];
    let mut html = "<h2>Disk</h2><table>".to_owned();
    for (name, value) in rows {
        let _ = write!(html, "<tr><td>{name}<td>{value}");
    }
    if view.live.too_large > 0 {
        let number = count(view.live.too_large);
        let _ = write!(
            html,
            "<tr><td>larger than max_object_size, not stored<td>{number}"
        );
    }
    html.push_str("</table>");
    html
}

/// Clients, or their networks if the history leaves clients out.
fn clients(overview: &Overview) -> String {
    match overview.of(By::Client) {
        clients if clients.is_empty() => names("Networks", "network", overview.of(By::Network)),
        clients => names("Clients", "client", clients),
    }
}

/// Users, or nothing if no user has logged in.
fn users(overview: &Overview) -> String {
    match overview.of(By::User) {
        users if users.is_empty() => String::new(),
        users => names("Users", "user", users),
    }
}

fn names(heading: &str, column: &str, table: &Table<Name>) -> String {
    let mut html = format!("<h2>{heading} <small>24 hours, by bytes</small></h2>");
    let (lines, rest) = table.top(SHOWN);
    if lines.is_empty() && rest == Counts::default() {
        html.push_str("<p>No requests.</p>");
        return html;
    }
    let _ = write!(
        html,
        "<table><tr><th>{column}<th>requests<th class=wide>hits<th>bytes<th>saved"
    );
    let row = |html: &mut String, name: &str, counts: &Counts| {
        let _ = write!(
            html,
            "<tr><td>{}<td>{}<td class=wide>{}<td>{}<td>{}",
            Host(name),
            count(counts.requests),
            percent(counts.hits, counts.requests),
            size(counts.client_bytes),
            size(counts.saved_bytes())
        );
    };
    for (name, counts) in &lines {
        row(&mut html, name.as_str(), counts);
    }
    if rest != Counts::default() {
        row(&mut html, "(others)", &rest);
    }
    html.push_str("</table>");
    html
}

fn failing_part(sites: &Table<Name>) -> String {
    let mut html = "<h2>Origins that fail <small>24 hours</small></h2>".to_owned();
    let failing = failing(sites);
    if failing.is_empty() {
        html.push_str("<p>None.</p>");
    } else {
        html.push_str("<table><tr><th>site<th>failures<th>requests");
        for (name, counts) in &failing {
            let _ = write!(
                html,
                "<tr><td>{}<td class=bad>{}<td>{}",
                Host(name.as_str()),
                count(counts.failures),
                count(counts.requests)
            );
        }
        html.push_str("</table>");
    }
    html
}

fn slowest_part(sites: &Table<Name>) -> String {
    let heading = "<h2>Slowest origins <small>24 hours, mean time to the first byte</small></h2>";
    let mut html = heading.to_owned();
    let slowest = slowest(sites);
    if slowest.is_empty() {
        html.push_str("<p>None with three answers.</p>");
    } else {
        html.push_str("<table><tr><th>site<th>time<th>answers");
        for (name, counts) in &slowest {
            let _ = write!(
                html,
                "<tr><td>{}<td>{:.0} ms<td>{}",
                Host(name.as_str()),
                mean_wait_us(counts) as f64 / 1000.0,
                count(counts.answered)
            );
        }
        html.push_str("</table>");
    }
    html
}

fn peers(view: &View) -> String {
    let mut html = "<h2>Peers and links</h2>".to_owned();
    let links = ["parents", "children"].map(|side| view.live.links[side].as_array());
    let links: Vec<&Value> = links.into_iter().flatten().flatten().collect();
    if view.live.peers.is_empty() && links.is_empty() {
        html.push_str("<p>None.</p>");
        return html;
    }
    html.push_str("<table><tr><th>name<th>kind<th>state");
    let mut row = |name: &str, kind: &str, is_up: bool| {
        let (class, state) = if is_up {
            ("good", "up")
        } else {
            ("bad", "down")
        };
        let _ = write!(
            html,
            "<tr><td>{}<td>{kind}<td class={class}>{state}",
            Escaped(name)
        );
    };
    for peer in &view.live.peers {
        row(&peer.name, peer.kind, peer.is_up);
    }
    for link in links {
        let name = link["name"].as_str().or_else(|| link["pin"].as_str());
        row(name.unwrap_or_default(), "link", link["up"] == true);
    }
    html.push_str("</table>");
    html
}

fn intercept(view: &View) -> String {
    let mut html = "<h2>Interception</h2>".to_owned();
    let Some(left) = view.live.authority_seconds_left else {
        html.push_str("<p>Off: https passes through as tunnels.</p>");
        return html;
    };
    let (class, days) = (if left < MONTH { "bad" } else { "" }, left / DAY);
    let _ = write!(
        html,
        "<table><tr><td>certificate authority ends in<td class=\"{class}\">{} days\
         <tr><th>handshakes<th>since the start",
        count(days)
    );
    let intercept = &view.live.intercept;
    let handshakes = intercept["handshakes"].as_object();
    for (name, number) in handshakes.into_iter().flatten() {
        let number = count(number.as_u64().unwrap_or(0));
        let _ = write!(html, "<tr><td>{}<td>{number}", Escaped(name));
    }
    for (name, key) in [
        ("hosts with a verified certificate", "verified_hosts"),
        ("clients that refuse ours", "refusing_clients"),
    ] {
        let number = count(intercept[key].as_u64().unwrap_or(0));
        let _ = write!(html, "<tr><td>{name}<td>{number}");
    }
    html.push_str("</table>");
    html
}

/// An escaped name that may be wrapped after a dot.
struct Host<'a>(&'a str);

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in self.0.split_inclusive('.') {
            write!(f, "{}<wbr>", Escaped(part))?;
        }
        Ok(())
    }
}

/// A bar of shares side by side; a share named `free` is grey.
fn bar(shares: &[(&str, u64)]) -> String {
    let bytes = shares.iter().map(|(_, bytes)| *bytes);
    let all = bytes.fold(0, u64::saturating_add);
    let mut html = "<svg class=bar viewBox=\"0 0 100 8\" preserveAspectRatio=none \
                    aria-hidden=true><rect class=none width=100 height=8 />"
        .to_owned();
    let mut at = 0.0;
    for (number, (name, bytes)) in shares.iter().enumerate() {
        let width = *bytes as f64 * 100.0 / all.max(1) as f64;
        let key = key(number, name);
        if *bytes > 0 {
            let _ = write!(
                html,
                "<rect class={key} x={at:.2} width={width:.2} height=8 />"
            );
        }
        at += width;
    }
    html.push_str("</svg>");
    html
}

/// CSS class with a share's colour.
fn key(number: usize, name: &str) -> String {
    match name {
        "free" => "none".to_owned(),
        _ => format!("k{number}"),
    }
}

const BEGIN: &str = "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8>\
     <meta name=viewport content=\"width=device-width,initial-scale=1\">\
     <title>HashCache</title><link rel=stylesheet href=/dashboard.css>\
     <script src=/dashboard.js defer></script>\
     <noscript><meta http-equiv=refresh content=10></noscript></head>\
     <body><header><h1>HashCache</h1><span id=state><noscript>loaded again every 10 s\
     </noscript></span></header><main>";
const DAY: u64 = 86_400;
/// Remaining authority lifetime below which the page highlights it.
const MONTH: u64 = 30 * DAY;
const END: &str = "</main></body></html>\n";
